//! What the agent makes of the API's events: records, the watched addresses, the owners of sockets, gaps.

use std::collections::BTreeSet;

use tracing::{info, warn};

use super::addresses::Addresses;
use crate::k8s::{ApiEvent, PodChange, What};
use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen, Record};
use crate::node::owners::Owners;

use super::view::View;

/// A first list that takes longer leaves a gap: until then nobody knows what the API said.
const PATIENCE_NS: i64 = 2_000_000_000;

/// Takes in what the API says.
#[derive(Debug)]
pub(super) struct ApiWatch {
    started: Timestamp,
    missing: BTreeSet<What>,
}

impl ApiWatch {
    /// Waits for the first list of each of these.
    pub(super) fn new(wanted: impl IntoIterator<Item = What>, started: Timestamp) -> Self {
        Self {
            started,
            missing: wanted.into_iter().collect(),
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
        view: &View,
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
                view.restored(&what.to_string());
                let first = self.missing.remove(&what);
                (first && now.since(self.started) > PATIENCE_NS && tells_transitions(&what))
                    .then(|| gap(self.started, now))
            }
            ApiEvent::Broken { what, from, reason } => {
                warn!("{what} cannot be watched: {reason}; recording goes on with what is known");
                if tells_transitions(&what) {
                    view.broken(what.to_string(), from);
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
                view.restored(&what.to_string());
                (relisted && tells_transitions(&what)).then(|| gap(from, to))
            }
            ApiEvent::Malformed {
                what,
                object,
                reason,
                ..
            } => {
                warn!("{what}: `{object}` could not be read and was left out: {reason}");
                None
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
