//! The first lines: what is covered, how far it can be trusted, and loudly what is missing.

use std::io::{self, Write};

use super::layout::{Flow, Tone};
use super::{Style, words};
use crate::model::timeline::{Header, ServiceHeader};
use crate::render::{Shown, missing};

pub(super) fn write(out: &mut dyn Write, shown: Shown<'_>, style: &Style) -> io::Result<()> {
    let header = shown.header;
    let absent = missing::missing(shown);
    items(shown, style, absent.is_empty()).line(out, style, "", "  ")?;
    for service in &header.services {
        if let Some(remark) = &service.upstream {
            Flow::new()
                .text(Tone::Dim, &format!("{}: {remark}", service.service))
                .line(out, style, "  ", "  ")?;
        }
    }
    for sentence in &absent {
        Flow::new()
            .keep(Tone::Warn, "⚠")
            .text(Tone::Warn, sentence)
            .line(out, style, "", "  ")?;
    }
    if let Some(remark) = &style.remark {
        Flow::new()
            .text(Tone::Dim, remark)
            .line(out, style, "  ", "  ")?;
    }
    if missing::nothing_recorded(header, shown.summaries) {
        Flow::new()
            .keep(Tone::Bad, "⚠")
            .text(Tone::Bad, "nothing recorded, so nothing can be said")
            .line(out, style, "", "  ")?;
    }
    Ok(())
}

fn items(shown: Shown<'_>, style: &Style, whole: bool) -> Flow {
    let header = shown.header;
    let mut items = vec![
        Flow::new().keep(Tone::Bold, &style.clock.date(header.from)),
        Flow::new().keep(
            Tone::Plain,
            &format!(
                "{} to {}",
                style.clock.time(header.from),
                style.clock.time(header.to)
            ),
        ),
    ];
    items.extend(header.services.iter().map(service));
    items.push(nodes(header, whole));
    items.extend(totals(shown));
    items.extend(age(header, style));
    if !missing::nothing_recorded(header, shown.summaries) {
        items.push(lost(header));
    }
    items.extend(clocks(header));
    items
        .into_iter()
        .reduce(|flow, item| flow.then(" ·").join(item))
        .unwrap_or_default()
}

fn service(service: &ServiceHeader) -> Flow {
    let mut addresses: Vec<String> = Vec::new();
    for frontend in &service.frontends {
        let address = words::address(*frontend);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let shown = match addresses.len() {
        0 => "address unknown".to_owned(),
        1..=3 => addresses.join(", "),
        many => format!("{} and {} more", addresses[..2].join(", "), many - 2),
    };
    Flow::new().keep_all(&[(Tone::Bold, &service.service), (Tone::Plain, &shown)])
}

fn nodes(header: &Header, whole: bool) -> Flow {
    let recorded = header.nodes.iter().filter(|node| node.recorded).count();
    let all = header.nodes.len();
    let tone = if recorded == all && all > 0 {
        Tone::Plain
    } else {
        Tone::Bad
    };
    let flow = Flow::new().keep(
        tone,
        &format!(
            "{recorded} of {}",
            words::count(all as u64, "node", "nodes")
        ),
    );
    let blind = header
        .nodes
        .iter()
        .any(|node| missing::blind(node) || !node.missing_hooks.is_empty());
    if whole {
        flow.then(",").keep(Tone::Plain, "all hooks seen")
    } else if blind && recorded > 0 {
        flow.then(",").keep(Tone::Bad, "NOT all hooks seen")
    } else {
        flow
    }
}

fn totals(shown: Shown<'_>) -> Vec<Flow> {
    if shown.summaries.is_empty() {
        return Vec::new();
    }
    let sum = |of: fn(&crate::model::timeline::Summary) -> u64| -> u64 {
        shown.summaries.iter().map(of).sum()
    };
    let (queries, failed) = (sum(|s| s.queries), sum(|s| s.failed));
    let recovered = sum(|s| s.recovered);
    if queries == 0 {
        return vec![Flow::new().keep(Tone::Warn, "no queries")];
    }
    let tone = |count, tone| if count > 0 { tone } else { Tone::Good };
    let failed_text = format!("{} failed,", words::number(failed));
    let recovered_text = format!("{} recovered", words::number(recovered));
    vec![
        Flow::new().keep(Tone::Plain, &words::count(queries, "query", "queries")),
        Flow::new().keep_all(&[
            (tone(failed, Tone::Bad), &failed_text),
            (tone(recovered, Tone::Warn), &recovered_text),
        ]),
    ]
}

/// How fresh the records of a live timeline are.
fn age(header: &Header, style: &Style) -> Option<Flow> {
    let last = header
        .nodes
        .iter()
        .filter_map(|node| node.last_record_at)
        .min()?;
    let age = style.now?.since(last).max(0);
    Some(Flow::new().keep(
        Tone::Plain,
        &format!("records up to {} ago", words::duration(age)),
    ))
}

fn lost(header: &Header) -> Flow {
    let lost: u64 = header
        .nodes
        .iter()
        .map(|node| node.lost_records.total())
        .sum();
    let tone = if lost > 0 { Tone::Bad } else { Tone::Plain };
    let text = format!("{} lost", words::count(lost, "record", "records"));
    Flow::new().keep(tone, &text)
}

fn clocks(header: &Header) -> Option<Flow> {
    let recorded: Vec<_> = header.nodes.iter().filter(|node| node.recorded).collect();
    if recorded.len() < 2 {
        return None;
    }
    let unknown: Vec<&str> = recorded
        .iter()
        .filter(|node| node.clock_error_ns.is_none() || node.clock_offset_ns.is_none())
        .map(|node| node.name.as_str())
        .collect();
    if unknown.is_empty() {
        let bound = recorded
            .iter()
            .filter_map(|node| node.clock_error_ns)
            .max()?;
        let text = match bound {
            // Nodes that share a kernel share its clock.
            0 => "one clock".to_owned(),
            _ => format!("clocks within {}", words::duration(bound)),
        };
        return Some(Flow::new().keep(Tone::Plain, &text));
    }
    let who = if unknown.len() > 3 {
        format!("{} nodes", unknown.len())
    } else {
        unknown.join(", ")
    };
    Some(Flow::new().keep(Tone::Warn, &format!("clock of {who} not compared")))
}
