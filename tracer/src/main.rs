//! The program `slicetrace`.

use std::process::ExitCode;

fn main() -> ExitCode {
    slicetrace::cli::main(std::env::args_os())
}
