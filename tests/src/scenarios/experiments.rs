//! The six experiments. Each says what it must have done to the clients before its verdicts count for anything.
//!
//! A is always the backend that goes, on worker2; B the one that stays or comes, on worker1.

use std::time::Duration;

use anyhow::Result;
use slicetrace::model::timeline::Code;
use tokio::time::{Instant, sleep, sleep_until};

use super::agents::Agents;
use super::faults::Fault;
use super::stage::{Script, Stage};
use crate::lab::nodes::NODES;
use crate::truth::Stop;

/// Node of A.
pub(super) const HERE: &str = "worker2";
pub(super) const A: &str = "coredns-a";
pub(super) const B: &str = "coredns-b";

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experiment {
    /// Name and description.
    pub(crate) script: Script,
    /// B is there from the beginning.
    pub(crate) replicas: usize,
    /// Queries a second from each node.
    pub(crate) rate: u32,
    /// What it does to clients; none: nothing may fail.
    pub(crate) effects: &'static [Effect],
    /// What is done.
    pub(super) play: Play,
}

/// So many failed queries have this cause and can have no other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// The cause.
    pub(crate) code: Code,
    /// Of clients on A's node, worker2.
    pub(crate) here: usize,
    /// Of clients on the other nodes.
    pub(crate) elsewhere: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Play {
    Nothing,
    Graceful,
    Abrupt,
    Terminating,
    Lag,
    Convergence,
    DiedFirst,
    Fault(Fault),
}

/// Shorthand.
pub(super) const fn effect(code: Code, here: usize, elsewhere: usize) -> Effect {
    Effect {
        code,
        here,
        elsewhere,
    }
}

/// All, in the order in which they are played.
pub(crate) const ALL: [Experiment; 6] = [
    Experiment {
        script: Script {
            name: "test-a-graceful",
            description: "One replica is deleted and goes on serving until its successor on another node is ready and \
                          every node's rules have moved.",
        },
        replicas: 1,
        effects: &[],
        rate: 50,
        play: Play::Graceful,
    },
    Experiment {
        script: Script {
            name: "test-a-abrupt",
            description: "One replica is gone at once; for two seconds nothing is there to answer, until its successor \
                          on another node is ready.",
        },
        replicas: 1,
        effects: &[effect(Code::NoEndpoints, 5, 15)],
        rate: 50,
        play: Play::Abrupt,
    },
    Experiment {
        script: Script {
            name: "test-b-terminating",
            description: "One of two replicas is terminating and said to serve, but its process exits 100 ms later; \
                          the rules of all nodes move after 500 ms.",
        },
        replicas: 2,
        effects: &[effect(Code::TerminatingBackend, 2, 3)],
        rate: 50,
        play: Play::Terminating,
    },
    Experiment {
        script: Script {
            name: "test-b-lag",
            description: "One of two replicas ends gracefully, 1.6 s after it began to; the rules of worker2 move 4 s \
                          after that beginning, those of the others at once.",
        },
        replicas: 2,
        effects: &[effect(Code::ProgrammingLag, 2, 0)],
        rate: 50,
        play: Play::Lag,
    },
    Experiment {
        script: Script {
            name: "test-b-convergence",
            description: "One of two replicas leaves the slice and is gone 50 ms later; the rules of all nodes follow \
                          in the usual time, 400 ms.",
        },
        replicas: 2,
        effects: &[effect(Code::ProgrammingLag, 2, 0)],
        rate: 50,
        play: Play::Convergence,
    },
    Experiment {
        script: Script {
            name: "test-b-died-first",
            description: "The process of one of two replicas is killed; the slice, and with it the rules, follow one \
                          second later.",
        },
        replicas: 2,
        effects: &[effect(Code::BackendDiedFirst, 2, 3)],
        rate: 50,
        play: Play::DiedFirst,
    },
];

/// Two replicas to which nothing happens: what a kept lab shows.
pub(crate) const HEALTHY: Experiment = Experiment {
    script: Script {
        name: "healthy",
        description: "Two replicas, and nothing happens to them.",
    },
    replicas: 2,
    effects: &[],
    rate: 50,
    play: Play::Nothing,
};

pub(super) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Experiment {
    /// Pods, slice and rules before anything happens.
    pub(crate) async fn prepare(&self, stage: &mut Stage<'_>) -> Result<()> {
        let servers = [(A, "worker2"), (B, "worker1")];
        let servers = &servers[..self.replicas];
        for (name, node) in servers {
            stage.server(name, node).await?;
            if *name == B && matches!(self.play, Play::Fault(Fault::Harmless)) {
                let address = stage.address(name)?;
                stage.bare.insert(address);
            }
            stage.ready(name)?;
        }
        let names: Vec<&str> = servers.iter().map(|(name, _)| *name).collect();
        stage.rules(&NODES, &names).await
    }

    /// What happens.
    pub(crate) async fn play(
        &self,
        stage: &mut Stage<'_>,
        agents: Option<&mut Agents>,
    ) -> Result<()> {
        let start = Instant::now();
        let at = |milliseconds| sleep_until(start + ms(milliseconds));
        match self.play {
            Play::Nothing => Ok(()),
            Play::Fault(fault) => fault.play(stage, agents).await,
            Play::Graceful => {
                stage.terminating(A)?;
                at(100).await;
                stage.server(B, "worker1").await?;
                at(300).await;
                stage.not_ready(B)?;
                at(2300).await;
                stage.ready(B)?;
                sleep(ms(50)).await;
                stage.rules(&NODES, &[B]).await?;
                at(3200).await;
                stage.gone(A)?;
                at(3700).await;
                stage.stop(A, Stop::Exited).await?;
                stage.pod_deleted(A)
            }
            Play::Abrupt => {
                stage.gone(A)?;
                at(60).await;
                stage.stop(A, Stop::Killed).await?;
                at(120).await;
                stage.rules(&NODES, &[]).await?;
                stage.pod_deleted(A)?;
                stage.server(B, "worker1").await?;
                at(500).await;
                stage.not_ready(B)?;
                at(2000).await;
                stage.ready(B)?;
                sleep(ms(50)).await;
                stage.rules(&NODES, &[B]).await
            }
            Play::Terminating => {
                stage.terminating(A)?;
                at(100).await;
                stage.stop(A, Stop::Exited).await?;
                at(500).await;
                stage.rules(&NODES, &[B]).await?;
                at(2000).await;
                stage.gone(A)?;
                stage.pod_deleted(A)
            }
            Play::Lag => {
                stage.terminating(A)?;
                at(50).await;
                stage.rules(&["master", "worker1"], &[B]).await?;
                at(1600).await;
                stage.gone(A)?;
                sleep(ms(50)).await;
                stage.stop(A, Stop::Killed).await?;
                stage.pod_deleted(A)?;
                at(4000).await;
                stage.rules(&["worker2"], &[B]).await
            }
            Play::Convergence => {
                stage.gone(A)?;
                at(50).await;
                stage.stop(A, Stop::Gone).await?;
                stage.pod_deleted(A)?;
                at(400).await;
                stage.rules(&NODES, &[B]).await
            }
            Play::DiedFirst => {
                stage.stop(A, Stop::Killed).await?;
                at(1000).await;
                // Rules first, the slice a moment later: no query goes to A then, so that none can be the rules' fault,
                // nor lie so close before the slice's change that nobody could tell whether it came first.
                stage.rules(&NODES, &[B]).await?;
                sleep(ms(60)).await;
                stage.gone(A)?;
                stage.pod_deleted(A)
            }
        }
    }
}
