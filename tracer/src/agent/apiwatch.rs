//! What the agent makes of the API's events: records, the watched addresses, the owners of sockets, gaps.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use super::addresses::Addresses;
use crate::k8s::{ApiEvent, PodChange, What};
use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen, Record};
use crate::node::owners::Owners;

/// A first list that takes longer leaves a gap: until then nobody knows what the API said.
const PATIENCE_NS: i64 = 2_000_000_000;

/// An outage is recorded piece by piece, so that an agent that is killed in one leaves it on record. A short one that
/// loses no change leaves nothing.
const PIECE_NS: i64 = 30_000_000_000;

/// Takes in what the API says.
#[derive(Debug)]
pub(super) struct ApiWatch {
    started: Timestamp,
    missing: BTreeSet<What>,
    /// What that tells transitions is not being watched, and since when.
    broken: BTreeMap<What, Timestamp>,
    /// Up to here the outage is on record.
    recorded_until: Option<Timestamp>,
}

impl ApiWatch {
    /// Waits for the first list of each of these.
    pub(super) fn new(wanted: impl IntoIterator<Item = What>, started: Timestamp) -> Self {
        let missing: BTreeSet<What> = wanted.into_iter().collect();
        let broken = (missing.iter())
            .filter(|what| tells_transitions(what))
            .map(|what| (what.clone(), started))
            .collect();
        Self {
            started,
            missing,
            broken,
            recorded_until: None,
        }
    }

    /// Since when something that tells transitions is not being watched.
    pub(super) fn broken_since(&self) -> Option<Timestamp> {
        self.broken.values().min().copied()
    }

    /// What is to be recorded of an outage that has not ended. Call it now and then.
    pub(super) fn outage(&mut self, now: Timestamp) -> Option<Record> {
        let from = self.recorded_until.or(self.broken_since())?;
        (now.since(from) >= PIECE_NS)
            .then(|| self.outage_until(now))
            .flatten()
    }

    /// The same, however short: the agent stops.
    pub(super) fn outage_until(&mut self, now: Timestamp) -> Option<Record> {
        let broken = self.broken_since()?;
        let from = self
            .recorded_until
            .replace(now)
            .map_or(broken, |it| it.max(broken));
        Some(gap(from, now))
    }

    fn restored(&mut self, what: &What) {
        self.broken.remove(what);
        if self.broken.is_empty() {
            self.recorded_until = None;
        }
    }

    /// Every first list is in.
    pub(super) fn complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Takes in one event; returns what is to be recorded.
    pub(super) fn take(
        &mut self,
        event: ApiEvent,
        now: Timestamp,
        addresses: &mut Addresses,
        owners: &Owners,
    ) -> Option<Record> {
        match event {
            ApiEvent::Slice(slice) => {
                addresses.slice(&slice);
                Some(Record::Slice(slice))
            }
            ApiEvent::Service(service) => {
                addresses.service(&service);
                Some(Record::Service(service))
            }
            ApiEvent::Node(node) => Some(Record::NodeState(node)),
            ApiEvent::Pod(PodChange::Seen { pod, .. }) => {
                owners.seen(pod);
                None
            }
            ApiEvent::Pod(PodChange::Gone { uid, .. }) => {
                owners.gone(&uid);
                None
            }
            ApiEvent::Listed(what) => {
                self.restored(&what);
                let first = self.missing.remove(&what);
                if let What::Slices(service) | What::Service(service) = &what
                    && !self.missing.contains(&What::Slices(service.clone()))
                    && !self.missing.contains(&What::Service(service.clone()))
                {
                    addresses.heard(service, now);
                }
                (first && now.since(self.started) > PATIENCE_NS && tells_transitions(&what))
                    .then(|| gap(self.started, now))
            }
            ApiEvent::Broken { what, from, reason } => {
                warn!("{what} cannot be watched: {reason}; recording goes on with what is known");
                if tells_transitions(&what) {
                    self.broken.entry(what).or_insert(from);
                }
                None
            }
            ApiEvent::Restored {
                what,
                from,
                to,
                relisted,
            } => {
                info!("{what} are being watched again");
                self.restored(&what);
                // Before its first list nothing was known that could have been missed.
                let listed = !self.missing.contains(&what);
                (relisted && listed && tells_transitions(&what)).then(|| gap(from, to))
            }
            ApiEvent::Malformed {
                what,
                at,
                object,
                reason,
            } => {
                warn!("{what}: `{object}` could not be read and was left out: {reason}");
                // What is in it may have been a change that nobody will be told of.
                tells_transitions(&what).then(|| gap(at, at))
            }
        }
    }
}

/// A gap in the watch of nodes or pods hides no transition of an endpoint.
const fn tells_transitions(what: &What) -> bool {
    matches!(what, What::Slices(_) | What::Service(_))
}

const fn gap(from: Timestamp, to: Timestamp) -> Record {
    Record::Gap(GapSeen {
        from,
        to,
        what: GapKind::WatchBroken,
        count: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn watch() -> ApiWatch {
        let service = "kube-system/kube-dns".to_owned();
        let wanted = [
            What::Nodes,
            What::Slices(service.clone()),
            What::Service(service),
        ];
        ApiWatch::new(wanted, Timestamp(0))
    }

    #[test]
    fn an_api_that_is_never_reached_leaves_gaps_without_a_hole() {
        let mut watch = watch();
        let mut until = Timestamp(0);
        for second in 1..=100 {
            let now = Timestamp(second * SECOND);
            if let Some(record) = watch.outage(now) {
                assert_eq!(record, gap(until, now));
                until = now;
            }
        }
        assert!(until > Timestamp(60 * SECOND), "{until}");
        let end = Timestamp(101 * SECOND);
        assert_eq!(watch.outage_until(end), Some(gap(until, end)));
    }

    #[test]
    fn nothing_is_recorded_of_a_watch_that_works() {
        let mut watch = watch();
        for what in watch.missing.clone() {
            watch.restored(&what);
        }
        assert_eq!(watch.broken_since(), None);
        assert_eq!(watch.outage(Timestamp(1000 * SECOND)), None);
        assert_eq!(watch.outage_until(Timestamp(1000 * SECOND)), None);
    }
}
