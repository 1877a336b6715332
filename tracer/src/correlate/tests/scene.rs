//! A cluster of three nodes on one clock, and what its agents record.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::correlate::{Options, Timeline, timeline};
use crate::model::Timestamp;
use crate::model::event::{Conntrack, Direction, Point, Question};
use crate::model::flight::{
    Answer, ConntrackTimeouts, Delivery, Drop, Flight, Hop, Origin, Owner, PodName, Refusal,
};
use crate::model::record::{
    Conditions, EndpointSeen, GapKind, GapSeen, Lost, NodeInfo, NodeRecord, Record, RuleChange,
    RuleCommit, ServiceSeen, SliceSeen,
};
use crate::model::timeline::{Attempt, Line, Query, Transition, Verdict};

pub(super) const MS: i64 = 1_000_000;
pub(super) const SERVICE: &str = "kube-system/kube-dns";

pub(super) const READY: Conditions = Conditions {
    ready: true,
    serving: true,
    terminating: false,
};
pub(super) const TERMINATING_SERVING: Conditions = Conditions {
    ready: false,
    serving: true,
    terminating: true,
};
pub(super) const NOT_READY: Conditions = Conditions {
    ready: false,
    serving: false,
    terminating: false,
};

/// Milliseconds after the beginning of the scene.
pub(super) fn ms(milliseconds: i64) -> Timestamp {
    Timestamp(1_788_815_047_000_000_000 + milliseconds * MS)
}

pub(super) fn frontend() -> SocketAddr {
    "10.43.0.10:53".parse().unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn endpoint(address: &str, node: &str, conditions: Conditions) -> EndpointSeen {
    EndpointSeen {
        address: ip(address),
        ports: vec![53],
        conditions,
        node: Some(node.to_owned()),
        pod: Some(format!("coredns-{}", address.rsplit('.').next().unwrap())),
        uid: Some(format!("uid-{address}")),
    }
}

/// Records in the making.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) records: Vec<NodeRecord>,
    version: u64,
    port: u16,
    pub(super) end: Timestamp,
}

/// What a flight is made of.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) node: &'static str,
    pub(super) client: SocketAddr,
    pub(super) at: Timestamp,
    pub(super) flight: Flight,
}

impl Scene {
    /// Three agents that started ten minutes before, and a Service with these endpoints.
    pub(super) fn new(endpoints: Vec<EndpointSeen>) -> Self {
        let mut scene = Self {
            records: Vec::new(),
            version: 100,
            port: 40_000,
            end: ms(120_000),
        };
        for node in ["n1", "n2", "n3"] {
            let started = ms(-600_000);
            scene.push(
                node,
                Record::Service(ServiceSeen {
                    at: started,
                    service: SERVICE.to_owned(),
                    frontends: vec![frontend()],
                    resource_version: "1".to_owned(),
                }),
            );
            scene.push(
                node,
                Record::Slice(SliceSeen {
                    at: started,
                    service: SERVICE.to_owned(),
                    slice: "kube-dns-a".to_owned(),
                    resource_version: "100".to_owned(),
                    deleted: false,
                    listed: true,
                    trigger: None,
                    endpoints: endpoints.clone(),
                }),
            );
        }
        scene
    }

    pub(super) fn push(&mut self, node: &str, record: Record) {
        self.records.push(NodeRecord {
            node: node.to_owned(),
            record,
        });
    }

    /// A change of the slice, seen by the nodes 0, 2 and 5 ms after `at`.
    pub(super) fn slice(&mut self, at: Timestamp, endpoints: Vec<EndpointSeen>) {
        self.version += 1;
        for (node, delay) in [("n1", 0), ("n2", 2), ("n3", 5)] {
            self.push(
                node,
                Record::Slice(SliceSeen {
                    at: at + delay * MS,
                    service: SERVICE.to_owned(),
                    slice: "kube-dns-a".to_owned(),
                    resource_version: self.version.to_string(),
                    deleted: false,
                    listed: false,
                    trigger: None,
                    endpoints: endpoints.clone(),
                }),
            );
        }
    }

