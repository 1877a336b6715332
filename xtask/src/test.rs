//! `cargo xtask test`: every tier that this machine can run, counted, with the sum as the last line.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::counts::{CargoTest, Counts, closing_line};
use crate::prerequisites::{self, For};
use crate::process::{self, Tell};
use crate::{lint, probe, workspace};

/// A tier that takes longer hangs: it is stopped and has failed.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// Integration tests whose file name begins so load eBPF programs: they need root and a kernel that lets them.
const PRIVILEGED: [&str; 2] = ["bpf", "capture"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also the tests marked `#[ignore]`.
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut total = Counts::default();
    let done = tiers(arguments, &mut total);
    if let Err(error) = &done {
        total += Counts::FAILED;
        println!("FAILED: {error:#}");
    }
    println!("{total}");
    Ok(if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn tiers(arguments: &Arguments, total: &mut Counts) -> Result<()> {
    // The lab's tools are only worth installing where a lab can be raised.
    let no_lab = probe::no_lab();
    let wanted = [For::Build, For::Lint, For::Lab];
    prerequisites::ensure(if no_lab.is_none() {
        &wanted
    } else {
        &wanted[..2]
    })?;
    let no_ebpf = probe::no_ebpf();
    let (plain, privileged) = integration_tests();

    tier("lint", None, total, lint::steps)?;
    tier("unit", None, total, || {
        let mut counts = cargo_test(arguments, &["--lib", "--bins"])?;
        counts += cargo_test(arguments, &["--doc"])?;
        if !plain.is_empty() {
            counts += cargo_test(arguments, &as_options(&plain))?;
        }
        Ok(counts)
    })?;
    if !privileged.is_empty() {
        tier("capture", no_ebpf, total, || {
            cargo_test(arguments, &as_options(&privileged))
        })?;
    }
    tier("lab", no_lab, total, lab)
}

/// Runs one tier, or says why not, and adds it up.
fn tier(
    name: &str,
    obstacle: Option<String>,
    total: &mut Counts,
    run: impl FnOnce() -> Result<Counts>,
) -> Result<()> {
    if let Some(why) = obstacle {
        println!("── {name}: SKIPPED: {why}");
        *total += Counts::SKIPPED;
        return Ok(());
    }
    println!("── {name}");
    let started = Instant::now();
    let counts = run()?;
    println!("── {name}: {counts} in {:.0?}", started.elapsed());
    *total += counts;
    Ok(())
}

fn cargo_test(arguments: &Arguments, which: &[&str]) -> Result<Counts> {
    let mut command = workspace::cargo();
    command
        .args(["test", "--no-fail-fast"])
        .args(which)
        .args(["--", "--show-output"]);
    if arguments.all {
        command.arg("--include-ignored");
    }
    let mut seen = CargoTest::default();
    let ended = process::read(&mut command, Tell::Group, LIMIT, &mut |line| {
        seen.line(line)
    })?;
    ended.stop_if_interrupted()?;
    for test in &seen.skipped {
        println!("SKIPPED {test}");
    }
    Ok(seen.counts.judged(ended.success()))
}

/// The lab compares every verdict with what it injected itself, and closes with its own counts.
fn lab() -> Result<Counts> {
    process::check(workspace::cargo().args([
        "build",
        "--package",
        "slicetrace",
        "--package",
        "slicetrace-tests",
        "--bins",
    ]))?;
    let mut command = Command::new(workspace::program("lab")?);
    command.current_dir(workspace::root()).arg("test");
    let mut counts = None;
    let ended = process::read(&mut command, Tell::Child, LIMIT, &mut |line| {
        let closing = closing_line(line);
        counts = closing.or(counts);
        // Only the sum of all tiers may stand alone on a line.
        closing.is_none()
    })?;
    ended.stop_if_interrupted()?;
    // Without its closing line it did not come to its end, whatever its status says.
    Ok(counts
        .unwrap_or_default()
        .judged(ended.success() && counts.is_some()))
}

/// Names of the integration tests: those that run anywhere, and those that load eBPF programs.
fn integration_tests() -> (Vec<String>, Vec<String>) {
    let mut names: Vec<String> = ["tracer/tests", "tests/tests"]
        .iter()
        .filter_map(|folder| fs::read_dir(workspace::root().join(folder)).ok())
        .flat_map(|entries| entries.filter_map(Result::ok))
        .filter_map(|entry| test_name(&entry.path()))
        .collect();
    names.sort();
    names
        .into_iter()
        .partition(|name| !PRIVILEGED.iter().any(|prefix| name.starts_with(prefix)))
}

/// `tests/NAME.rs` and `tests/NAME/main.rs` are the integration test NAME (Cargo's auto-discovery).
fn test_name(path: &Path) -> Option<String> {
    let is_test = path.extension().is_some_and(|extension| extension == "rs")
        || path.join("main.rs").is_file();
    is_test.then(|| path.file_stem()?.to_str().map(str::to_owned))?
}

fn as_options(names: &[String]) -> Vec<&str> {
    names
        .iter()
        .flat_map(|name| ["--test", name.as_str()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_tests_are_found_as_cargo_finds_them() {
        let name = |path: &str| test_name(Path::new(path));
        assert_eq!(name("tests/golden.rs"), Some("golden".to_owned()));
        assert_eq!(name("tests/data"), None);
        assert_eq!(name("tests/recorded.json"), None);
    }

    #[test]
    fn each_test_is_named_to_cargo() {
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(as_options(&names), ["--test", "a", "--test", "b"]);
    }

    #[test]
    fn a_tier_that_cannot_run_is_counted_as_skipped() {
        let mut total = Counts::default();
        tier(
            "x",
            Some("no reason".to_owned()),
            &mut total,
            || unreachable!(),
        )
        .expect("nothing was run");
        tier("y", None, &mut total, || Ok(Counts::PASSED)).expect("it passed");
        assert_eq!(total.to_string(), "1 passed, 0 failed, 1 skipped");
    }
}
