//! slicetrace: a flight recorder for Kubernetes DNS.
//!
//! # Layout
//!
//! Dependencies point one way: `cli → agent → {bpf, node, k8s, store, api} → correlate → model`, and `cli → render → model`.
//!
//! - [`model`]: plain data. A node's [`model::record::Record`]s are the narrow waist: agents write them, stores and
//!   files keep them, and a timeline is computed from nothing else.
//! - [`correlate`]: pure functions from records to a timeline: attempts, queries, transitions, verdicts.
//! - [`bpf`], [`node`], [`k8s`]: where records come from: the kernel's packets, the node's own state, the API.
//! - [`store`], [`api`]: where records are kept and how they are asked for.
//! - [`agent`]: puts them together on a node.
//! - [`render`], [`cli`]: what people see and type.

pub mod agent;
pub mod api;
pub mod bpf;
pub mod cli;
pub mod correlate;
pub mod k8s;
pub mod model;
pub mod node;
pub mod render;
pub mod store;
