//! Real resolvers against a backend that fails for a while: how many packets they send, and with what result, is known
//! from their exit status and from the server's log.
//!
//! glibc asks again after 5 s from the same port with the same id, or at once from a new port when it is refused;
//! busybox asks again after 2.5 s on the same socket, refused or not.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use slicetrace::model::timeline::Code;
use tokio::process::Command;
use tokio::time::sleep;

use super::experiments::{A, HERE, ms};
use super::objects::{self, Life};
use super::smoke::resolve;
use super::stage::Stage;
use crate::api::Kind;
use crate::dns::log::{self, ServerEvent, ServerLine};
use crate::lab::pods::Pod;
use crate::truth::{Mood, Resolved, Stop};

/// Nodes that resolvers run on: the backend's and another.
const NODES: [&str; 2] = [HERE, "master"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Getent,
    Nslookup,
}

impl Tool {
    const ALL: [Self; 2] = [Self::Getent, Self::Nslookup];

    fn name(self) -> &'static str {
        match self {
            Self::Getent => "getent",
            Self::Nslookup => "nslookup",
        }
    }

    /// It asks for the address of a name, one question of type A. The dot keeps it from trying a search list.
    fn command(self, pod: &Pod, name: &str) -> Result<Command> {
        let mut command;
        match self {
            Self::Getent => {
                command = pod.command("getent")?;
                command.args(["ahostsv4", &format!("{name}.")]);
            }
            Self::Nslookup => {
                command = pod.command("busybox")?;
                command.args(["nslookup", "-type=a", &format!("{name}.")]);
            }
        }
        Ok(command)
    }
}

/// Both resolvers on both nodes: first the server is silent for a second and a half, then its process is away for one.
pub(super) async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let mut pods = Vec::new();
    for name in NODES {
        let node = stage.lab.node(name)?;
        let pod = Pod::create(node, "default", &format!("resolver-{name}"), "resolver").await?;
        stage.pods.push(pod.clone());
        let life = Life {
            ready: true,
            deleted: None,
        };
        stage.api.apply(Kind::Pods, objects::pod(&pod, life))?;
        pods.push(pod);
    }
    stage.mood(A, "silence", Mood::Ignores).await?;
    let (logs, during) = (stage.logs.clone(), "silent");
    let asking = all(&pods, during, &logs);
    let healing = async {
        sleep(ms(1500)).await;
        stage.mood(A, "answer", Mood::Answers).await
    };
    let (answered, healed) = tokio::join!(asking, healing);
    healed?;
    let received: Vec<ServerLine> = log::read(&logs.join(format!("{A}.ndjson")))?;
    for (tool, node, answered) in answered? {
        let name = name(during, tool, node);
        let count = |event| {
            let same =
                |it: &&ServerLine| it.event == event && it.name.trim_end_matches('.') == name;
            received.iter().filter(same).count()
        };
        let (read, replied) = (count(ServerEvent::Received), count(ServerEvent::Answered));
        ensure!(
            read == 2 && replied == 1 && answered,
            "{name}: the server read {read} packets and answered {replied}; {answered}"
        );
        stage.expect(
            tool,
            node,
            during,
            vec![Some(Code::BackendSilent), None],
            answered,
        );
    }

    stage.stop(A, Stop::Exited).await?;
    let during = "closed";
    let asking = all(&pods, during, &logs);
    let healing = async {
        sleep(ms(1200)).await;
        stage.mood(A, "start", Mood::Answers).await
    };
    let (answered, healed) = tokio::join!(asking, healing);
    healed?;
    for (tool, node, answered) in answered? {
        // Whoever is refused asks again at once, in vain; whoever does not mind asks when somebody is there again.
        let (again, success) = match tool {
            Tool::Getent => (Some(Code::BackendClosed), false),
            Tool::Nslookup => (None, true),
        };
        ensure!(answered == success, "{tool:?} on {node}: {answered}");
        stage.expect(
            tool,
            node,
            during,
            vec![Some(Code::BackendClosed), again],
            answered,
        );
    }
    Ok(())
}

impl Stage<'_> {
    fn expect(
        &mut self,
        tool: Tool,
        node: &str,
        during: &str,
        attempts: Vec<Option<Code>>,
        answered: bool,
    ) {
        self.resolved.push(Resolved {
            tool: tool.name().to_owned(),
            node: node.to_owned(),
            name: format!("{}.", name(during, tool, node)),
            questions: 1,
            attempts,
            answered,
        });
    }
}

fn name(during: &str, tool: Tool, node: &str) -> String {
    format!("{during}-{}-{node}.demo.test", tool.name())
}

/// Every tool in every pod at the same time; whether each had an answer.
async fn all<'a>(
    pods: &'a [Pod],
    during: &str,
    folder: &std::path::Path,
) -> Result<Vec<(Tool, &'a str, bool)>> {
    let runs = pods.iter().flat_map(|pod| {
        Tool::ALL.map(|tool| async move {
            let command = tool.command(pod, &name(during, tool, pod.node))?;
            let output = resolve(command, folder, tool.name()).await?;
            let text = String::from_utf8_lossy(&output.stdout);
            let answered = output.status.success() && text.contains("192.0.2.53");
            anyhow::Ok((tool, pod.node, answered))
        })
    });
    try_join_all(runs).await
}
