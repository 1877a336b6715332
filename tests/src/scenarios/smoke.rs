//! Every client asks every kind of server once, across nodes and on one node: proves that the lab itself is sound.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::actors::{Client, Server};
use crate::dns::log::ClientResult;
use crate::lab::Lab;
use crate::lab::exec;
use crate::lab::nodes::Node;
use crate::lab::pods::Pod;
use crate::lab::rules::{CLUSTER_IP, Rules};

/// Runs it; an error says what did not work.
pub(crate) async fn run(lab: &Lab, rules: &mut BTreeMap<&'static str, Rules>) -> Result<()> {
    let logs = Path::new("/run/lab/smoke");
    std::fs::create_dir_all(logs)?;
    let ours = Server::start(lab.node("worker2")?, "coredns-a", logs).await?;
    let dnsmasq = Server::start_dnsmasq(lab.node("worker1")?, "coredns-b").await?;
    for (what, mut server) in [("our server", ours), ("dnsmasq", dnsmasq)] {
        for rules in rules.values_mut() {
            rules.replace(&[server.pod.address]).await?;
        }
        for node in &lab.nodes {
            ask(node, what, &server, logs).await?;
        }
        server.leave().await?;
    }
    for rules in rules.values_mut() {
        rules.replace(&[]).await?;
    }
    Ok(())
}

/// From one node to one server, with each client.
async fn ask(node: &Node, what: &str, server: &Server, logs: &Path) -> Result<()> {
    let mut client = Client::start(node, "probe", logs, &["--count", "5", "--rate", "20"]).await?;
    let lines = client.join().await?;
    let answered = lines
        .iter()
        .filter(|line| line.result == ClientResult::Answered)
        .count();
    ensure!(
        answered == 5,
        "{} got {answered} of 5 answers from {what} on {}: {lines:?}",
        node.name,
        server.pod.node
    );
    eprintln!(
        "{} asked {what} on {}: 5 of 5 answered",
        node.name, server.pod.node
    );
    getent(&client.pod, logs).await?;
    nslookup(&client.pod, logs).await?;
    eprintln!("{}: getent and nslookup as well", node.name);
    client.pod.delete().await
}

/// glibc's resolver, with a resolv.conf of the pod's.
async fn getent(pod: &Pod, folder: &Path) -> Result<()> {
    let mut command = pod.command("getent")?;
    command.args(["ahosts", "getent.demo.test"]);
    resolver(command, folder, "getent").await
}

/// busybox's own resolver.
async fn nslookup(pod: &Pod, folder: &Path) -> Result<()> {
    ensure!(
        exec::installed("busybox"),
        "busybox is not installed; `cargo xtask setup` installs it"
    );
    let mut command = pod.command("busybox")?;
    command.args(["nslookup", "nslookup.demo.test"]);
    resolver(command, folder, "nslookup").await
}

/// Runs a resolver that must find the server's answer.
async fn resolver(
    command: tokio::process::Command,
    folder: &Path,
    name: &'static str,
) -> Result<()> {
    let output = resolve(command, folder, name).await?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && text.contains("192.0.2.53"),
        "{name} got no answer ({}): {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Runs a program to its end with a resolv.conf that names the Service, in a mount namespace of its own.
pub(crate) async fn resolve(
    mut command: tokio::process::Command,
    folder: &Path,
    name: &str,
) -> Result<Output> {
    let config = folder.join("resolv.conf");
    // Another one may be reading it.
    if !config.exists() {
        std::fs::write(&config, format!("nameserver {CLUSTER_IP}\n"))?;
    }
    // SAFETY: only system calls, with arguments that exist already.
    unsafe {
        command.pre_exec(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let nothing = None::<&str>;
            mount(
                Some(&config),
                "/etc/resolv.conf",
                nothing,
                MsFlags::MS_BIND,
                nothing,
            )?;
            Ok(())
        });
    }
    command
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("cannot run {name}"))
}
