//! What a node knows of its own pods: enough to say who owns a socket.

use std::net::IpAddr;

/// A pod of this node, as the API described it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSeen {
    /// `metadata.uid`. A static pod's cgroup carries [`PodSeen::config_hash`] instead.
    pub uid: String,
    /// Annotation `kubernetes.io/config.hash`: the uid by which the kubelet knows a static pod.
    pub config_hash: Option<String>,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Node it runs on.
    pub node: String,
    /// `status.podIPs`.
    pub ips: Vec<IpAddr>,
    /// It shares the node's network namespace: its addresses are the node's.
    pub host_network: bool,
    /// Name and id of each container that has been started, the id without its `containerd://`.
    pub containers: Vec<(String, String)>,
}
