//! The first line of a timeline: what was looked at, by whom, and who is missing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::record::NodeInfo;
use crate::model::timeline::{Header, Lost, NodeHeader, SCHEMA, ServiceHeader};

use super::Options;
use crate::correlate::verdict::Service;

pub(super) fn header(
    infos: &BTreeMap<String, Vec<NodeInfo>>,
    nodes: &BTreeSet<String>,
    (boots, ahead): (&BTreeMap<String, String>, &BTreeMap<String, i64>),
    services: &[&Service],
    options: &Options,
) -> Header {
    let reference = nodes.first();
    let reference_boot = reference.and_then(|it| boots.get(it));
    let mut headers: BTreeMap<String, NodeHeader> = BTreeMap::new();
    for node in nodes {
        let all = infos.get(node).map(Vec::as_slice).unwrap_or_default();
        let last = all.iter().max_by_key(|it| it.started);
        let same =
            Some(node) == reference || reference_boot.is_some_and(|it| boots.get(node) == Some(it));
        let mut hooks: BTreeMap<String, u64> = BTreeMap::new();
        let mut lost = Lost::default();
        for info in all {
            for (hook, count) in &info.hooks {
                *hooks.entry(hook.clone()).or_default() += count;
            }
            lost.overwritten += info.lost.overwritten;
            lost.missed += info.lost.missed;
            lost.reserve += info.lost.reserve;
            lost.unreadable += info.lost.unreadable;
        }
        headers.insert(
            node.clone(),
            NodeHeader {
                name: node.clone(),
                recorded: true,
                reason: None,
                kernel: last.map(|it| it.kernel.clone()),
                boot_id: last.map(|it| it.boot_id.clone()),
                dataplane: last.and_then(|it| it.dataplane.clone()),
                clock_offset_ns: same.then_some(0).or_else(|| ahead.get(node).copied()),
                clock_error_ns: same.then_some(0),
                last_record_at: last.map(|it| it.last_record_at),
                hooks,
                missing_hooks: last.map(|it| it.missing_hooks.clone()).unwrap_or_default(),
                lost_records: lost,
            },
        );
    }
    for (node, reason) in &options.missing {
        let header = headers.entry(node.clone()).or_insert_with(|| NodeHeader {
            name: node.clone(),
            recorded: false,
            reason: None,
            kernel: None,
            boot_id: None,
            dataplane: None,
            clock_offset_ns: None,
            clock_error_ns: None,
            last_record_at: None,
            hooks: BTreeMap::new(),
            missing_hooks: BTreeMap::new(),
            lost_records: Lost::default(),
        });
        header.reason = Some(reason.clone());
    }
    Header {
        schema: SCHEMA.to_owned(),
        tool_version: options.tool_version.clone(),
        from: options.from,
        to: options.to,
        reference_node: reference.cloned(),
        services: (services.iter())
            .map(|it| ServiceHeader {
                service: it.name.clone(),
                frontends: it.frontends.clone(),
                upstream: None,
            })
            .collect(),
        nodes: headers.into_values().collect(),
    }
}
