//! When each node's packet rules took over a transition.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::model::Timestamp;
use crate::model::record::RuleCommit;
use crate::model::timeline::{Basis, Convergence, Programming, RulesFact};

use super::slices::History;

const SECOND: i64 = 1_000_000_000;

/// The longest usual time from a transition to a node's rules.
const NORMAL_NS: i64 = SECOND;

/// How long before our watch saw a transition kube-proxy may have acted on it.
const EARLY_NS: i64 = 2 * SECOND;

/// A new flow that went to a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NewFlow {
    pub(super) at: Timestamp,
    pub(super) node: String,
    pub(super) backend: IpAddr,
}

/// A node's commits.
#[derive(Debug, Default)]
pub(super) struct NodeRules {
    /// By time.
    pub(super) commits: Vec<RuleCommit>,
    /// Commits are announced here.
    pub(super) heard: bool,
    /// The node was recorded from, to.
    pub(super) recorded: Option<(Timestamp, Timestamp)>,
}

/// What is known of one node's rules and one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The rules changed then.
    committed: Option<Timestamp>,
    /// A new flow still followed the old rules then.
    not_before: Option<Timestamp>,
    /// A new flow already followed the new rules then.
    by: Option<Timestamp>,
    /// No commit came until then, though one would have been heard.
    none_until: Option<Timestamp>,
}

/// What is known of all nodes' rules and a Service's changes.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// By node and index of the change.
    known: BTreeMap<(String, usize), Known>,
}

impl Programs {
    pub(super) fn new(
        history: &History,
        nodes: &BTreeMap<String, NodeRules>,
        flows: &[NewFlow],
    ) -> Self {
        let mut programs = Self::default();
        let mut by_backend: HashMap<(&str, IpAddr), Vec<Timestamp>> = HashMap::new();
        for flow in flows {
            by_backend
                .entry((&flow.node, flow.backend))
                .or_default()
                .push(flow.at);
        }
        for times in by_backend.values_mut() {
            times.sort_unstable();
        }
        for (node, rules) in nodes {
            // When the last change of an address was committed here.
            let mut done: HashMap<IpAddr, Timestamp> = HashMap::new();
            for (index, change) in history.usable_changes.iter().enumerate() {
                let next = (history.usable_changes[index + 1..].iter())
                    .find(|it| it.address == change.address)
                    .map_or(Timestamp(i64::MAX), |it| it.at);
                let from = (change.at - EARLY_NS).max(
                    done.get(&change.address)
                        .map_or(Timestamp(i64::MIN), |it| *it + 1),
                );
                let flows = by_backend.get(&(node.as_str(), change.address));
                let flows = flows.into_iter().flatten().copied();
                let flows = flows.filter(|at| *at >= from && *at < next);
                let (not_before, by) = if change.usable {
                    (None, flows.min())
                } else {
                    (flows.filter(|at| *at > change.at).max(), None)
                };
                let committed = (rules.commits.iter())
                    .filter(|it| it.at >= from.max(not_before.unwrap_or(from)) && it.at < next)
                    .find(|it| {
                        it.changes.iter().any(|it| {
                            it.address == change.address
                                && if change.usable {
                                    it.added > it.removed
                                } else {
                                    it.removed > it.added
                                }
                        })
                    })
                    .map(|it| it.at);
                if let Some(at) = committed {
                    done.insert(change.address, at);
                }
                let none_until = (rules.recorded)
                    .filter(|(since, _)| rules.heard && *since <= change.at - EARLY_NS)
                    .map(|(_, until)| until)
                    .filter(|_| committed.is_none());
                let known = Known {
                    committed,
                    not_before,
                    by,
                    none_until,
                };
                programs.known.insert((node.clone(), index), known);
            }
        }
        programs
    }

    /// The lines of a timeline.
    pub(super) fn lines(&self, history: &History) -> Vec<Programming> {
        let mut lines = Vec::new();
        for ((node, index), known) in &self.known {
            let change = &history.usable_changes[*index];
            let (at, basis) = match (known.committed, known.not_before.or(known.by)) {
                (Some(at), _) => (at, Basis::Rules),
                (None, Some(at)) => (at, Basis::FirstNewFlow),
                (None, None) => continue,
            };
            lines.push(Programming {
                at,
                node: node.clone(),
                transition: history.transitions[change.transition].id.clone(),
                lag_ns: at.since(change.at),
                convergence: self.convergence(history, node, *index),
                basis,
            });
        }
        // A transition can make one endpoint usable and another not: the node has taken it over with the last of them.
        lines.sort_by(|a, b| (&a.transition, &a.node, a.at).cmp(&(&b.transition, &b.node, b.at)));
        lines.dedup_by(|later, kept| {
            let same = later.transition == kept.transition && later.node == kept.node;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        lines
    }

    /// Whether a node's rules followed a change in the usual time.
    pub(super) fn convergence(
        &self,
        history: &History,
        node: &str,
        change: usize,
    ) -> Option<Convergence> {
        let known = self.known.get(&(node.to_owned(), change))?;
        let at = history.usable_changes.get(change)?.at;
        let usual = at + NORMAL_NS;
        if let Some(committed) = known.committed {
            return Some(if committed <= usual {
                Convergence::Normal
            } else {
                Convergence::Late
            });
        }
        if known.not_before.is_some_and(|it| it > usual) {
            return Some(Convergence::Late);
        }
        if known.by.is_some_and(|it| it <= usual) {
            return Some(Convergence::Normal);
        }
        None
    }

    /// Whether a node's rules had taken over a change at a moment.
    pub(super) fn fact(&self, node: &str, change: usize, at: Timestamp) -> RulesFact {
        let Some(known) = self.known.get(&(node.to_owned(), change)) else {
            return RulesFact::Unknown;
        };
        if known.not_before.is_some_and(|it| at <= it) {
            return RulesFact::BeforeChange;
        }
        match known.committed {
            Some(committed) if at < committed => RulesFact::BeforeChange,
            Some(_) => RulesFact::AfterChange,
            None if known.by.is_some_and(|it| at >= it) => RulesFact::AfterChange,
            None if known.none_until.is_some_and(|it| at <= it) => RulesFact::BeforeChange,
            None => RulesFact::Unknown,
        }
    }

    /// When the rules changed, from a commit.
    pub(super) fn committed(&self, node: &str, change: usize) -> Option<Timestamp> {
        self.known.get(&(node.to_owned(), change))?.committed
    }
}
