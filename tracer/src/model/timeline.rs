//! What a user is shown: the lines of `slicetrace timeline --output json`, schema `slicetrace/1`.
//!
//! Times are RFC 3339 in UTC with nanoseconds, durations integers in nanoseconds ending in `Ns`, an unknown value is
//! `null`, addresses are `1.2.3.4:53` and `[2001:db8::1]:53`. Readers ignore kinds and fields they do not know.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Timestamp;
pub use super::event::{Direction, Point, Question};
pub use super::record::{Conditions, GapKind, Lost};
pub use super::verdict::{
    ApiFact, Code, Confidence, Convergence, Facts, ProcessFact, RulesFact, Verdict,
};

/// Version of this format.
pub const SCHEMA: &str = "slicetrace/1";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Line {
    /// The first line.
    Header(Header),
    /// A change of one endpoint in the API.
    Transition(Transition),
    /// A node's rules took over a transition.
    Programming(Programming),
    /// A query with its attempts.
    Query(Box<Query>),
    /// A time that was not observed.
    Gap(Gap),
    /// The last line of each Service. Without it the output is incomplete.
    Summary(Summary),
}

/// What the timeline covers and how far it can be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program that wrote it.
    pub tool_version: String,
    /// Beginning of the covered time.
    pub from: Timestamp,
    /// End of the covered time.
    pub to: Timestamp,
    /// Node whose clock all times are in; `null` if nothing was recorded.
    pub reference_node: Option<String>,
    /// The Services.
    pub services: Vec<ServiceHeader>,
    /// The nodes.
    pub nodes: Vec<NodeHeader>,
}

/// A Service in the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceHeader {
    /// `namespace/name`.
    pub service: String,
    /// Addresses it is reached by.
    pub frontends: Vec<SocketAddr>,
    /// A remark on what lies behind it that is not recorded, such as `over TCP: not recorded`.
    pub upstream: Option<String>,
}

/// A node in the header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeHeader {
    /// Name.
    pub name: String,
    /// Its records are in this timeline.
    pub recorded: bool,
    /// Why not.
    pub reason: Option<String>,
    /// `uname -r`.
    pub kernel: Option<String>,
    /// Boot id.
    pub boot_id: Option<String>,
    /// Who translates Service addresses there.
    pub dataplane: Option<String>,
    /// This node's wall clock minus the reference node's.
    pub clock_offset_ns: Option<i64>,
    /// Bound of that offset's error.
    pub clock_error_ns: Option<i64>,
    /// The agent had written everything up to here.
    pub last_record_at: Option<Timestamp>,
    /// How often each hook saw a packet of the Service.
    pub hooks: BTreeMap<String, u64>,
    /// Hooks that could not be attached, with the reason.
    #[serde(default)]
    pub missing_hooks: BTreeMap<String, String>,
    /// Records lost, by kind.
    pub lost_records: Lost,
}

/// A change of one endpoint's conditions, or its coming or going, in the union of the Service's slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transition {
    /// Stable id, such as `t7`.
    pub id: String,
    /// Earliest moment any agent's watch saw it.
    pub at: Timestamp,
    /// It did not happen before this; `null` unknown.
    pub not_before: Option<Timestamp>,
    /// Delay of each node after `at`, nanoseconds.
    pub seen_by: BTreeMap<String, i64>,
    /// `namespace/name`.
    pub service: String,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Conditions before; `null`: in no slice.
    pub before: Option<Conditions>,
    /// Conditions after; `null`: in no slice.
    pub after: Option<Conditions>,
    /// Ready endpoints of this address family before.
    pub ready_before: u32,
    /// Ready endpoints of this address family after.
    pub ready_after: u32,
    /// Slice whose change this was.
    pub slice: String,
    /// Its resourceVersion.
    pub resource_version: String,
}

