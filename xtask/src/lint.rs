//! `cargo xtask lint`: formatting, clippy, licences and sources of dependencies, documentation.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::counts::Counts;
use crate::prerequisites::{self, For};
use crate::process::{self, Tell};
use crate::workspace;

pub(crate) fn run() -> Result<ExitCode> {
    // Clippy and rustdoc compile the eBPF programs too.
    prerequisites::ensure(&[For::Build, For::Lint])?;
    let counts = steps()?;
    println!("{counts}");
    Ok(if counts.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Every step, each counted as one test; the prerequisites are there.
///
/// # Errors
/// When a step cannot be started, or we are interrupted.
pub(crate) fn steps() -> Result<Counts> {
    let mut counts = Counts::default();
    counts += step(workspace::cargo().args(["fmt", "--all", "--check"]))?;
    counts += step(workspace::cargo().args(["clippy", "--all-targets", "--", "-D", "warnings"]))?;
    counts += step(workspace::cargo().args(["deny", "check", "licenses", "bans", "sources"]))?;
    counts += advisories()?;
    counts += step(
        workspace::cargo()
            .env("RUSTDOCFLAGS", "-D warnings")
            .args(["doc", "--no-deps"]),
    )?;
    Ok(counts)
}

fn step(command: &mut Command) -> Result<Counts> {
    let name = process::shown(command);
    println!("lint: {name}");
    let ended = process::run(command, Tell::Group)?;
    ended.stop_if_interrupted()?;
    Ok(if ended.success() {
        Counts::PASSED
    } else {
        println!("lint: {name} FAILED");
        Counts::FAILED
    })
}

/// Known vulnerabilities: the database has to be fetched, so where it cannot be this is skipped, and said.
fn advisories() -> Result<Counts> {
    let mut fetch = workspace::cargo();
    fetch.args(["deny", "fetch", "db"]);
    workspace::prepare(&mut fetch);
    let fetched = fetch
        .stdin(Stdio::null())
        .output()
        .context("starting cargo deny")?;
    if !fetched.status.success() {
        println!(
            "lint: cargo deny check advisories SKIPPED: the database of advisories cannot be fetched from here"
        );
        return Ok(Counts::SKIPPED);
    }
    step(workspace::cargo().args(["deny", "check", "--disable-fetch", "advisories"]))
}
