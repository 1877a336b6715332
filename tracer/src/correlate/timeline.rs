//! From the records of all nodes to a timeline with verdicts.
//!
//! The result depends on the set of records alone: order and repetition change nothing.

mod header;
mod sort;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::record::{NodeInfo, NodeRecord, ServiceSeen, SliceSeen, Traffic};
use crate::model::timeline::{Flow, Gap, GapKind, Header, Line, Query, Summary};

use super::answers::Answers;
use super::chains::{Chain, chain};
use super::clocks;
use super::gaps::Gaps;
use super::join::{Attempt, join};
use super::path;
use super::rules::{NewFlow, NodeRules, Programs};
use super::show::{flow_in_chain, query};
use super::slices::History;
use super::summary::summary;
use super::verdict::{NodeFacts, Service, World};
use header::header;
use sort::{Sorted, sort};

/// What a timeline covers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Beginning. Earlier records are context.
    pub from: Timestamp,
    /// End.
    pub to: Timestamp,
    /// Nodes whose records are missing, with the reason.
    pub missing: Vec<(String, String)>,
    /// Version of the program, for the header.
    pub tool_version: String,
    /// Only these Services (`namespace/name`); empty: all.
    pub services: Vec<String>,
}

/// A timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// What it covers.
    pub header: Header,
    /// Transitions, programming, queries and gaps, by time.
    pub lines: Vec<Line>,
    /// One for each Service.
    pub summaries: Vec<Summary>,
}

/// Computes the timeline of what `records` say about the time of `options`.
pub fn timeline(mut records: Vec<NodeRecord>, options: &Options) -> Timeline {
    let ahead = clocks::align(&mut records);
    let sorted = sort(records);
    let mut gaps = Gaps::default();
    for (node, gap) in &sorted.gaps {
        gaps.add(node, gap.clone());
    }
    let frontends = frontends(&sorted.services);
    let is_frontend = |it: SocketAddr| frontends.values().any(|all| all.contains(&it));
    let mut answers = Answers::default();
    for (_, flight) in &sorted.flights {
        answers.flight(flight, |it| {
            frontends.values().flatten().any(|all| all.ip() == it)
        });
    }
    for (_, row) in &sorted.traffic {
        answers.traffic(row);
    }
    answers.sort();
    let histories = histories(&sorted, &frontends, &gaps, &answers);
    let boots = boots(&sorted.infos);
    let same_clock =
        |a: &str, b: &str| a == b || boots.get(a).is_some_and(|it| boots.get(b) == Some(it));
    let joined = join(sorted.flights, same_clock, is_frontend);
    let services = services(histories, &frontends, &joined.attempts, &sorted.rules);
    let nodes: BTreeMap<String, NodeFacts> = (sorted.last.iter())
        .map(|(node, last)| (node.clone(), NodeFacts { until: *last }))
        .collect();
    let watchers: Vec<String> = (sorted.slices.iter().map(|(node, _)| node.clone()))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let world = World {
        gaps: &gaps,
        answers: &answers,
        nodes: &nodes,
        watchers: &watchers,
        end: sorted.last.values().max().copied().unwrap_or(options.to),
    };
    let nobody = Service::default();
    let mut queries: Vec<Query> = Vec::new();
    for chain in chain(joined.attempts) {
        let service = service_of(&services, &chain).unwrap_or(&nobody);
        queries.extend(query(&world, service, &chain));
    }
    queries.sort_by(|a, b| key(a).cmp(&key(b)));
    for (index, query) in queries.iter_mut().enumerate() {
        query.id = format!("q{}", index + 1);
    }
    let wanted =
        |name: &str| options.services.is_empty() || options.services.iter().any(|it| it == name);
    let inside = |at: Timestamp| at >= options.from && at <= options.to;
    queries.retain(|it| inside(it.at) && wanted(&it.service));
    let lost: u64 = sorted
        .infos
        .values()
        .flatten()
        .map(|it| it.lost.total())
        .sum();
    let mut summaries = Vec::new();
    let mut lines = Vec::new();
    let shown: Vec<&Service> = services.values().filter(|it| wanted(&it.name)).collect();
    for service in &shown {
        let own: Vec<&Query> = queries
            .iter()
            .filter(|it| it.service == service.name)
            .collect();
        let rows: Vec<(&str, &Traffic)> = (sorted.traffic.iter())
            .map(|(node, row)| (node.as_str(), row))
            .filter(|(_, row)| {
                row.service
                    .as_deref()
                    .map_or(services.len() == 1, |it| it == service.name)
                    && row.second >= options.from.second()
                    && row.second <= options.to
            })
            .collect();
        let mut total = summary(service, &own, &rows, (options.from, options.to));
        total.lost_records = lost;
        total.missing_nodes = options
            .missing
            .iter()
            .map(|(node, _)| node.clone())
            .collect();
        total.missing_nodes.sort();
        total.missing_nodes.dedup();
        summaries.push(total);
        let history = &service.history;
        lines.extend(
            history
                .transitions
                .iter()
                .filter(|it| inside(it.at))
                .cloned()
                .map(Line::Transition),
        );
        let shown = |it: &crate::model::timeline::Programming| {
            let mut all = history.transitions.iter();
            all.any(|transition| transition.id == it.transition && inside(transition.at))
        };
        let programming = service.programs.lines(history);
        lines.extend(programming.into_iter().filter(shown).map(Line::Programming));
    }
    lines.extend(queries.into_iter().map(|it| Line::Query(Box::new(it))));
    lines.extend(gap_lines(&gaps, options).into_iter().map(Line::Gap));
    lines.sort_by_key(|line| (at(line), rank(line)));
    Timeline {
        header: header(
            &sorted.infos,
            &sorted.nodes,
            (&boots, &ahead),
            &shown,
            options,
        ),
        lines,
        summaries,
    }
}

