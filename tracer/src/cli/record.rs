//! `slicetrace record`: what agents recorded, in one file.

use std::path::{Path, PathBuf};

use clap::Args;

use super::collect::{Agents, Collected, Range, collect};
use super::{Ending, Failure, say, values};
use crate::store::{Recording, Store};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording to make, such as incident.slicetrace
    file: PathBuf,
    #[command(flatten)]
    agents: Agents,
    #[command(flatten)]
    range: Range,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
}

/// Records written in one transaction.
const BATCH: usize = 10_000;

pub(super) fn run(arguments: Arguments) -> Result<Ending, Failure> {
    if arguments.agents.urls.is_empty() {
        return Err(Failure::usage(
            "no agent to record from; give --agent URL, once for each node",
        ));
    }
    let file = &arguments.file;
    if file.exists() && !arguments.force {
        return Err(Failure::usage(format!(
            "{} is there already; name another file, or give --force to replace it",
            file.display()
        )));
    }
    let collected = collect(&[], &arguments.agents, &arguments.range)?;
    for (agent, reason) in &collected.missing {
        say(&format!("{agent} is missing: {reason}"));
    }
    for remark in &collected.remarks {
        say(remark);
    }
    if collected.missing.len() == arguments.agents.urls.len() {
        return Err(Failure::Failed(format!(
            "no agent answered, so {} was not written",
            file.display()
        )));
    }
    // The name is only taken by a whole recording.
    let mut partial = file.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(partial);
    let written = save(&partial, &collected).and_then(|()| {
        std::fs::rename(&partial, file).map_err(|error| {
            Failure::Failed(format!("{}: cannot be written ({error})", file.display()))
        })
    });
    if let Err(failure) = written {
        remove(&partial);
        return Err(failure);
    }
    say(&format!(
        "{}: {} records from {} to {}",
        file.display(),
        collected.records.len(),
        collected.from,
        collected.to
    ));
    if collected.missing.is_empty() && collected.remarks.is_empty() {
        Ok(Ending::Done)
    } else {
        Ok(Ending::Incomplete)
    }
}

fn save(path: &Path, collected: &Collected) -> Result<(), Failure> {
    let mut store = Store::open(path)?;
    store.describe(&Recording {
        from: collected.from,
        to: collected.to,
        made: values::now(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        missing: collected.missing.clone(),
    })?;
    for batch in collected.records.chunks(BATCH) {
        store.write(batch)?;
    }
    Ok(store.finish()?)
}

/// Leaves nothing of a recording that failed.
fn remove(partial: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = partial.as_os_str().to_owned();
        name.push(suffix);
        // It may never have come to be.
        let _ = std::fs::remove_file(name);
    }
}
