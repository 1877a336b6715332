//! Development tasks: `cargo xtask setup`, `demo`, `test`, `lint`; one file a task.
//!
//! [`prerequisites`] is the one place that knows what has to be installed, [`probe`] the one that knows whether this
//! machine can load eBPF programs, [`process`] runs children so that none outlives an interrupt.

mod counts;
mod demo;
mod lint;
mod prerequisites;
mod probe;
mod process;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::prerequisites::For;

/// Development tasks of slicetrace.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install whatever building, the demo and the lab need and this machine lacks.
    Setup,
    /// Build everything, replay the experiments in a three-node lab and show their timelines.
    ///
    /// Exit status: the lab's; 3 where this machine cannot load eBPF and recordings were shown instead.
    Demo(demo::Arguments),
    /// Run every tier of tests that this machine can; the last line printed is the sum.
    Test(test::Arguments),
    /// Formatting, clippy, licences and sources of dependencies, documentation.
    Lint,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup => prerequisites::ensure(&[For::Build, For::Lab]).map(|()| ExitCode::SUCCESS),
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Lint => lint::run(),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
