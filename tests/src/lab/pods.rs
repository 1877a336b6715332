//! Pods: a namespace behind a veth on the node's bridge, and a cgroup shaped like the kubelet's.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;

use super::nodes::Node;
use super::{cgroup, exec};

/// A pod with one container.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Kubernetes namespace.
    pub(crate) namespace: &'static str,
    /// Name.
    pub(crate) name: String,
    /// Name of the container.
    pub(crate) container: &'static str,
    /// Node it runs on.
    pub(crate) node: &'static str,
    /// Address.
    pub(crate) address: Ipv4Addr,
    /// Uid.
    pub(crate) uid: String,
    /// Container id, 64 hexadecimal digits.
    pub(crate) container_id: String,
    netns: String,
    veth: String,
    cgroup: PathBuf,
}

impl Pod {
    /// Makes the pod's namespace, its leg on the node's bridge and its cgroup.
    pub(crate) async fn create(
        node: &Node,
        namespace: &'static str,
        name: &str,
        container: &'static str,
    ) -> Result<Self> {
        let random = exec::random_hex(16)?;
        let uid = format!(
            "{}-{}-4{}-a{}-{}",
            &random[..8],
            &random[8..12],
            &random[13..16],
            &random[17..20],
            &random[20..]
        );
        let container_id = exec::random_hex(32)?;
        let pod = Self {
            namespace,
            name: name.to_owned(),
            container,
            node: node.name,
            address: node.next_address()?,
            cgroup: node
                .cgroup
                .join("kubepods/burstable")
                .join(format!("pod{uid}"))
                .join(&container_id),
            netns: format!("{}-{name}", node.name),
            veth: format!("veth{}", &random[..8]),
            uid,
            container_id,
        };
        cgroup::make(&pod.cgroup)?;
        exec::add_netns(&pod.netns).await?;
        exec::ip(
            Some(node.name),
            &format!(
                "link add {veth} mtu 1450 type veth peer name eth0 mtu 1450 netns {netns}\n\
                 link set {veth} master cni0 up\n",
                veth = pod.veth,
                netns = pod.netns
            ),
        )
        .await?;
        exec::ip(
            Some(&pod.netns),
            &format!(
                "address add {}/24 dev eth0\n\
                 link set eth0 up\n\
                 route add default via {}\n",
                pod.address,
                node.gateway()
            ),
        )
        .await?;
        exec::forwarding(node.name, &pod.veth).await?;
        Ok(pod)
    }

    /// A program that will run in this pod.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        exec::command(program, Some(&self.netns), Some(&self.cgroup))
    }

    /// Name of its network namespace.
    pub(crate) fn netns(&self) -> &str {
        &self.netns
    }

    /// Whether it was not deleted.
    pub(crate) fn exists(&self) -> bool {
        exec::netns_path(&self.netns).exists()
    }

    /// Takes the pod's leg away, then its namespace and its cgroup. Its processes must have ended.
    pub(crate) async fn delete(&self) -> Result<()> {
        exec::ip(Some(self.node), &format!("link del {}\n", self.veth)).await?;
        exec::delete_netns(&self.netns)?;
        let cgroup = self
            .cgroup
            .parent()
            .context("a pod's cgroup has a parent")?;
        let cgroup = cgroup.to_owned();
        tokio::task::spawn_blocking(move || cgroup::remove(&cgroup, Duration::from_secs(5))).await?
    }
}
