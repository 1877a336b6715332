//! What a failed query may have failed of, by what was injected and when it was sent.

use std::net::Ipv4Addr;

use slicetrace::model::Timestamp;
use slicetrace::model::timeline::Code;

use super::{Endpoint, Expectation, Injection, Lateness, Loss, Mood, What, ready, slices};

/// How long after its send a packet may still be before a node's rules or at the backend, on a busy machine.
const TRAVEL_NS: i64 = 10_000_000;
/// How long a backend that is being killed may have held a query without answering it.
const SERVICE_NS: i64 = 50_000_000;
/// How late an agent's watch may see a change of the API.
const WATCH_NS: i64 = 30_000_000;
/// Rules that follow within this time do so in the usual time.
const USUAL_NS: i64 = 1_000_000_000;
/// So long before it is killed an agent may not have written what it knew.
pub(crate) const UNWRITTEN_NS: i64 = 4_000_000_000;

/// A query as its client sent it.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    /// Node of the client.
    pub(crate) node: &'a str,
    /// Before its packet was sent.
    pub(crate) sent: Timestamp,
    /// After it was sent.
    pub(crate) sent_by: Timestamp,
    /// When the client had its result.
    pub(crate) ended: Timestamp,
    /// The backends that an earlier packet from its port may have been sent to, if conntrack still remembers it.
    pub(crate) pinned: Option<&'a [Ipv4Addr]>,
}

/// The backends that a node's rules may have chosen for it.
pub(crate) fn chosen(injected: &[Injection], asked: &Asked<'_>) -> Vec<Ipv4Addr> {
    let history = History {
        injected,
        node: asked.node,
    };
    let mut backends: Vec<Ipv4Addr> = history
        .rules(asked)
        .into_iter()
        .flat_map(|(_, backends)| backends.iter().copied())
        .collect();
    backends.sort();
    backends.dedup();
    backends
}

/// Whether the agent of the client's node was down, so that it need not know of the query.
pub(crate) fn unseen(injected: &[Injection], asked: &Asked<'_>) -> bool {
    injected.iter().any(|it| {
        matches!(&it.what, What::AgentDown { node, .. } if node == asked.node)
            && asked.sent <= it.to
            && asked.ended >= it.from - UNWRITTEN_NS
    })
}

/// Every cause that a query may have failed of.
pub(crate) fn causes(injected: &[Injection], asked: &Asked<'_>) -> Vec<Expectation> {
    let history = History {
        injected,
        node: asked.node,
    };
    let by = asked.sent_by + TRAVEL_NS;
    let mut causes = Vec::new();
    let losses = history.possible(asked.sent, asked.ended, |what| match what {
        What::Loss { node, loss } if node == history.node => Some(loss),
        _ => None,
    });
    for (_, loss) in losses {
        causes.extend(loss.map(|loss| match loss {
            Loss::Policy => only(Code::PolicyDrop),
            Loss::Kernel => only(Code::KernelDrop),
            Loss::Underlay => only(Code::Unexplained),
        }));
    }
    let slices = history.possible(asked.sent - WATCH_NS, by, |what| match what {
        What::Slice { endpoints, .. } => Some(endpoints),
        _ => None,
    });
    let rules = match asked.pinned {
        Some(pinned) => vec![pinned],
        None => history.rules(asked).into_iter().map(|(_, it)| it).collect(),
    };
    for (when, endpoints) in &slices {
        for backends in &rules {
            if backends.is_empty() {
                causes.extend(history.rejected(endpoints));
            }
            for backend in *backends {
                let unanswered = history.unanswered(*backend, asked);
                if !unanswered.is_empty() {
                    let old = asked.pinned.is_some();
                    causes.extend(history.unserved(*backend, *when, endpoints, old, &unanswered));
                }
                causes.extend(history.misserved(*backend, asked));
            }
        }
    }
    let places: Vec<&str> = slices
        .iter()
        .flat_map(|(_, endpoints)| endpoints.iter().map(|it| it.node.as_str()))
        .collect();
    history.blind(asked, &places, &mut causes);
    causes.sort();
    causes.dedup();
    causes
}

