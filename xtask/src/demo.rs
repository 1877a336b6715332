//! `cargo xtask demo`: the experiments in a three-node lab, or recordings of them where no lab can be raised.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::prerequisites::{self, For};
use crate::process::{self, Tell};
use crate::{probe, workspace};

/// The demo ran, but with recordings instead of a lab: as `slicetrace` itself says "something is missing".
const SOMETHING_MISSING: u8 = 3;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the lab and its agents running and print how to enter it.
    #[arg(long, conflicts_with = "down")]
    keep: bool,
    /// Remove a lab that was left running.
    #[arg(long)]
    down: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let obstacle = probe::no_lab();
    prerequisites::ensure(if obstacle.is_none() {
        &[For::Build, For::Lab]
    } else {
        &[For::Build]
    })?;
    process::check(workspace::cargo().args([
        "build",
        "--package",
        "slicetrace",
        "--package",
        "slicetrace-tests",
        "--bins",
    ]))?;
    if let Some(why) = obstacle {
        if arguments.keep || arguments.down {
            bail!("there can be no lab here: {why}");
        }
        return recordings(&why);
    }
    let mut lab = Command::new(workspace::program("lab")?);
    lab.current_dir(workspace::root());
    if arguments.down {
        lab.arg("down");
    } else {
        lab.args(["demo", "--out", "target/demo"]);
    }
    if arguments.keep {
        lab.arg("--keep");
    }
    Ok(process::run(&mut lab, Tell::Child)?.exit_code())
}

/// Shows the recordings that the repository ships.
fn recordings(why: &str) -> Result<ExitCode> {
    let folder = workspace::root().join("docs/recordings");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| {
            format!(
                "no lab can be raised here ({why}), and reading {} failed",
                folder.display()
            )
        })?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "slicetrace")
        })
        .collect();
    files.sort();
    if files.is_empty() {
        bail!(
            "no lab can be raised here ({why}), and there is no recording in {}",
            folder.display()
        );
    }
    println!("No lab can be raised on this machine: {why}.");
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("\n{name}: a recording shipped with the repository, not made on this machine\n");
        let mut timeline = Command::new(workspace::program("slicetrace")?);
        let ended = process::run(timeline.arg("timeline").arg(&file), Tell::Group)?;
        // 3: shown, and it says itself what is missing from it.
        if !matches!(ended.status.code(), Some(0 | 3)) || ended.interrupted.is_some() {
            return Ok(ended.exit_code());
        }
    }
    Ok(ExitCode::from(SOMETHING_MISSING))
}
