//! What the lab injected, what its clients saw, and what must therefore be said of each failed query.
//!
//! Nothing here looks at slicetrace's records: expectations follow from the injections, each known to lie between two
//! times, from the clients' own logs, and from the definitions in docs/verdicts.md. Where a query was sent near an
//! injection, every cause that could be true is listed.

mod causes;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use slicetrace::model::Timestamp;
use slicetrace::model::timeline::{Code, Convergence};

pub use crate::dns::log::ClientResult;
pub(crate) use causes::{Asked, UNWRITTEN_NS, causes, chosen, unseen};

/// An experiment's log of itself, `NAME.truth.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Truth {
    /// Name of the experiment.
    pub scenario: String,
    /// What was done, in a sentence.
    pub description: String,
    /// `namespace/name` of the Service.
    pub service: String,
    /// Beginning of what is recorded: the whole second before the first query.
    pub from: Timestamp,
    /// Before the first query, and after everything was prepared.
    pub load: Timestamp,
    /// After the last result.
    pub to: Timestamp,
    /// What was injected, in order, beginning with the state before the first query.
    pub injected: Vec<Injection>,
    /// What must be said of the Service.
    pub expected: Expected,
    /// Every query of every client.
    pub queries: Vec<ClientQuery>,
    /// What programs with a resolver of their own asked, apart from `queries`.
    #[serde(default)]
    pub resolved: Vec<Resolved>,
    /// Pods that sent what is no query, and how many such packets.
    #[serde(default)]
    pub noise: Vec<Noise>,
}

/// A name that a program looked up with its own resolver; what follows is said of each of its questions (A, AAAA).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// The program.
    pub tool: String,
    /// Node of its pod.
    pub node: String,
    /// The name; nobody else asks for it.
    pub name: String,
    /// Questions it asks of it, one for each type.
    pub questions: u64,
    /// Why each of its packets failed, in order; `null`: it was answered.
    pub attempts: Vec<Option<Code>>,
    /// By its exit status.
    pub answered: bool,
}

/// A pod that sent what is no query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noise {
    /// Its address.
    pub address: Ipv4Addr,
    /// How many packets.
    pub packets: u64,
}

/// Conditions ready, serving, terminating; `None`: in no slice.
pub type State = Option<(bool, bool, bool)>;

impl Truth {
    /// Every change of an endpoint since the first query: when, which, and its conditions afterwards.
    pub fn changes(&self) -> Vec<(Timestamp, Ipv4Addr, State)> {
        let state = |endpoints: &[Endpoint], address| {
            endpoints
                .iter()
                .find(|endpoint| endpoint.address == address)
                .map(|endpoint| (endpoint.ready, endpoint.serving, endpoint.terminating))
        };
        let mut changes = Vec::new();
        let mut before: &[Endpoint] = &[];
        for (at, endpoints) in slices(&self.injected) {
            let addresses: BTreeSet<Ipv4Addr> = before
                .iter()
                .chain(endpoints)
                .map(|endpoint| endpoint.address)
                .collect();
            for address in addresses {
                let after = state(endpoints, address);
                if at > self.load && state(before, address) != after {
                    changes.push((at, address, after));
                }
            }
            before = endpoints;
        }
        changes
    }

    /// Every commit of rules since the first query: node, the two times it lies between, and whether no change of the API
    /// had called for it.
    pub fn commits(&self) -> impl Iterator<Item = (&str, Timestamp, Timestamp, bool)> {
        self.injected
            .iter()
            .filter(|injection| injection.from > self.load)
            .filter_map(|injection| match &injection.what {
                What::Rules { node, uncalled, .. } => {
                    Some((node.as_str(), injection.from, injection.to, *uncalled))
                }
                _ => None,
            })
    }

    /// Every time that a node's agent was down, from the signal that killed it to when it was ready again.
    pub fn blind(&self) -> impl Iterator<Item = (&str, Timestamp, Timestamp)> {
        self.injected
            .iter()
            .filter_map(|injection| match &injection.what {
                What::AgentDown { node, .. } => Some((node.as_str(), injection.from, injection.to)),
                _ => None,
            })
    }
}

/// Something that the lab did: it took hold at some moment from `from` to `to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What the lab did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "what",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum What {
    /// The EndpointSlice had these endpoints from then on.
    Slice {
        /// The endpoints.
        endpoints: Vec<Endpoint>,
        /// Version of the slice.
        resource_version: u64,
    },
    /// The node's rules had these backends from then on.
    Rules {
        /// The node.
        node: String,
        /// Addresses of the backends.
        backends: Vec<Ipv4Addr>,
        /// No change of the API called for it.
        #[serde(default)]
        uncalled: bool,
    },
    /// The backend's process ended.
    Stopped {
        /// Address of the backend.
        address: Ipv4Addr,
        /// How.
        how: Stop,
    },
    /// The backend's server treated queries like this from then on. In the beginning it answers.
    Served {
        /// Address of the backend.
        address: Ipv4Addr,
        /// How.
        mood: Mood,
    },
    /// Queries of this node's clients, or their replies, were lost like this from then on. In the beginning they are not.
    Loss {
        /// Node of the clients.
        node: String,
        /// How; `null`: no more.
        loss: Option<Loss>,
    },
    /// The node's agent was killed at the first time and ready again at the second.
    AgentDown {
        /// The node.
        node: String,
        /// Before it was started again.
        restarted: Timestamp,
    },
}

