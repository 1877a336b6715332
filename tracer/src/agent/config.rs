//! What the agent was told to do: the command line, checked and resolved.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::server::Access;
use crate::k8s::ApiOptions;

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name in the API.
    pub node: String,
    /// `namespace/name` of each watched Service.
    pub services: Vec<String>,
    /// Further addresses that count as the first Service.
    pub frontends: Vec<SocketAddr>,
    /// How to reach the API.
    pub api: ApiOptions,
    /// The node's store.
    pub db: PathBuf,
    /// Oldest record kept.
    pub keep_for: Duration,
    /// Largest store, bytes.
    pub keep_bytes: u64,
    /// Where the agent's API listens.
    pub listen: SocketAddr,
    /// Who may ask it.
    pub access: Access,
    /// Written once the agent is ready.
    pub ready_file: Option<PathBuf>,
    /// Only packets in these network namespaces; empty: all.
    pub netns: Vec<String>,
    /// Only sockets under this cgroup2 directory; `None`: the cgroup2 root.
    pub cgroup: Option<PathBuf>,
    /// Keep healthy attempts in full too.
    pub record_all: bool,
}
