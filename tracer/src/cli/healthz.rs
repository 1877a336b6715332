//! `slicetrace healthz`: whether an agent is ready; a probe for Kubernetes without a shell in the image.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Ending, Failure, block_on, say, values};
use crate::api::client::Client;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The agent's API
    #[arg(
        long = "agent",
        value_name = "URL",
        default_value = "http://127.0.0.1:9754"
    )]
    url: String,
    /// File with the bearer token of the agent's API
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration)]
    deadline: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<Ending, Failure> {
    let token = arguments
        .token_file
        .as_deref()
        .map(values::token)
        .transpose()?;
    let client = Client::new(&arguments.url, token, arguments.deadline)?;
    let health = block_on(client.health())??;
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &health).map_err(io::Error::from)?;
    writeln!(out)?;
    if health.ready {
        return Ok(Ending::Done);
    }
    say(&format!("the agent of {} is not ready yet", health.node));
    Ok(Ending::Met)
}
