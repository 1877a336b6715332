//! The records of all nodes, sorted by kind and time.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::Timestamp;
use crate::model::flight::Flight;
use crate::model::record::{
    GapSeen, NodeInfo, NodeRecord, Record, ServiceSeen, SliceSeen, Traffic,
};

use crate::correlate::rules::NodeRules;

/// The records, sorted by kind.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub(super) infos: BTreeMap<String, Vec<NodeInfo>>,
    pub(super) services: Vec<(String, ServiceSeen)>,
    pub(super) slices: Vec<(String, SliceSeen)>,
    pub(super) rules: BTreeMap<String, NodeRules>,
    pub(super) flights: Vec<(String, Flight)>,
    pub(super) traffic: Vec<(String, Traffic)>,
    pub(super) gaps: Vec<(String, GapSeen)>,
    pub(super) nodes: BTreeSet<String>,
    pub(super) last: BTreeMap<String, Timestamp>,
}

/// Puts records into one order, whatever order they came in, and each only once.
pub(super) fn sort(mut records: Vec<NodeRecord>) -> Sorted {
    records.sort_by(|a, b| {
        (a.record.at(), &a.node)
            .cmp(&(b.record.at(), &b.node))
            // Two records of one node and nanosecond are rare: only they are written out to be compared.
            .then_with(|| format!("{a:?}").cmp(&format!("{b:?}")))
    });
    records.dedup();
    let mut sorted = Sorted::default();
    for NodeRecord { node, record } in records {
        sorted.nodes.insert(node.clone());
        let reach = match &record {
            Record::Flight(flight) => flight.origin.as_ref().map_or(flight.at, |it| it.completed),
            Record::Gap(gap) => gap.to,
            record => record.at(),
        };
        let last = sorted.last.entry(node.clone()).or_insert(reach);
        *last = (*last).max(reach);
        match record {
            Record::Node(info) => {
                let infos = sorted.infos.entry(node).or_default();
                infos.retain(|it| it.started != info.started);
                infos.push(info);
            }
            Record::Service(it) => sorted.services.push((node, it)),
            Record::Slice(it) => sorted.slices.push((node, it)),
            Record::NodeState(_) => {}
            Record::Rules(it) => sorted.rules.entry(node).or_default().commits.push(it),
            Record::Flight(it) => sorted.flights.push((node, *it)),
            Record::Traffic(it) => sorted.traffic.push((node, it)),
            Record::Gap(it) => sorted.gaps.push((node, it)),
        }
    }
    for node in &sorted.nodes {
        let rules = sorted.rules.entry(node.clone()).or_default();
        let infos = sorted
            .infos
            .get(node)
            .map(Vec::as_slice)
            .unwrap_or_default();
        rules.heard = !rules.commits.is_empty() && infos.last().is_some_and(|it| it.hears_rules);
        let since = infos.iter().map(|it| it.started).max();
        let until = infos.iter().map(|it| it.last_record_at).max();
        rules.recorded = since.zip(until);
    }
    sorted
}
