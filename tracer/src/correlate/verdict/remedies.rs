//! What would have prevented a failure: always the same seven remedies, judged by the evidence.

use crate::model::timeline::{Code, Confidence, Convergence, ProcessFact};

use super::facts::facts;
use super::text::duration;
use super::{Case, Conclusion};

const SECOND: i64 = 1_000_000_000;

/// What the evidence says of a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It would have saved this attempt.
    Saves,
    /// It would not have.
    Not,
    /// The evidence does not say.
    CannotTell,
}

/// The remedies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    LongerLameduck,
    ReadinessProbe,
    SecondReplica,
    DisruptionBudget,
    Headless,
    NodeCache,
    NewPort,
}

/// All of them, in the order in which they are told.
pub(super) const ALL: [Remedy; 7] = [
    Remedy::LongerLameduck,
    Remedy::ReadinessProbe,
    Remedy::SecondReplica,
    Remedy::DisruptionBudget,
    Remedy::Headless,
    Remedy::NodeCache,
    Remedy::NewPort,
];

/// Judges one remedy.
pub(super) fn judge(case: &Case<'_>, conclusion: &Conclusion, remedy: Remedy) -> Judgement {
    use Judgement::{CannotTell, Not, Saves};
    if conclusion.confidence == Confidence::Ambiguous {
        return CannotTell;
    }
    let stopped = facts(case, conclusion).process == ProcessFact::Stopped;
    let retired = lameduck(case, conclusion).is_some();
    match (remedy, conclusion.code) {
        // A backend that still served would have answered, wherever the rules or the entry pointed.
        (
            Remedy::LongerLameduck,
            Code::ProgrammingLag | Code::StaleConntrack | Code::TerminatingBackend,
        ) => match stopped && retired {
            true => Saves,
            false => CannotTell,
        },
        (Remedy::LongerLameduck, Code::NoEndpoints) => CannotTell,
        (Remedy::LongerLameduck, _) => Not,
        (Remedy::ReadinessProbe, Code::BackendNotReady) => Saves,
        (
            Remedy::ReadinessProbe,
            Code::BackendDiedFirst | Code::BackendSilent | Code::BackendClosed,
        ) => CannotTell,
        (Remedy::ReadinessProbe, _) => Not,
        (Remedy::SecondReplica, Code::NoEndpoints) => Saves,
        (Remedy::SecondReplica, Code::BackendDiedFirst | Code::TerminatingBackend) => CannotTell,
        (Remedy::SecondReplica, _) => Not,
        (Remedy::DisruptionBudget, Code::NoEndpoints) => CannotTell,
        (Remedy::DisruptionBudget, _) => Not,
        (Remedy::Headless | Remedy::NodeCache, _) => CannotTell,
        // A new port makes a new flow, which the rules send to a usable endpoint if there is one.
        (Remedy::NewPort, Code::StaleConntrack) => match case.usable() > 0 {
            true => Saves,
            false => Not,
        },
        (Remedy::NewPort, _) => Not,
    }
}

/// How much longer the retired backend would have had to serve, counted from its withdrawal, rounded up to 0.1 s.
fn lameduck(case: &Case<'_>, conclusion: &Conclusion) -> Option<i64> {
    let history = case.history();
    let withdrawn = conclusion
        .change
        .and_then(|it| history.usable_changes.get(it));
    let withdrawn = withdrawn.filter(|it| !it.usable).map(|it| it.at);
    let terminating = conclusion
        .transition
        .and_then(|it| history.transitions.get(it));
    let since = withdrawn.or(terminating.map(|it| it.at))?;
    let needed = case.at.since(since);
    (needed >= 0 && case.backend.is_some()).then(|| (needed / (SECOND / 10) + 1) * (SECOND / 10))
}

/// What the evidence supports, in a sentence; `None`: nothing.
pub(super) fn sentence(case: &Case<'_>, conclusion: &Conclusion) -> Option<String> {
    if conclusion.confidence == Confidence::Ambiguous {
        return None;
    }
    let mut parts: Vec<String> = Vec::new();
    if conclusion.code == Code::ProgrammingLag && conclusion.convergence == Some(Convergence::Late)
    {
        parts.push(format!(
            "find out why {}'s rules were late",
            case.attempt.node
        ));
    }
    for remedy in ALL {
        if judge(case, conclusion, remedy) != Judgement::Saves {
            continue;
        }
        parts.push(match remedy {
            Remedy::LongerLameduck => match lameduck(case, conclusion) {
                Some(needed) => format!(
                    "a lameduck (and grace period) of {} would have answered this one",
                    duration(needed)
                ),
                None => continue,
            },
            Remedy::ReadinessProbe => {
                "a readiness probe that waits until the server answers would have saved this one"
                    .to_owned()
            }
            Remedy::SecondReplica => "a second ready replica would have saved this one".to_owned(),
            Remedy::DisruptionBudget => {
                "a PodDisruptionBudget would have saved this one".to_owned()
            }
            Remedy::Headless => {
                "asking the endpoints directly (a headless Service) would have saved this one"
                    .to_owned()
            }
            Remedy::NodeCache => "a node-local cache would have saved this one".to_owned(),
            Remedy::NewPort => {
                "a resolver that takes a new port for each try would have escaped".to_owned()
            }
        });
    }
    let text = parts.join("; ");
    let mut letters = text.chars();
    let first = letters.next()?;
    Some(format!("{}{}.", first.to_uppercase(), letters.as_str()))
}
