//! The real agents, one on each node, and the real command line on the underlay.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use slicetrace::model::Timestamp;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::lab::nodes::{FABRIC, FABRIC_ADDRESS, Node};
use crate::lab::{Lab, exec};

/// Port of the agents' API.
const PORT: u16 = 9754;
/// Port of the stand-in API server.
pub(crate) const API_PORT: u16 = 6443;
/// How long agents may take to attach everything and list the API, on a busy machine.
const START: Duration = Duration::from_secs(30);
/// How long an agent may take to drain.
const DRAIN: Duration = Duration::from_secs(5);

/// `slicetrace`, found beside this program.
pub(crate) fn slicetrace() -> Result<PathBuf> {
    let path = std::env::current_exe()?
        .parent()
        .context("this program lies in no folder")?
        .join("slicetrace");
    ensure!(
        path.is_file(),
        "there is no {}: build the program first",
        path.display()
    );
    Ok(path)
}

/// Running agents.
#[derive(Debug)]
pub(crate) struct Agents {
    program: PathBuf,
    token_file: PathBuf,
    scratch: PathBuf,
    agents: Vec<Agent>,
}

#[derive(Debug)]
struct Agent {
    node: &'static str,
    url: String,
    child: Child,
    log: PathBuf,
}

impl Agents {
    /// Starts one on each node and waits until all are ready. Stores go to `scratch`, their messages to `logs`.
    pub(crate) async fn start(lab: &Lab, scratch: &Path, logs: &Path, name: &str) -> Result<Self> {
        let program = slicetrace()?;
        let kubeconfig = scratch.join("kubeconfig");
        std::fs::write(&kubeconfig, kubeconfig_text())?;
        std::fs::write(token_file(scratch), "only-for-the-lab")?;
        let mut agents = Vec::new();
        for node in &lab.nodes {
            agents.push(Agent::start(
                node,
                &program,
                &kubeconfig,
                scratch,
                logs,
                name,
            )?);
        }
        for agent in &mut agents {
            agent
                .wait(&scratch.join(format!("{}.ready", agent.node)))
                .await?;
        }
        Ok(Self {
            program,
            token_file: token_file(scratch),
            scratch: scratch.to_owned(),
            agents,
        })
    }

    /// SIGKILL to the agent of a node: it cannot write down anything more.
    pub(crate) async fn kill(&mut self, node: &str) -> Result<()> {
        let agent = self.get(node)?;
        agent.child.kill().await.context("cannot kill an agent")
    }

    /// Starts the agent of a node again, with the same store, and waits until it is ready.
    pub(crate) async fn start_again(&mut self, node: &Node, logs: &Path) -> Result<()> {
        let ready = self.scratch.join(format!("{}.ready", node.name));
        if ready.exists() {
            std::fs::remove_file(&ready)?;
        }
        let kubeconfig = self.scratch.join("kubeconfig");
        let (program, scratch) = (self.program.clone(), self.scratch.clone());
        let agent = self.get(node.name)?;
        *agent = Agent::start(node, &program, &kubeconfig, &scratch, logs, "again")?;
        agent.wait(&ready).await
    }

    fn get(&mut self, node: &str) -> Result<&mut Agent> {
        self.agents
            .iter_mut()
            .find(|agent| agent.node == node)
            .with_context(|| format!("no agent on {node}"))
    }

    /// Runs `slicetrace record` against all agents.
    pub(crate) async fn record(&self, file: &Path, from: Timestamp) -> Result<()> {
        let mut command = self.cli()?;
        command
            .arg("record")
            .arg(file)
            .arg("--from")
            .arg(from.to_string())
            .arg("--token-file")
            .arg(&self.token_file);
        for agent in &self.agents {
            command.arg("--agent").arg(&agent.url);
        }
        let status = command.stdin(Stdio::null()).status().await?;
        ensure!(status.success(), "`slicetrace record` failed: {status}");
        Ok(())
    }

