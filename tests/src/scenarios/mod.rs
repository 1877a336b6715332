//! What the lab is raised for: the experiments, and a smoke test.

mod actors;
mod smoke;

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Demo, Inner, Task};
use crate::lab::Lab;

/// Names of all experiments, in their order.
pub(crate) const NAMES: [&str; 0] = [];

/// Refuses names that no experiment has.
pub(crate) fn check_names(names: &[String]) -> Result<()> {
    for name in names {
        if !NAMES.contains(&name.as_str()) {
            bail!("no experiment is called `{name}`; there are: {}", NAMES.join(", "));
        }
    }
    Ok(())
}

/// The lab's first process. Whatever ends it ends the lab: the kernel kills what it started.
pub(crate) async fn inner(inner: Inner) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let starter = AsyncFd::with_interest(std::io::stdin(), Interest::READABLE)
        .context("cannot watch the process that started the lab")?;
    let work = async {
        let lab = Lab::raise(&inner.subtree).await.context("cannot raise the lab")?;
        match &inner.task {
            Task::Smoke => smoke::run(&lab).await,
            Task::Demo(_demo) => bail!("not yet"),
        }
    };
    tokio::select! {
        // In this order: an end of file that is there from the beginning must win.
        biased;
        _ = terminate.recv() => Ok(ExitCode::from(130)),
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = starter.readable() => Ok(ExitCode::from(130)),
        result = work => result,
    }
}
