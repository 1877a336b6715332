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
    /// Adds one. What follows another of its kind without a hole is one with it: long outages are recorded in pieces.
    pub(super) fn add(&mut self, node: &str, gap: GapSeen) {
        let gaps = self.by_node.entry(node.to_owned()).or_default();
        let uncounted = |it: &GapSeen| it.what == gap.what && it.count == 0 && gap.count == 0;
        let earlier = gaps
            .iter_mut()
            .rev()
            .find(|it| uncounted(it) && it.from <= gap.to && gap.from <= it.to);
        match earlier {
            Some(earlier) => {
                earlier.from = earlier.from.min(gap.from);
                earlier.to = earlier.to.max(gap.to);
            }
            None => gaps.push(gap),
        }
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

    /// Whether a node's agent was down at some time between two moments.
    pub(super) fn agent_down(&self, node: &str, from: Timestamp, to: Timestamp) -> bool {
        self.overlap(node, &[GapKind::AgentDown], from, to)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: i64, to: i64, what: GapKind, count: u64) -> GapSeen {
        GapSeen {
            from: Timestamp(from),
            to: Timestamp(to),
            what,
            count,
        }
    }

    #[test]
    fn pieces_of_an_outage_are_one_and_counted_losses_stay_apart() {
        let mut gaps = Gaps::default();
        for piece in [
            gap(0, 10, GapKind::WatchBroken, 0),
            gap(3, 4, GapKind::RecordsLost, 7),
            gap(4, 5, GapKind::RecordsLost, 2),
            gap(10, 20, GapKind::WatchBroken, 0),
            gap(15, 25, GapKind::WatchBroken, 0),
            gap(26, 30, GapKind::WatchBroken, 0),
        ] {
            gaps.add("n", piece);
        }
        let all: Vec<_> = gaps.all().map(|(_, gap)| gap.clone()).collect();
        let expected = [
            gap(0, 25, GapKind::WatchBroken, 0),
            gap(3, 4, GapKind::RecordsLost, 7),
            gap(4, 5, GapKind::RecordsLost, 2),
            gap(26, 30, GapKind::WatchBroken, 0),
        ];
        assert_eq!(all, expected);
    }
}
