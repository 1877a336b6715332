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
use super::experiments::{self, ALL, Experiment, HERE};
use super::faults::FAULTS;
use super::stage::Stage;
use crate::api::Api;
use crate::check::{self, Report};
use crate::cli::Demo;
use crate::lab::nodes::{FABRIC, FABRIC_ADDRESS};
use crate::lab::rules::Rules;
use crate::lab::{Lab, exec, now};
use crate::truth::Truth;

/// Healthy time before and after what is done.
const CALM: Duration = Duration::from_secs(3);

/// Everything that experiments are played with.
#[derive(Debug)]
pub(crate) struct Theatre<'a> {
    lab: &'a Lab,
    api: Api,
    rules: &'a mut BTreeMap<&'static str, Rules>,
    out: &'a Path,
    with_agents: bool,
    _serving: AbortOnDrop,
}

/// Ends the API server with its owner.
#[derive(Debug)]
struct AbortOnDrop(tokio::task::JoinHandle<Result<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What an experiment came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The timeline as people read it.
    pub(crate) timeline: String,
    /// How it compares with the truth.
    pub(crate) report: Report,
}

/// Plays all, or those that were named; status 1: some timeline does not agree with what was injected.
pub(crate) async fn run(
    lab: &Lab,
    rules: &mut BTreeMap<&'static str, Rules>,
    demo: &Demo,
    starter: &Starter,
) -> Result<ExitCode> {
    let mut theatre = Theatre::open(lab, rules, &demo.out, !demo.without_agents)?;
    let mut status = 0;
    // The faults are for tests: they are played only where they are named.
    for (experiment, shown) in
        (ALL.iter().map(|it| (it, true))).chain(FAULTS.iter().map(|it| (it, false)))
    {
        let name = experiment.script.name;
        if (shown && demo.only.is_empty()) || demo.only.iter().any(|only| only == name) {
            let outcome = theatre
                .play(experiment)
                .await
                .with_context(|| format!("in {name}"))?;
            if let Some(Outcome { timeline, report }) = outcome {
                println!("{timeline}\n{name}: {report}\n");
                status |= u8::from(!report.agrees());
            }
        }
    }
    if demo.keep {
        theatre.keep(|| starter.release(status)).await?;
    }
    Ok(ExitCode::from(status))
}