const fn only(code: Code) -> Expectation {
    Expectation {
        code,
        convergence: None,
    }
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

    fn rules(&self, asked: &Asked<'_>) -> Vec<(Timestamp, &'a [Ipv4Addr])> {
        let found = self.possible(asked.sent, asked.sent_by + TRAVEL_NS, |what| match what {
            What::Rules { node, backends, .. } if node == self.node => Some(backends),
            _ => None,
        });
        found
            .into_iter()
            .map(|(at, it)| (at, it.as_slice()))
            .collect()
    }

    /// In what ways the backend may not have answered it at all: nobody listened, or nobody replied.
    fn unanswered(&self, backend: Ipv4Addr, asked: &Asked<'_>) -> Vec<Code> {
        let mut ways = Vec::new();
        let by = asked.sent_by + SERVICE_NS;
        let mut states = self.life(backend).peekable();
        while let Some((from, to, mood)) = states.next() {
            let over = states
                .peek()
                .is_some_and(|(_, ended, _)| *ended < asked.sent);
            if from > by || over {
                continue;
            }
            match mood {
                // It may have ended with the query read.
                None if to > asked.sent => ways.extend([Code::BackendClosed, Code::BackendSilent]),
                None => ways.push(Code::BackendClosed),
                Some(Mood::Ignores) => ways.push(Code::BackendSilent),
                // Nobody continues it.
                Some(Mood::Paused) if states.peek().is_none() => ways.push(Code::BackendSilent),
                Some(_) => {}
            }
        }
        ways
    }

    /// In what ways it may have answered it badly.
    fn misserved(&self, backend: Ipv4Addr, asked: &Asked<'_>) -> Vec<Expectation> {
        let by = asked.sent_by + SERVICE_NS;
        let mut ways = Vec::new();
        let mut states = self.life(backend).peekable();
        while let Some((from, _, mood)) = states.next() {
            let next = states.peek().copied();
            if from > by || next.is_some_and(|(_, ended, _)| ended < asked.sent) {
                continue;
            }
            match (mood, next) {
                (Some(Mood::Rcode), _) => ways.push(only(Code::ErrorRcode)),
                (Some(Mood::Delays(delay)), _) if asked.ended.since(asked.sent) <= delay => {
                    ways.push(only(Code::BackendSlow));
                }
                // What waits is answered when it continues: for the client too late.
                (Some(Mood::Paused), Some((_, to, Some(_)))) if to + SERVICE_NS > asked.ended => {
                    ways.push(only(Code::BackendSlow));
                }
                _ => {}
            }
        }
        ways
    }

    /// What became of a backend's server, in order: the two times each change lies between, and how it served then;
    /// `None`: not at all.
    fn life(
        &self,
        backend: Ipv4Addr,
    ) -> impl Iterator<Item = (Timestamp, Timestamp, Option<Mood>)> {
        self.injected.iter().filter_map(move |it| match &it.what {
            What::Stopped { address, .. } if *address == backend => Some((it.from, it.to, None)),
            What::Served { address, mood } if *address == backend => {
                Some((it.from, it.to, Some(*mood)))
            }
            _ => None,
        })
    }

    /// Where an agent was down, nothing is concluded from what was not seen.
    fn blind(&self, asked: &Asked<'_>, backends: &[&str], causes: &mut Vec<Expectation>) {
        for injection in self.injected {
            let What::AgentDown { node, restarted } = &injection.what else {
                continue;
            };
            let near = asked.sent <= injection.to && asked.ended >= injection.from - UNWRITTEN_NS;
            if !near || causes.is_empty() {
                continue;
            }
            let certain = asked.sent <= *restarted && asked.ended > injection.from;
            if certain && node != self.node && backends.contains(&node.as_str()) {
                causes.retain(|it| it.code != Code::BackendSilent);
            }
            causes.push(only(Code::CaptureGap));
        }
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
        old: bool,
        unanswered: &[Code],
    ) -> Vec<Expectation> {
        let only = |code| vec![only(code)];
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
                    unanswered.iter().copied().flat_map(only).collect()
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
            // A conntrack entry chose it.
            _ if old => only(Code::StaleConntrack),
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
                What::Rules { node, backends, .. } if node == self.node && fits(backends) => {
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
    use super::super::{Stop, Window, expected};
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
                uncalled: false,
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
        causes(injected, &asked(milliseconds, None))
            .into_iter()
            .map(|cause| (cause.code, cause.convergence))
            .collect()
    }

    fn asked(milliseconds: i64, pinned: Option<&[Ipv4Addr]>) -> Asked<'_> {
        Asked {
            node: "worker2",
            sent: ms(milliseconds),
            sent_by: ms(milliseconds),
            ended: ms(milliseconds + 1000),
            pinned,
        }
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