/// How a server treats queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mood {
    /// It answers.
    Answers,
    /// It answers SERVFAIL or REFUSED.
    Rcode,
    /// It answers after so many nanoseconds.
    Delays(i64),
    /// It reads them and never answers.
    Ignores,
    /// It is stopped (SIGSTOP) and answers what waits when it continues.
    Paused,
}

/// How packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// A rule of netfilter drops them on a node.
    Policy,
    /// A node's kernel drops them for a reason that it names.
    Kernel,
    /// Between the nodes, where nobody looks.
    Underlay,
}

/// How a backend ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// It exited by itself; its pod stayed.
    Exited,
    /// SIGKILL; its pod stayed.
    Killed,
    /// SIGKILL, and its pod's namespace was deleted.
    Gone,
}

/// An endpoint in the slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Address.
    pub address: Ipv4Addr,
    /// Pod.
    pub pod: String,
    /// Node.
    pub node: String,
    /// Condition `ready`.
    pub ready: bool,
    /// Condition `serving`.
    pub serving: bool,
    /// Condition `terminating`.
    pub terminating: bool,
}

/// What must be said of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expected {
    /// Changes of the slice during the load.
    pub events: u64,
    /// Fewest ready endpoints.
    pub minimum_ready: u32,
    /// Changes that left none ready.
    pub zero_ready_events: u64,
    /// When none was ready.
    pub zero_ready_windows: Vec<Window>,
}

/// A time without a ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// From.
    pub from: Timestamp,
    /// To; `null`: it lasted to the end.
    pub to: Option<Timestamp>,
}

/// A query as its client logged it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientQuery {
    /// Node of the client.
    pub node: String,
    /// The name asked for; no other query has it.
    pub name: String,
    /// The client's end.
    pub source: SocketAddr,
    /// DNS transaction id.
    pub txid: u16,
    /// Before each packet was sent.
    pub sent: Vec<Timestamp>,
    /// After the last packet was sent.
    pub sent_by: Timestamp,
    /// When the client had its result.
    pub ended: Timestamp,
    /// The result.
    pub result: ClientResult,
    /// Response code of an answer.
    #[serde(default)]
    pub rcode: Option<u16>,
    /// What may be said of why it failed; empty for a healthy one.
    pub expected: Vec<Expectation>,
    /// An agent was down, so that it need not be known.
    #[serde(default)]
    pub unseen: bool,
}

impl ClientQuery {
    /// Its client had no answer, or an error for one.
    pub fn failed(&self) -> bool {
        const SERVFAIL: u16 = 2;
        const REFUSED: u16 = 5;
        self.result != ClientResult::Answered || matches!(self.rcode, Some(SERVFAIL | REFUSED))
    }
}

/// A cause that a failed query may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Expectation {
    /// The code.
    pub code: Code,
    /// With `programming-lag`: whether the rules followed in the usual time.
    pub convergence: Option<Lateness>,
}

/// [`Convergence`], with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lateness {
    /// Within a second.
    Normal,
    /// Later.
    Late,
}

impl From<Lateness> for Convergence {
    fn from(lateness: Lateness) -> Self {
        match lateness {
            Lateness::Normal => Self::Normal,
            Lateness::Late => Self::Late,
        }
    }
}

/// What must be said of the Service from `load` (before the first query) on, by the changes of its slice.
pub fn expected(injected: &[Injection], load: Timestamp) -> Expected {
    let before = slices(injected)
        .take_while(|(at, _)| *at <= load)
        .last()
        .map_or(0, |(_, endpoints)| ready(endpoints));
    let mut expected = Expected {
        minimum_ready: before,
        ..Expected::default()
    };
    let mut zero_since = (before == 0).then_some(load);
    for (at, endpoints) in slices(injected).filter(|(at, _)| *at > load) {
        let ready = ready(endpoints);
        expected.minimum_ready = expected.minimum_ready.min(ready);
        expected.events += 1;
        expected.zero_ready_events += u64::from(ready == 0);
        match (ready, zero_since) {
            (0, None) => zero_since = Some(at),
            (1.., Some(from)) => {
                expected
                    .zero_ready_windows
                    .push(Window { from, to: Some(at) });
                zero_since = None;
            }
            _ => {}
        }
    }
    if let Some(from) = zero_since {
        expected.zero_ready_windows.push(Window { from, to: None });
    }
    expected
}

fn slices(injected: &[Injection]) -> impl Iterator<Item = (Timestamp, &[Endpoint])> {
    injected
        .iter()
        .filter_map(|injection| match &injection.what {
            What::Slice { endpoints, .. } => Some((injection.to, endpoints.as_slice())),
            _ => None,
        })
}

fn ready(endpoints: &[Endpoint]) -> u32 {
    u32::try_from(endpoints.iter().filter(|endpoint| endpoint.ready).count()).unwrap_or(u32::MAX)
}
