//! When each backend is known to have answered.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::model::Timestamp;
use crate::model::flight::Flight;
use crate::model::record::{Side, Traffic};

/// An answer that left a backend between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    earliest: Timestamp,
    latest: Timestamp,
}

/// Answers by backend address.
#[derive(Debug, Default)]
pub(super) struct Answers {
    spans: HashMap<IpAddr, Vec<Span>>,
}

impl Answers {
    pub(super) fn flight(&mut self, flight: &Flight, is_frontend: impl Fn(IpAddr) -> bool) {
        if let Some(delivery) = &flight.delivery
            && let Some(replied) = delivery.replied
        {
            self.add(delivery.backend.ip(), replied, replied);
            return;
        }
        let Some(origin) = &flight.origin else { return };
        if let (Some(answer), Some(destination)) = (origin.answer, origin.destination)
            && !is_frontend(destination.ip())
        {
            self.add(destination.ip(), origin.sent, answer.at);
        }
    }

    pub(super) fn traffic(&mut self, row: &Traffic) {
        let Some(backend) = row.backend else { return };
        let slack = match row.side {
            Side::Server => 0,
            // The reply left the backend within the latency that the client saw.
            Side::Client => {
                let slowest = row.latency_us.keys().next_back().copied().unwrap_or(0);
                i64::try_from(slowest)
                    .unwrap_or(i64::MAX)
                    .saturating_mul(1_000)
            }
        };
        for at in [row.first_answer, row.last_answer] {
            self.add(backend.ip(), at - slack, at);
        }
    }

    fn add(&mut self, backend: IpAddr, earliest: Timestamp, latest: Timestamp) {
        self.spans
            .entry(backend)
            .or_default()
            .push(Span { earliest, latest });
    }

    /// Call once after everything was added.
    pub(super) fn sort(&mut self) {
        for spans in self.spans.values_mut() {
            spans.sort_unstable();
        }
    }

    /// A moment before `until` at which the backend was certainly still answering; the latest known.
    pub(super) fn last_before(&self, backend: IpAddr, until: Timestamp) -> Option<Timestamp> {
        let spans = self.spans.get(&backend)?;
        let end = spans.partition_point(|span| span.earliest <= until);
        let mut last = spans[..end]
            .iter()
            .rev()
            .filter(|span| span.latest <= until);
        last.next().map(|span| span.earliest)
    }

    /// Whether an answer certainly left the backend after `after` and not later than `until`.
    pub(super) fn any_within(&self, backend: IpAddr, after: Timestamp, until: Timestamp) -> bool {
        let Some(spans) = self.spans.get(&backend) else {
            return false;
        };
        let first = spans.partition_point(|span| span.earliest <= after);
        spans.get(first).is_some_and(|span| span.earliest <= until)
    }
}
