//! Healthy flights as per-second rows, so that a node keeps a few rows instead of thousands of flights.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::flight::{Flight, PodName};
use crate::model::record::{Side, Traffic};

/// Beginning of the second, side, client, backend, Service.
type Key = (
    Timestamp,
    Side,
    Option<PodName>,
    Option<SocketAddr>,
    Option<String>,
);

/// Collects healthy flights into [`Traffic`] rows.
///
/// A flight with both ends on this node makes one row, of the client's side: it counts the attempt and shows that the
/// backend answered.
#[derive(Debug, Default)]
pub struct Aggregator {
    services: HashMap<SocketAddr, String>,
    rows: BTreeMap<Key, Traffic>,
}

impl Aggregator {
    /// Which Service each frontend and backend belongs to.
    pub fn services(&mut self, services: HashMap<SocketAddr, String>) {
        self.services = services;
    }

    /// Adds an answered flight; one without an answer is ignored.
    pub fn add(&mut self, flight: &Flight) {
        let backend = flight.delivery.as_ref().map(|it| it.backend);
        let (side, client, sent, answered, asked) = match (&flight.origin, &flight.delivery) {
            (Some(origin), _) => {
                let Some(answer) = origin.answer else { return };
                let asked = origin.asked.or(origin.destination);
                let client = origin.owner.pod.clone();
                (Side::Client, client, origin.sent, answer.at, asked)
            }
            (None, Some(delivery)) => {
                let Some(replied) = delivery.replied else {
                    return;
                };
                (
                    Side::Server,
                    None,
                    delivery.at,
                    replied,
                    Some(delivery.backend),
                )
            }
            (None, None) => return,
        };
        let service = asked
            .and_then(|it| self.services.get(&it))
            .or_else(|| backend.and_then(|it| self.services.get(&it)))
            .cloned();
        let second = answered.second();
        let key = (second, side, client.clone(), backend, service.clone());
        let row = self.rows.entry(key).or_insert_with(|| Traffic {
            second,
            service,
            side,
            client,
            backend,
            count: 0,
            first_answer: answered,
            last_answer: answered,
            latency_us: BTreeMap::new(),
        });
        row.count += 1;
        row.first_answer = row.first_answer.min(answered);
        row.last_answer = row.last_answer.max(answered);
        let microseconds = u64::try_from(answered.since(sent) / 1_000).unwrap_or(0);
        // The smallest power of two that is not below it.
        let bucket = microseconds.max(1).checked_next_power_of_two();
        *row.latency_us
            .entry(bucket.unwrap_or(u64::MAX))
            .or_default() += 1;
    }

    /// Beginning of the oldest row that was not taken yet.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.rows.first_key_value().map(|(key, _)| key.0)
    }

    /// Takes the rows of the seconds that ended before `before`.
    pub fn take(&mut self, before: Timestamp) -> Vec<Traffic> {
        let first_kept = before.second();
        let mut taken = Vec::new();
        while let Some(entry) = self.rows.first_entry() {
            if entry.key().0 >= first_kept {
                break;
            }
            taken.push(entry.remove());
        }
        taken
    }
}
