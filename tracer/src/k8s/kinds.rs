//! What each watch makes of the objects it hears of.

use std::collections::HashMap;
use std::net::SocketAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DynamicObject, ObjectMeta};

use super::event::{ApiEvent, PodChange, What};
use super::{nodes, pods, services, slices};
use crate::model::Timestamp;
use crate::model::pod::PodSeen;

/// An object could not be read.
pub(super) type Unreadable = String;

/// What happened, and how it was heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// When.
    pub(super) at: Timestamp,
    /// From a list, or while catching up: it may have happened any time before.
    pub(super) listed: bool,
}

/// One kind of object.
pub(super) trait Kind: Send + Sync {
    /// What is watched.
    fn what(&self) -> What;

    /// The name by which an object is known.
    fn name(&self, metadata: &ObjectMeta) -> String {
        metadata.name.clone().unwrap_or_default()
    }

    /// An object is there, new or changed.
    fn seen(&mut self, object: DynamicObject, heard: Heard) -> Result<Vec<ApiEvent>, Unreadable>;

    /// The object of this name is gone.
    fn gone(&mut self, name: &str, resource_version: &str, heard: Heard) -> Vec<ApiEvent>;

    /// A list was complete and had none.
    fn none(&mut self, _resource_version: &str, _heard: Heard) -> Vec<ApiEvent> {
        Vec::new()
    }
}

/// Adds what could not be read of an object to its event.
fn with_malformed(
    event: ApiEvent,
    what: What,
    object: &str,
    at: Timestamp,
    malformed: Vec<String>,
) -> Vec<ApiEvent> {
    let mut events = vec![event];
    if !malformed.is_empty() {
        events.push(ApiEvent::Malformed {
            what,
            at,
            object: object.to_owned(),
            reason: malformed.join(", "),
        });
    }
    events
}

/// EndpointSlices of one Service.
pub(super) struct Slices {
    service: String,
}

impl Slices {
    pub(super) const fn new(service: String) -> Self {
        Self { service }
    }
}

impl Kind for Slices {
    fn what(&self) -> What {
        What::Slices(self.service.clone())
    }

    fn seen(&mut self, object: DynamicObject, heard: Heard) -> Result<Vec<ApiEvent>, Unreadable> {
        let slice: EndpointSlice = object.try_parse().map_err(|error| error.to_string())?;
        let read = slices::read(&self.service, slice, heard.at, heard.listed);
        let name = read.seen.slice.clone();
        Ok(with_malformed(
            ApiEvent::Slice(read.seen),
            self.what(),
            &name,
            heard.at,
            read.malformed,
        ))
    }

    fn gone(&mut self, name: &str, resource_version: &str, heard: Heard) -> Vec<ApiEvent> {
        vec![ApiEvent::Slice(slices::deleted(
            &self.service,
            name,
            resource_version,
            heard.at,
            heard.listed,
        ))]
    }
}

/// One Service.
pub(super) struct Services {
    service: String,
    extra: Vec<SocketAddr>,
}

impl Services {
    pub(super) const fn new(service: String, extra: Vec<SocketAddr>) -> Self {
        Self { service, extra }
    }
}

impl Kind for Services {
    fn what(&self) -> What {
        What::Service(self.service.clone())
    }

    fn seen(&mut self, object: DynamicObject, heard: Heard) -> Result<Vec<ApiEvent>, Unreadable> {
        let service = object.try_parse().map_err(|error| error.to_string())?;
        let (seen, malformed) = services::read(&self.service, service, &self.extra, heard.at);
        let name = seen.service.clone();
        Ok(with_malformed(
            ApiEvent::Service(seen),
            self.what(),
            &name,
            heard.at,
            malformed,
        ))
    }

    fn gone(&mut self, _: &str, resource_version: &str, heard: Heard) -> Vec<ApiEvent> {
        self.none(resource_version, heard)
    }

    fn none(&mut self, resource_version: &str, heard: Heard) -> Vec<ApiEvent> {
        let absent = services::absent(&self.service, resource_version, heard.at);
        vec![ApiEvent::Service(absent)]
    }
}

/// All Nodes; only changes of Ready are told, as the kubelet's heartbeats change a Node every few minutes.
#[derive(Default)]
pub(super) struct Nodes {
    ready: HashMap<String, Option<bool>>,
}

impl Kind for Nodes {
    fn what(&self) -> What {
        What::Nodes
    }

    fn seen(&mut self, object: DynamicObject, heard: Heard) -> Result<Vec<ApiEvent>, Unreadable> {
        let node = object.try_parse().map_err(|error| error.to_string())?;
        let seen = nodes::read(node, heard.at);
        let before = self.ready.insert(seen.name.clone(), seen.ready);
        Ok(if before == Some(seen.ready) {
            Vec::new()
        } else {
            vec![ApiEvent::Node(seen)]
        })
    }

    fn gone(&mut self, name: &str, _: &str, heard: Heard) -> Vec<ApiEvent> {
        self.ready.remove(name);
        vec![ApiEvent::Node(crate::model::record::NodeSeen {
            at: heard.at,
            name: name.to_owned(),
            ready: None,
        })]
    }
}

/// This node's pods, by `namespace/name`; only changes of what is kept of them are told.
#[derive(Default)]
pub(super) struct Pods {
    known: HashMap<String, PodSeen>,
}

impl Kind for Pods {
    fn what(&self) -> What {
        What::Pods
    }

    /// These are watched in all namespaces.
    fn name(&self, metadata: &ObjectMeta) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", part(&metadata.namespace), part(&metadata.name))
    }

    fn seen(&mut self, object: DynamicObject, heard: Heard) -> Result<Vec<ApiEvent>, Unreadable> {
        let name = self.name(&object.metadata);
        let pod = object.try_parse().map_err(|error| error.to_string())?;
        let (pod, malformed) = pods::read(pod).ok_or("a pod without uid")?;
        let before = self.known.insert(name.clone(), pod.clone());
        if before.as_ref() == Some(&pod) {
            return Ok(Vec::new());
        }
        let mut events = Vec::new();
        // Deleted and created anew under its name, while we were not listening.
        if let Some(before) = before.filter(|before| before.uid != pod.uid) {
            events.push(ApiEvent::Pod(PodChange::Gone {
                at: heard.at,
                uid: before.uid,
            }));
        }
        let seen = ApiEvent::Pod(PodChange::Seen { at: heard.at, pod });
        events.extend(with_malformed(
            seen,
            self.what(),
            &name,
            heard.at,
            malformed,
        ));
        Ok(events)
    }

    fn gone(&mut self, name: &str, _: &str, heard: Heard) -> Vec<ApiEvent> {
        let gone = self.known.remove(name).map(|pod| {
            ApiEvent::Pod(PodChange::Gone {
                at: heard.at,
                uid: pod.uid,
            })
        });
        gone.into_iter().collect()
    }
}
