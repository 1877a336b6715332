//! One file a command: arguments are parsed there and resolved once into what the command needs.
//!
//! stdout is data, stderr is talk. Exit status: 0 done; 1 failed, or `--fail-on` met; 2 wrong use; 3 done, but something
//! is missing from the answer, named on stderr.

mod agent;
mod collect;
mod completions;
mod fail_on;
mod healthz;
mod record;
mod schema;
mod terminal;
mod timeline;
mod values;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// A flight recorder for Kubernetes DNS: why was this lookup lost?
#[derive(Debug, Parser)]
#[command(
    name = "slicetrace",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(
    after_help = "Exit status: 0 done; 1 failed, or --fail-on met; 2 wrong use; 3 done, but something is missing from \
                  the answer, named on stderr."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record this node's DNS queries and endpoint changes, and answer for them
    Agent(Box<agent::Arguments>),
    /// Show what happened: endpoint changes, lost queries, and why
    Timeline(timeline::Arguments),
    /// Save what agents recorded in one file
    Record(record::Arguments),
    /// Ask an agent whether it is ready
    Healthz(healthz::Arguments),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
    /// Print the JSON Schema of one line of `timeline --output json`
    #[command(hide = true)]
    Schema,
}

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Done: 0.
    Done,
    /// A condition that was asked for is met, or a thing asked about is not so: 1.
    Met,
    /// Done, but something is missing: 3.
    Incomplete,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Wrong use: 2.
    #[error("{0}")]
    Usage(String),
    /// 1.
    #[error("{0}")]
    Failed(String),
    /// Data could not be written; a reader that has seen enough is no failure.
    #[error("writing the answer: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }
}

impl From<crate::store::Error> for Failure {
    fn from(error: crate::store::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<crate::api::client::Error> for Failure {
    fn from(error: crate::api::client::Error) -> Self {
        match error {
            crate::api::client::Error::Url { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Parses the arguments (the first is the program's name) and runs the command.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        // Help and version go to stdout with status 0, the rest to stderr with status 2.
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return match error.print() {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
                _ => ExitCode::from(code),
            };
        }
    };
    log_to_stderr();
    match run(cli.command) {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Met) => ExitCode::from(1),
        Ok(Ending::Incomplete) => ExitCode::from(3),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure @ Failure::Usage(_)) => {
            say(&failure.to_string());
            ExitCode::from(2)
        }
        Err(failure) => {
            say(&failure.to_string());
            ExitCode::from(1)
        }
    }
}

/// As `kubectl-slicetrace` the program is a plugin, and says so in its usage.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let plugin = arguments
        .first()
        .and_then(|name| std::path::Path::new(name).file_name())
        .is_some_and(|name| name == "kubectl-slicetrace");
    let command = if plugin {
        Cli::command().bin_name("kubectl slicetrace")
    } else {
        Cli::command()
    };
    Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

fn run(command: Command) -> Result<Ending, Failure> {
    match command {
        Command::Agent(arguments) => agent::run(*arguments),
        Command::Timeline(arguments) => timeline::run(arguments),
        Command::Record(arguments) => record::run(arguments),
        Command::Healthz(arguments) => healthz::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Schema => schema::run(),
    }
}

/// A sentence to the person at the terminal.
fn say(sentence: &str) {
    use io::Write as _;
    // Nothing can be done if stderr is gone.
    let _ = writeln!(
        io::stderr(),
        "slicetrace: {}",
        crate::render::text::harmless(sentence)
    );
}

/// kube's client logs each refused connection of each attempt; the agent says once that the API is away.
const QUIET: &str = "warn,slicetrace=info,kube_client=off";

/// `RUST_LOG` chooses what is told, by default warnings, of the agent also what it does.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(QUIET));
    // Fails only when a test has set one already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Whoever read stderr may have gone; the word about that would go to stderr too, and panic.
        .log_internal_errors(false)
        .with_ansi(terminal::colours(&io::stderr()))
        .try_init();
}

/// A runtime for commands that ask agents: one thread is enough.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map(|runtime| runtime.block_on(future))
        .map_err(|error| Failure::Failed(format!("the runtime cannot start: {error}")))
}

#[cfg(test)]
mod tests;
