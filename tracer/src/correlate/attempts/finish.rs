//! How flights end: given up after a time, handed out in full or counted in a row.

use crate::model::Timestamp;
use crate::model::flight::Flight;

use super::{Asker, Assembler, SECOND};

/// How long a failure makes a later answer to the same question worth keeping in full: it may be a retry.
const RETRY_NS: i64 = 5 * SECOND;

/// How long an ended flight waits for a trail that was asked for before it goes without.
const TRAIL_WAIT_NS: i64 = 2 * SECOND;

/// Deliveries of one client port and txid that are remembered without a reply: resolvers ask a few times, not more.
const LATE_OF_ONE: usize = 16;

/// Which flights are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Whose grace is over.
    Due,
    /// Those, and the healthy ones that have ended.
    Healthy,
    /// All.
    All,
}

impl Assembler {
    /// Ends what was waited for long enough.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let mut failures = Vec::new();
        for (_, open) in self.flights.all_mut() {
            let deadline = open.deadline(&self.limits);
            if open.pending() && now >= deadline {
                let answered = open.flight.origin.is_some();
                open.end(deadline);
                if let (true, Some(asker)) = (answered, open.asker()) {
                    failures.push((asker, deadline));
                }
            }
            if open.pending() && now.since(open.flight.at) >= self.limits.overdue_ns {
                open.overdue();
            }
        }
        for (asker, at) in failures {
            self.remember_failure(asker, at);
        }
    }

    /// A later answer to the same question may be a retry. With no room left it is counted among the healthy.
    pub(super) fn remember_failure(&mut self, asker: Asker, at: Timestamp) {
        if self.failed.len() < self.limits.open || self.failed.contains_key(&asker) {
            self.failed.insert(asker, at);
        }
    }

    /// Hands out what is due: to the caller in full, or into the rows of traffic.
    pub(super) fn finish(&mut self, now: Timestamp, which: Which) -> Vec<Flight> {
        let all = which == Which::All;
        let mut due: Vec<u64> = Vec::new();
        for (id, open) in self.flights.all_mut() {
            let Some(at) = open.due(&self.limits) else {
                if all {
                    due.push(id);
                }
                continue;
            };
            let settled = which == Which::Healthy
                && !self.limits.trails_of_all
                && open.healthy(self.limits.slow_ns);
            if all || settled {
                due.push(id);
            } else if now >= at {
                if open.wants_final_trail() && now.since(at) < TRAIL_WAIT_NS {
                    open.want_now();
                } else {
                    due.push(id);
                }
            }
        }
        let mut kept = Vec::new();
        for id in due {
            let Some(open) = self.flights.remove(id) else {
                continue;
            };
            // An attempt that was waiting when recording stopped was neither answered nor lost.
            let undecided = open.pending() && open.undecided();
            let retry = open.asker().is_some_and(|asker| {
                self.failed.get(&asker).is_some_and(|failed| {
                    (-RETRY_NS..=RETRY_NS).contains(&open.flight.at.since(*failed))
                })
            });
            let healthy = !retry && open.healthy(self.limits.slow_ns);
            let flight = open.into_flight(now);
            if let Some(delivery) = flight.delivery.as_ref().filter(|it| it.replied.is_none())
                && self.late.len() < self.limits.open
            {
                let key = (flight.client, flight.txid);
                let waiting = self.late.entry(key).or_default();
                if waiting.len() == LATE_OF_ONE {
                    waiting.remove(0);
                }
                waiting.push(delivery.clone());
            }
            if healthy && !self.limits.record_all {
                self.traffic.add(&flight);
            } else if !undecided {
                kept.push(flight);
            }
        }
        kept.sort_by_key(|flight| flight.at);
        kept
    }
}
