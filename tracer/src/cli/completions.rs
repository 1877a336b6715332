//! `slicetrace completions`: a script for the shell.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Ending, Failure};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<Ending, Failure> {
    // The generator panics on a closed pipe: it writes to memory, and we write.
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut Cli::command(),
        "slicetrace",
        &mut script,
    );
    io::stdout().lock().write_all(&script)?;
    Ok(Ending::Done)
}
