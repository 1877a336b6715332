//! The union of a Service's slices at one moment: its endpoints, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::record::{Conditions, EndpointSeen};

/// Who an endpoint is: the same address with another pod uid is another endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::correlate) struct Key {
    pub(in crate::correlate) address: IpAddr,
    pub(in crate::correlate) uid: Option<String>,
}

/// What the API says of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::correlate) struct State {
    pub(in crate::correlate) conditions: Conditions,
    pub(in crate::correlate) node: Option<String>,
    pub(in crate::correlate) pod: Option<String>,
}

pub(in crate::correlate) type Union = BTreeMap<Key, State>;

/// Ready addresses of the family of `like`.
pub(super) fn count_ready(union: &Union, like: IpAddr) -> u32 {
    let ready: BTreeSet<IpAddr> = union
        .iter()
        .filter(|(key, state)| key.address.is_ipv4() == like.is_ipv4() && state.conditions.ready)
        .map(|(key, _)| key.address)
        .collect();
    u32::try_from(ready.len()).unwrap_or(u32::MAX)
}

/// Addresses to which rules may send, by KEP-1669: of each family the ready ones, else the serving and terminating ones.
pub(super) fn usable(union: &Union) -> BTreeSet<IpAddr> {
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
pub(super) fn union(current: &BTreeMap<String, (usize, Vec<EndpointSeen>)>) -> Union {
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
