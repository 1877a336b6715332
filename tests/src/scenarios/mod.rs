//! What the lab is raised for: the experiments, and a smoke test.

mod actors;
mod agents;
mod demo;
mod experiments;
mod faults;
mod objects;
mod obstacles;
mod resolvers;
mod smoke;
mod stage;
mod test;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Inner, Task};
use crate::lab::Lab;
use crate::lab::rules::Rules;

/// Refuses names that no experiment has.
pub(crate) fn check_names(names: &[String]) -> Result<()> {
    let known: Vec<&str> = experiments::ALL
        .iter()
        .chain(&faults::FAULTS)
        .map(|experiment| experiment.script.name)
        .collect();
    for name in names {
        if !known.contains(&name.as_str()) {
            bail!(
                "no experiment is called `{name}`; there are: {}",
                known.join(", ")
            );
        }
    }
    Ok(())
}

/// The lab's first process. Whatever ends it ends the lab: the kernel kills what it started.
pub(crate) async fn inner(inner: Inner) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let starter = Starter::new().context("cannot watch the process that started the lab")?;
    let work = async {
        let lab = Lab::raise(&inner.subtree)
            .await
            .context("cannot raise the lab")?;
        let mut rules = BTreeMap::new();
        for node in &lab.nodes {
            rules.insert(node.name, Rules::install(node.name).await?);
        }
        match &inner.task {
            Task::Smoke => smoke::run(&lab, &mut rules)
                .await
                .map(|()| ExitCode::SUCCESS),
            Task::Demo(demo) => demo::run(&lab, &mut rules, demo, &starter).await,
            Task::Test { out } => test::run(&lab, &mut rules, out).await,
        }
    };
    tokio::select! {
        // In this order: an end of file that is there from the beginning must win.
        biased;
        _ = terminate.recv() => Ok(ExitCode::from(130)),
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        () = starter.gone() => Ok(ExitCode::from(130)),
        result = work => result,
    }
}

/// Whoever started the lab, at the other end of our standard input.
#[derive(Debug)]
struct Starter {
    socket: UnixStream,
    /// It was told that the experiments are over, and may go.
    released: AtomicBool,
}

impl Starter {
    fn new() -> Result<Self> {
        let socket =
            std::os::unix::net::UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixStream::from_std(socket)?,
            released: AtomicBool::new(false),
        })
    }

    /// It has gone before it was released.
    async fn gone(&self) {
        let _ = self.socket.readable().await;
        if self.released.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }

    /// Tells it the exit status; from now on the lab stays without it.
    fn release(&self, status: u8) -> Result<()> {
        self.released.store(true, Ordering::Relaxed);
        self.socket.try_write(&[status])?;
        Ok(())
    }
}
