//! `slicetrace timeline`: what happened, and why.

use std::io::{self, IsTerminal as _, Write as _};
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
                remark: filter.remark(),
                now: (!arguments.agents.urls.is_empty()).then(values::now),
            };
            text::write(&mut out, shown, &style)?;
        }
    }
    out.flush()?;
    drop(out);
    // On a terminal that shows both, what is missing has just been said.
    let told = arguments.output == Output::Text
        && io::stdout().is_terminal()
        && io::stderr().is_terminal();
    let absent = absent(shown, &remarks);
    if told && !absent.is_empty() {
        say("something is missing from this answer, as said above");
    } else {
        absent.iter().for_each(|sentence| say(sentence));
    }
    let met = arguments
        .fail_on
        .map_or_else(Vec::new, |fail_on| fail_on.met(shown.summaries));
    met.iter().for_each(|sentence| say(sentence));
    Ok(match (met.is_empty(), absent.is_empty()) {
        (false, _) => Ending::Met,
        (true, false) => Ending::Incomplete,
        (true, true) => Ending::Done,
    })
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

/// What is missing from the answer, in sentences.
fn absent(shown: Shown<'_>, remarks: &[String]) -> Vec<String> {
    let mut absent = missing::missing(shown);
    absent.extend_from_slice(remarks);
    if missing::nothing_recorded(shown.header, shown.summaries) {
        absent.push("nothing recorded, so nothing can be said".to_owned());
    }
    absent
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

    /// What it leaves out, in a sentence; `None`: nothing.
    fn remark(&self) -> Option<String> {
        let mut only = Vec::new();
        match &self.client {
            Some(Wanted::Host) => only.push("of host processes".to_owned()),
            Some(Wanted::Pod(namespace, pod)) => only.push(format!("of {namespace}/{pod}")),
            None => {}
        }
        only.extend(self.node.as_ref().map(|node| format!("on {node}")));
        only.extend(self.verdict.map(|code| format!("with {}", code.name())));
        if self.failed {
            only.push("that failed".to_owned());
        }
        (!only.is_empty()).then(|| {
            let only = only.join(" ");
            format!("only queries {only} are shown; the totals are those of the whole Service")
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