/// An endpoint.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Endpoint {
    /// Address.
    pub address: IpAddr,
    /// Node.
    pub node: Option<String>,
    /// Pod.
    pub pod: Option<String>,
    /// Pod uid.
    pub uid: Option<String>,
}

/// When a node's rules took over a transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Programming {
    /// When the rules changed.
    pub at: Timestamp,
    /// On which node.
    pub node: String,
    /// Id of the transition.
    pub transition: String,
    /// Time from the transition to the change; negative: the rules changed first.
    pub lag_ns: i64,
    /// Usual or late.
    pub convergence: Option<Convergence>,
    /// How it is known.
    pub basis: Basis,
}

/// How the time of a rule change is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// A commit of the node's rules touched the endpoint's address.
    Rules,
    /// No commit was heard. The last new flow to a withdrawn endpoint: the rules changed after it. Or the first new flow to a
    /// usable one: they had changed by then.
    FirstNewFlow,
}

/// One question asked by one client socket, with every packet of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Query {
    /// Stable id, such as `q41`.
    pub id: String,
    /// First packet.
    pub at: Timestamp,
    /// Answer, or the moment the client gave up.
    pub completed_at: Timestamp,
    /// `namespace/name`.
    pub service: String,
    /// Node of the client.
    pub node: String,
    /// No later event can change the verdicts.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// Grows when a verdict changes.
    pub revision: u32,
    /// Who asked.
    pub client: Client,
    /// What was asked; `null` where no packet ever existed.
    pub question: Option<Question>,
    /// How it ended.
    pub outcome: Outcome,
    /// First packet to answer; `null` without an answer.
    pub latency_ns: Option<i64>,
    /// Every packet.
    pub attempts: Vec<Attempt>,
}

/// Who asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Client {
    /// Address of the client.
    pub address: IpAddr,
    /// Namespace of its pod; `null`: a host process, or unknown.
    pub namespace: Option<String>,
    /// Its pod.
    pub pod: Option<String>,
    /// Its container.
    pub container: Option<String>,
    /// Its process name.
    pub process: Option<String>,
    /// Its pid.
    pub pid: Option<u32>,
}

/// How a query ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// With an answer (whatever its rcode).
    Answered,
    /// The answer came after the client had given up.
    Late,
    /// The client was told at once that it failed.
    Refused,
    /// Nothing came.
    Unanswered,
}

/// One packet of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// 1, 2, …
    pub n: u32,
    /// When it was sent.
    pub at: Timestamp,
    /// The client's end.
    pub source: SocketAddr,
    /// Transaction id; `null` where no packet existed.
    pub txid: Option<u16>,
    /// Address the process asked for.
    pub asked: Option<SocketAddr>,
    /// Who turned it into the backend's.
    pub translation: Option<Translation>,
    /// The backend chosen; `null`: none was, or unknown.
    pub backend: Option<SocketAddr>,
    /// Whether its flow was new to the node; `null` unknown.
    pub flow: Option<Flow>,
    /// What the API said of the backend then; `null`: in no slice.
    pub backend_state: Option<Conditions>,
    /// Ready endpoints of its address family then.
    pub ready_endpoints: Option<u32>,
    /// How it ended.
    pub result: AttemptResult,
    /// Response code by name.
    pub rcode: Option<String>,
    /// Sent to answered.
    pub latency_ns: Option<i64>,
    /// Where it was seen.
    pub trail: Vec<TrailHop>,
    /// Where it, or its reply, was dropped.
    pub drops: Vec<AttemptDrop>,
    /// How the client was told.
    pub refusals: Vec<AttemptRefusal>,
    /// Why it failed; `null` for a healthy attempt.
    pub verdict: Option<Verdict>,
}

/// Who turned the Service's address into the backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Translation {
    /// A connect-time load balancer.
    Socket,
    /// A conntrack entry with DNAT.
    Netfilter,
    /// IPVS.
    Ipvs,
    /// Rewritten on a device, no conntrack entry of netfilter's.
    Bpf,
    /// The client asked the backend itself, or nobody translated.
    None,
}

