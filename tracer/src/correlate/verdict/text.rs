//! A verdict as one sentence for people.

use crate::model::event::Direction;
use crate::model::flight::Drop;
use crate::model::timeline::{Code, Confidence, Convergence, Facts, Flow, ProcessFact, RulesFact};

use super::{Case, Conclusion};

pub(super) fn sentence(case: &Case<'_>, conclusion: &Conclusion, facts: Facts) -> String {
    let node = &case.attempt.node;
    let backend = name(case);
    let text = match conclusion.code {
        Code::NoEndpoints if case.untranslated => format!(
            "The Service had no usable endpoint{}, and {node} sent the query on without translating it",
            since(case, conclusion)
        ),
        Code::NoEndpoints => format!(
            "The Service had no usable endpoint{}, so {node} rejected the query",
            since(case, conclusion)
        ),
        Code::ProgrammingLag if case.signs.rejected || case.signs.at_send => format!(
            "{node} still rejected the query although an endpoint had become usable{}{}",
            since(case, conclusion),
            rules_came(case, conclusion)
        ),
        Code::ProgrammingLag if case.untranslated => format!(
            "{node} had no rule for the query yet and sent it on with the Service's address, although an endpoint had become usable{}{}",
            since(case, conclusion),
            rules_came(case, conclusion)
        ),
        Code::ProgrammingLag => format!(
            "{node}'s rules still sent {} to {backend}, {}{}",
            match case.flow {
                Some(Flow::New) => "a new flow",
                _ => "the query",
            },
            withdrawn(case, conclusion),
            rules_came(case, conclusion)
        ),
        Code::StaleConntrack => format!(
            "The client's port {} was still tied to {backend}, {}, by an earlier packet's conntrack entry{}",
            case.attempt.client.port(),
            withdrawn(case, conclusion),
            match facts.rules {
                RulesFact::AfterChange => format!("; {node}'s rules had already changed"),
                _ => String::new(),
            }
        ),
        Code::TerminatingBackend => format!(
            "The query went to {backend}, which was shutting down but still announced as serving{}, and did not answer",
            since(case, conclusion)
        ),
        Code::BackendDiedFirst => format!(
            "{backend} {} while the API still called it ready; the API followed {} later",
            match (case.signs.closed, case.signs.gone) {
                (true, _) => "had stopped listening",
                (_, true) => "was gone",
                _ => "took the query and never answered anything again",
            },
            transition_in(case, conclusion)
        ),
        Code::BackendNotReady => format!("The query went to {backend}, which had never been ready"),
        Code::BackendClosed => format!(
            "{backend} was ready by the API, but nothing listened there; no transition explains it"
        ),
        Code::BackendSilent => format!(
            "The query reached the socket of {backend}, and no reply left it before the client gave up after {}",
            duration(case.over().since(case.at))
        ),
        Code::BackendSlow => slow(case, &backend),
        Code::ErrorRcode => format!("{backend} answered with an error"),
        Code::PolicyDrop if conclusion.confidence == Confidence::Observed => {
            format!(
                "{} as a policy does, although a backend had been chosen",
                dropped(case)
            )
        }
        Code::PolicyDrop => format!(
            "{node} dropped the query in netfilter before a backend was chosen, although usable endpoints were known: probably a policy"
        ),
        Code::KernelDrop => dropped(case),
        Code::CaptureGap => format!(
            "Records of that time were lost or not made, so that what was not seen proves nothing ({})",
            why_hidden(case)
        ),
        Code::Unexplained => unexplained(case, &backend),
    };
    let text = match conclusion.alternatives.as_slice() {
        [] => text,
        others => {
            let others: Vec<&str> = others.iter().map(|it| it.name()).collect();
            format!(
                "Either {} or {}: {text}",
                conclusion.code.name(),
                others.join(" or ")
            )
        }
    };
    let text = match facts.process {
        ProcessFact::Alive if conclusion.code == Code::ProgrammingLag => {
            format!("{text}; the process still lived")
        }
        _ => text,
    };
    format!("{text}.")
}

/// A duration as people read it: three digits that matter.
pub(super) fn duration(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let value = nanoseconds.unsigned_abs();
    match value {
        0..1_000_000 => format!("{sign}{} µs", value / 1_000),
        1_000_000..1_000_000_000 => format!("{sign}{} ms", value / 1_000_000),
        _ => format!(
            "{sign}{}.{:03} s",
            value / 1_000_000_000,
            value / 1_000_000 % 1_000
        ),
    }
}

fn name(case: &Case<'_>) -> String {
    let Some(backend) = case.backend else {
        return "the backend (not known which)".to_owned();
    };
    let step = case.step.unwrap_or(0);
    let history = case.history();
    let pod = (history.steps.get(..=step).unwrap_or_default().iter().rev()).find_map(|it| {
        let mut all = it
            .union
            .iter()
            .filter(|(key, _)| key.address == backend.ip());
        all.find_map(|(_, state)| state.pod.clone())
    });
    match pod {
        Some(pod) => format!("{pod} ({})", backend.ip()),
        None => backend.ip().to_string(),
    }
}

/// ` since 840 ms`, from the transition.
fn since(case: &Case<'_>, conclusion: &Conclusion) -> String {
    let transition = conclusion
        .transition
        .and_then(|it| case.history().transitions.get(it));
    match transition.map(|it| case.at.since(it.at)) {
        Some(lag) if lag >= 0 => format!(" for {}", duration(lag)),
        Some(_) => " at about that moment".to_owned(),
        None => String::new(),
    }
}

