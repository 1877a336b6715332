//! What the agent hears from the API: every watch is a task that sends [`ApiEvent`]s.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::follow::{Follow, Selection};
use super::kinds::{Kind, Nodes, Pods, Services, Slices};
use super::pace::Limits;
use crate::model::Timestamp;
use crate::model::pod::PodSeen;
use crate::model::record::{NodeSeen, ServiceSeen, SliceSeen};

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

/// What to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchConfig {
    /// `namespace/name` of each Service.
    pub services: Vec<String>,
    /// This node.
    pub node: String,
    /// Further frontends (`--frontend`). They count as frontends of the *first* Service.
    pub extra_frontends: Vec<SocketAddr>,
}

impl WatchConfig {
    /// Everything that will be watched: once each of them is [`ApiEvent::Listed`], the first picture is complete.
    pub fn all(&self) -> Vec<What> {
        let mut all = vec![What::Nodes, What::Pods];
        for service in &self.services {
            all.push(What::Slices(service.clone()));
            all.push(What::Service(service.clone()));
        }
        all
    }
}

/// A name that is not of the form wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a Service as NAMESPACE/NAME, such as kube-system/kube-dns")]
pub struct ServiceNameError(String);

/// The running watches. Dropping this ends them.
#[derive(Debug)]
pub struct Watches {
    tasks: JoinSet<()>,
}

impl Watches {
    /// Waits until a watch ends, which only happens when the receiver of its events is gone.
    pub async fn ended(&mut self) {
        self.tasks.join_next().await;
    }
}

/// Starts all watches. An API that is away is reported as [`ApiEvent::Broken`] and tried again for ever.
/// `now` is the wall clock.
///
/// # Errors
/// When a Service's name is not `namespace/name`.
pub fn start(
    client: &Client,
    config: &WatchConfig,
    now: impl Fn() -> Timestamp + Send + Sync + 'static,
    sender: mpsc::Sender<ApiEvent>,
) -> Result<Watches, ServiceNameError> {
    start_with(client, config, Limits::default(), Arc::new(now), sender)
}

pub(super) type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub(super) fn start_with(
    client: &Client,
    config: &WatchConfig,
    limits: Limits,
    now: Now,
    sender: mpsc::Sender<ApiEvent>,
) -> Result<Watches, ServiceNameError> {
    let mut tasks = JoinSet::new();
    let mut spawn = |api, selection, kind: Box<dyn Kind>| {
        let follow = Follow::new(
            api,
            selection,
            kind,
            limits,
            Arc::clone(&now),
            sender.clone(),
        );
        tasks.spawn(follow.run());
    };
    // Objects are decoded one by one after the stream: one that is malformed must not stop the others.
    let nodes = ApiResource::erase::<Node>(&());
    spawn(
        Api::all_with(client.clone(), &nodes),
        Selection::default(),
        Box::<Nodes>::default(),
    );
    let pods = ApiResource::erase::<Pod>(&());
    spawn(
        Api::all_with(client.clone(), &pods),
        Selection::fields(format!("spec.nodeName={}", config.node)),
        Box::<Pods>::default(),
    );
    let slices = ApiResource::erase::<EndpointSlice>(&());
    let services = ApiResource::erase::<Service>(&());
    for (at, service) in config.services.iter().enumerate() {
        let (namespace, name) = service
            .split_once('/')
            .filter(|(namespace, name)| {
                !namespace.is_empty() && !name.is_empty() && !name.contains('/')
            })
            .ok_or_else(|| ServiceNameError(service.clone()))?;
        let namespaced =
            |resource| Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource);
        spawn(
            namespaced(&slices),
            Selection::labels(format!("kubernetes.io/service-name={name}")),
            Box::new(Slices::new(service.clone())),
        );
        let extra = if at == 0 {
            config.extra_frontends.clone()
        } else {
            Vec::new()
        };
        spawn(
            namespaced(&services),
            Selection::fields(format!("metadata.name={name}")),
            Box::new(Services::new(service.clone(), extra)),
        );
    }
    Ok(Watches { tasks })
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