impl<'a> Theatre<'a> {
    /// Starts the API server on the underlay; recordings and truths will go to `out`.
    pub(crate) fn open(
        lab: &'a Lab,
        rules: &'a mut BTreeMap<&'static str, Rules>,
        out: &'a Path,
        with_agents: bool,
    ) -> Result<Self> {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let api = Api::default();
        let listener = exec::in_netns(FABRIC, || {
            let listener = TcpListener::bind((FABRIC_ADDRESS, API_PORT))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        let (server, listener) = (api.clone(), tokio::net::TcpListener::from_std(listener)?);
        Ok(Self {
            lab,
            api,
            rules,
            out,
            with_agents,
            _serving: AbortOnDrop(tokio::spawn(async move { server.serve(listener).await })),
        })
    }

    /// Plays one experiment; without agents there is nothing to compare.
    ///
    /// # Errors
    /// If it could not be played, or did not have its effect on the clients.
    pub(crate) async fn play(&mut self, experiment: &Experiment) -> Result<Option<Outcome>> {
        let script = experiment.script;
        eprintln!("\n{}: {}", script.name, script.description);
        let scratch = Path::new("/run/lab").join(script.name);
        let mut stage = Stage::new(self.lab, &self.api, self.rules, scratch.clone())?;
        let agents = self.with_agents.then_some((self.lab, scratch.as_path()));
        let played = play(experiment, &mut stage, agents, self.out).await;
        // The next one finds an empty stage, whatever became of this one.
        let cleared = stage.clear().await;
        let outcome = played?;
        cleared?;
        Ok(outcome)
    }

    /// Two healthy replicas, agents and a light load, for as long as the lab lives.
    async fn keep(&mut self, release: impl FnOnce() -> Result<()>) -> Result<()> {
        let scratch = Path::new("/run/lab/kept");
        let mut stage = Stage::new(self.lab, &self.api, self.rules, scratch.to_owned())?;
        experiments::HEALTHY.prepare(&mut stage).await?;
        let agents = match self.with_agents {
            true => Some(Agents::start(self.lab, scratch, self.out, "kept").await?),
            false => None,
        };
        stage.clients(2).await?;
        let program = std::env::current_exe()?;
        eprintln!(
            "\nthe lab stays, with two replicas and a light load.\n\
             enter it:   {program} enter [master|worker1|worker2]\n\
             end it:     {program} down",
            program = program.display(),
        );
        if let Some(agents) = &agents {
            eprintln!(
                "look at it: {} enter -- {}",
                program.display(),
                agents.look()
            );
        }
        release()?;
        std::future::pending::<()>().await;
        drop(agents);
        Ok(())
    }
}

/// Plays one experiment on a stage that is cleared afterwards.
async fn play(
    experiment: &Experiment,
    stage: &mut Stage<'_>,
    agents: Option<(&Lab, &Path)>,
    out: &Path,
) -> Result<Option<Outcome>> {
    let script = experiment.script;
    experiment.prepare(stage).await?;
    let mut agents = match agents {
        Some((lab, scratch)) => Some(Agents::start(lab, scratch, out, script.name).await?),
        None => None,
    };
    let load = now();
    let rate = experiment.rate;
    stage.clients(rate).await?;
    eprintln!("  asking {rate} times a second on each of three nodes");
    sleep(CALM).await;
    experiment.play(stage, agents.as_mut()).await?;
    eprintln!("  done; another {} s of asking", CALM.as_secs());
    sleep(CALM).await;
    let truth = stage.finish(script, load).await?;
    let path = out.join(format!("{}.truth.json", script.name));
    serde_json::to_writer_pretty(File::create(&path)?, &truth)
        .with_context(|| format!("cannot write {}", path.display()))?;
    effect(experiment, &truth)?;
    let Some(agents) = agents else {
        return Ok(None);
    };
    let file = out.join(format!("{}.slicetrace", script.name));
    if file.exists() {
        std::fs::remove_file(&file)?;
    }
    agents.record(&file, truth.from).await?;
    let incomplete = truth.blind().next().is_some();
    let timeline = agents.timeline(&file, incomplete, &[]).await?;
    let json = ["--output", "json"];
    let lines = agents.timeline(&file, incomplete, &json).await?;
    let report = check::compare(&truth, &lines)?;
    agents.stop().await?;
    Ok(Some(Outcome { timeline, report }))
}

/// A fault counts only where the clients' own logs prove it.
fn effect(experiment: &Experiment, truth: &Truth) -> Result<()> {
    let failed: Vec<_> = truth
        .queries
        .iter()
        .filter(|query| query.failed())
        .collect();
    eprintln!(
        "  {} queries, {} failed by the clients' own logs",
        truth.queries.len(),
        failed.len()
    );
    if let Some(query) = failed.iter().find(|query| query.expected.is_empty()) {
        anyhow::bail!("a query failed for which nothing was injected: {query:?}");
    }
    if experiment.effects.is_empty() {
        ensure!(
            failed.is_empty(),
            "queries failed where none should: {failed:?}"
        );
    }
    for effect in experiment.effects {
        let proven = |here: bool| {
            failed
                .iter()
                .filter(|query| (query.node == HERE) == here)
                .filter(|query| query.expected.iter().all(|it| it.code == effect.code))
                .count()
        };
        let (here, elsewhere) = (proven(true), proven(false));
        ensure!(
            here >= effect.here && elsewhere >= effect.elsewhere,
            "only {here} failed queries of A's node and {elsewhere} of the others are certainly {}; {effect:?} are needed",
            effect.code.name()
        );
    }
    Ok(())
}
