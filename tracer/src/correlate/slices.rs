//! What the API said of a Service's endpoints, and when: the union of its EndpointSlices over time.
//!
//! Versions of a slice are one by resourceVersion, whichever nodes saw them. The API server draws resourceVersions of one
//! kind from one counter (KEP-5504), so they order the changes of all slices; times only say *by when* a change was made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::model::Timestamp;
use crate::model::record::{Conditions, EndpointSeen, GapKind, SliceSeen};
use crate::model::timeline::{Endpoint, Transition};

use super::answers::Answers;
use super::gaps::Gaps;

const MILLISECOND: i64 = 1_000_000;

/// A first list may be recorded as several slices within this time.
const FIRST_LIST_NS: i64 = 5_000 * MILLISECOND;

/// Who an endpoint is: the same address with another pod uid is another endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) address: IpAddr,
    pub(super) uid: Option<String>,
}

/// What the API says of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) conditions: Conditions,
    pub(super) node: Option<String>,
    pub(super) pod: Option<String>,
}

type Union = BTreeMap<Key, State>;

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

/// One version of one slice.
#[derive(Debug)]
struct Version {
    slice: String,
    resource_version: String,
    deleted: bool,
    endpoints: Vec<EndpointSeen>,
    watched: BTreeMap<String, Timestamp>,
    listed: BTreeMap<String, Timestamp>,
    at: Timestamp,
}

impl Version {
    /// Half the spread between nodes is as good a guess at a watch's delay as there is; one node alone has none.
    fn watch_delay_ns(&self) -> i64 {
        let first = self.watched.values().min();
        let last = self.watched.values().max();
        match (first, last) {
            (Some(first), Some(last)) if self.watched.len() > 1 => {
                (2 * last.since(*first)).clamp(25 * MILLISECOND, 1_000 * MILLISECOND)
            }
            _ => 100 * MILLISECOND,
        }
    }
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
        if let (false, Some(first), Some(last)) = (baseline, changed.first(), self.steps.last()) {
            let base = self.transitions.len();
            let first = first.endpoint.address;
            for address in last.usable.symmetric_difference(&usable) {
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
        } else if let (false, None) = (baseline, self.steps.last()) {
            for address in &usable {
                let own = changed
                    .iter()
                    .position(|it| it.endpoint.address == *address);
                self.usable_changes.push(UsableChange {
                    step,
                    at: version.at,
                    address: *address,
                    usable: true,
                    transition: self.transitions.len() + own.unwrap_or(0),
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

fn count_ready(union: &Union, like: IpAddr) -> u32 {
    let ready: BTreeSet<IpAddr> = union
        .iter()
        .filter(|(key, state)| key.address.is_ipv4() == like.is_ipv4() && state.conditions.ready)
        .map(|(key, _)| key.address)
        .collect();
    u32::try_from(ready.len()).unwrap_or(u32::MAX)
}

fn usable(union: &Union) -> BTreeSet<IpAddr> {
    let mut all = BTreeSet::new();
    for ipv4 in [true, false] {
        let of = |wanted: fn(&Conditions) -> bool| -> BTreeSet<IpAddr> {
            (union.iter())
                .filter(|(key, it)| key.address.is_ipv4() == ipv4 && wanted(&it.conditions))
                .map(|(key, _)| key.address)
                .collect()
        };
        let ready = of(|it| it.ready);
        if ready.is_empty() {
            all.extend(of(|it| it.serving && it.terminating));
        } else {
            all.extend(ready);
        }
    }
    all
}

/// An endpoint that is in two slices counts once, with its better state; of equals the newer slice's.
fn union(current: &BTreeMap<String, (usize, Vec<EndpointSeen>)>) -> Union {
    let mut best: BTreeMap<Key, ((bool, bool, usize), State)> = BTreeMap::new();
    for (order, endpoints) in current.values() {
        for it in endpoints {
            let key = Key {
                address: it.address,
                uid: it.uid.clone(),
            };
            let rank = (it.conditions.ready, it.conditions.serving, *order);
            let state = State {
                conditions: it.conditions,
                node: it.node.clone(),
                pod: it.pod.clone(),
            };
            match best.get(&key) {
                Some((other, _)) if *other >= rank => {}
                _ => {
                    best.insert(key, (rank, state));
                }
            }
        }
    }
    best.into_iter()
        .map(|(key, (_, state))| (key, state))
        .collect()
}

/// The versions of all slices in the order in which they were written, each with the time by which it was.
fn versions(seen: &[(&str, &SliceSeen)]) -> Vec<Version> {
    // resourceVersions are compared as numbers only if all of them are.
    let numbers: Option<Vec<u128>> = (seen.iter())
        .map(|(_, it)| it.resource_version.parse().ok())
        .collect();
    let mut found: BTreeMap<(u128, bool, String, String), Version> = BTreeMap::new();
    for (index, (node, it)) in seen.iter().enumerate() {
        let number = numbers.as_ref().map_or(0, |all| all[index]);
        let key = (
            number,
            it.deleted,
            it.slice.clone(),
            it.resource_version.clone(),
        );
        let version = found.entry(key).or_insert_with(|| Version {
            slice: it.slice.clone(),
            resource_version: it.resource_version.clone(),
            deleted: it.deleted,
            endpoints: it.endpoints.clone(),
            watched: BTreeMap::new(),
            listed: BTreeMap::new(),
            at: it.at,
        });
        let by = if it.listed {
            &mut version.listed
        } else {
            &mut version.watched
        };
        let first = by.entry((*node).to_owned()).or_insert(it.at);
        *first = (*first).min(it.at);
    }
    let mut versions: Vec<Version> = found.into_values().collect();
    for version in &mut versions {
        let first = version
            .watched
            .values()
            .min()
            .or(version.listed.values().min());
        version.at = first.copied().unwrap_or(version.at);
    }
    if numbers.is_none() {
        versions.sort_by(|a, b| (a.at, &a.slice).cmp(&(b.at, &b.slice)));
    }
    // A change was made by the time a later one was seen.
    for index in (1..versions.len()).rev() {
        versions[index - 1].at = versions[index - 1].at.min(versions[index].at);
    }
    versions
}
