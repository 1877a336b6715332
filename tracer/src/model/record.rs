//! What a node keeps: the narrow waist of slicetrace. The agent writes records, the store keeps them, the API and files
//! carry them, and [`crate::correlate`] turns those of all nodes into a timeline.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Timestamp;
use super::flight::Flight;

/// One thing a node recorded, with the node's name. Times are that node's wall clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Name of the node that recorded it.
    pub node: String,
    /// The record.
    #[serde(flatten)]
    pub record: Record,
}

/// One thing a node recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "record")]
pub enum Record {
    /// The node's facts and counters; the latest replaces the earlier ones of the same `started`.
    Node(NodeInfo),
    /// What the API said of a watched Service.
    Service(ServiceSeen),
    /// What the API said of one EndpointSlice.
    Slice(SliceSeen),
    /// What the API said of a Node.
    NodeState(NodeSeen),
    /// The node's packet rules changed.
    Rules(RuleCommit),
    /// One attempt in full.
    Flight(Box<Flight>),
    /// Healthy attempts of one second.
    Traffic(Traffic),
    /// A time that was not observed.
    Gap(GapSeen),
}

impl Record {
    /// When it happened; for a summary of a time span, its beginning.
    pub const fn at(&self) -> Timestamp {
        match self {
            Self::Node(node) => node.last_record_at,
            Self::Service(service) => service.at,
            Self::Slice(slice) => slice.at,
            Self::NodeState(node) => node.at,
            Self::Rules(commit) => commit.at,
            Self::Flight(flight) => flight.at,
            Self::Traffic(traffic) => traffic.second,
            Self::Gap(gap) => gap.from,
        }
    }
}

impl Record {
    /// Moves every time in it by `by_ns` nanoseconds, from its node's clock to another one.
    pub fn shift(&mut self, by_ns: i64) {
        let moved = |times: &mut [&mut Timestamp]| {
            times.iter_mut().for_each(|it| **it = **it + by_ns);
        };
        match self {
            Self::Node(it) => moved(&mut [&mut it.started, &mut it.last_record_at]),
            Self::Service(it) => moved(&mut [&mut it.at]),
            Self::Slice(it) => moved(&mut [&mut it.at]),
            Self::NodeState(it) => moved(&mut [&mut it.at]),
            Self::Rules(it) => moved(&mut [&mut it.at]),
            Self::Traffic(it) => {
                moved(&mut [&mut it.second, &mut it.first_answer, &mut it.last_answer]);
            }
            Self::Gap(it) => moved(&mut [&mut it.from, &mut it.to]),
            Self::Flight(it) => it.shift(by_ns),
        }
    }
}

/// A node's facts and counters for one run of its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// When this agent had attached every program.
    pub started: Timestamp,
    /// The agent has written everything up to here.
    pub last_record_at: Timestamp,
    /// `uname -r`.
    pub kernel: String,
    /// `/proc/sys/kernel/random/boot_id`: nodes that share it share a clock.
    pub boot_id: String,
    /// Version of the agent.
    pub tool_version: String,
    /// Who translates Service addresses here, such as `kube-proxy-iptables`; `None` unknown.
    pub dataplane: Option<String>,
    /// How often each hook saw a packet of the Service since `started`.
    pub hooks: BTreeMap<String, u64>,
    /// Hooks that could not be attached, with the reason.
    pub missing_hooks: BTreeMap<String, String>,
    /// Records lost since `started`.
    pub lost: Lost,
    /// Rule commits are listened to, and nothing that translates addresses here changes its rules without announcing it:
    /// where at least one commit was heard, silence means that none happened.
    pub hears_rules: bool,
    /// Healthy attempts are kept in full too.
    pub records_all: bool,
}

/// Records lost, by kind.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// Slots of the circular logs that were overwritten before they were read.
    pub overwritten: u64,
    /// Program runs that the kernel skipped (`recursion_misses`).
    pub missed: u64,
    /// Slots given up because an interrupted program was still writing there, and failed inserts.
    pub reserve: u64,
    /// Packets of a watched port whose headers could not be read.
    pub unreadable: u64,
}

impl Lost {
    /// All kinds together.
    pub const fn total(&self) -> u64 {
        self.overwritten + self.missed + self.reserve + self.unreadable
    }
}

