//! One experiment being played: its pods, the slice, the rules, and the log of everything that is done to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use serde_json::Value;
use slicetrace::model::Timestamp;

use super::actors::{Client, Server};
use super::objects::{self, Life, NAMESPACE, SLICE};
use crate::api::{Api, Kind};
use crate::dns::noise;
use crate::lab::nodes::Node;
use crate::lab::pods::Pod;
use crate::lab::rules::Rules;
use crate::lab::{Lab, exec, now};
use crate::truth::{
    self, Asked, ClientQuery, Endpoint, Injection, Noise, Resolved, Stop, Truth, What,
};

/// A port's entry in conntrack is certainly still there so soon after its last packet (nodes.rs sets two seconds).
const REMEMBERED_NS: i64 = 1_900_000_000;

/// How long a pod of CoreDNS may take to end, in seconds.
const GRACE_SECONDS: i64 = 30;

/// An experiment's name and what is done in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Name, also of its files.
    pub(crate) name: &'static str,
    /// What is done.
    pub(crate) description: &'static str,
}

/// The stage of one experiment.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    /// The lab.
    pub(crate) lab: &'a Lab,
    pub(super) api: &'a Api,
    rules: &'a mut BTreeMap<&'static str, Rules>,
    pub(super) logs: PathBuf,
    pub(super) servers: BTreeMap<&'static str, Server>,
    clients: Vec<Client>,
    endpoints: Vec<Endpoint>,
    pub(super) injected: Vec<Injection>,
    /// Endpoints without a targetRef.
    pub(super) bare: BTreeSet<Ipv4Addr>,
    pub(super) resolved: Vec<Resolved>,
    pub(super) noise: Vec<Noise>,
    /// Pods apart from servers and clients.
    pub(super) pods: Vec<Pod>,
}

impl<'a> Stage<'a> {
    /// An empty one: Service, nodes, no pods.
    pub(crate) fn new(
        lab: &'a Lab,
        api: &'a Api,
        rules: &'a mut BTreeMap<&'static str, Rules>,
        logs: PathBuf,
    ) -> Result<Self> {
        std::fs::create_dir_all(&logs)
            .with_context(|| format!("cannot make {}", logs.display()))?;
        api.clear();
        api.apply(Kind::Services, objects::service())?;
        for node in &lab.nodes {
            api.apply(Kind::Nodes, objects::node(node))?;
        }
        Ok(Self {
            lab,
            api,
            rules,
            logs,
            servers: BTreeMap::new(),
            clients: Vec::new(),
            endpoints: Vec::new(),
            injected: Vec::new(),
            bare: BTreeSet::new(),
            resolved: Vec::new(),
            noise: Vec::new(),
            pods: Vec::new(),
        })
    }

    /// Starts a DNS server in a pod, which the slice does not know yet.
    pub(crate) async fn server(&mut self, name: &'static str, node: &str) -> Result<()> {
        let server = Server::start(self.lab.node(node)?, name, &self.logs).await?;
        let life = Life {
            ready: false,
            deleted: None,
        };
        self.api
            .apply(Kind::Pods, objects::pod(&server.pod, life))?;
        self.servers.insert(name, server);
        Ok(())
    }

    /// The backend behind a server's name.
    pub(crate) fn address(&self, name: &str) -> Result<Ipv4Addr> {
        Ok(self.get(name)?.pod.address)
    }

    fn get(&self, name: &str) -> Result<&Server> {
        self.servers
            .get(name)
            .with_context(|| format!("no server {name} on this stage"))
    }

    /// Starts a client on every node.
    pub(crate) async fn clients(&mut self, rate: u32) -> Result<()> {
        let rate = rate.to_string();
        for node in &self.lab.nodes {
            let arguments = ["--rate", &rate, "--timeout", "1000"];
            self.client(node, "probe", &arguments).await?;
        }
        Ok(())
    }

    /// Starts a client on a node.
    pub(crate) async fn client(
        &mut self,
        node: &Node,
        name: &str,
        arguments: &[&str],
    ) -> Result<()> {
        let client = Client::start(node, name, &self.logs, arguments).await?;
        let life = Life {
            ready: true,
            deleted: None,
        };
        self.api
            .apply(Kind::Pods, objects::pod(&client.pod, life))?;
        self.clients.push(client);
        Ok(())
    }

