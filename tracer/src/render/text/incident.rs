//! Many failures alike are one incident: how many, where, when, and one of them in full.

use std::collections::BTreeMap;

use super::entry::Entry;
use super::index::{Index, endpoint};
use super::layout::{Flow, Tone};
use super::{Style, query, words};
use crate::model::Timestamp;
use crate::model::timeline::{Code, Convergence, Query};

/// So many alike are told as one.
const ALIKE: usize = 3;

/// Alike failures further apart than this are two incidents, nanoseconds.
const APART: i64 = 30_000_000_000;

/// How many clients, nodes or backends are named.
const NAMED: usize = 4;

/// What makes failures alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Kind<'a> {
    service: &'a str,
    code: Option<Code>,
    late: bool,
    ambiguous: bool,
    transition: Option<&'a str>,
}

impl<'a> Kind<'a> {
    fn of(query: &'a Query) -> Self {
        let verdict = query::verdict(query);
        Self {
            service: &query.service,
            code: verdict.map(|verdict| verdict.code),
            late: verdict.is_some_and(|v| v.convergence == Some(Convergence::Late)),
            ambiguous: verdict.is_some_and(|verdict| !verdict.alternatives.is_empty()),
            transition: verdict.and_then(|verdict| verdict.transition.as_deref()),
        }
    }
}

pub(super) fn entries(index: &Index<'_>, style: &Style) -> Vec<(Timestamp, Entry)> {
    let mut alike: BTreeMap<Kind<'_>, Vec<Vec<&Query>>> = BTreeMap::new();
    let mut troubled: Vec<&Query> = index
        .queries
        .iter()
        .copied()
        .filter(|query| query::troubled(query))
        .collect();
    troubled.sort_by_key(|query| query.at);
    for query in troubled {
        let groups = alike.entry(Kind::of(query)).or_default();
        match groups.last_mut().filter(|group| {
            group
                .last()
                .is_some_and(|last| query.at.since(last.at) <= APART)
        }) {
            Some(group) => group.push(query),
            None => groups.push(vec![query]),
        }
    }
    let mut entries = Vec::new();
    for (kind, groups) in &alike {
        for group in groups {
            if style.all || group.len() < ALIKE {
                entries.extend(
                    group
                        .iter()
                        .map(|query| (query.at, query::entry(query, index, style))),
                );
            } else {
                entries.extend(incident(kind, group, index, style));
            }
        }
    }
    entries
}

/// `247 queries on 31 nodes, until 21:04:19.002 (6.131 s): late rules (programming-lag) after t7`
fn incident(
    kind: &Kind<'_>,
    group: &[&Query],
    index: &Index<'_>,
    style: &Style,
) -> Option<(Timestamp, Entry)> {
    let (first, last) = (group.first()?, group.last()?);
    let failed = group
        .iter()
        .filter(|query| query::tone(query) == Tone::Bad)
        .count();
    let tone = if failed > 0 { Tone::Bad } else { Tone::Warn };
    let nodes = tally(group.iter().map(|query| query.node.clone()));
    let place = match nodes.as_slice() {
        [(node, _)] => format!("on {node}"),
        nodes => format!("on {} nodes", nodes.len()),
    };
    let until = format!(
        "until {} ({})",
        style.clock.time(last.at),
        words::duration(last.at.since(first.at))
    );
    let why = query::verdict(first).map_or_else(
        || "no verdict".to_owned(),
        |verdict| {
            if verdict.alternatives.is_empty() {
                let cause = words::cause(verdict.code, verdict.convergence);
                format!("{cause} ({})", verdict.code.name())
            } else {
                words::verdict(verdict, &first.node)
            }
        },
    );
    let mut title = Flow::new()
        .keep(tone, &words::count(group.len() as u64, "query", "queries"))
        .keep(Tone::Plain, &place)
        .then(",")
        .keep(Tone::Plain, &until)
        .then(":")
        .text(tone, &why);
    if let Some(id) = kind.transition {
        let what = index.transition(id).map_or_else(
            || format!("after {id}"),
            |transition| {
                let state = words::conditions(transition.after);
                format!("after {id} ({} {state})", endpoint(transition))
            },
        );
        title = title.keep(Tone::Plain, &what);
    }
    let lost = words::number(failed as u64);
    let saved = words::number((group.len() - failed) as u64);
    let ends = match (failed, group.len() - failed) {
        (0, _) => "all answered after all".to_owned(),
        (_, 0) => "all failed".to_owned(),
        _ => format!("{lost} failed, {saved} answered after all"),
    };
    title = title.then(" ·").keep(tone, &ends);
    let mut entry = Entry::new(&style.clock.time(first.at), "✗", tone, title);
    if nodes.len() > 1 {
        entry = entry.detail(0, 3, named("nodes:", &nodes));
    }
    let clients = tally(group.iter().map(|query| words::who(&query.client)));
    entry = entry.detail(0, 3, named("clients:", &clients));
    let backends = tally(
        group
            .iter()
            .flat_map(|query| &query.attempts)
            .filter(|attempt| attempt.verdict.is_some())
            .map(|attempt| {
                attempt
                    .backend
                    .map_or_else(|| "none chosen".to_owned(), words::address)
            }),
    );
    entry = entry.detail(0, 3, named("backends:", &backends));
    let example = Flow::new()
        .keep(Tone::Bold, &format!("for example {}", first.id))
        .then(",")
        .keep(Tone::Plain, &words::client(&first.client))
        .keep(Tone::Plain, &format!("on {}", first.node))
        .then(" ·")
        .keep(Tone::Plain, &query::question(first));
    let entry = query::details(entry.detail(0, 3, example), first, index);
    Some((first.at, entry))
}

/// How often each name occurs, most often first.
fn tally(names: impl Iterator<Item = String>) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// `clients: default/probe-7xk 200, host 10.0.0.2 47, 3 more`
fn named(label: &str, counts: &[(String, u64)]) -> Flow {
    let mut flow = Flow::new().keep(Tone::Dim, label);
    for (position, (name, count)) in counts.iter().take(NAMED).enumerate() {
        if position > 0 {
            flow = flow.then(",");
        }
        flow = flow.keep(Tone::Plain, &format!("{name} {}", words::number(*count)));
    }
    if counts.len() > NAMED {
        let more = format!("{} more", counts.len() - NAMED);
        flow = flow.then(",").keep(Tone::Plain, &more);
    }
    flow
}
