//! One experiment being played: its pods, the slice, the rules, and the log of everything that is done to them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use slicetrace::model::Timestamp;

use super::actors::{Client, Server};
use super::objects::{self, Life, NAMESPACE, SLICE};
use crate::api::{Api, Kind};
use crate::dns::log::ClientResult;
use crate::lab::rules::Rules;
use crate::lab::{Lab, now};
use crate::truth::{self, ClientQuery, Endpoint, Injection, Stop, Truth, What};

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
    api: &'a Api,
    rules: &'a mut BTreeMap<&'static str, Rules>,
    logs: PathBuf,
    servers: BTreeMap<&'static str, Server>,
    clients: Vec<Client>,
    endpoints: Vec<Endpoint>,
    injected: Vec<Injection>,
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
            let client = Client::start(node, &self.logs, &arguments).await?;
            let life = Life {
                ready: true,
                deleted: None,
            };
            self.api
                .apply(Kind::Pods, objects::pod(&client.pod, life))?;
            self.clients.push(client);
        }
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
        let slice = objects::slice(&self.endpoints, |address| {
            self.servers
                .values()
                .find(|server| server.pod.address == address)
                .map(|server| server.pod.uid.clone())
                .unwrap_or_default()
        });
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

    /// The rules of these nodes change to these backends, at the same time on all.
    pub(crate) async fn rules(&mut self, nodes: &[&str], backends: &[&str]) -> Result<()> {
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
            for line in lines {
                let sent = *line.sent.first().context("a query without a packet")?;
                let expected = if line.result == ClientResult::Answered {
                    Vec::new()
                } else {
                    truth::causes(&self.injected, client.pod.node, sent, line.sent_by)
                };
                queries.push(ClientQuery {
                    node: client.pod.node.to_owned(),
                    name: line.name,
                    source: line.source,
                    txid: line.txid,
                    sent: line.sent,
                    sent_by: line.sent_by,
                    ended: line.ended,
                    result: line.result,
                    expected,
                });
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
        })
    }

    /// Takes pods and rules away, so that the next experiment finds an empty stage.
    pub(crate) async fn clear(mut self) -> Result<()> {
        let nodes: Vec<&str> = self.rules.keys().copied().collect();
        self.rules(&nodes, &[]).await?;
        let _ = self
            .api
            .delete(Kind::EndpointSlices, Some(NAMESPACE), SLICE);
        for server in self.servers.values_mut() {
            server.leave().await?;
        }
        for client in &self.clients {
            client.pod.delete().await?;
        }
        Ok(())
    }
}
