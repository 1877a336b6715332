//! `lab demo`: plays the experiments, prints their timelines and compares them with the truth.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;

use super::Starter;
use super::agents::{API_PORT, Agents};
use super::experiments::{self, ALL, Experiment};
use super::stage::Stage;
use crate::api::Api;
use crate::check;
use crate::cli::Demo;
use crate::lab::nodes::{FABRIC, FABRIC_ADDRESS};
use crate::lab::rules::Rules;
use crate::lab::{Lab, exec, now};
use crate::truth::{ClientResult, Truth};

/// Healthy time before and after what is done.
const CALM: Duration = Duration::from_secs(3);
/// Queries a second from each node.
const RATE: u32 = 50;

/// Plays all, or those that were named; status 1: some timeline does not agree with what was injected.
pub(crate) async fn run(lab: &Lab, demo: &Demo, starter: &Starter) -> Result<ExitCode> {
    std::fs::create_dir_all(&demo.out)
        .with_context(|| format!("cannot make {}", demo.out.display()))?;
    let api = Api::default();
    let listener = exec::in_netns(FABRIC, || {
        let listener = TcpListener::bind((FABRIC_ADDRESS, API_PORT))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    let serving = {
        let (api, listener) = (api.clone(), tokio::net::TcpListener::from_std(listener)?);
        tokio::spawn(async move { api.serve(listener).await })
    };
    let mut rules = BTreeMap::new();
    for node in &lab.nodes {
        rules.insert(node.name, Rules::install(node.name).await?);
    }
    let mut agree = true;
    for experiment in &ALL {
        let name = experiment.script.name;
        if demo.only.is_empty() || demo.only.iter().any(|only| only == name) {
            agree &= play(lab, &api, &mut rules, demo, experiment)
                .await
                .with_context(|| format!("in {name}"))?;
        }
    }
    let status = u8::from(!agree);
    if demo.keep {
        keep(lab, &api, &mut rules, demo, || starter.release(status)).await?;
    }
    serving.abort();
    Ok(ExitCode::from(status))
}

/// Two healthy replicas, agents and a light load, for as long as the lab lives.
async fn keep(
    lab: &Lab,
    api: &Api,
    rules: &mut BTreeMap<&'static str, Rules>,
    demo: &Demo,
    release: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let scratch = Path::new("/run/lab/kept");
    let mut stage = Stage::new(lab, api, rules, scratch.to_owned())?;
    experiments::HEALTHY.prepare(&mut stage).await?;
    let agents = if demo.without_agents {
        None
    } else {
        Some(Agents::start(lab, scratch, &demo.out, "kept").await?)
    };
    stage.clients(2).await?;
    let program = std::env::current_exe()?;
    eprintln!(
        "\nthe lab stays, with two replicas and a light load.\n  enter it:  {program} enter [master|worker1|worker2]\n  \
         look at it:  {program} enter -- slicetrace timeline --agent http://{uplink}:{port}\n  end it:  {program} down",
        program = program.display(),
        uplink = lab.node("worker2")?.uplink,
        port = super::agents::PORT,
    );
    release()?;
    std::future::pending::<()>().await;
    drop(agents);
    Ok(())
}

/// Plays one experiment.
async fn play(
    lab: &Lab,
    api: &Api,
    rules: &mut BTreeMap<&'static str, Rules>,
    demo: &Demo,
    experiment: &Experiment,
) -> Result<bool> {
    let script = experiment.script;
    eprintln!("\n{}: {}", script.name, script.description);
    let scratch = Path::new("/run/lab").join(script.name);
    let mut stage = Stage::new(lab, api, rules, scratch.clone())?;
    experiment.prepare(&mut stage).await?;
    let agents = if demo.without_agents {
        None
    } else {
        Some(Agents::start(lab, &scratch, &demo.out, script.name).await?)
    };
    let load = now();
    stage.clients(RATE).await?;
    eprintln!("  asking {RATE} times a second on each of three nodes");
    sleep(CALM).await;
    experiment.play(&mut stage).await?;
    eprintln!("  done; another {} s of asking", CALM.as_secs());
    sleep(CALM).await;
    let truth = stage.finish(script, load).await?;
    let path = demo.out.join(format!("{}.truth.json", script.name));
    serde_json::to_writer_pretty(File::create(&path)?, &truth)
        .with_context(|| format!("cannot write {}", path.display()))?;
    effect(experiment, &truth)?;

    let mut agree = true;
    if let Some(agents) = agents {
        let file = demo.out.join(format!("{}.slicetrace", script.name));
        if file.exists() {
            std::fs::remove_file(&file)?;
        }
        agents.record(&file, truth.from).await?;
        println!("{}", agents.timeline(&file, &[]).await?);
        let lines = agents.timeline(&file, &["--output", "json"]).await?;
        let report = check::compare(&truth, &lines)?;
        println!("{}: {report}\n", script.name);
        agree = report.agrees();
        agents.stop().await?;
    }
    stage.clear().await?;
    Ok(agree)
}

/// A fault counts only where the clients' own logs prove it.
fn effect(experiment: &Experiment, truth: &Truth) -> Result<()> {
    let failed: Vec<_> = truth
        .queries
        .iter()
        .filter(|query| query.result != ClientResult::Answered)
        .collect();
    eprintln!(
        "  {} queries, {} failed by the clients' own logs",
        truth.queries.len(),
        failed.len()
    );
    if let Some(query) = failed.iter().find(|query| query.expected.is_empty()) {
        anyhow::bail!("a query failed for which nothing was injected: {query:?}");
    }
    match experiment.effect {
        None => ensure!(
            failed.is_empty(),
            "queries failed where none should: {failed:?}"
        ),
        Some((code, least)) => {
            let proven = failed
                .iter()
                .filter(|query| query.expected.iter().all(|cause| cause.code == code))
                .count();
            ensure!(
                proven >= least,
                "only {proven} failed queries are certainly {}; {least} are needed",
                code.name()
            );
        }
    }
    Ok(())
}
