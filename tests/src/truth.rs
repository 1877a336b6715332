//! What the lab injected, what its clients saw, and what must therefore be said of each failed query.
//!
//! Nothing here looks at slicetrace's records: expectations follow from the injections, each known to lie between two
//! times, from the clients' own logs, and from the definitions in docs/verdicts.md. Where a query was sent near an
//! injection, every cause that could be true is listed.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use slicetrace::model::Timestamp;
use slicetrace::model::timeline::{Code, Convergence};

pub use crate::dns::log::ClientResult;

/// How long after its send a packet may still be before a node's rules or at the backend, on a busy machine.
const TRAVEL_NS: i64 = 10_000_000;
/// How long a backend that is being killed may have held a query without answering it.
const SERVICE_NS: i64 = 50_000_000;
/// How late an agent's watch may see a change of the API.
const WATCH_NS: i64 = 30_000_000;
/// Rules that follow within this time do so in the usual time.
const USUAL_NS: i64 = 1_000_000_000;

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

    /// Every commit of rules since the first query: node, and the two times it lies between.
    pub fn commits(&self) -> impl Iterator<Item = (&str, Timestamp, Timestamp)> {
        self.injected
            .iter()
            .filter(|injection| injection.from > self.load)
            .filter_map(|injection| match &injection.what {
                What::Rules { node, .. } => Some((node.as_str(), injection.from, injection.to)),
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
    },
    /// The backend's process ended.
    Stopped {
        /// Address of the backend.
        address: Ipv4Addr,
        /// How.
        how: Stop,
    },
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
    /// What may be said of why it failed; empty for an answered one.
    pub expected: Vec<Expectation>,
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

/// Every cause that a query from a fresh port, sent from `node` between two times, may have failed of.
pub fn causes(
    injected: &[Injection],
    node: &str,
    sent: Timestamp,
    sent_by: Timestamp,
) -> Vec<Expectation> {
    let history = History { injected, node };
    let rules = history.possible(sent, sent_by + TRAVEL_NS, |what| match what {
        What::Rules { node, backends } if node == history.node => Some(backends),
        _ => None,
    });
    let slices = history.possible(sent - WATCH_NS, sent_by + TRAVEL_NS, |what| match what {
        What::Slice { endpoints, .. } => Some(endpoints),
        _ => None,
    });
    let mut causes = Vec::new();
    for (when, endpoints) in &slices {
        for (_, backends) in &rules {
            if backends.is_empty() {
                causes.extend(history.rejected(endpoints));
            }
            for backend in *backends {
                if history.stopped(*backend, sent_by + SERVICE_NS) {
                    causes.extend(history.unserved(*backend, *when, endpoints));
                }
            }
        }
    }
    causes.sort();
    causes.dedup();
    causes
}

struct History<'a> {
    injected: &'a [Injection],
    node: &'a str,
}

impl<'a> History<'a> {
    /// The states of one kind that may have been in force at some moment from `from` to `to`, each with its beginning.
    fn possible<T>(
        &self,
        from: Timestamp,
        to: Timestamp,
        select: impl Fn(&'a What) -> Option<&'a T>,
    ) -> Vec<(Timestamp, &'a T)> {
        let states: Vec<_> = self
            .injected
            .iter()
            .filter_map(|injection| Some((injection, select(&injection.what)?)))
            .collect();
        states
            .iter()
            .enumerate()
            .filter(|(index, (injection, _))| {
                let ends = states.get(index + 1).map(|(next, _)| next.to);
                injection.from <= to && ends.is_none_or(|ends| ends >= from)
            })
            .map(|(_, (injection, state))| (injection.to, *state))
            .collect()
    }

    fn stopped(&self, backend: Ipv4Addr, by: Timestamp) -> bool {
        self.injected.iter().any(|injection| {
            matches!(&injection.what, What::Stopped { address, .. } if *address == backend)
                && injection.from <= by
        })
    }

    /// The rules had no backend.
    fn rejected(&self, endpoints: &[Endpoint]) -> Vec<Expectation> {
        let usable =
            |endpoint: &&Endpoint| endpoint.ready || (endpoint.serving && endpoint.terminating);
        let Some(known) = endpoints.iter().find(usable) else {
            return vec![Expectation {
                code: Code::NoEndpoints,
                convergence: None,
            }];
        };
        let since = self.first_slice(|endpoints| {
            endpoints
                .iter()
                .any(|endpoint| endpoint.address == known.address && usable(&endpoint))
        });
        let taken_up = since.and_then(|since| {
            self.first_rules(since, |backends| backends.contains(&known.address))
        });
        programming_lag(since, taken_up)
    }

    /// The rules may have chosen a backend that had stopped.
    fn unserved(
        &self,
        backend: Ipv4Addr,
        when: Timestamp,
        endpoints: &[Endpoint],
    ) -> Vec<Expectation> {
        let only = |code| {
            vec![Expectation {
                code,
                convergence: None,
            }]
        };
        let state = endpoints
            .iter()
            .find(|endpoint| endpoint.address == backend);
        let retires = |endpoints: &[Endpoint]| {
            !endpoints
                .iter()
                .any(|endpoint| endpoint.address == backend && endpoint.ready)
        };
        let was_ready = self.first_slice(|endpoints| !retires(endpoints));
        let retired = was_ready.and_then(|was_ready| {
            slices(self.injected)
                .find(|(at, endpoints)| *at > was_ready && retires(endpoints))
                .map(|(at, _)| at)
        });
        let followed = retired
            .and_then(|_| self.first_rules(was_ready?, |backends| !backends.contains(&backend)));
        match state {
            Some(state) if state.ready => {
                if retired.is_some_and(|retired| retired > when) {
                    only(Code::BackendDiedFirst)
                } else {
                    [only(Code::BackendClosed), only(Code::BackendSilent)].concat()
                }
            }
            Some(state) if state.serving && state.terminating => {
                let lag = programming_lag(retired, followed);
                if ready(endpoints) == 0 {
                    return only(Code::TerminatingBackend);
                }
                lag.into_iter()
                    .flat_map(|cause| match cause.convergence {
                        Some(Lateness::Late) => vec![cause],
                        Some(Lateness::Normal) => only(Code::TerminatingBackend),
                        None => [vec![cause], only(Code::TerminatingBackend)].concat(),
                    })
                    .collect()
            }
            Some(state) if !state.terminating && was_ready.is_none_or(|ready| ready > when) => {
                only(Code::BackendNotReady)
            }
            _ => programming_lag(retired, followed),
        }
    }

    fn first_slice(&self, fits: impl Fn(&[Endpoint]) -> bool) -> Option<Timestamp> {
        slices(self.injected)
            .find(|(_, endpoints)| fits(endpoints))
            .map(|(at, _)| at)
    }

    /// The node's first commit after a time that fits, as the two times it lies between.
    fn first_rules(
        &self,
        after: Timestamp,
        fits: impl Fn(&[Ipv4Addr]) -> bool,
    ) -> Option<(Timestamp, Timestamp)> {
        self.injected
            .iter()
            .filter(|injection| injection.to > after)
            .find_map(|injection| match &injection.what {
                What::Rules { node, backends } if node == self.node && fits(backends) => {
                    Some((injection.from, injection.to))
                }
                _ => None,
            })
    }
}

/// `programming-lag` with the convergences that the commit's two times allow.
fn programming_lag(
    transition: Option<Timestamp>,
    commit: Option<(Timestamp, Timestamp)>,
) -> Vec<Expectation> {
    let lateness = |commit: Timestamp, transition: Timestamp| {
        if commit.since(transition) <= USUAL_NS {
            Lateness::Normal
        } else {
            Lateness::Late
        }
    };
    let with = |convergence| Expectation {
        code: Code::ProgrammingLag,
        convergence,
    };
    match (transition, commit) {
        (Some(transition), Some((from, to))) => {
            let mut causes = vec![
                with(Some(lateness(from, transition))),
                with(Some(lateness(to, transition))),
            ];
            causes.dedup();
            causes
        }
        _ => vec![with(None)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 42, 2, 10);
    const B: Ipv4Addr = Ipv4Addr::new(10, 42, 1, 10);

    fn ms(milliseconds: i64) -> Timestamp {
        Timestamp(1_000_000_000_000 + milliseconds * 1_000_000)
    }

    fn at(milliseconds: i64, what: What) -> Injection {
        Injection {
            from: ms(milliseconds),
            to: ms(milliseconds + 1),
            what,
        }
    }

    /// (address, ready, serving, terminating)
    fn slice(milliseconds: i64, endpoints: &[(Ipv4Addr, bool, bool, bool)]) -> Injection {
        let endpoints = endpoints
            .iter()
            .map(|&(address, ready, serving, terminating)| Endpoint {
                address,
                pod: "p".to_owned(),
                node: "n".to_owned(),
                ready,
                serving,
                terminating,
            })
            .collect();
        at(
            milliseconds,
            What::Slice {
                endpoints,
                resource_version: 1,
            },
        )
    }

    fn rules(milliseconds: i64, backends: &[Ipv4Addr]) -> Injection {
        at(
            milliseconds,
            What::Rules {
                node: "worker2".to_owned(),
                backends: backends.to_vec(),
            },
        )
    }

    fn killed(milliseconds: i64) -> Injection {
        at(
            milliseconds,
            What::Stopped {
                address: A,
                how: Stop::Killed,
            },
        )
    }

    fn causes_at(injected: &[Injection], milliseconds: i64) -> Vec<(Code, Option<Lateness>)> {
        causes(injected, "worker2", ms(milliseconds), ms(milliseconds))
            .into_iter()
            .map(|cause| (cause.code, cause.convergence))
            .collect()
    }

    const READY: bool = true;

    fn two_replicas() -> Vec<Injection> {
        vec![
            slice(0, &[(A, READY, true, false), (B, READY, true, false)]),
            rules(0, &[A, B]),
        ]
    }

    #[test]
    fn the_four_causes_of_two_replicas_are_told_apart() {
        let gone = |time| slice(time, &[(B, READY, true, false)]);
        let terminating = |time| slice(time, &[(A, false, true, true), (B, READY, true, false)]);
        let case = |more: Vec<Injection>| [two_replicas(), more].concat();

        let injected = case(vec![
            terminating(5000),
            killed(5100),
            rules(5500, &[B]),
            gone(7000),
        ]);
        assert_eq!(
            causes_at(&injected, 5300),
            [(Code::TerminatingBackend, None)]
        );

        let injected = case(vec![
            terminating(5000),
            gone(6600),
            killed(6650),
            rules(9000, &[B]),
        ]);
        assert_eq!(
            causes_at(&injected, 8000),
            [(Code::ProgrammingLag, Some(Lateness::Late))]
        );

        let injected = case(vec![gone(5000), killed(5050), rules(5400, &[B])]);
        assert_eq!(
            causes_at(&injected, 5200),
            [(Code::ProgrammingLag, Some(Lateness::Normal))]
        );

        let injected = case(vec![killed(5000), rules(5990, &[B]), gone(6000)]);
        assert_eq!(causes_at(&injected, 5500), [(Code::BackendDiedFirst, None)]);
    }

    #[test]
    fn one_replica_refused_before_during_and_after_the_window() {
        let injected = [
            slice(0, &[(A, READY, true, false)]),
            rules(0, &[A]),
            slice(5000, &[]),
            killed(5060),
            rules(5150, &[]),
            slice(7000, &[(B, READY, true, false)]),
            rules(7100, &[B]),
        ];
        assert_eq!(
            causes_at(&injected, 5100),
            [(Code::ProgrammingLag, Some(Lateness::Normal))]
        );
        assert_eq!(causes_at(&injected, 6000), [(Code::NoEndpoints, None)]);
        assert_eq!(
            causes_at(&injected, 7050),
            [(Code::ProgrammingLag, Some(Lateness::Normal))]
        );
        // At the edge either may be true.
        assert_eq!(causes_at(&injected, 7005).len(), 2);

        let expected = expected(&injected, ms(2000));
        assert_eq!((expected.events, expected.minimum_ready), (2, 0));
        assert_eq!(expected.zero_ready_events, 1);
        assert_eq!(
            expected.zero_ready_windows,
            [Window {
                from: ms(5001),
                to: Some(ms(7001))
            }]
        );
    }

    #[test]
    fn a_healthy_moment_has_no_cause() {
        assert!(causes_at(&two_replicas(), 3000).is_empty());
    }
}
