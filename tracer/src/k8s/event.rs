//! What the agent hears from the API.

use std::fmt;
use std::sync::Arc;

use crate::model::Timestamp;
use crate::model::pod::PodSeen;
use crate::model::record::{NodeSeen, ServiceSeen, SliceSeen};

/// The wall clock by which what is heard is dated.
pub(super) type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Something the API said, or did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiEvent {
    /// A slice of a watched Service changed, or was found in a list.
    Slice(SliceSeen),
    /// A watched Service changed; without frontends it does not exist.
    Service(ServiceSeen),
    /// A Node's Ready condition changed, or was found in a list.
    Node(NodeSeen),
    /// A pod of this node changed.
    Pod(PodChange),
    /// The first list of it is complete: everything that exists has been sent.
    Listed(What),
    /// It is not being watched. Sent once, when noticed.
    Broken {
        /// What.
        what: What,
        /// The last moment at which it certainly was watched.
        from: Timestamp,
        /// Why, for people.
        reason: String,
    },
    /// It is being watched again.
    Restored {
        /// What.
        what: What,
        /// As in [`ApiEvent::Broken`].
        from: Timestamp,
        /// Since when it is being watched again.
        to: Timestamp,
        /// It was listed anew: what changed and changed back in between was missed. Otherwise the watch went on where
        /// it had broken, and every change follows, only late (slices of that first second are marked `listed`).
        relisted: bool,
    },
    /// Something could not be read and was left out.
    Malformed {
        /// What.
        what: What,
        /// When.
        at: Timestamp,
        /// Name of the object, empty if that could not be read either.
        object: String,
        /// What was wrong with it.
        reason: String,
    },
}

/// A change among this node's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodChange {
    /// It is new or has changed.
    Seen {
        /// When this was heard.
        at: Timestamp,
        /// As it is now.
        pod: PodSeen,
    },
    /// It was deleted.
    Gone {
        /// When this was heard.
        at: Timestamp,
        /// `metadata.uid`.
        uid: String,
    },
}

/// What one watch is of. A Service is `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// EndpointSlices of a Service.
    Slices(String),
    /// The Service.
    Service(String),
    /// Pods of this node.
    Pods,
    /// All Nodes.
    Nodes,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slices(service) => write!(f, "EndpointSlices of {service}"),
            Self::Service(service) => write!(f, "Service {service}"),
            Self::Pods => write!(f, "pods of this node"),
            Self::Nodes => write!(f, "nodes"),
        }
    }
}