    /// What `slicetrace timeline FILE …` prints; its messages go to our standard error. Where something is missing from the
    /// records it must say so by its exit status.
    pub(crate) async fn timeline(
        &self,
        file: &Path,
        incomplete: bool,
        arguments: &[&str],
    ) -> Result<String> {
        let output = self
            .cli()?
            .arg("timeline")
            .arg(file)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .await?;
        let status = if incomplete { 3 } else { 0 };
        ensure!(
            output.status.code() == Some(status),
            "`slicetrace timeline` ended with {}, not with status {status}",
            output.status
        );
        String::from_utf8(output.stdout).context("the timeline is not UTF-8")
    }

    /// The command line that shows what these agents see.
    pub(crate) fn look(&self) -> String {
        let mut line = format!(
            "slicetrace timeline --token-file {}",
            self.token_file.display()
        );
        for agent in &self.agents {
            line.push_str(" --agent ");
            line.push_str(&agent.url);
        }
        line
    }

    fn cli(&self) -> Result<Command> {
        exec::command(&self.program, Some(FABRIC), None)
    }

    /// SIGTERM, and waits: an agent must end by itself, with status 0.
    pub(crate) async fn stop(self) -> Result<()> {
        for agent in &self.agents {
            exec::signal(&agent.child, Signal::SIGTERM)
                .with_context(|| format!("the agent of {} has ended early", agent.node))?;
        }
        for mut agent in self.agents {
            let status = timeout(DRAIN, agent.child.wait()).await.with_context(|| {
                format!("the agent of {} did not end within {DRAIN:?}", agent.node)
            })??;
            if !status.success() {
                bail!(
                    "the agent of {} ended with {status}:\n{}",
                    agent.node,
                    tail(&agent.log)
                );
            }
        }
        Ok(())
    }
}

impl Agent {
    fn start(
        node: &Node,
        program: &Path,
        kubeconfig: &Path,
        scratch: &Path,
        logs: &Path,
        name: &str,
    ) -> Result<Self> {
        let log = logs.join(format!("{name}.{}.agent.log", node.name));
        let messages =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = exec::command(program, Some(node.name), Some(&node.cgroup.join("system")))?
            .args(["agent", "--node", node.name, "--kubeconfig"])
            .arg(kubeconfig)
            .arg("--db")
            .arg(scratch.join(format!("{}.db", node.name)))
            .args(["--listen", &format!("{}:{PORT}", node.uplink)])
            .args(["--allow-remote", "--token-file"])
            .arg(token_file(scratch))
            .arg("--ready-file")
            .arg(scratch.join(format!("{}.ready", node.name)))
            .arg("--netns")
            .arg(exec::netns_path(node.name))
            .arg("--netns")
            .arg(exec::netns_path(&format!("{}-*", node.name)))
            .arg("--cgroup")
            .arg(&node.cgroup)
            .stdin(Stdio::null())
            .stdout(messages.try_clone()?)
            .stderr(messages)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self {
            node: node.name,
            url: format!("http://{}:{PORT}", node.uplink),
            child,
            log,
        })
    }

    async fn wait(&mut self, ready: &Path) -> Result<()> {
        let deadline = Instant::now() + START;
        while !ready.exists() {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the agent of {} ended with {status}:\n{}",
                    self.node,
                    tail(&self.log)
                );
            }
            ensure!(
                Instant::now() < deadline,
                "the agent of {} is not ready after {START:?}:\n{}",
                self.node,
                tail(&self.log)
            );
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// The agents answer on their nodes' addresses, so they want a token.
fn token_file(scratch: &Path) -> PathBuf {
    scratch.join("token")
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn kubeconfig_text() -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters: [{{name: lab, cluster: {{server: \"http://{FABRIC_ADDRESS}:{API_PORT}\"}}}}]\n\
         users: [{{name: lab, user: {{}}}}]\n\
         contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n\
         current-context: lab\n"
    )
}
