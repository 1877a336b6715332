//! What stands in the way of queries: rules that drop them, tables that are wrong, servers that misbehave. Each is really
//! put there, and logged with the times between which it took hold.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::experiments::ms;
use super::stage::Stage;
use crate::lab::nodes::{FABRIC, NODES, Node, overlay_mac};
use crate::lab::rules::CLUSTER_IP;
use crate::lab::{exec, now};
use crate::truth::{Injection, Loss, Mood, What};

/// An obstacle on the way to a backend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Obstacle {
    /// DROP in FORWARD on every node: it meets queries on their client's node, after DNAT.
    Policy,
    /// DROP in FORWARD on the backend's node only.
    PolicyThere,
    /// DROP in mangle's PREROUTING on every node, before DNAT.
    PolicyBefore,
    /// The VTEP of the backend's node is not in the forwarding tables of the others.
    Forwarding,
    /// The backend's pod has another route back to its clients, and a strict rp_filter.
    ReversePath,
    /// The underlay drops what goes to the backend's node.
    UnderlayThere,
    /// The underlay drops what comes from the backend's node.
    UnderlayBack,
}

impl Obstacle {
    fn loss(self) -> Loss {
        match self {
            Self::Policy | Self::PolicyThere | Self::PolicyBefore => Loss::Policy,
            Self::Forwarding | Self::ReversePath => Loss::Kernel,
            Self::UnderlayThere | Self::UnderlayBack => Loss::Underlay,
        }
    }

    /// It concerns only clients of other nodes than the backend's.
    fn between_nodes(self) -> bool {
        matches!(
            self,
            Self::Forwarding | Self::UnderlayThere | Self::UnderlayBack
        )
    }
}

impl Stage<'_> {
    /// Puts an obstacle on the way to a backend for 800 ms and takes it away again.
    pub(super) async fn obstruct(&mut self, backend: &str, obstacle: Obstacle) -> Result<()> {
        eprintln!("  {obstacle:?}");
        let there = self
            .servers
            .get(backend)
            .context("no such server")?
            .pod
            .node;
        let concerned = |node: &&str| !obstacle.between_nodes() || *node != there;
        let concerned: Vec<&str> = NODES.into_iter().filter(concerned).collect();
        for on in [true, false] {
            let from = now();
            self.put(backend, obstacle, on).await?;
            let to = now();
            for node in &concerned {
                self.injected.push(Injection {
                    from,
                    to,
                    what: What::Loss {
                        node: (*node).to_owned(),
                        loss: on.then(|| obstacle.loss()),
                    },
                });
            }
            // Whoever still waits for an answer when the next begins could have failed of either.
            sleep(ms(if on { 800 } else { 1200 })).await;
        }
        Ok(())
    }

    async fn put(&self, backend: &str, obstacle: Obstacle, on: bool) -> Result<()> {
        let pod = &self.servers.get(backend).context("no such server")?.pod;
        let (address, there) = (pod.address, self.lab.node(pod.node)?);
        match obstacle {
            Obstacle::Policy => {
                for node in NODES {
                    drop_rule(node, "filter", "FORWARD", address, on).await?;
                }
                Ok(())
            }
            Obstacle::PolicyThere => drop_rule(there.name, "filter", "FORWARD", address, on).await,
            Obstacle::PolicyBefore => {
                for node in NODES {
                    drop_rule(node, "mangle", "PREROUTING", CLUSTER_IP, on).await?;
                }
                Ok(())
            }
            Obstacle::Forwarding => {
                let verb = if on { "del" } else { "replace" };
                let permanent = if on { "" } else { "permanent" };
                for node in NODES.into_iter().filter(|node| *node != there.name) {
                    let entry = format!(
                        "fdb {verb} {} dev flannel.1 dst {} self {permanent}\n",
                        overlay_mac(there),
                        there.uplink
                    );
                    exec::bridge(node, &entry).await?;
                }
                Ok(())
            }
            Obstacle::ReversePath => self.wrong_routes(pod.netns(), on).await,
            Obstacle::UnderlayThere => underlay(there, "daddr", on).await,
            Obstacle::UnderlayBack => underlay(there, "saddr", on).await,
        }
    }

    /// A route back to every client by the loopback device, and none that is allowed to differ from the way there.
    async fn wrong_routes(&self, netns: &str, on: bool) -> Result<()> {
        let (verb, filter) = if on { ("add", "1") } else { ("del", "0") };
        let clients = self.client_addresses();
        let routes: String = clients
            .iter()
            .map(|client| format!("route {verb} {client}/32 dev lo\n"))
            .collect();
        exec::sysctl(netns, &[("net/ipv4/conf/eth0/rp_filter", filter)])?;
        exec::ip(Some(netns), &routes).await
    }

    /// Tells a server how to treat queries.
    pub(super) async fn mood(&mut self, name: &str, command: &str, mood: Mood) -> Result<()> {
        eprintln!("  {name}: {command}");
        let from = now();
        let server = self.servers.get_mut(name).context("no such server")?;
        match command {
            "pause" => server.signal(Signal::SIGSTOP)?,
            "continue" => server.signal(Signal::SIGCONT)?,
            "start" => server.start_again(&self.logs).await?,
            command => {
                server.tell(command).await?;
                // It reads its commands when it comes to it.
                sleep(ms(50)).await;
            }
        }
        self.injected.push(Injection {
            from,
            to: now(),
            what: What::Served {
                address: self.address(name)?,
                mood,
            },
        });
        Ok(())
    }
}

/// Adds or removes a rule that drops queries to an address.
async fn drop_rule(
    node: &str,
    table: &str,
    chain: &str,
    address: Ipv4Addr,
    on: bool,
) -> Result<()> {
    let verb = if on { "-I" } else { "-D" };
    let mut command = exec::command("iptables", Some(node), None)?;
    command.args(["-w", "-t", table, verb, chain, "-p", "udp", "--dport", "53"]);
    command.args(["-d", &address.to_string(), "-j", "DROP"]);
    exec::feed(&mut command, "").await
}

/// Drops, or lets pass, the tunnels' packets to or from a node on the bridge that the nodes are plugged into.
async fn underlay(node: &Node, end: &str, on: bool) -> Result<()> {
    let text = if on {
        format!(
            "table bridge loss {{\n\
                 chain forward {{\n\
                     type filter hook forward priority 0;\n\
                     ip {end} {} udp dport 8472 drop\n\
                 }}\n\
             }}\n",
            node.uplink
        )
    } else {
        "delete table bridge loss\n".to_owned()
    };
    let mut command = exec::command("nft", Some(FABRIC), None)?;
    exec::feed(command.args(["-f", "-"]), &text).await
}
