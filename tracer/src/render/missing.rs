//! What is missing from an answer, in words: a tool that is blind must never look like a network that is well.

use super::Shown;
use crate::model::Timestamp;
use crate::model::timeline::{Gap, GapKind, Header, Line, NodeHeader, Summary};

/// Hooks that see every packet of the Service on their way; the others count rare things and may well stay at zero.
const CORE_HOOKS: [&str; 4] = [
    "cgroup_egress",
    "cgroup_ingress",
    "net_dev_queue",
    "netif_receive_skb",
];

/// No node saw anything of the Service: nothing can be said, neither good nor bad.
pub fn nothing_recorded(header: &Header, summaries: &[Summary]) -> bool {
    header
        .nodes
        .iter()
        .all(|node| !node.recorded || blind(node))
        && summaries.iter().all(|summary| summary.queries == 0)
}

/// None of the node's hooks saw a packet.
pub fn blind(node: &NodeHeader) -> bool {
    node.hooks.values().all(|seen| *seen == 0)
}

/// Core hooks that saw nothing, or are not there, although others saw packets.
fn silent_hooks(node: &NodeHeader) -> Vec<&'static str> {
    CORE_HOOKS
        .into_iter()
        .filter(|hook| !node.missing_hooks.contains_key(*hook))
        .filter(|hook| node.hooks.get(*hook).is_none_or(|seen| *seen == 0))
        .collect()
}

/// One sentence for each thing that is missing; empty: the answer is whole.
pub fn missing(shown: Shown<'_>) -> Vec<String> {
    let Shown {
        header,
        lines,
        summaries,
    } = shown;
    let mut sentences = Vec::new();
    if header.nodes.is_empty() {
        sentences.push("no node is in this timeline".to_owned());
    }
    for node in &header.nodes {
        sentences.extend(of_node(node));
    }
    sentences.extend(lines.iter().filter_map(|line| match line {
        Line::Gap(gap) => of_gap(gap, header),
        _ => None,
    }));
    sentences.extend(unwatched(lines, header));
    let mut absent: Vec<&str> = summaries
        .iter()
        .flat_map(|summary| &summary.missing_nodes)
        .map(String::as_str)
        .filter(|name| !header.nodes.iter().any(|node| node.name == *name))
        .collect();
    absent.sort_unstable();
    absent.dedup();
    for name in absent {
        sentences.push(format!("{name} is missing: it has no records here"));
    }
    sentences
}

/// Losses that the node's own counters do not tell, such as records deleted to keep a store within its bounds.
fn of_gap(gap: &Gap, header: &Header) -> Option<String> {
    let counted = header
        .nodes
        .iter()
        .any(|node| node.name == gap.node && node.lost_records.total() > 0);
    let lacks = match gap.what {
        GapKind::RecordsLost if !counted => "has lost or deleted records",
        GapKind::AgentDown if gap.from < gap.to => "has no records",
        _ => return None,
    };
    Some(format!(
        "{} {lacks} between {} and {}",
        gap.node, gap.from, gap.to
    ))
}

/// Times in which no node heard the API: one watch that works is enough to know every change.
fn unwatched(lines: &[Line], header: &Header) -> Vec<String> {
    let mut common: Option<Vec<(Timestamp, Timestamp)>> = None;
    for node in header.nodes.iter().filter(|node| node.recorded) {
        let own: Vec<_> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Gap(gap) if gap.node == node.name => Some(gap),
                _ => None,
            })
            .filter(|gap| matches!(gap.what, GapKind::WatchBroken | GapKind::AgentDown))
            .map(|gap| (gap.from, gap.to))
            .collect();
        common = Some(match common {
            None => own,
            Some(common) => common
                .iter()
                .flat_map(|a| own.iter().map(|b| (a.0.max(b.0), a.1.min(b.1))))
                .filter(|(from, to)| from < to)
                .collect(),
        });
    }
    let (Some(from), Some(to)) = (
        common.iter().flatten().map(|it| it.0).min(),
        common.iter().flatten().map(|it| it.1).max(),
    ) else {
        return Vec::new();
    };
    vec![format!(
        "no node heard the API all the time between {from} and {to}: endpoints may have changed unseen"
    )]
}

fn of_node(node: &NodeHeader) -> Vec<String> {
    let name = &node.name;
    if !node.recorded {
        let reason = node.reason.as_deref().unwrap_or("it has no records here");
        return vec![format!("{name} is missing: {reason}")];
    }
    let mut sentences = Vec::new();
    if blind(node) {
        sentences.push(format!(
            "{name} is blind: none of its hooks saw a packet of the Service; its silence proves nothing"
        ));
    } else {
        let silent = silent_hooks(node);
        if !silent.is_empty() {
            sentences.push(format!(
                "{name} is half blind: {} saw nothing while others did",
                silent.join(", ")
            ));
        }
    }
    for (hook, reason) in &node.missing_hooks {
        sentences.push(format!("{name} records without {hook}: {reason}"));
    }
    let lost = &node.lost_records;
    if lost.total() > 0 {
        let kinds: Vec<String> = [
            (lost.overwritten, "overwritten"),
            (lost.missed, "missed"),
            (lost.reserve, "not reserved"),
            (lost.unreadable, "unreadable"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} {kind}"))
        .collect();
        let plural = if lost.total() == 1 { "" } else { "s" };
        sentences.push(format!(
            "{name} lost {} record{plural} ({})",
            lost.total(),
            kinds.join(", ")
        ));
    }
    sentences
}
