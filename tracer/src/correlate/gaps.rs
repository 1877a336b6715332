//! What was not observed, and when.

use std::collections::BTreeMap;

use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen};

/// The gaps of every node.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    by_node: BTreeMap<String, Vec<GapSeen>>,
}

impl Gaps {
    pub(super) fn add(&mut self, node: &str, gap: GapSeen) {
        self.by_node.entry(node.to_owned()).or_default().push(gap);
    }

    /// Every gap, with its node.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &GapSeen)> {
        (self.by_node.iter())
            .flat_map(|(node, gaps)| gaps.iter().map(move |it| (node.as_str(), it)))
    }

    /// The latest beginning of a gap of these kinds, on any node, not after `at`.
    pub(super) fn last_start_before(&self, kinds: &[GapKind], at: Timestamp) -> Option<Timestamp> {
        self.all()
            .filter(|(_, gap)| kinds.contains(&gap.what) && gap.from <= at)
            .map(|(_, gap)| gap.from)
            .max()
    }

    /// Whether a node may have missed packets between two moments.
    pub(super) fn packets_missed(&self, node: &str, from: Timestamp, to: Timestamp) -> bool {
        self.overlap(node, &[GapKind::RecordsLost, GapKind::AgentDown], from, to)
    }

    /// Whether a node's watch on the API was broken at a moment.
    pub(super) fn watch_broken(&self, node: &str, at: Timestamp) -> bool {
        self.overlap(node, &[GapKind::WatchBroken, GapKind::AgentDown], at, at)
    }

    fn overlap(&self, node: &str, kinds: &[GapKind], from: Timestamp, to: Timestamp) -> bool {
        (self.by_node.get(node).into_iter().flatten())
            .any(|gap| kinds.contains(&gap.what) && gap.from <= to && gap.to >= from)
    }
}
