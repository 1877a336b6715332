//! Changes of endpoints, and when each node's rules took them over.

use std::collections::BTreeSet;

use super::entry::{Entry, GUTTER};
use super::index::{Index, endpoint};
use super::layout::{Flow, Tone};
use super::{Style, words};
use crate::model::timeline::{Basis, Convergence, Line, Programming, Transition};

/// More nodes than this are told as a range, with the late ones by name.
const NAMED: usize = 6;

/// Columns of `ready 10 → 10`.
const WIDEST_COUNTS: usize = 13;

/// `coredns-x2k (10.42.0.149, master)`
fn subject(transition: &Transition) -> Flow {
    let address = words::ip(transition.endpoint.address);
    let place = match (&transition.endpoint.pod, &transition.endpoint.node) {
        (Some(_), Some(node)) => format!("({address}, {node})"),
        (Some(_), None) => format!("({address})"),
        (None, Some(node)) => format!("({node})"),
        (None, None) => String::new(),
    };
    Flow::new()
        .keep(Tone::Dim, &transition.id)
        .keep(Tone::Bold, &endpoint(transition))
        .keep(Tone::Plain, &place)
}

/// `ready → terminating, serving`
fn change(transition: &Transition) -> String {
    let before = match transition.before {
        None => "new",
        some => words::conditions(some),
    };
    format!("{before} → {}", words::conditions(transition.after))
}

/// `ready 2 → 1`
fn ready(transition: &Transition) -> String {
    if transition.ready_before == transition.ready_after {
        format!("ready {}", transition.ready_after)
    } else {
        format!(
            "ready {} → {}",
            transition.ready_before, transition.ready_after
        )
    }
}

/// Widths of the longest endpoint and the longest change.
pub(super) fn columns(lines: &[Line], style: &Style) -> (usize, usize) {
    let mut columns = (0, 0);
    for line in lines {
        if let Line::Transition(transition) = line {
            let change = Flow::new().keep(Tone::Plain, &change(transition));
            columns.0 = subject(transition).width(style).max(columns.0);
            columns.1 = change.width(style).max(columns.1);
        }
    }
    columns
}

/// A transition, laid out in [`columns`].
pub(super) fn entry(
    transition: &Transition,
    index: &Index<'_>,
    (subjects, changes): (usize, usize),
    style: &Style,
) -> Entry {
    let counts = ready(transition);
    let room = style.width.saturating_sub(GUTTER);
    let tone = match (transition.ready_after, &transition.after) {
        (0, _) => Tone::Bad,
        (_, Some(after)) if after.ready => Tone::Good,
        _ => Tone::Warn,
    };
    let (first, second) = (subjects + 3, subjects + 3 + changes + 3);
    let change = change(transition);
    let time = style.clock.time(transition.at);
    // Three columns where they fit, else the change on a line of its own, with its counts in a column.
    let entry = if second + WIDEST_COUNTS <= room {
        let title = subject(transition)
            .keep(Tone::Plain, &change)
            .at_column(first)
            .keep(tone, &counts)
            .at_column(second);
        Entry::new(&time, "◆", tone, title)
    } else {
        let below = Flow::new()
            .keep(Tone::Plain, &change)
            .keep(tone, &counts)
            .at_column(changes + 3);
        Entry::new(&time, "◆", tone, subject(transition)).detail(0, 0, below)
    };
    match rules(transition, index) {
        Some(flow) => entry.detail(0, 0, flow),
        None => entry,
    }
}

fn lag(programming: &Programming) -> String {
    let basis = match programming.basis {
        Basis::Rules => "",
        Basis::FirstNewFlow => " as its new flows show",
    };
    let late = match programming.convergence {
        Some(Convergence::Late) => " (late)",
        Some(Convergence::Normal) | None => "",
    };
    format!("{}{basis}{late}", words::signed(programming.lag_ns))
}

fn tone(programming: &Programming) -> Tone {
    match programming.convergence {
        Some(Convergence::Late) => Tone::Bad,
        Some(Convergence::Normal) | None => Tone::Plain,
    }
}

/// `rules changed: worker1 +38 ms, master +41 ms, worker2 +6.941 s (late)`
fn rules(transition: &Transition, index: &Index<'_>) -> Option<Flow> {
    let mut all = index.programming(&transition.id).to_vec();
    if all.is_empty() {
        return None;
    }
    all.sort_by_key(|programming| programming.lag_ns);
    let named: Vec<_> = if all.len() > NAMED {
        all.iter()
            .filter(|programming| programming.convergence != Some(Convergence::Normal))
            .take(NAMED)
            .copied()
            .collect()
    } else {
        all.clone()
    };
    let mut flow = Flow::new().text(Tone::Dim, "rules changed:");
    if let ([first, .., last], true) = (all.as_slice(), all.len() > NAMED) {
        flow = flow
            .keep(Tone::Plain, &format!("{} nodes", all.len()))
            .keep(
                Tone::Plain,
                &format!(
                    "{} to {}",
                    words::signed(first.lag_ns),
                    words::signed(last.lag_ns)
                ),
            );
        if !named.is_empty() {
            flow = flow.then(";");
        }
    }
    for (position, programming) in named.iter().enumerate() {
        if position > 0 {
            flow = flow.then(",");
        }
        flow = flow.keep(
            tone(programming),
            &format!("{} {}", programming.node, lag(programming)),
        );
    }
    let heard: BTreeSet<&str> = all
        .iter()
        .map(|programming| programming.node.as_str())
        .collect();
    let unheard: Vec<&str> = index
        .header
        .nodes
        .iter()
        .filter(|node| node.recorded && !heard.contains(node.name.as_str()))
        .map(|node| node.name.as_str())
        .collect();
    if !unheard.is_empty() {
        let nodes = if unheard.len() > NAMED {
            format!("{} further nodes", unheard.len())
        } else {
            unheard.join(", ")
        };
        flow = flow
            .then(";")
            .text(Tone::Warn, &format!("none seen on {nodes}"));
    }
    Some(flow)
}

/// A rule change whose transition is not in this timeline.
pub(super) fn lone(programming: &Programming, style: &Style) -> Entry {
    let title = Flow::new()
        .keep(tone(programming), &format!("{}:", programming.node))
        .text(
            tone(programming),
            &format!(
                "rules changed, {} after {}",
                lag(programming),
                programming.transition
            ),
        );
    Entry::new(
        &style.clock.time(programming.at),
        "·",
        tone(programming),
        title,
    )
}