    /// Addresses of the clients' pods.
    pub(super) fn client_addresses(&self) -> Vec<Ipv4Addr> {
        let clients = self.clients.iter();
        clients.map(|client| client.pod.address).collect()
    }

    /// Sends packets that are no queries to the Service from a pod of their own.
    pub(super) async fn noise(&mut self, node: &str) -> Result<()> {
        let name = format!("noise-{node}");
        let pod = Pod::create(self.lab.node(node)?, "default", &name, "noise").await?;
        self.pods.push(pod.clone());
        // A program of its own: a socket belongs to the cgroup of the process that made it.
        exec::feed(pod.command(std::env::current_exe()?)?.arg("noise"), "").await?;
        self.noise.push(Noise {
            address: pod.address,
            packets: u64::try_from(noise::packets().len())?,
        });
        Ok(())
    }

    /// The endpoint is there and ready.
    pub(crate) fn ready(&mut self, name: &str) -> Result<()> {
        self.endpoint(name, Some((true, true, false)))
    }

    /// The endpoint is there, but not ready yet.
    pub(crate) fn not_ready(&mut self, name: &str) -> Result<()> {
        self.endpoint(name, Some((false, false, false)))
    }

    /// The endpoint's pod is being deleted, and still serves.
    pub(crate) fn terminating(&mut self, name: &str) -> Result<()> {
        self.endpoint(name, Some((false, true, true)))
    }

    /// The endpoint is in no slice any more.
    pub(crate) fn gone(&mut self, name: &str) -> Result<()> {
        self.endpoint(name, None)
    }

    /// Sets an endpoint's (ready, serving, terminating), or removes it: pod first, then slice, as the controllers do.
    fn endpoint(&mut self, name: &str, conditions: Option<(bool, bool, bool)>) -> Result<()> {
        let pod = self.get(name)?.pod.clone();
        self.endpoints
            .retain(|endpoint| endpoint.address != pod.address);
        if let Some((ready, serving, terminating)) = conditions {
            let life = Life {
                ready: serving,
                deleted: terminating.then(|| (now(), GRACE_SECONDS)),
            };
            self.api.apply(Kind::Pods, objects::pod(&pod, life))?;
            self.endpoints.push(Endpoint {
                address: pod.address,
                pod: pod.name.clone(),
                node: pod.node.to_owned(),
                ready,
                serving,
                terminating,
            });
        }
        let slice = self.slice(SLICE, &self.endpoints);
        let change = self.api.apply(Kind::EndpointSlices, slice)?;
        self.injected.push(Injection {
            from: change.start,
            to: change.end,
            what: What::Slice {
                endpoints: self.endpoints.clone(),
                resource_version: change.resource_version,
            },
        });
        Ok(())
    }

    /// A slice of the Service as an object.
    pub(super) fn slice(&self, name: &str, endpoints: &[Endpoint]) -> Value {
        objects::slice(name, endpoints, |address| {
            let mut servers = self.servers.values();
            let server = servers.find(|server| server.pod.address == address)?;
            (!self.bare.contains(&address)).then(|| server.pod.uid.clone())
        })
    }

    /// The endpoints that are in the slice now.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The rules of these nodes change to these backends, at the same time on all.
    pub(crate) async fn rules(&mut self, nodes: &[&str], backends: &[&str]) -> Result<()> {
        self.commit(nodes, backends, false).await
    }

    /// The same, though nothing in the API called for it.
    pub(crate) async fn uncalled(&mut self, nodes: &[&str], backends: &[&str]) -> Result<()> {
        self.commit(nodes, backends, true).await
    }