/// When a line happened.
fn at(line: &Line) -> Timestamp {
    match line {
        Line::Header(it) => it.from,
        Line::Transition(it) => it.at,
        Line::Programming(it) => it.at,
        Line::Query(it) => it.at,
        Line::Gap(it) => it.from,
        Line::Summary(_) => Timestamp(i64::MAX),
    }
}

/// Lines of one moment, causes first.
const fn rank(line: &Line) -> u8 {
    match line {
        Line::Header(_) => 0,
        Line::Gap(_) => 1,
        Line::Transition(_) => 2,
        Line::Programming(_) => 3,
        Line::Query(_) => 4,
        Line::Summary(_) => 5,
    }
}

fn key(query: &Query) -> (Timestamp, &str, SocketAddr, Option<u16>) {
    let first = query.attempts.first();
    let source = first.map_or_else(|| SocketAddr::new(query.client.address, 0), |it| it.source);
    (query.at, &query.node, source, first.and_then(|it| it.txid))
}

/// Every address that was ever a frontend of each Service.
fn frontends(seen: &[(String, ServiceSeen)]) -> BTreeMap<String, BTreeSet<SocketAddr>> {
    let mut frontends: BTreeMap<String, BTreeSet<SocketAddr>> = BTreeMap::new();
    for (_, it) in seen {
        frontends
            .entry(it.service.clone())
            .or_default()
            .extend(&it.frontends);
    }
    frontends
}

fn histories(
    sorted: &Sorted,
    frontends: &BTreeMap<String, BTreeSet<SocketAddr>>,
    gaps: &Gaps,
    answers: &Answers,
) -> BTreeMap<String, History> {
    let mut seen: BTreeMap<&str, Vec<(&str, &SliceSeen)>> = BTreeMap::new();
    for service in frontends.keys() {
        seen.entry(service).or_default();
    }
    for (node, slice) in &sorted.slices {
        seen.entry(&slice.service).or_default().push((node, slice));
    }
    let mut transitions = 0;
    let mut histories = BTreeMap::new();
    for (service, slices) in seen {
        let mut history = History::new(service, &slices, gaps, answers);
        for transition in &mut history.transitions {
            transitions += 1;
            transition.id = format!("t{transitions}");
        }
        histories.insert(service.to_owned(), history);
    }
    histories
}

fn services(
    histories: BTreeMap<String, History>,
    frontends: &BTreeMap<String, BTreeSet<SocketAddr>>,
    attempts: &[Attempt],
    rules: &BTreeMap<String, NodeRules>,
) -> BTreeMap<String, Service> {
    let all: BTreeSet<SocketAddr> = frontends.values().flatten().copied().collect();
    let mut flows: Vec<NewFlow> = Vec::new();
    for attempt in attempts {
        if let (Some(backend), Some(Flow::New)) = (
            path::backend(attempt, |it| all.contains(&it)),
            flow_in_chain(attempt, None),
        ) {
            flows.push(NewFlow {
                at: attempt.sent(),
                node: attempt.node.clone(),
                backend: backend.ip(),
            });
        }
    }
    let mut services = BTreeMap::new();
    for (name, history) in histories {
        let programs = Programs::new(&history, rules, &flows);
        let service = Service {
            name: name.clone(),
            frontends: frontends
                .get(&name)
                .into_iter()
                .flatten()
                .copied()
                .collect(),
            history,
            programs,
        };
        services.insert(name, service);
    }
    services
}

/// The Service that was asked: by its frontend, else by an endpoint's address; the only one, if there is one.
fn service_of<'a>(services: &'a BTreeMap<String, Service>, chain: &Chain) -> Option<&'a Service> {
    let first = chain.first()?;
    let addresses: Vec<SocketAddr> = (first.origin.asked.into_iter())
        .chain(first.origin.destination)
        .chain(first.delivery.as_ref().map(|(_, it)| it.backend))
        .collect();
    let by_frontend = services.values().find(|it| {
        addresses
            .iter()
            .any(|address| it.frontends.contains(address))
    });
    let by_endpoint = || {
        services.values().find(|it| {
            let last = it.history.steps.len().saturating_sub(1);
            addresses
                .iter()
                .any(|address| it.history.ever(last, address.ip()))
        })
    };
    by_frontend
        .or_else(by_endpoint)
        .or_else(|| services.values().next().filter(|_| services.len() == 1))
}

fn boots(infos: &BTreeMap<String, Vec<NodeInfo>>) -> BTreeMap<String, String> {
    (infos.iter())
        .filter_map(|(node, all)| Some((node.clone(), all.last()?.boot_id.clone())))
        .filter(|(_, boot)| !boot.is_empty())
        .collect()
}

fn gap_lines(gaps: &Gaps, options: &Options) -> Vec<Gap> {
    let mut lines: Vec<Gap> = (gaps.all())
        .filter(|(_, gap)| gap.from <= options.to && gap.to >= options.from)
        .map(|(node, gap)| Gap {
            from: gap.from,
            to: gap.to,
            node: node.to_owned(),
            what: gap.what,
            count: gap.count,
        })
        .collect();
    let missing: BTreeSet<&String> = options.missing.iter().map(|(node, _)| node).collect();
    lines.extend(missing.into_iter().map(|node| Gap {
        from: options.from,
        to: options.to,
        node: node.clone(),
        what: GapKind::NodeMissing,
        count: 0,
    }));
    lines
}
