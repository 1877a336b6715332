//! The lab: three "nodes" on one kernel, with pods, VXLAN and a kube-dns Service, in which faults are injected on purpose
//! and logged as ground truth.
//!
//! # Layout
//! - [`cli`]: the binary `lab`;
//! - `lab`: namespaces, pods, rules, and the promise that nothing is left behind;
//! - `dns`: a DNS server that can be told to misbehave, and a client that logs for itself what it saw;
//! - [`api`]: a stand-in for the Kubernetes API that speaks its list and watch protocol;
//! - [`truth`]: what was injected, and what must therefore be said of each failed query;
//! - `scenarios`: the experiments; [`check`] compares a timeline with the truth.

pub mod api;
pub mod check;
pub mod cli;
mod dns;
mod lab;
mod scenarios;
pub mod truth;
