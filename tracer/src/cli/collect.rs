//! Records of files and agents: what was asked for, and what of it could not be had.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{self, When};
use super::{Failure, block_on};
use crate::api::client::Client;
use crate::model::Timestamp;
use crate::model::record::NodeRecord;
use crate::store::{Reading, Store};

/// Which time.
#[derive(Clone, Debug, Args)]
pub(super) struct Range {
    /// Begin so long before the end, such as 10m or 2h [default: 15m; of a file all of it]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "from")]
    pub(super) since: Option<Duration>,
    /// Begin at this time (RFC 3339, or a duration ago)
    #[arg(long, value_name = "TIME", value_parser = values::when)]
    pub(super) from: Option<When>,
    /// End at this time (RFC 3339, or a duration ago) [default: now; of a file its end]
    #[arg(long, value_name = "TIME", value_parser = values::when)]
    pub(super) to: Option<When>,
}

/// Which agents.
#[derive(Clone, Debug, Args)]
pub(super) struct Agents {
    /// An agent's API, such as http://127.0.0.1:9754; repeatable
    #[arg(long = "agent", value_name = "URL")]
    pub(super) urls: Vec<String>,
    /// File with the bearer token of the agents' API
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// How long to wait for an agent's whole answer
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    pub(super) deadline: Duration,
}

impl Agents {
    pub(super) fn clients(&self) -> Result<Vec<Client>, Failure> {
        let token = self.token_file.as_deref().map(values::token).transpose()?;
        self.urls
            .iter()
            .map(|url| Ok(Client::new(url, token.clone(), self.deadline)?))
            .collect()
    }
}

/// Without `--since` and `--from`.
const DEFAULT_SINCE: Duration = Duration::from_secs(15 * 60);

/// What was had.
#[derive(Debug)]
pub(super) struct Collected {
    /// The records, each once.
    pub(super) records: Vec<NodeRecord>,
    /// From.
    pub(super) from: Timestamp,
    /// To.
    pub(super) to: Timestamp,
    /// Who gave none, with the reason.
    pub(super) missing: BTreeMap<String, String>,
    /// What else is not whole, in sentences.
    pub(super) remarks: Vec<String>,
}

/// Reads the files and asks the agents.
pub(super) fn collect(
    files: &[PathBuf],
    agents: &Agents,
    range: &Range,
) -> Result<Collected, Failure> {
    let clients = agents.clients()?;
    let stores = files
        .iter()
        .map(Store::read_only)
        .collect::<Result<Vec<_>, _>>()?;
    let (from, to) = resolve(range, &stores, !clients.is_empty(), values::now())?;
    let mut collected = Collected {
        records: Vec::new(),
        from,
        to,
        missing: BTreeMap::new(),
        remarks: Vec::new(),
    };
    let mut readings = Vec::new();
    for store in &stores {
        if let Some(recording) = store.recording()? {
            collected.missing.extend(recording.missing);
        }
        readings.push((store.path().display().to_string(), store.read(from, to)?));
    }
    let answers = block_on(futures::future::join_all(
        clients.iter().map(|client| client.records(from, to)),
    ))?;
    for (client, answer) in clients.iter().zip(answers) {
        match answer {
            Ok(reading) => readings.push((client.agent().to_owned(), reading)),
            Err(error) => {
                // The name stands before the reason wherever it is shown.
                let reason = error.to_string();
                let prefix = format!("agent {}: ", client.agent());
                let reason = reason.strip_prefix(&prefix).unwrap_or(&reason).to_owned();
                collected.missing.insert(client.agent().to_owned(), reason);
            }
        }
    }
    for (source, reading) in &readings {
        if reading.corrupt > 0 {
            collected.remarks.push(format!(
                "{source}: {} rows could not be understood and were left out",
                reading.corrupt
            ));
        }
    }
    collected.records = merge(readings.into_iter().map(|(_, reading)| reading).collect());
    // A node that one source lacked may be in another.
    let present: BTreeSet<&str> = collected
        .records
        .iter()
        .map(|record| record.node.as_str())
        .collect();
    collected
        .missing
        .retain(|name, _| !present.contains(name.as_str()));
    Ok(collected)
}