fn transition_in(case: &Case<'_>, conclusion: &Conclusion) -> String {
    let transition = conclusion
        .transition
        .and_then(|it| case.history().transitions.get(it));
    transition.map_or_else(String::new, |it| duration(it.at.since(case.at)))
}

/// `withdrawn for 5.869 s and gone for 840 ms`.
fn withdrawn(case: &Case<'_>, conclusion: &Conclusion) -> String {
    let history = case.history();
    let change = conclusion
        .change
        .and_then(|it| history.usable_changes.get(it));
    let transition = conclusion
        .transition
        .and_then(|it| history.transitions.get(it));
    let withdrawn = change.map(|it| case.at.since(it.at));
    let gone = (transition.filter(|it| it.after.is_none())).map(|it| case.at.since(it.at));
    match (withdrawn, gone) {
        (Some(a), Some(b)) if a == b => format!("gone for {}", duration(a)),
        (Some(a), Some(b)) => format!("withdrawn for {} and gone for {}", duration(a), duration(b)),
        (Some(a), None) => format!("withdrawn for {}", duration(a)),
        (None, Some(b)) => format!("gone for {}", duration(b)),
        (None, None) => "withdrawn".to_owned(),
    }
}

fn rules_came(case: &Case<'_>, conclusion: &Conclusion) -> String {
    let Some(change) = conclusion.change else {
        return String::new();
    };
    let at = case.history().usable_changes[change].at;
    let committed = case.service.programs.committed(&case.attempt.node, change);
    match (committed, conclusion.convergence) {
        (Some(committed), Some(Convergence::Normal)) => {
            format!(
                "; they changed {} after the API, as usual",
                duration(committed.since(at))
            )
        }
        (Some(committed), _) => {
            format!(
                "; they changed {} after the API, late",
                duration(committed.since(at))
            )
        }
        (None, Some(Convergence::Late)) => "; when they changed was not seen, but late".to_owned(),
        (None, _) => "; when they changed was not seen".to_owned(),
    }
}

fn slow(case: &Case<'_>, backend: &str) -> String {
    let gave_up = duration(case.over().since(case.at));
    let replied = case
        .attempt
        .delivery
        .as_ref()
        .and_then(|(_, it)| it.replied);
    let answered = case.attempt.origin.answer.map(|it| it.at);
    match replied.or(answered) {
        Some(at) => format!(
            "{backend} answered after {}; the client had waited {gave_up}",
            duration(at.since(case.at))
        ),
        None => format!("{backend} answered too late: the client had waited {gave_up}"),
    }
}

fn dropped(case: &Case<'_>) -> String {
    let found = case.signs.rival.or(case.signs.unnamed).or_else(|| {
        // The drop behind a sign of absence, where no transition explains it.
        case.attempt
            .drops
            .iter()
            .find(|(_, it)| it.direction == Direction::Query)
    });
    let Some((node, drop)) = found else {
        return "The backend's address did not answer, and no transition explains it".to_owned();
    };
    let Drop {
        reason,
        location,
        direction,
        ..
    } = drop;
    let what = match direction {
        Direction::Query => "query",
        Direction::Reply => "reply",
    };
    let reason = match reason.as_deref() {
        None | Some("NOT_SPECIFIED") => "without naming a reason".to_owned(),
        Some(reason) => format!("for {reason}"),
    };
    let place = location
        .as_ref()
        .map_or_else(String::new, |it| format!(" in {it}"));
    format!("{node}'s kernel dropped the {what} {reason}{place}")
}

fn why_hidden(case: &Case<'_>) -> String {
    let missed = |node: &str| case.world.gaps.packets_missed(node, case.at, case.over());
    let client = case.attempt.node.as_str();
    if missed(client) {
        return format!("on {client}");
    }
    match case.backend_node() {
        Some(node) if missed(node) => format!("on {node}"),
        _ => match case.attempt.trail_lost.first() {
            Some(node) => format!("a part of the trail on {node}"),
            None => "the watch on the API was broken".to_owned(),
        },
    }
}

fn unexplained(case: &Case<'_>, backend: &str) -> String {
    let node = &case.attempt.node;
    if case
        .attempt
        .delivery
        .as_ref()
        .is_some_and(|(_, it)| it.replied.is_some())
    {
        return format!(
            "{backend} replied, and the reply was not seen to reach the client on {node}"
        );
    }
    if case.step.is_none() {
        return "What the API said at that time is not known".to_owned();
    }
    if case.backend.is_none() {
        return format!(
            "The query left the client's socket on {node}{}",
            match case.untranslated {
                true =>
                    " and then the node, still with the Service's address: no rule translated it",
                false => "; which backend was chosen was not seen",
            }
        );
    }
    match case.backend_node() {
        None => format!("The query was on its way to {backend}; its node is not known"),
        Some(other) if !case.world.nodes.contains_key(other) => format!(
            "The query was on its way to {backend} on {other}; the backend's node was not recorded"
        ),
        Some(other) if !case.recorded(other) => format!(
            "The query was on its way to {backend}; the records of {other} end before the client gave up"
        ),
        Some(other) if other == node => {
            format!("The query was on its way to {backend} and was not seen at its socket")
        }
        Some(other) => {
            format!("The query left {node} for {backend} and was not seen at its socket on {other}")
        }
    }
}
