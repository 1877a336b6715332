//! `lab test`: the smoke test and every experiment, each passed or failed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use super::demo::{Outcome, Theatre};
use super::experiments::{ALL, Experiment};
use super::smoke;
use crate::lab::Lab;
use crate::lab::rules::Rules;

/// Runs all, whatever fails, and closes with the counts on a line of their own: `N passed, N failed, N skipped`.
pub(crate) async fn run(
    lab: &Lab,
    rules: &mut BTreeMap<&'static str, Rules>,
    out: &Path,
) -> Result<ExitCode> {
    let mut tally = Tally::default();
    tally.count(
        "every client reaches every server",
        smoke::run(lab, rules).await,
    );
    let mut theatre = Theatre::open(lab, rules, out, true)?;
    for experiment in &ALL {
        let judged = judge(&mut theatre, experiment).await;
        tally.count(experiment.script.name, judged);
    }
    println!(
        "{} passed, {} failed, 0 skipped",
        tally.passed, tally.failed
    );
    Ok(ExitCode::from(u8::from(tally.failed > 0)))
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn count(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("lab: {name} ... ok");
            }
            Err(error) => {
                self.failed += 1;
                println!("lab: {name} ... FAILED: {error:#}");
            }
        }
    }
}

async fn judge(theatre: &mut Theatre<'_>, experiment: &Experiment) -> Result<()> {
    if let Some(Outcome { timeline, report }) = theatre.play(experiment).await? {
        ensure!(report.agrees(), "{report}\n{timeline}");
        println!("lab: {report}");
    }
    Ok(())
}
