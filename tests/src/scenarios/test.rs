//! `lab test`: the smoke test and every experiment, each passed or failed, and whether they covered every cause.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use slicetrace::model::timeline::Code;

use super::demo::{Outcome, Theatre};
use super::experiments::{ALL, Experiment, HERE};
use super::faults::FAULTS;
use super::smoke;
use crate::check::Report;
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
    let mut table = Table::default();
    for experiment in ALL.iter().chain(&FAULTS) {
        let judged = judge(&mut theatre, experiment, &mut table).await;
        tally.count(experiment.script.name, judged);
    }
    println!("{table}");
    tally.count("every cause was seen where it can occur", table.complete());
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

/// Every cause that a verdict can name.
const CODES: [Code; 14] = [
    Code::NoEndpoints,
    Code::PolicyDrop,
    Code::StaleConntrack,
    Code::ProgrammingLag,
    Code::TerminatingBackend,
    Code::BackendDiedFirst,
    Code::BackendNotReady,
    Code::KernelDrop,
    Code::BackendClosed,
    Code::BackendSilent,
    Code::BackendSlow,
    Code::ErrorRcode,
    Code::CaptureGap,
    Code::Unexplained,
];

/// Verdicts that agreed with the truth, by code: of clients on the node of the backend at fault, and of the others.
#[derive(Debug, Default)]
struct Table(BTreeMap<Code, [usize; 2]>);

impl Table {
    fn add(&mut self, report: &Report) {
        for ((code, node), count) in &report.places {
            self.0.entry(*code).or_default()[usize::from(node != HERE)] += count;
        }
    }

    /// Every code that exists was given, on both sides; docs/verdicts.md says which cannot be.
    fn complete(&self) -> Result<()> {
        for code in CODES {
            let [here, elsewhere] = self.0.get(&code).copied().unwrap_or_default();
            let only_across = matches!(code, Code::Unexplained | Code::CaptureGap);
            ensure!(
                elsewhere > 0 && (here > 0 || only_across),
                "{} was given to {here} queries of the backend's node and to {elsewhere} of the others",
                code.name()
            );
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:20} {:>9} {:>10}",
            "verdict", "same node", "other node"
        )?;
        for (code, [here, elsewhere]) in &self.0 {
            write!(f, "\n{:20} {here:>9} {elsewhere:>10}", code.name())?;
        }
        Ok(())
    }
}

async fn judge(
    theatre: &mut Theatre<'_>,
    experiment: &Experiment,
    table: &mut Table,
) -> Result<()> {
    if let Some(Outcome { timeline, report }) = theatre.play(experiment).await? {
        ensure!(report.agrees(), "{report}\n{timeline}");
        println!("lab: {report}");
        table.add(&report);
    }
    Ok(())
}
