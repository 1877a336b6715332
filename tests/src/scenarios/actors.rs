//! The processes in pods: DNS servers and clients, and how they are started, told and ended.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::dns::log::{self, ClientLine};
use crate::lab::exec;
use crate::lab::nodes::Node;
use crate::lab::pods::Pod;

/// How long a program may take to say that it is ready, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A DNS server in a pod.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its pod.
    pub(crate) pod: Pod,
    child: Child,
    commands: Option<ChildStdin>,
}

impl Server {
    /// Starts the lab's own server and waits until its socket is bound.
    pub(crate) async fn start(node: &Node, name: &str, logs: &Path) -> Result<Self> {
        let pod = Pod::create(node, "kube-system", name, "coredns").await?;
        let log = logs.join(format!("{name}.ndjson"));
        let (child, commands) = serve(&pod, &log).await?;
        Ok(Self {
            pod,
            child,
            commands: Some(commands),
        })
    }

    /// Starts the lab's own server again, in the pod where it has ended.
    pub(crate) async fn start_again(&mut self, logs: &Path) -> Result<()> {
        let log = logs.join(format!("{}.again.ndjson", self.pod.name));
        let (child, commands) = serve(&self.pod, &log).await?;
        self.child = child;
        self.commands = Some(commands);
        Ok(())
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        exec::signal(&self.child, signal)
    }

    /// Starts dnsmasq, which answers every name below `demo.test`.
    pub(crate) async fn start_dnsmasq(node: &Node, name: &str) -> Result<Self> {
        let pod = Pod::create(node, "kube-system", name, "dnsmasq").await?;
        let child = pod
            .command("dnsmasq")?
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--pid-file=",
                "--no-resolv",
                "--no-hosts",
                "--user=root",
                "--log-facility=-",
                "--local=/demo.test/",
                "--address=/demo.test/192.0.2.53",
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run `dnsmasq`: is the package dnsmasq-base installed?")?;
        Ok(Self {
            pod,
            child,
            commands: None,
        })
    }

    /// Gives the lab's own server a command, such as `silence`.
    pub(crate) async fn tell(&mut self, command: &str) -> Result<()> {
        let commands = self
            .commands
            .as_mut()
            .context("dnsmasq takes no commands")?;
        commands
            .write_all(format!("{command}\n").as_bytes())
            .await?;
        Ok(())
    }

    /// SIGKILL, and waits for the end.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill a DNS server")
    }

    /// Ends it, if it still runs, and takes its pod away, if it is still there.
    pub(crate) async fn leave(&mut self) -> Result<()> {
        if self.child.id().is_some() {
            self.kill().await?;
        }
        if self.pod.exists() {
            self.pod.delete().await?;
        }
        Ok(())
    }

    /// Tells it to exit, and waits for the end.
    pub(crate) async fn exit(&mut self) -> Result<()> {
        self.tell("exit").await?;
        timeout(PATIENCE, self.child.wait())
            .await
            .context("a DNS server does not exit")??;
        Ok(())
    }
}

/// Runs the lab's own server in a pod.
async fn serve(pod: &Pod, log: &Path) -> Result<(Child, ChildStdin)> {
    let mut command = pod.command(std::env::current_exe()?)?;
    command.arg("dns-server").arg("--log").arg(log);
    start_ready(&mut command).await
}

/// A client in a pod.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its pod.
    pub(crate) pod: Pod,
    child: Child,
    log: PathBuf,
    // Held open: the client would take its end for nothing, but keeps the pipe.
    _input: ChildStdin,
}

impl Client {
    /// Starts a client on a node, in a pod of that name; what it asks for ends in `NAME-NODE.demo.test.`.
    pub(crate) async fn start(
        node: &Node,
        name: &str,
        logs: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let name = format!("{name}-{}", node.name);
        let pod = Pod::create(node, "default", &name, "probe").await?;
        let log = logs.join(format!("{name}.ndjson"));
        let mut command = pod.command(std::env::current_exe()?)?;
        command
            .arg("client")
            .arg("--suffix")
            .arg(format!("{name}.demo.test."))
            .arg("--log")
            .arg(&log)
            .args(arguments);
        let (child, input) = start_ready(&mut command).await?;
        Ok(Self {
            pod,
            child,
            log,
            _input: input,
        })
    }

    /// Ends the asking, waits for the last answer, and reads what it saw.
    pub(crate) async fn finish(&mut self) -> Result<Vec<ClientLine>> {
        // One with a count may have ended by itself.
        let _ = exec::signal(&self.child, Signal::SIGTERM);
        let status = timeout(PATIENCE, self.child.wait())
            .await
            .context("a client does not end")??;
        ensure!(
            status.success(),
            "the client {} failed: {status}",
            self.pod.name
        );
        log::read(&self.log)
    }

    /// Waits until it has asked its fixed number of questions, and reads what it saw.
    pub(crate) async fn join(&mut self) -> Result<Vec<ClientLine>> {
        let status = timeout(PATIENCE, self.child.wait())
            .await
            .context("a client does not end")??;
        ensure!(
            status.success(),
            "the client {} failed: {status}",
            self.pod.name
        );
        log::read(&self.log)
    }
}

/// Starts a program of ours and waits for its line `ready`.
async fn start_ready(command: &mut Command) -> Result<(Child, ChildStdin)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a program of the lab")?;
    let stdin = child.stdin.take().context("no standard input")?;
    let stdout = child.stdout.take().context("no standard output")?;
    let mut line = String::new();
    timeout(PATIENCE, BufReader::new(stdout).read_line(&mut line))
        .await
        .context("a program of the lab is not ready in time")??;
    if line != "ready\n" {
        bail!("a program of the lab ended before it was ready; its message is above");
    }
    Ok((child, stdin))
}
