//! Experiments that provoke every other cause, some of them several on one stage: each fault is healed, and what it may
//! still concern has ended, before the next begins.
//!
//! Again A is the backend that is at fault, on worker2: clients of worker2 ask it on their own node, the others across.

use anyhow::Result;
use slicetrace::model::timeline::Code;
use tokio::time::sleep;

use super::agents::Agents;
use super::experiments::{A, B, Effect, Experiment, HERE, Play, effect, ms};
use super::objects::{NAMESPACE, SLICE};
use super::obstacles::Obstacle;
use super::resolvers;
use super::stage::{Script, Stage};
use crate::api::Kind;
use crate::lab::nodes::NODES;
use crate::lab::now;
use crate::truth::{Injection, Mood, Stop, What};

/// A pod that is announced, but does not serve yet.
const C: &str = "coredns-c";
/// A second slice of the Service.
const OTHER_SLICE: &str = "kube-dns-m4w9z";

/// What is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Everything that can happen to a backend that stays ready.
    Ready,
    /// A backend is withdrawn and another is sent to too early.
    Moves,
    /// An agent is killed while a server is silent.
    Blind,
    /// A backend is silent and closed while real resolvers ask.
    Resolvers,
    /// Nothing that should matter.
    Harmless,
}

/// All, in the order in which they are played.
pub(crate) const FAULTS: [Experiment; 5] = [
    Experiment {
        script: Script {
            name: "ready-backend",
            description: "The only replica stays ready, and everything happens to it: errors for answers, delays, \
                          silence, drops by policies and by the kernel, losses on the underlay, an end of its process.",
        },
        replicas: 1,
        rate: 12,
        effects: READY_EFFECTS,
        play: Play::Fault(Fault::Ready),
    },
    Experiment {
        script: Script {
            name: "moved-backends",
            description: "The replica is replaced and ends after the rules of all nodes have moved, while clients go on \
                          asking from the port they have; then rules send to a successor before it serves.",
        },
        replicas: 1,
        rate: 25,
        effects: &[
            effect(Code::StaleConntrack, 8, 8),
            effect(Code::BackendNotReady, 8, 16),
        ],
        play: Play::Fault(Fault::Moves),
    },
    Experiment {
        script: Script {
            name: "killed-agent",
            description: "The replica's server is silent; meanwhile the agent of its node is killed and started again.",
        },
        replicas: 1,
        rate: 25,
        effects: &[
            effect(Code::CaptureGap, 0, 20),
            effect(Code::BackendSilent, 10, 20),
        ],
        play: Play::Fault(Fault::Blind),
    },
    Experiment {
        script: Script {
            name: "resolvers",
            description: "glibc's and busybox's resolvers ask a replica that is silent, and one whose process has ended, \
                          until it serves again.",
        },
        replicas: 1,
        rate: 5,
        effects: &[effect(Code::BackendSilent, 1, 2)],
        play: Play::Fault(Fault::Resolvers),
    },
    Experiment {
        script: Script {
            name: "harmless",
            description: "Two replicas serve; one, which has no targetRef, moves to another slice, and packets that are \
                          no queries are sent to the Service.",
        },
        replicas: 2,
        rate: 25,
        effects: &[],
        play: Play::Fault(Fault::Harmless),
    },
];

const READY_EFFECTS: &[Effect] = &[
    effect(Code::ErrorRcode, 6, 12),
    effect(Code::BackendSlow, 12, 24),
    effect(Code::BackendSilent, 6, 12),
    effect(Code::PolicyDrop, 15, 30),
    effect(Code::KernelDrop, 5, 20),
    effect(Code::Unexplained, 0, 20),
    effect(Code::BackendClosed, 6, 12),
];

impl Fault {
    pub(super) async fn play(
        self,
        stage: &mut Stage<'_>,
        agents: Option<&mut Agents>,
    ) -> Result<()> {
        match self {
            Self::Ready => ready_backend(stage).await,
            Self::Moves => moved_backends(stage).await,
            Self::Blind => killed_agent(stage, agents).await,
            Self::Resolvers => resolvers::play(stage).await,
            Self::Harmless => harmless(stage).await,
        }
    }
}