/// Whether a flow was known to the node before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Flow {
    /// No conntrack entry (or socket connection) could have pinned it.
    New,
    /// An earlier packet from the same client address and port had.
    Old,
}

/// How one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptResult {
    /// Answered in time.
    Answered,
    /// Answered after the client had asked again or given up.
    Late,
    /// The client was told at once.
    Refused,
    /// It, or its reply, was seen dropped.
    Dropped,
    /// Nothing came, no drop was seen.
    Unanswered,
}

/// A hop of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrailHop {
    /// When.
    pub at: Timestamp,
    /// Node that saw it.
    pub node: String,
    /// Inode of the network namespace; `null` unknown.
    pub netns: Option<u32>,
    /// Device; `null` at a socket.
    pub device: Option<String>,
    /// Where.
    pub point: Point,
    /// Which way.
    pub direction: Direction,
    /// Source there.
    pub source: SocketAddr,
    /// Destination there.
    pub destination: SocketAddr,
}

/// A drop of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptDrop {
    /// When.
    pub at: Timestamp,
    /// Node that saw it.
    pub node: String,
    /// The kernel's reason by name.
    pub reason: Option<String>,
    /// The kernel's function.
    pub location: Option<String>,
    /// Which of the two packets.
    pub direction: Direction,
}

/// How the client was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptRefusal {
    /// When.
    pub at: Timestamp,
    /// Node that saw it.
    pub node: String,
    /// `icmp`, `socket` or `send`.
    pub how: RefusalKind,
    /// Such as `port-unreachable` or `ECONNREFUSED`.
    pub what: String,
    /// Outer source of an ICMP message.
    pub from: Option<IpAddr>,
}

/// The way a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// An ICMP error reached the node or the pod.
    Icmp,
    /// The socket was told an error.
    Socket,
    /// The send itself failed.
    Send,
}

/// A time that was not observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// From.
    pub from: Timestamp,
    /// To.
    pub to: Timestamp,
    /// On which node.
    pub node: String,
    /// What was not observed.
    pub what: GapKind,
    /// Records known to be lost; 0 unknown.
    pub count: u64,
}

/// Totals of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// `namespace/name`.
    pub service: String,
    /// Queries: the sum of the four outcomes.
    pub queries: u64,
    /// Answered.
    pub answered: u64,
    /// Answered too late.
    pub late: u64,
    /// Told at once.
    pub refused: u64,
    /// Never answered.
    pub unanswered: u64,
    /// late + refused + unanswered.
    pub failed: u64,
    /// Answered, after an attempt that was not.
    pub recovered: u64,
    /// Packets of all queries.
    pub attempts: u64,
    /// Packets that repeated an earlier one (same port and txid).
    pub retransmissions: u64,
    /// Failed attempts by cause.
    pub verdicts: BTreeMap<String, u64>,
    /// Changes of the union of the Service's slices.
    pub events: u64,
    /// Fewest ready endpoints at any time; `null` unknown.
    pub minimum_ready: Option<u32>,
    /// Changes that left no ready endpoint.
    pub zero_ready_events: u64,
    /// Time without a ready endpoint.
    pub zero_ready_ns: i64,
    /// When there was none.
    pub zero_ready_windows: Vec<ZeroReadyWindow>,
    /// Records lost on all nodes.
    pub lost_records: u64,
    /// Nodes whose records are missing.
    pub missing_nodes: Vec<String>,
}

/// A time without a ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ZeroReadyWindow {
    /// From.
    pub from: Timestamp,
    /// To; `null`: it lasted to the end.
    pub to: Option<Timestamp>,
    /// Attempts answered in it by endpoints that were terminating but still serving; at least so many.
    pub answered_by_terminating: u64,
    /// Attempts that failed in it.
    pub failed: u64,
}
