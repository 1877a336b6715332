//! What an agent was told to do, checked and resolved.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::server::Access;
use crate::k8s::ApiOptions;

/// Everything an agent needs to know. Made by the command line; the agent trusts it.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name in the API.
    pub node: String,
    /// Services to watch, `namespace/name`; never empty.
    pub services: Vec<String>,
    /// Further addresses that count as this DNS Service.
    pub extra_frontends: Vec<SocketAddr>,
    /// How to reach the API.
    pub api: ApiOptions,
    /// The node's store.
    pub db: PathBuf,
    /// Oldest record to keep.
    pub keep_for: Duration,
    /// Size of the store to keep to, bytes.
    pub keep_bytes: u64,
    /// Where the API answers.
    pub listen: SocketAddr,
    /// Who may ask it.
    pub access: Access,
    /// Written once every program is attached and the first list is in.
    pub ready_file: Option<PathBuf>,
    /// Only packets in these network namespaces (globs of named files); empty: all.
    pub netns: Vec<String>,
    /// Only sockets under this cgroup2 directory, which counts as the root; `None`: all.
    pub cgroup: Option<PathBuf>,
    /// What is kept in full.
    pub record: RecordWhat,
}

/// Which attempts are kept in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum RecordWhat {
    /// Failed, retransmitted and slow ones; the others as counts.
    #[default]
    Failed,
    /// All.
    All,
}
