//! The command line of `lab`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};

use crate::dns::{client, noise, server};
use crate::lab::outer::{self, Starter};
use crate::scenarios;

/// The lab of slicetrace: three nodes on this machine, faults on purpose, and the truth about them.
#[derive(Debug, Parser)]
#[command(name = "lab")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Raise the lab, replay the experiments, print their timelines and compare them with what was injected
    Demo(Demo),
    /// Run the lab's tests: every client and server once, then every experiment; closes with their counts
    Test {
        /// Where recordings and the log of what was injected go
        #[arg(long, value_name = "DIR", default_value = "target/lab-test")]
        out: PathBuf,
    },
    /// Remove a lab that was kept
    Down,
    /// Run a shell, or a command, on the underlay or on a node of a lab that was kept
    Enter {
        /// The node; none: the underlay
        #[arg(value_parser = ["master", "worker1", "worker2"])]
        node: Option<String>,
        /// The command; none: a shell
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// The lab's first process, inside its namespaces
    #[command(hide = true)]
    Inner(Inner),
    /// The outer process of a lab that is kept
    #[command(hide = true)]
    Keeper {
        /// Arguments of `inner`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Removes a lab's cgroups when everything else has gone
    #[command(hide = true)]
    Janitor {
        /// The lab's cgroup
        subtree: PathBuf,
    },
    /// Raise the lab and ask once from everywhere, with every client and every server
    #[command(hide = true)]
    Smoke,
    /// A DNS server that can be told to misbehave
    #[command(hide = true)]
    DnsServer(server::Arguments),
    /// A client that asks at a steady rate and logs what it saw
    #[command(hide = true)]
    Client(client::Arguments),
    /// Sends packets to the Service that are no queries
    #[command(hide = true)]
    Noise,
}

/// Arguments of `lab demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Demo {
    /// Leave the lab and its agents running afterwards
    #[arg(long)]
    pub(crate) keep: bool,
    /// Where recordings and the log of what was injected go
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    pub(crate) out: PathBuf,
    /// Only these experiments (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Without slicetrace's agents: only check that each fault has its effect on the clients
    #[arg(long, hide = true)]
    pub(crate) without_agents: bool,
}

impl Demo {
    /// The same, as arguments of `lab inner`.
    fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = vec!["demo".to_owned(), "--out".to_owned(), absolute(&self.out)?];
        for name in &self.only {
            arguments.extend(["--only".to_owned(), name.clone()]);
        }
        if self.keep {
            arguments.push("--keep".to_owned());
        }
        if self.without_agents {
            arguments.push("--without-agents".to_owned());
        }
        Ok(arguments)
    }
}

/// Arguments of `lab inner`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Inner {
    /// The lab's cgroup
    #[arg(long)]
    pub(crate) subtree: PathBuf,
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// What the lab is raised for.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// The experiments
    Demo(Demo),
    /// One question from everywhere
    Smoke,
    /// The tests
    Test {
        /// Where recordings and the log of what was injected go
        #[arg(long)]
        out: PathBuf,
    },
}

/// A folder's name that means the same in another process.
fn absolute(folder: &Path) -> Result<String> {
    let path = std::path::absolute(folder)?;
    let name = path.to_str().context("the folder's name is not UTF-8")?;
    Ok(name.to_owned())
}

/// Runs the command line; the exit status is 0 if everything was as it should be, 1 if not, 2 for wrong use, 130 after
/// a signal.
pub fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // Whoever read our messages may have gone.
            let _ = writeln!(std::io::stderr(), "lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(demo) => {
            scenarios::check_names(&demo.only)?;
            if demo.keep {
                outer::keep(&demo.arguments()?)
            } else {
                outer::run(&demo.arguments()?, Starter::This)
            }
        }
        Command::Test { out } => {
            let arguments = vec!["test".to_owned(), "--out".to_owned(), absolute(&out)?];
            outer::run(&arguments, Starter::This)
        }
        Command::Smoke => outer::run(&["smoke".to_owned()], Starter::This),
        Command::Down => outer::down().map(|()| ExitCode::SUCCESS),
        Command::Enter { node, command } => outer::enter(node.as_deref(), &command),
        Command::Keeper { arguments } => outer::run(&arguments, Starter::Parent),
        Command::Janitor { subtree } => outer::clean_up(&subtree).map(|()| ExitCode::SUCCESS),
        Command::Inner(inner) => multi_threaded()?.block_on(scenarios::inner(inner)),
        Command::DnsServer(arguments) => {
            single_threaded()?.block_on(server::run(arguments))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Client(arguments) => {
            single_threaded()?.block_on(client::run(arguments))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Noise => noise::send().map(|()| ExitCode::SUCCESS),
    }
}

fn multi_threaded() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start a runtime")
}

fn single_threaded() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")
}
