//! Where a packet was seen, in one line: `socket ▸ eth0 ▸ flannel.1 ⇢ master: eth0 ▸ ✗ NEIGH_FAILED in neigh_invalidate`.

use super::layout::{Flow, Tone};
use crate::model::Timestamp;
use crate::model::timeline::{Attempt, AttemptDrop, Direction, Point, TrailHop};

/// A hop or a drop, by time.
enum Step<'a> {
    Hop(&'a TrailHop),
    Drop(&'a AttemptDrop),
}

impl Step<'_> {
    fn at(&self) -> Timestamp {
        match self {
            Self::Hop(hop) => hop.at,
            Self::Drop(drop) => drop.at,
        }
    }

    fn node(&self) -> &str {
        match self {
            Self::Hop(hop) => &hop.node,
            Self::Drop(drop) => &drop.node,
        }
    }

    fn direction(&self) -> Direction {
        match self {
            Self::Hop(hop) => hop.direction,
            Self::Drop(drop) => drop.direction,
        }
    }
}

/// What one step is called: a device however often in a row it was passed, a socket, or a drop.
fn name(step: &Step<'_>) -> String {
    match step {
        Step::Hop(hop) => match (hop.point, &hop.device) {
            (Point::SocketOut | Point::SocketIn, _) => "socket".to_owned(),
            (Point::Tx | Point::Rx, Some(device)) => device.clone(),
            (Point::Tx | Point::Rx, None) => "?".to_owned(),
        },
        Step::Drop(drop) => {
            let reason = drop.reason.as_deref().unwrap_or("dropped, reason unknown");
            match &drop.location {
                Some(location) => format!("✗ {reason} in {location}"),
                None => format!("✗ {reason}"),
            }
        }
    }
}

/// The compressed trail; `None` where nothing was seen. `home` is the client's node, which is not named at the start.
pub(super) fn flow(attempt: &Attempt, home: &str) -> Option<Flow> {
    let mut steps: Vec<Step<'_>> = attempt.trail.iter().map(Step::Hop).collect();
    steps.extend(attempt.drops.iter().map(Step::Drop));
    // The clocks of two nodes may disagree by more than the wire takes: the query's way comes before the reply's.
    steps.sort_by_key(|step| (step.direction() == Direction::Reply, step.at()));
    let mut flow: Option<Flow> = None;
    let (mut node, mut direction, mut last) = (home, Direction::Query, String::new());
    for step in &steps {
        let name = name(step);
        let tone = match step {
            Step::Hop(_) => Tone::Dim,
            Step::Drop(_) => Tone::Bad,
        };
        let turned = step.direction() != direction;
        let moved = step.node() != node;
        if name == last && !turned && !moved {
            continue;
        }
        let mut lead = Vec::new();
        if turned {
            lead.push("reply:".to_owned());
        }
        if moved {
            lead.push(format!("{}:", step.node()));
        }
        // The arrow ends the line before, so that no line begins with one.
        let arrow = if moved { " ⇢" } else { " ▸" };
        let so_far = match flow {
            Some(flow) if turned => flow.then(";"),
            Some(flow) => flow.then(arrow),
            None => Flow::new(),
        };
        let lead = lead.join(" ");
        flow = Some(so_far.keep_all(&[(Tone::Plain, &lead), (tone, &name)]));
        node = step.node();
        direction = step.direction();
        last = name;
    }
    flow
}
