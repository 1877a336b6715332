//! `slicetrace timeline`: what happened, and why.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::collect::{Agents, Collected, Range, collect};
use super::fail_on::FailOn;
use super::{Ending, Failure, say, terminal, values};
use crate::correlate::timeline::{Options, Timeline, timeline};
use crate::model::timeline::{Client, Code, Line, Outcome, Query};
use crate::render::text::{Clock, Style};
use crate::render::{Shown, json, missing, text};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Recordings or agents' stores, read without privileges
    #[arg(value_name = "FILE", required_unless_present = "urls")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    agents: Agents,
    #[command(flatten)]
    range: Range,
    /// Only this Service; repeatable [default: all that were recorded]
    #[arg(long = "service", value_name = "NS/NAME", value_parser = values::service)]
    services: Vec<String>,
    /// Only queries of this client
    #[arg(long, value_name = "NS/POD|host")]
    client: Option<String>,
    /// Only queries of clients on this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Only queries with this verdict
    #[arg(long, value_name = "CODE", value_parser = values::verdict)]
    verdict: Option<Code>,
    /// Only queries that failed
    #[arg(long)]
    failed: bool,
    /// Exit with status 1 if this is so, such as failed>0
    #[arg(long, value_name = "EXPR")]
    fail_on: Option<FailOn>,
    /// Show each failure by itself, however alike they are
    #[arg(long)]
    all: bool,
    /// Show local time instead of UTC
    #[arg(long)]
    local: bool,
    /// For people or for programs (one JSON object a line)
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

pub(super) fn run(arguments: Arguments) -> Result<Ending, Failure> {
    let filter = Filter::new(&arguments)?;
    let collected = collect(&arguments.files, &arguments.agents, &arguments.range)?;
    let remarks = collected.remarks.clone();
    let mut timeline = judge(collected, arguments.services);
    timeline.lines.retain(|line| match line {
        Line::Query(query) => filter.shows(query),
        _ => true,
    });
    let shown = Shown {
        header: &timeline.header,
        lines: &timeline.lines,
        summaries: &timeline.summaries,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    match arguments.output {
        Output::Json => json::write(&mut out, shown)?,
        Output::Text => {
            let style = Style {
                width: terminal::width(),
                colour: terminal::colours(&io::stdout()),
                ascii: terminal::ascii(|name| std::env::var(name).ok()),
                clock: if arguments.local {
                    Clock::Zone(jiff::tz::TimeZone::system())
                } else {
                    Clock::Utc
                },
                all: arguments.all,
                now: (!arguments.agents.urls.is_empty()).then(values::now),
            };
            text::write(&mut out, shown, &style)?;
        }
    }
    out.flush()?;
    Ok(ending(shown, arguments.fail_on.as_ref(), &remarks))
}

fn judge(collected: Collected, services: Vec<String>) -> Timeline {
    let options = Options {
        from: collected.from,
        to: collected.to,
        missing: collected.missing.into_iter().collect(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        services,
    };
    timeline(collected.records, &options)
}

/// Says what is missing and what is met.
fn ending(shown: Shown<'_>, fail_on: Option<&FailOn>, remarks: &[String]) -> Ending {
    let mut absent = missing::missing(shown.header, shown.summaries);
    absent.extend_from_slice(remarks);
    if missing::nothing_recorded(shown.header) {
        absent.push("nothing recorded, so nothing can be said".to_owned());
    }
    for sentence in &absent {
        say(sentence);
    }
    let met = fail_on.map_or_else(Vec::new, |fail_on| fail_on.met(shown.summaries));
    for sentence in &met {
        say(sentence);
    }
    match (met.is_empty(), absent.is_empty()) {
        (false, _) => Ending::Met,
        (true, false) => Ending::Incomplete,
        (true, true) => Ending::Done,
    }
}

/// Which queries are shown. Transitions and totals are always those of the whole Service.
#[derive(Debug)]
struct Filter {
    client: Option<Wanted>,
    node: Option<String>,
    verdict: Option<Code>,
    failed: bool,
}

#[derive(Debug)]
enum Wanted {
    Host,
    Pod(String, String),
}

impl Filter {
    fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let client = match arguments.client.as_deref() {
            None => None,
            Some("host") => Some(Wanted::Host),
            Some(text) => match text.split_once('/') {
                Some((namespace, pod)) if !namespace.is_empty() && !pod.is_empty() => {
                    Some(Wanted::Pod(namespace.to_owned(), pod.to_owned()))
                }
                _ => {
                    return Err(Failure::usage(format!(
                        "--client `{text}`: write NAMESPACE/POD, or host"
                    )));
                }
            },
        };
        Ok(Self {
            client,
            node: arguments.node.clone(),
            verdict: arguments.verdict,
            failed: arguments.failed,
        })
    }

    fn shows(&self, query: &Query) -> bool {
        let asks = |client: &Client| match &self.client {
            None => true,
            Some(Wanted::Host) => client.pod.is_none(),
            Some(Wanted::Pod(namespace, pod)) => {
                client.namespace.as_ref() == Some(namespace) && client.pod.as_ref() == Some(pod)
            }
        };
        let judged = |code: Code| {
            query
                .attempts
                .iter()
                .filter_map(|attempt| attempt.verdict.as_ref())
                .any(|verdict| verdict.code == code)
        };
        asks(&query.client)
            && self.node.as_ref().is_none_or(|node| *node == query.node)
            && self.verdict.is_none_or(judged)
            && (!self.failed || query.outcome != Outcome::Answered)
    }
}