/// What the API said of a watched Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSeen {
    /// When this node's watch saw it.
    pub at: Timestamp,
    /// `namespace/name`.
    pub service: String,
    /// Its frontends (every ClusterIP × UDP port, and `--frontend`s); empty after deletion.
    pub frontends: Vec<SocketAddr>,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// What the API said of one EndpointSlice of a watched Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceSeen {
    /// When this node's watch saw it.
    pub at: Timestamp,
    /// `namespace/name` of the Service.
    pub service: String,
    /// Name of the slice.
    pub slice: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// The slice was deleted; `endpoints` is empty then.
    pub deleted: bool,
    /// It came from a list (start, or after a broken watch), not as a change: it may have changed any time before.
    pub listed: bool,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`: a hint, no more.
    pub trigger: Option<Timestamp>,
    /// Its endpoints × UDP ports.
    pub endpoints: Vec<EndpointSeen>,
}

/// One endpoint address of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSeen {
    /// Address.
    pub address: IpAddr,
    /// Its UDP ports of this Service.
    pub ports: Vec<u16>,
    /// Conditions, with the API's defaults filled in.
    pub conditions: Conditions,
    /// Node it runs on.
    pub node: Option<String>,
    /// Pod name (`targetRef`).
    pub pod: Option<String>,
    /// Pod uid (`targetRef`).
    pub uid: Option<String>,
}

/// The three conditions of an endpoint (KEP-1672). A missing `ready` counts as true, a missing `serving` as `ready`,
/// a missing `terminating` as false (discovery/v1 types.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Conditions {
    /// Ready and not terminating.
    pub ready: bool,
    /// Ready, whether terminating or not.
    pub serving: bool,
    /// Being deleted.
    pub terminating: bool,
}

/// What the API said of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSeen {
    /// When this node's watch saw it.
    pub at: Timestamp,
    /// The Node.
    pub name: String,
    /// Its Ready condition: `Some(false)` for False, `None` for Unknown or deleted.
    pub ready: Option<bool>,
}

/// A commit of this node's packet rules that touched watched addresses (netlink `NFNLGRP_NFTABLES`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCommit {
    /// When the kernel announced it.
    pub at: Timestamp,
    /// Name of the process that committed, such as `nft` or `iptables-restor`.
    pub committer: String,
    /// What it did to each address of an endpoint (or frontend) that it touched.
    pub changes: Vec<RuleChange>,
}

/// What one commit did to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleChange {
    /// The address in the rules.
    pub address: IpAddr,
    /// Rules or set elements added that name it.
    pub added: u32,
    /// Rules or set elements removed that name it.
    pub removed: u32,
}

/// Healthy attempts of one second, of one client and backend, by one node that saw the client or the backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Beginning of the second.
    pub second: Timestamp,
    /// `namespace/name` of the Service, where known.
    pub service: Option<String>,
    /// Which end this node saw.
    pub side: Side,
    /// The client: its pod, else `None` (host, or another node's).
    pub client: Option<PodName>,
    /// The backend's address and port, where known.
    pub backend: Option<SocketAddr>,
    /// Answered attempts.
    pub count: u64,
    /// First answer.
    pub first_answer: Timestamp,
    /// Last answer.
    pub last_answer: Timestamp,
    /// Latency histogram: upper bound of the bucket in microseconds (powers of two) → attempts.
    #[serde(deserialize_with = "buckets")]
    pub latency_us: BTreeMap<u64, u64>,
}

/// JSON object keys are strings, and serde does not turn them back into numbers behind `flatten` and `tag`.
fn buckets<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<u64, u64>, D::Error> {
    BTreeMap::<String, u64>::deserialize(from)?
        .into_iter()
        .map(|(bound, count)| Ok((bound.parse().map_err(serde::de::Error::custom)?, count)))
        .collect()
}

pub use super::flight::PodName;

/// Which end of an attempt a node saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The client's socket: these are counted.
    Client,
    /// The server's socket: evidence that the backend was alive.
    Server,
}

/// A time that a node did not observe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapSeen {
    /// From.
    pub from: Timestamp,
    /// To; equal to `from` for a moment.
    pub to: Timestamp,
    /// What was not observed.
    pub what: GapKind,
    /// How many records are known to be lost; 0 unknown.
    pub count: u64,
}

/// What a gap hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GapKind {
    /// Kernel records were overwritten, skipped or could not be read.
    RecordsLost,
    /// The agent was not running.
    AgentDown,
    /// The watch on the API was broken: transitions may have been missed.
    WatchBroken,
    /// The node's records are not in this timeline.
    NodeMissing,
}
