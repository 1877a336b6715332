//! The text timeline.
//!
//! Everything shown is built of `layout::Flow`s, which are cleaned of anything a terminal could obey, wrapped and
//! coloured in one place: `layout`.

mod clean;
mod entry;
mod header;
mod incident;
mod index;
mod layout;
mod query;
mod summary;
mod trail;
mod transition;
mod words;

use std::io::{self, Write};

use super::Shown;
use crate::model::Timestamp;
use crate::model::timeline::{Gap, GapKind, Line, Summary};
use entry::Entry;
use index::Index;
use layout::{Flow, Tone};

pub use words::Clock;

/// How to show it.
#[derive(Clone, Debug)]
pub struct Style {
    /// Columns.
    pub width: usize,
    /// With colours.
    pub colour: bool,
    /// Only ASCII.
    pub ascii: bool,
    /// Whose time of day.
    pub clock: Clock,
    /// Each failure by itself, however alike.
    pub all: bool,
    /// What is left out on purpose, in a sentence.
    pub remark: Option<String>,
    /// The time now, on a live timeline; `None` for a recording.
    pub now: Option<Timestamp>,
}

/// Narrower terminals get lines that are too long: nothing readable fits.
const NARROWEST: usize = 40;

/// Writes the whole timeline and flushes.
///
/// # Errors
/// Of the writer.
pub fn write(out: &mut dyn Write, shown: Shown<'_>, style: &Style) -> io::Result<()> {
    let style = &Style {
        width: style.width.max(NARROWEST),
        ..style.clone()
    };
    header::write(out, shown, style)?;
    if super::missing::nothing_recorded(shown.header, shown.summaries) && shown.lines.is_empty() {
        return out.flush();
    }
    let index = Index::new(shown);
    let mut entries = entries(shown, &index, style);
    entries.sort_by_key(|(at, _)| *at);
    writeln!(out)?;
    let mut date = style.clock.date(shown.header.from);
    for (at, entry) in &entries {
        let today = style.clock.date(*at);
        if today != date {
            Flow::new()
                .keep(Tone::Bold, &today)
                .line(out, style, "", "")?;
            date = today;
        }
        entry.write(out, style)?;
    }
    if entries.is_empty() {
        Flow::new()
            .text(
                Tone::Dim,
                "no change of an endpoint and no failed query in this time",
            )
            .line(out, style, "", "")?;
    }
    writeln!(out)?;
    summary::write(out, shown, style)?;
    out.flush()
}

/// Text from outside made harmless for a terminal.
pub fn harmless(text: &str) -> String {
    clean::escape(text)
}

fn entries(shown: Shown<'_>, index: &Index<'_>, style: &Style) -> Vec<(Timestamp, Entry)> {
    let mut entries = Vec::new();
    let columns = transition::columns(shown.lines, style);
    for line in shown.lines {
        match line {
            Line::Transition(transition) => {
                let entry = transition::entry(transition, index, columns, style);
                entries.push((transition.at, entry));
            }
            Line::Programming(programming)
                if index.transition(&programming.transition).is_none() =>
            {
                entries.push((programming.at, transition::lone(programming, style)));
            }
            Line::Gap(gap) => entries.push((gap.from, gap_entry(gap, style))),
            Line::Programming(_) | Line::Query(_) | Line::Header(_) | Line::Summary(_) => {}
        }
    }
    for summary in shown.summaries {
        entries.extend(zero_ready(summary, index, style));
    }
    entries.extend(incident::entries(index, style));
    entries
}

fn gap_entry(gap: &Gap, style: &Style) -> Entry {
    let what = match gap.what {
        GapKind::RecordsLost => "records were lost: failures in this time may be missing",
        GapKind::AgentDown => "the agent was not running: nothing is known of this time",
        GapKind::WatchBroken => "the watch on the API was broken: transitions may be missing",
        GapKind::NodeMissing => "has no records in this time",
    };
    let mut title = Flow::new()
        .keep(Tone::Warn, &format!("{}:", gap.node))
        .text(Tone::Warn, what);
    if gap.to > gap.from {
        let until = format!(
            "until {} ({})",
            style.clock.time(gap.to),
            words::duration(gap.to.since(gap.from))
        );
        title = title.then(",").keep(Tone::Plain, &until);
    }
    if gap.count > 0 {
        title = title
            .then(",")
            .keep(Tone::Plain, &words::count(gap.count, "record", "records"));
    }
    Entry::new(&style.clock.time(gap.from), "⚠", Tone::Warn, title)
}

/// Times without a ready endpoint, told in words: the slices alone do not say whether anything was lost.
fn zero_ready(summary: &Summary, index: &Index<'_>, style: &Style) -> Vec<(Timestamp, Entry)> {
    let told = summary.zero_ready_windows.iter().map(|window| {
        let span = match window.to {
            Some(to) => format!(
                "no ready endpoint for {}, until {}",
                words::duration(to.since(window.from)),
                style.clock.time(to)
            ),
            None => "no ready endpoint from here to the end".to_owned(),
        };
        let saved = window.answered_by_terminating;
        let tone = if window.failed > 0 {
            Tone::Bad
        } else {
            Tone::Warn
        };
        let mut title = Flow::new().text(tone, &span).then(":");
        title = match (window.failed, saved) {
            (0, 0) => title.text(Tone::Plain, "nobody asked, as far as was recorded"),
            (0, _) => title.text(Tone::Good, "nothing was lost:"),
            (failed, _) => title.text(
                Tone::Bad,
                &format!("{} failed", words::count(failed, "attempt", "attempts")),
            ),
        };
        if saved > 0 {
            let names = index.terminating_at(&summary.service, window.from, window.to);
            let by = match names.as_slice() {
                [] => "endpoints that were terminating but still serving".to_owned(),
                names => format!("{} while terminating", names.join(", ")),
            };
            let sentence = format!(
                "at least {} answered by {by}",
                words::count(saved, "query was", "queries were")
            );
            if window.failed > 0 {
                title = title.then(",");
            }
            title = title.text(Tone::Plain, &sentence);
        }
        let entry = Entry::new(&style.clock.time(window.from), "○", tone, title);
        (window.from, entry)
    });
    told.collect()
}