    /// A commit of a node's rules.
    pub(super) fn commit(
        &mut self,
        node: &str,
        at: Timestamp,
        address: &str,
        added: u32,
        removed: u32,
    ) {
        self.push(
            node,
            Record::Rules(RuleCommit {
                at,
                committer: "iptables-restor".to_owned(),
                changes: vec![RuleChange {
                    address: ip(address),
                    added,
                    removed,
                }],
            }),
        );
    }

    /// A query from a new port of a pod on `node`, not answered until the client gives up after a second.
    pub(super) fn query(&mut self, node: &'static str, at: Timestamp) -> Sent {
        self.port += 1;
        let n = node.trim_start_matches('n');
        let client: SocketAddr = format!("10.42.{n}.17:{}", self.port).parse().unwrap();
        self.query_from(node, client, at)
    }

    pub(super) fn query_from(&self, node: &'static str, client: SocketAddr, at: Timestamp) -> Sent {
        let flight = Flight {
            client,
            txid: Some(4711),
            at,
            origin: Some(Origin {
                sent: at,
                cookie: u64::from(client.port()),
                owner: Owner {
                    pod: Some(PodName {
                        namespace: "default".to_owned(),
                        name: format!("probe-{node}"),
                    }),
                    container: Some("probe".to_owned()),
                    process: Some("probe".to_owned()),
                    pid: Some(812),
                },
                asked: Some(frontend()),
                destination: Some(frontend()),
                previous: None,
                recorded_since: ms(-600_000),
                timeouts: ConntrackTimeouts::default(),
                answer: None,
                closed: Some(at + 1_000 * MS),
                completed: at + 1_000 * MS,
            }),
            delivery: None,
            question: Some(Question {
                name: format!("q{}.example.", client.port()),
                kind: "A".to_owned(),
            }),
            trail: Vec::new(),
            drops: Vec::new(),
            refusals: Vec::new(),
            trail_lost: false,
        };
        Sent {
            node,
            client,
            at,
            flight,
        }
    }

    pub(super) fn sent(&mut self, sent: Sent) {
        self.push(sent.node, Record::Flight(Box::new(sent.flight)));
    }

    /// A query that a backend on `backend_node` answers at once.
    pub(super) fn answered(
        &mut self,
        node: &'static str,
        at: Timestamp,
        backend: &str,
        backend_node: &'static str,
    ) {
        let mut sent = self.query(node, at);
        let origin = sent.flight.origin.as_mut().unwrap();
        origin.answer = Some(Answer {
            at: at + MS,
            rcode: 0,
            truncated: false,
            source: frontend(),
        });
        origin.closed = None;
        origin.completed = at + MS;
        let sent = sent.towards(backend);
        self.delivered(&sent, backend, backend_node, Some(at + MS / 2));
        self.sent(sent);
    }

    /// The backend's node saw the query reach a server's socket.
    pub(super) fn delivered(
        &mut self,
        sent: &Sent,
        backend: &str,
        node: &'static str,
        replied: Option<Timestamp>,
    ) {
        let mut flight = sent.bare(sent.at + MS / 4);
        flight.delivery = Some(Delivery {
            at: sent.at + MS / 4,
            backend: SocketAddr::new(ip(backend), 53),
            owner: Owner::default(),
            replied,
            netns: 7,
        });
        self.push(node, Record::Flight(Box::new(flight)));
    }

    /// A node dropped the query on its way to `destination`.
    pub(super) fn dropped(
        &mut self,
        sent: &Sent,
        node: &'static str,
        reason: &str,
        destination: SocketAddr,
    ) {
        let mut flight = sent.bare(sent.at + MS / 4);
        flight.drops.push(drop_of(sent, reason, destination));
        self.push(node, Record::Flight(Box::new(flight)));
    }

    pub(super) fn gap(&mut self, node: &str, from: Timestamp, to: Timestamp, what: GapKind) {
        self.push(
            node,
            Record::Gap(GapSeen {
                from,
                to,
                what,
                count: 3,
            }),
        );
    }

    /// All records, with the nodes' facts.
    pub(super) fn all(&self) -> Vec<NodeRecord> {
        let mut records = self.records.clone();
        for node in ["n1", "n2", "n3"] {
            records.push(NodeRecord {
                node: node.to_owned(),
                record: Record::Node(NodeInfo {
                    started: ms(-600_000),
                    last_record_at: self.end,
                    kernel: "6.1.0".to_owned(),
                    boot_id: "one".to_owned(),
                    tool_version: "0.1.0".to_owned(),
                    dataplane: Some("kube-proxy-iptables".to_owned()),
                    hooks: BTreeMap::new(),
                    missing_hooks: BTreeMap::new(),
                    lost: Lost::default(),
                    hears_rules: true,
                    records_all: true,
                }),
            });
        }
        records
    }

