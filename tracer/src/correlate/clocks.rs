//! Nodes whose wall clocks differ: brought together by what all of them watch.
//!
//! Every agent sees the same version of an EndpointSlice within some dozen milliseconds of the others. Where two nodes
//! say otherwise, their clocks differ. This is no bound of the clock error (a watch may be slow), so none is given; but
//! a clock that is seconds off must not turn the order of a transition and an attempt around.

use std::collections::BTreeMap;

use crate::model::Timestamp;
use crate::model::record::{NodeRecord, Record};

/// Smaller differences may be those of the watches: they say nothing about the clocks.
const WATCH_NS: i64 = 100_000_000;

/// Moves the records of each node whose clock is known to differ to the clock of the reference node, the first by name.
/// Returns how far each of these clocks is ahead of it, nanoseconds.
pub(super) fn align(records: &mut [NodeRecord]) -> BTreeMap<String, i64> {
    let ahead = differences(records);
    for record in records {
        if let Some(offset) = ahead.get(&record.node) {
            record.record.shift(-offset);
        }
    }
    ahead
}

fn differences(records: &[NodeRecord]) -> BTreeMap<String, i64> {
    let boots: BTreeMap<&str, &str> = (records.iter())
        .filter_map(|it| match &it.record {
            Record::Node(info) if !info.boot_id.is_empty() => {
                Some((it.node.as_str(), info.boot_id.as_str()))
            }
            _ => None,
        })
        .collect();
    let Some(reference) = records.iter().map(|it| it.node.as_str()).min() else {
        return BTreeMap::new();
    };
    let Some(reference) = boots.get(reference) else {
        return BTreeMap::new();
    };
    // When each version of a slice was first seen by each clock. What was listed may have changed long before.
    let mut seen: BTreeMap<(&str, &str, &str), BTreeMap<&str, Timestamp>> = BTreeMap::new();
    for NodeRecord { node, record } in records {
        if let (Record::Slice(slice), Some(boot)) = (record, boots.get(node.as_str()))
            && !slice.listed
        {
            let version = (
                slice.service.as_str(),
                slice.slice.as_str(),
                slice.resource_version.as_str(),
            );
            let first = seen.entry(version).or_default().entry(*boot);
            first
                .and_modify(|at| *at = slice.at.min(*at))
                .or_insert(slice.at);
        }
    }
    let mut by_boot: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for clocks in seen.values() {
        let Some(there) = clocks.get(reference) else {
            continue;
        };
        for (boot, at) in clocks.iter().filter(|(boot, _)| *boot != reference) {
            by_boot.entry(boot).or_default().push(at.since(*there));
        }
    }
    let mut ahead = BTreeMap::new();
    for (node, boot) in &boots {
        let Some(differences) = by_boot.get_mut(boot) else {
            continue;
        };
        differences.sort_unstable();
        let median = differences[differences.len() / 2];
        if median.abs() > WATCH_NS {
            ahead.insert((*node).to_owned(), median);
        }
    }
    ahead
}
