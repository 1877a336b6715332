//! What is watched: every watch is a task that sends [`ApiEvent`]s.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::event::{ApiEvent, Now, What};
use super::follow::{Follow, Selection};
use super::kinds::{Kind, Nodes, Pods, Services, Slices};
use super::pace::Limits;
use crate::model::Timestamp;

/// What to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchConfig {
    /// `namespace/name` of each Service.
    pub services: Vec<String>,
    /// This node.
    pub node: String,
    /// Further frontends (`--frontend`). They count as frontends of the *first* Service.
    pub extra_frontends: Vec<SocketAddr>,
    /// Slices of each Service that an earlier run saw last: those that are gone by now are told as deleted.
    pub known_slices: BTreeMap<String, Vec<String>>,
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

pub(super) fn start_with(
    client: &Client,
    config: &WatchConfig,
    limits: Limits,
    now: Now,
    sender: mpsc::Sender<ApiEvent>,
) -> Result<Watches, ServiceNameError> {
    let mut tasks = JoinSet::new();
    let mut spawn = |api, selection, kind: Box<dyn Kind>, expected: Vec<String>| {
        let follow = Follow::new(
            api,
            selection,
            kind,
            limits,
            Arc::clone(&now),
            sender.clone(),
        );
        tasks.spawn(follow.expecting(expected).run());
    };
    // Objects are decoded one by one after the stream: one that is malformed must not stop the others.
    let nodes = ApiResource::erase::<Node>(&());
    spawn(
        Api::all_with(client.clone(), &nodes),
        Selection::default(),
        Box::<Nodes>::default(),
        Vec::new(),
    );
    let pods = ApiResource::erase::<Pod>(&());
    spawn(
        Api::all_with(client.clone(), &pods),
        Selection::fields(format!("spec.nodeName={}", config.node)),
        Box::<Pods>::default(),
        Vec::new(),
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
            config
                .known_slices
                .get(service)
                .cloned()
                .unwrap_or_default(),
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
            Vec::new(),
        );
    }
    Ok(Watches { tasks })
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