async fn ready_backend(stage: &mut Stage<'_>) -> Result<()> {
    let moods = [
        ("rcode SERVFAIL", Mood::Rcode),
        ("rcode REFUSED", Mood::Rcode),
        ("delay 1500", Mood::Delays(1_500_000_000)),
        ("silence", Mood::Ignores),
    ];
    for (command, mood) in moods {
        stage.mood(A, command, mood).await?;
        sleep(ms(700)).await;
        stage.mood(A, "answer", Mood::Answers).await?;
        sleep(ms(1200)).await;
    }
    // What waits in its socket is answered in the end, most of it too late.
    stage.mood(A, "pause", Mood::Paused).await?;
    sleep(ms(1600)).await;
    stage.mood(A, "continue", Mood::Answers).await?;
    sleep(ms(1200)).await;
    for obstacle in [
        Obstacle::Policy,
        Obstacle::PolicyThere,
        Obstacle::PolicyBefore,
        Obstacle::Forwarding,
        Obstacle::ReversePath,
        Obstacle::UnderlayThere,
        Obstacle::UnderlayBack,
    ] {
        stage.obstruct(A, obstacle).await?;
    }
    stage.stop(A, Stop::Exited).await?;
    sleep(ms(900)).await;
    stage.mood(A, "start", Mood::Answers).await?;
    sleep(ms(1200)).await;
    // For the rest of the recording.
    stage.mood(A, "pause", Mood::Paused).await
}

async fn moved_backends(stage: &mut Stage<'_>) -> Result<()> {
    for name in [HERE, "master"] {
        let node = stage.lab.node(name)?;
        let arguments = ["--rate", "20", "--timeout", "500", "--port", "7777"];
        stage.client(node, "pinned", &arguments).await?;
    }
    stage.server(B, "worker1").await?;
    sleep(ms(500)).await;
    stage.ready(B)?;
    sleep(ms(300)).await;
    stage.gone(A)?;
    sleep(ms(30)).await;
    stage.rules(&NODES, &[B]).await?;
    sleep(ms(100)).await;
    stage.stop(A, Stop::Killed).await?;
    stage.pod_deleted(A)?;
    sleep(ms(1500)).await;
    // It has an address, and no process: as while an image is pulled or a zone is loaded.
    stage.server(C, HERE).await?;
    stage.stop(C, Stop::Exited).await?;
    let address = stage.address(C)?;
    stage.bare.insert(address);
    stage.not_ready(C)?;
    sleep(ms(300)).await;
    stage.uncalled(&NODES, &[C]).await?;
    sleep(ms(900)).await;
    stage.mood(C, "start", Mood::Answers).await?;
    stage.ready(C)
}

async fn killed_agent(stage: &mut Stage<'_>, agents: Option<&mut Agents>) -> Result<()> {
    stage.mood(A, "silence", Mood::Ignores).await?;
    sleep(ms(7000)).await;
    if let Some(agents) = agents {
        let from = now();
        agents.kill(HERE).await?;
        sleep(ms(1500)).await;
        let restarted = now();
        agents
            .start_again(stage.lab.node(HERE)?, &stage.logs)
            .await?;
        stage.injected.push(Injection {
            from,
            to: now(),
            what: What::AgentDown {
                node: HERE.to_owned(),
                restarted,
            },
        });
    }
    sleep(ms(3000)).await;
    stage.mood(A, "answer", Mood::Answers).await
}

async fn harmless(stage: &mut Stage<'_>) -> Result<()> {
    for name in [HERE, "master"] {
        stage.noise(name).await?;
    }
    // It is in both for a moment, then in the other only: no change of the union.
    let (address, other) = (stage.address(B)?, stage.endpoints().to_vec());
    let (moving, staying): (Vec<_>, Vec<_>) =
        other.into_iter().partition(|it| it.address == address);
    let slice = stage.slice(OTHER_SLICE, &moving);
    stage.api.apply(Kind::EndpointSlices, slice)?;
    sleep(ms(200)).await;
    let slice = stage.slice(SLICE, &staying);
    stage.api.apply(Kind::EndpointSlices, slice)?;
    sleep(ms(500)).await;
    // And back, the other way round in one go.
    let slice = stage.slice(SLICE, stage.endpoints());
    stage.api.apply(Kind::EndpointSlices, slice)?;
    stage
        .api
        .delete(Kind::EndpointSlices, Some(NAMESPACE), OTHER_SLICE)?;
    Ok(())
}
