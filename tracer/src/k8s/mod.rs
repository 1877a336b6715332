//! The only place that knows kube: watches EndpointSlices, Services, pods and nodes.

pub mod client;
mod follow;
mod kinds;
pub mod nodes;
pub mod pods;
pub mod services;
pub mod slices;
pub mod watch;

pub use client::{ApiOptions, ClientError, connect};
pub use watch::{ApiEvent, PodChange, WatchConfig, Watches, What, start};
