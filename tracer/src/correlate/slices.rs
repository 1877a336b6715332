//! What the API said of a Service's endpoints, and when: the union of its EndpointSlices over time.
//!
//! Versions of a slice are one by resourceVersion, whichever nodes saw them. The API server draws resourceVersions of one
//! kind from one counter (KEP-5504), so they order the changes of all slices; times only say *by when* a change was made.

mod union;
mod versions;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::model::Timestamp;
use crate::model::record::{EndpointSeen, GapKind, SliceSeen};
use crate::model::timeline::{Endpoint, Transition};

use super::answers::Answers;
use super::gaps::Gaps;
use union::{Union, count_ready, union, usable};
use versions::{Version, versions};

pub(super) use union::{Key, State};

/// A first list may be recorded as several slices within this time.
const FIRST_LIST_NS: i64 = 5_000_000_000;

/// The union of a Service's slices from one change to the next.
#[derive(Debug)]
pub(super) struct Step {
    /// The change was made by then.
    pub(super) at: Timestamp,
    /// Judging by how fast watches are, it was not made before.
    pub(super) earliest: Timestamp,
    /// Seen in a list at the start: not a change.
    pub(super) baseline: bool,
    pub(super) union: Union,
    /// Addresses to which rules may send, by KEP-1669: the ready ones, else the serving and terminating ones.
    pub(super) usable: BTreeSet<IpAddr>,
}

/// An address became usable or ceased to be.
#[derive(Debug)]
pub(super) struct UsableChange {
    pub(super) step: usize,
    pub(super) at: Timestamp,
    pub(super) address: IpAddr,
    pub(super) usable: bool,
    /// Index of the transition that did it.
    pub(super) transition: usize,
}

/// A Service's endpoints over time.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) steps: Vec<Step>,
    pub(super) transitions: Vec<Transition>,
    /// Step of each transition.
    pub(super) step_of: Vec<usize>,
    pub(super) usable_changes: Vec<UsableChange>,
}

impl History {
    /// Builds the history of one Service from what all nodes saw.
    pub(super) fn new(
        service: &str,
        seen: &[(&str, &SliceSeen)],
        gaps: &Gaps,
        answers: &Answers,
    ) -> Self {
        let versions = versions(seen);
        let mut first_seen: HashMap<&str, Timestamp> = HashMap::new();
        for (node, slice) in seen {
            let first = first_seen.entry(node).or_insert(slice.at);
            *first = (*first).min(slice.at);
        }
        let mut history = Self::default();
        let mut current: BTreeMap<String, (usize, Vec<EndpointSeen>)> = BTreeMap::new();
        let mut slices_seen: BTreeSet<&str> = BTreeSet::new();
        for (order, version) in versions.iter().enumerate() {
            let known_before = !slices_seen.insert(&version.slice);
            let baseline = !known_before
                && version.watched.is_empty()
                && version.listed.iter().any(|(node, at)| {
                    (first_seen.get(node.as_str()))
                        .is_some_and(|first| at.since(*first) <= FIRST_LIST_NS)
                });
            if version.deleted {
                current.remove(&version.slice);
            } else {
                let endpoints = version.endpoints.clone();
                current.insert(version.slice.clone(), (order, endpoints));
            }
            history.step(service, version, baseline, union(&current), gaps, answers);
        }
        for (index, transition) in history.transitions.iter_mut().enumerate() {
            transition.id = format!("t{}", index + 1);
        }
        history
    }