    async fn commit(&mut self, nodes: &[&str], backends: &[&str], uncalled: bool) -> Result<()> {
        let backends = backends
            .iter()
            .map(|name| self.address(name))
            .collect::<Result<Vec<_>>>()?;
        let commits = self
            .rules
            .iter_mut()
            .filter(|(node, _)| nodes.contains(node))
            .map(async |(node, rules)| {
                rules.replace(&backends).await.map(|commit| (*node, commit))
            });
        for (node, commit) in try_join_all(commits).await? {
            self.injected.push(Injection {
                from: commit.start,
                to: commit.end,
                what: What::Rules {
                    node: node.to_owned(),
                    backends: backends.clone(),
                    uncalled,
                },
            });
        }
        Ok(())
    }

    /// A server ends.
    pub(crate) async fn stop(&mut self, name: &str, how: Stop) -> Result<()> {
        let server = self
            .servers
            .get_mut(name)
            .with_context(|| format!("no server {name} on this stage"))?;
        let from = now();
        match how {
            Stop::Exited => server.exit().await?,
            Stop::Killed => server.kill().await?,
            Stop::Gone => {
                server.kill().await?;
                server.pod.delete().await?;
            }
        }
        self.injected.push(Injection {
            from,
            to: now(),
            what: What::Stopped {
                address: server.pod.address,
                how,
            },
        });
        Ok(())
    }

    /// The pod's object goes, as the kubelet's last act.
    pub(crate) fn pod_deleted(&mut self, name: &str) -> Result<()> {
        self.api.delete(Kind::Pods, Some(NAMESPACE), name)?;
        Ok(())
    }

    /// Ends the clients and writes down what was done and seen since `load`, before the first query.
    pub(crate) async fn finish(&mut self, script: Script, load: Timestamp) -> Result<Truth> {
        self.injected.sort_by_key(|injection| injection.to);
        let mut queries = Vec::new();
        let lines = try_join_all(self.clients.iter_mut().map(Client::finish)).await?;
        for (client, lines) in self.clients.iter().zip(lines) {
            let mut ports: HashMap<SocketAddr, (Timestamp, Vec<Ipv4Addr>)> = HashMap::new();
            for line in lines {
                let sent = *line.sent.first().context("a query without a packet")?;
                let before = ports.remove(&line.source);
                let remembered = before.filter(|(last, _)| sent.since(*last) < REMEMBERED_NS);
                let asked = Asked {
                    node: client.pod.node,
                    sent,
                    sent_by: line.sent_by,
                    ended: line.ended,
                    pinned: remembered.as_ref().map(|(_, backends)| backends.as_slice()),
                };
                let mut query = ClientQuery {
                    node: client.pod.node.to_owned(),
                    name: line.name,
                    source: line.source,
                    txid: line.txid,
                    sent: line.sent,
                    sent_by: line.sent_by,
                    ended: line.ended,
                    result: line.result,
                    rcode: line.rcode,
                    expected: Vec::new(),
                    unseen: truth::unseen(&self.injected, &asked),
                };
                if query.failed() {
                    query.expected = truth::causes(&self.injected, &asked);
                }
                let backends = match remembered.as_ref() {
                    Some((_, backends)) => backends.clone(),
                    None => truth::chosen(&self.injected, &asked),
                };
                ports.insert(query.source, (query.sent_by, backends));
                queries.push(query);
            }
        }
        queries.sort_by_key(|query| query.sent.first().copied());
        Ok(Truth {
            scenario: script.name.to_owned(),
            description: script.description.to_owned(),
            service: format!("{NAMESPACE}/kube-dns"),
            // Answered queries are counted by the second: a range that begins within one leaves that second out.
            from: load.second(),
            load,
            to: now(),
            expected: truth::expected(&self.injected, load),
            injected: self.injected.clone(),
            queries,
            resolved: self.resolved.clone(),
            noise: self.noise.clone(),
        })
    }

    /// Takes pods and rules away, so that the next experiment finds an empty stage.
    pub(crate) async fn clear(mut self) -> Result<()> {
        let nodes: Vec<&str> = self.rules.keys().copied().collect();
        self.rules(&nodes, &[]).await?;
        self.api.clear();
        for server in self.servers.values_mut() {
            server.leave().await?;
        }
        for client in &self.clients {
            client.pod.delete().await?;
        }
        for pod in &self.pods {
            pod.delete().await?;
        }
        Ok(())
    }
}
