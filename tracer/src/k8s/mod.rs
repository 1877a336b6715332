//! The only place that knows kube: watches EndpointSlices, Services, pods and nodes.

pub mod client;
pub mod event;
#[cfg(test)]
mod fake;
mod follow;
mod kinds;
pub mod nodes;
mod pace;
pub mod pods;
pub mod services;
pub mod slices;
pub mod watch;

pub use client::{ApiOptions, ClientError, connect};
pub use event::{ApiEvent, PodChange, What};
pub use watch::{WatchConfig, Watches, start};