    fn step(
        &mut self,
        service: &str,
        version: &Version,
        baseline: bool,
        after: Union,
        gaps: &Gaps,
        answers: &Answers,
    ) {
        let empty = Union::new();
        let (before, floor) = match self.steps.last() {
            Some(step) => (&step.union, Some(step.earliest)),
            None => (&empty, None),
        };
        let mut earliest = if version.watched.is_empty() {
            // Only a list showed it: it happened after the last watch had broken, whenever that was.
            gaps.last_start_before(&[GapKind::WatchBroken, GapKind::AgentDown], version.at)
                .or(floor)
                .unwrap_or(version.at)
        } else {
            version.at - version.watch_delay_ns()
        };
        if let Some(floor) = floor {
            earliest = earliest.max(floor).min(version.at);
        }
        let step = self.steps.len();
        let mut changed = Vec::new();
        if !baseline {
            let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
            for key in keys {
                let (old, new) = (before.get(key), after.get(key));
                let conditions = |state: Option<&State>| state.map(|it| it.conditions);
                if conditions(old) == conditions(new) {
                    continue;
                }
                let going = old.is_some_and(|it| it.conditions.ready || it.conditions.serving)
                    && !new.is_some_and(|it| it.conditions.ready);
                let last_answer = going
                    .then(|| answers.last_before(key.address, version.at))
                    .flatten();
                if let Some(last) = last_answer {
                    earliest = earliest.max(last);
                }
                let ready = |union: &Union| count_ready(union, key.address);
                let shown = new.or(old);
                changed.push(Transition {
                    id: String::new(),
                    at: version.at,
                    not_before: match version.watched.is_empty() {
                        true => Some(earliest),
                        false => floor.max(last_answer),
                    },
                    seen_by: (version.watched.iter())
                        .chain(version.listed.iter().filter(|_| version.watched.is_empty()))
                        .map(|(node, at)| (node.clone(), at.since(version.at)))
                        .collect(),
                    service: service.to_owned(),
                    endpoint: Endpoint {
                        address: key.address,
                        node: shown.and_then(|it| it.node.clone()),
                        pod: shown.and_then(|it| it.pod.clone()),
                        uid: key.uid.clone(),
                    },
                    before: conditions(old),
                    after: conditions(new),
                    ready_before: ready(before),
                    ready_after: ready(&after),
                    slice: version.slice.clone(),
                    resource_version: version.resource_version.clone(),
                });
            }
        }
        // What goes away is told before what comes.
        changed.sort_by_key(|it| it.after.is_some());
        let usable = usable(&after);
        let usable_before = self.steps.last().map(|it| it.usable.clone());
        if let (false, Some(first)) = (baseline, changed.first()) {
            let base = self.transitions.len();
            let first = first.endpoint.address;
            for address in usable_before
                .unwrap_or_default()
                .symmetric_difference(&usable)
            {
                let own = changed
                    .iter()
                    .position(|it| it.endpoint.address == *address);
                let same_family = changed
                    .iter()
                    .position(|it| it.endpoint.address.is_ipv4() == first.is_ipv4());
                self.usable_changes.push(UsableChange {
                    step,
                    at: version.at,
                    address: *address,
                    usable: usable.contains(address),
                    transition: base + own.or(same_family).unwrap_or(0),
                });
            }
        }
        for transition in changed {
            self.transitions.push(transition);
            self.step_of.push(step);
        }
        self.steps.push(Step {
            at: version.at,
            earliest,
            baseline,
            union: after,
            usable,
        });
    }

    /// The step that holds at `at`; `None` before anything was seen.
    pub(super) fn step_at(&self, at: Timestamp) -> Option<usize> {
        self.steps
            .partition_point(|step| step.at <= at)
            .checked_sub(1)
    }

    /// What the API said of an address in a step: the endpoint that is nearest to ready, if two pods share it.
    pub(super) fn state(&self, step: usize, address: IpAddr) -> Option<(&Key, &State)> {
        let union = &self.steps.get(step)?.union;
        union
            .iter()
            .filter(|(key, _)| key.address == address)
            .max_by_key(|(_, it)| (it.conditions.ready, it.conditions.serving))
    }

    /// Ready endpoints of the address family of `like` in a step.
    pub(super) fn ready(&self, step: usize, like: IpAddr) -> u32 {
        self.steps
            .get(step)
            .map_or(0, |it| count_ready(&it.union, like))
    }

    /// Usable addresses of the family of `like` in a step.
    pub(super) fn usable(&self, step: usize, like: IpAddr) -> usize {
        let same = |it: &&IpAddr| it.is_ipv4() == like.is_ipv4();
        self.steps
            .get(step)
            .map_or(0, |it| it.usable.iter().filter(same).count())
    }

    /// Node that an address was last seen on, up to a step.
    pub(super) fn node_of(&self, step: usize, address: IpAddr) -> Option<&str> {
        (self.steps.get(..=step)?.iter().rev()).find_map(|step| {
            let mut states = step.union.iter().filter(|(key, _)| key.address == address);
            states.find_map(|(_, state)| state.node.as_deref())
        })
    }

    /// Whether an address was an endpoint in a step or before.
    pub(super) fn ever(&self, step: usize, address: IpAddr) -> bool {
        let mut steps = self.steps.iter().take(step + 1);
        steps.any(|step| step.union.keys().any(|key| key.address == address))
    }

    /// The latest transition of an address up to a step.
    pub(super) fn last_transition(&self, step: usize, address: IpAddr) -> Option<usize> {
        (0..self.transitions.len()).rev().find(|index| {
            self.step_of[*index] <= step && self.transitions[*index].endpoint.address == address
        })
    }

    /// The change that last made an address usable or unusable, up to a step.
    pub(super) fn last_change(&self, step: usize, address: IpAddr, usable: bool) -> Option<usize> {
        (0..self.usable_changes.len()).rev().find(|index| {
            let change = &self.usable_changes[*index];
            change.step <= step && change.address == address && change.usable == usable
        })
    }
}