/// The time to show.
fn resolve(
    range: &Range,
    stores: &[Store],
    live: bool,
    now: Timestamp,
) -> Result<(Timestamp, Timestamp), Failure> {
    let mut spans = Vec::new();
    for store in stores {
        spans.extend(store.span()?);
    }
    let first = spans.iter().map(|span| span.from).min();
    let last = spans.iter().map(|span| span.to).max();
    let to = range
        .to
        .map(|to| to.resolve(now))
        .or(last.filter(|_| !live))
        .unwrap_or(now);
    let from = match (range.since, range.from) {
        (Some(since), _) => to - values::nanoseconds(since),
        (None, Some(from)) => from.resolve(now),
        (None, None) => {
            let recent = live.then(|| to - values::nanoseconds(DEFAULT_SINCE));
            first.into_iter().chain(recent).min().unwrap_or(to)
        }
    };
    if from > to {
        return Err(Failure::usage(format!(
            "the time asked for ends ({to}) before it begins ({from}); check --from and --to"
        )));
    }
    Ok((from, to))
}

/// All records, those that two sources have of one node once.
fn merge(readings: Vec<Reading>) -> Vec<NodeRecord> {
    let mut sources: BTreeMap<String, usize> = BTreeMap::new();
    for reading in &readings {
        let nodes: BTreeSet<&str> = reading
            .records
            .iter()
            .map(|record| record.node.as_str())
            .collect();
        for node in nodes {
            *sources.entry(node.to_owned()).or_default() += 1;
        }
    }
    let mut seen = HashSet::new();
    let mut records = Vec::new();
    for record in readings.into_iter().flat_map(|reading| reading.records) {
        let shared = sources.get(&record.node).is_some_and(|count| *count > 1);
        // A record that cannot be written as JSON cannot be compared either: it is kept.
        let new = !shared || serde_json::to_string(&record).map_or(true, |text| seen.insert(text));
        if new {
            records.push(record);
        }
    }
    records
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;
    use crate::model::record::{GapKind, GapSeen, Record};

    fn gap(node: &str, at: i64) -> NodeRecord {
        NodeRecord {
            node: node.to_owned(),
            record: Record::Gap(GapSeen {
                from: Timestamp(at),
                to: Timestamp(at),
                what: GapKind::AgentDown,
                count: 0,
            }),
        }
    }

    fn reading(records: &[NodeRecord]) -> Reading {
        Reading {
            records: records.to_vec(),
            corrupt: 0,
        }
    }

    #[test]
    fn what_two_sources_have_counts_once_and_what_one_has_twice_counts_twice() {
        let merged = merge(vec![
            reading(&[gap("a", 1), gap("a", 2), gap("b", 1), gap("b", 1)]),
            reading(&[gap("a", 2), gap("a", 3)]),
        ]);
        let expected = [
            gap("a", 1),
            gap("a", 2),
            gap("b", 1),
            gap("b", 1),
            gap("a", 3),
        ];
        assert_eq!(merged, expected);
    }

    fn range(since: Option<u64>, from: Option<i64>, to: Option<i64>) -> Range {
        Range {
            since: since.map(Duration::from_secs),
            from: from.map(|at| When::At(Timestamp(at))),
            to: to.map(|at| When::At(Timestamp(at))),
        }
    }

    #[test]
    fn a_file_is_shown_whole_and_agents_for_a_quarter_of_an_hour() {
        const SECOND: i64 = 1_000_000_000;
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path().join("a")).unwrap();
        store
            .write(&[gap("a", 5 * SECOND), gap("a", 7 * SECOND)])
            .unwrap();
        let stores = [store];
        let now = Timestamp(10_000 * SECOND);
        let at = |seconds: i64| Timestamp(seconds * SECOND);
        let none = range(None, None, None);
        assert_eq!(resolve(&none, &stores, false, now).unwrap(), (at(5), at(7)));
        assert_eq!(resolve(&none, &[], true, now).unwrap(), (at(9100), now));
        assert_eq!(resolve(&none, &stores, true, now).unwrap(), (at(5), now));
        let since = range(Some(1), None, None);
        assert_eq!(
            resolve(&since, &stores, false, now).unwrap(),
            (at(6), at(7))
        );
        let wrong = range(None, Some(9), Some(1));
        assert!(matches!(
            resolve(&wrong, &[], true, now),
            Err(Failure::Usage(_))
        ));
    }
}