    pub(super) fn timeline(&self) -> Timeline {
        timeline(self.all(), &self.options())
    }

    pub(super) fn options(&self) -> Options {
        Options {
            from: ms(-1_000),
            to: self.end,
            missing: Vec::new(),
            tool_version: "0.1.0".to_owned(),
            services: Vec::new(),
        }
    }
}

pub(super) fn drop_of(sent: &Sent, reason: &str, destination: SocketAddr) -> Drop {
    Drop {
        at: sent.at + MS / 2,
        reason: Some(reason.to_owned()),
        location: Some("somewhere".to_owned()),
        direction: Direction::Query,
        netns: 1,
        device: Some("eth0".to_owned()),
        source: sent.client,
        destination,
        conntrack: Conntrack::NONE,
    }
}

impl Sent {
    /// A hop on the client's node after DNAT, by which the flow is known to be new.
    pub(super) fn towards(mut self, backend: &str) -> Self {
        let created =
            slicetrace_common::conntrack::PRESENT | slicetrace_common::conntrack::DST_NAT | 2;
        self.hop(SocketAddr::new(ip(backend), 53), Conntrack(created));
        self
    }

    /// A hop on the client's node after DNAT, by an entry that had been established.
    pub(super) fn pinned_to(mut self, backend: &str) -> Self {
        let established = slicetrace_common::conntrack::PRESENT
            | slicetrace_common::conntrack::CONFIRMED
            | slicetrace_common::conntrack::SEEN_REPLY
            | slicetrace_common::conntrack::DST_NAT;
        self.hop(SocketAddr::new(ip(backend), 53), Conntrack(established));
        self
    }

    pub(super) fn hop(&mut self, destination: SocketAddr, conntrack: Conntrack) {
        self.flight.trail.push(Hop {
            at: self.at + MS / 10,
            netns: 1,
            device: Some("cni0".to_owned()),
            point: Point::Rx,
            direction: Direction::Query,
            source: self.client,
            destination,
            encapsulated: false,
            conntrack,
        });
    }

    /// Its own node rejected it: the Service had no endpoint in the rules.
    pub(super) fn rejected(mut self) -> Self {
        let drop = drop_of(&self, "NETFILTER_DROP", frontend());
        self.flight.drops.push(drop);
        self.flight.refusals.push(Refusal::Icmp {
            at: self.at + MS,
            reporter: ip("10.42.1.1"),
            icmp_type: 3,
            icmp_code: 3,
            netns: 1,
            quoted_destination: frontend(),
        });
        self
    }

    /// A flight of another node, or a second one of this, without the client's side.
    pub(super) fn bare(&self, at: Timestamp) -> Flight {
        Flight {
            origin: None,
            delivery: None,
            trail: Vec::new(),
            drops: Vec::new(),
            refusals: Vec::new(),
            at,
            ..self.flight.clone()
        }
    }
}

pub(super) fn queries(timeline: &Timeline) -> Vec<&Query> {
    let lines = timeline.lines.iter();
    lines
        .filter_map(|line| match line {
            Line::Query(query) => Some(query.as_ref()),
            _ => None,
        })
        .collect()
}

pub(super) fn transitions(timeline: &Timeline) -> Vec<&Transition> {
    let lines = timeline.lines.iter();
    lines
        .filter_map(|line| match line {
            Line::Transition(it) => Some(it),
            _ => None,
        })
        .collect()
}

/// Every attempt that has a verdict.
pub(super) fn failed(timeline: &Timeline) -> Vec<(&Attempt, &Verdict)> {
    let attempts = queries(timeline).into_iter().flat_map(|it| &it.attempts);
    attempts
        .filter_map(|it| Some((it, it.verdict.as_ref()?)))
        .collect()
}

/// The only verdict.
pub(super) fn verdict(timeline: &Timeline) -> Verdict {
    let all = failed(timeline);
    assert_eq!(all.len(), 1, "{all:#?}");
    all[0].1.clone()
}
