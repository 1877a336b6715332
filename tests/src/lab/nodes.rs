//! The underlay and the nodes: a bridge in the namespace `fabric`, three node namespaces on it, and flannel's VXLAN
//! between their pod bridges, with the entries that flannel writes by hand instead of learning.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Result;

use super::{cgroup, exec};

/// Namespace of the underlay; the API server and the command line live there.
pub(crate) const FABRIC: &str = "fabric";
/// Address of the underlay's bridge.
pub(crate) const FABRIC_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
/// The nodes' names.
pub(crate) const NODES: [&str; 3] = ["master", "worker1", "worker2"];

/// A node: a network namespace and a cgroup.
#[derive(Debug)]
pub(crate) struct Node {
    /// Name in the API, and of the namespace.
    pub(crate) name: &'static str,
    /// Third byte of its pods' addresses.
    pub(crate) index: u8,
    /// Address on the underlay.
    pub(crate) uplink: Ipv4Addr,
    /// Its cgroup, which its agent takes for the root.
    pub(crate) cgroup: PathBuf,
    next_host: AtomicU8,
}

impl Node {
    /// An address for a new pod; none is given twice, so that no neighbour entry or conntrack entry of an earlier pod
    /// can lead to a later one.
    pub(crate) fn next_address(&self) -> Result<Ipv4Addr> {
        let host = self.next_host.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(host < 250, "node {} has no pod addresses left", self.name);
        Ok(Ipv4Addr::new(10, 42, self.index, host))
    }

    /// Address of the pod bridge.
    pub(crate) const fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 42, self.index, 1)
    }
}

/// Raises the underlay and the three nodes; `subtree` is the lab's cgroup.
pub(crate) async fn raise(subtree: &Path) -> Result<Vec<Node>> {
    exec::add_netns(FABRIC).await?;
    exec::ip(
        Some(FABRIC),
        &format!(
            "link add br0 type bridge\n\
             link set br0 up\n\
             address add {FABRIC_ADDRESS}/24 dev br0\n"
        ),
    )
    .await?;
    let mut nodes = Vec::new();
    for (index, name) in (0u8..).zip(NODES) {
        let node = Node {
            name,
            index,
            uplink: Ipv4Addr::new(192, 168, 77, 11 + index),
            cgroup: subtree.join(name),
            next_host: AtomicU8::new(10),
        };
        cgroup::make(&node.cgroup.join("kubepods/burstable"))?;
        cgroup::make(&node.cgroup.join("system"))?;
        exec::add_netns(name).await?;
        nodes.push(node);
    }
    for node in &nodes {
        plug(node).await?;
        overlay(node, &nodes).await?;
    }
    for node in &nodes {
        exec::forwarding(FABRIC, &format!("up-{}", node.name)).await?;
    }
    Ok(nodes)
}

/// The node's sysctls, its uplink to the underlay and its pod bridge.
async fn plug(node: &Node) -> Result<()> {
    let Node { name, uplink, .. } = node;
    exec::sysctl(
        name,
        &[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            // REJECT answers each query, so that "refused" in a client's log means what it says.
            ("net/ipv4/icmp_ratelimit", "0"),
            // An agent can call a flow new once it has recorded for longer than conntrack remembers: the kernel's 30 and
            // 120 s would make each experiment two minutes longer. A fresh port is asked from once, so that nothing else
            // hangs on it.
            ("net/netfilter/nf_conntrack_udp_timeout", "2"),
            ("net/netfilter/nf_conntrack_udp_timeout_stream", "2"),
            // Without it replies between two pods of one node cross the bridge unseen by netfilter and keep the
            // backend's address: the client would not know them.
            ("net/bridge/bridge-nf-call-iptables", "1"),
        ],
    )?;
    exec::ip(
        Some(FABRIC),
        &format!(
            "link add up-{name} type veth peer name eth0 netns {name}\n\
             link set up-{name} master br0 up\n"
        ),
    )
    .await?;
    exec::ip(
        Some(name),
        &format!(
            "link set eth0 up\n\
             address add {uplink}/24 dev eth0\n\
             route add default via {FABRIC_ADDRESS}\n\
             link add cni0 mtu 1450 type bridge\n\
             address add {}/24 dev cni0\n\
             link set cni0 up\n",
            node.gateway()
        ),
    )
    .await
}

/// MAC address of a node's `flannel.1`.
pub(crate) fn overlay_mac(node: &Node) -> String {
    format!("0e:00:00:00:00:{:02x}", node.index + 1)
}

/// `flannel.1` of a node, with routes, neighbours and forwarding entries for all others.
async fn overlay(node: &Node, all: &[Node]) -> Result<()> {
    let mut links = format!(
        "link add flannel.1 address {} mtu 1450 type vxlan id 1 local {} dev eth0 dstport 8472 nolearning\n\
         address add 10.42.{}.0/32 dev flannel.1\n\
         link set flannel.1 up\n",
        overlay_mac(node),
        node.uplink,
        node.index,
    );
    let mut forwarding = String::new();
    for other in all.iter().filter(|other| other.index != node.index) {
        let (mac, index) = (overlay_mac(other), other.index);
        writeln!(
            links,
            "neigh replace 10.42.{index}.0 lladdr {mac} dev flannel.1 nud permanent"
        )?;
        writeln!(
            links,
            "route add 10.42.{index}.0/24 via 10.42.{index}.0 dev flannel.1 onlink"
        )?;
        writeln!(
            forwarding,
            "fdb replace {mac} dev flannel.1 dst {} self permanent",
            other.uplink
        )?;
    }
    exec::ip(Some(node.name), &links).await?;
    exec::bridge(node.name, &forwarding).await
}
