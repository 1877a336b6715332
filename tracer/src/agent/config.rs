<<<<<<< HEAD
//! What the agent was told to do: the command line, checked and resolved.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::server::Access;
use crate::k8s::ApiOptions;

/// The agent's settings.
=======
//! What an agent was told to do, checked and resolved.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Everything an agent needs to know. Made by the command line; the agent trusts it.
>>>>>>> store
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name in the API.
    pub node: String,
<<<<<<< HEAD
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
=======
    /// Services to watch, `namespace/name`; never empty.
    pub services: Vec<String>,
    /// Further addresses that count as this DNS Service.
    pub extra_frontends: Vec<SocketAddr>,
    /// Kubeconfig; `None`: in-cluster, then `$KUBECONFIG`, then `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Context in it.
    pub context: Option<String>,
    /// API server to use instead of the kubeconfig's.
    pub server: Option<String>,
    /// The node's store.
    pub db: PathBuf,
    /// Oldest record to keep.
    pub keep_for: Duration,
    /// Size of the store to keep to, bytes.
    pub keep_bytes: u64,
    /// Where the API answers.
    pub listen: SocketAddr,
    /// [`Config::listen`] may be an address other than loopback.
    pub allow_remote: bool,
    /// Bearer token of the API; `None` only together with `insecure_no_token`.
    pub token: Option<Arc<str>>,
    /// The API answers anybody on loopback.
    pub insecure_no_token: bool,
    /// Where Prometheus metrics are served; `None`: nowhere.
    pub metrics_listen: Option<SocketAddr>,
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
>>>>>>> store
}
