//! The table: the first rule that fits decides. docs/verdicts.md has the same order in words.

use crate::model::Timestamp;
use crate::model::timeline::{Code, Confidence, Convergence, Flow, RulesFact, Transition};

use super::{Case, Conclusion};

const SECOND: i64 = 1_000_000_000;

/// How long after an attempt a transition may still be its explanation, and the other way round.
const NEAR_NS: i64 = 60 * SECOND;

/// An answer to an earlier query may leave a dying backend this much later.
const LAST_BREATH_NS: i64 = SECOND / 10;

/// An agent that dies takes along what it had seen this long before and had not written yet: a query in a server waits
/// for its reply, then for late drops and its trail, then for the next write.
const UNWRITTEN_NS: i64 = 4 * SECOND;

/// A rule: what it concludes, if it fits.
type Rule = fn(&Case<'_>) -> Option<Conclusion>;

/// In this order. A new cause is a new line.
const TABLE: &[(&str, Rule)] = &[
    ("answered with an error", answered_with_error),
    ("a rival cause was seen by name", named_drop),
    ("the answer left the backend", answer_left_backend),
    ("no backend was chosen", no_backend),
    ("the backend was ready", backend_ready),
    (
        "the backend was terminating and serving",
        backend_terminating,
    ),
    ("the backend was never ready yet", backend_not_ready),
    ("the backend was withdrawn", backend_withdrawn),
    ("a drop without a name", unnamed_drop),
];

/// Applies the table.
pub(super) fn conclude(case: &Case<'_>) -> Conclusion {
    TABLE
        .iter()
        .find_map(|(_, rule)| rule(case))
        .unwrap_or_else(|| Conclusion::new(Code::Unexplained, Confidence::Inferred))
}

/// A conclusion for want of a better one.
pub(super) fn is_weak(conclusion: &Conclusion) -> bool {
    matches!(conclusion.code, Code::Unexplained | Code::PolicyDrop)
        && conclusion.confidence != Confidence::Observed
}

/// Where absence is the evidence and something may have been missed, nothing is concluded.
pub(super) fn unless_hidden(case: &Case<'_>, conclusion: Conclusion) -> Conclusion {
    let gap = || {
        let mut gap = Conclusion::new(Code::CaptureGap, Confidence::Inferred);
        gap.needs_api = false;
        gap
    };
    if conclusion.needs_api && api_hidden(case) {
        return gap();
    }
    if case.signs.any() || conclusion.confidence == Confidence::Observed {
        return conclusion;
    }
    let client = case.attempt.node.as_str();
    let mut nodes = vec![client];
    nodes.extend(case.backend_node());
    // The answer may have come while the client's node was not looking, the reply have left while the backend's was not.
    let missed =
        (nodes.iter()).any(|node| case.world.gaps.packets_missed(node, case.at, case.over()));
    // A delivery that is not in the records may have been known to an agent that was killed.
    let unwritten = case.attempt.delivery.is_none()
        && case.backend_node().is_some_and(|node| {
            let written = case.over() + UNWRITTEN_NS;
            case.world.gaps.agent_down(node, case.at, written)
        });
    let missed = missed || unwritten;
    let trail_needed = conclusion.code == Code::Unexplained || case.backend.is_none();
    if missed || (trail_needed && !case.attempt.trail_lost.is_empty()) {
        return gap();
    }
    conclusion
}

/// No watch was working then, and what was seen next is not what was known before.
fn api_hidden(case: &Case<'_>) -> bool {
    let world = case.world;
    let blind = !world.watchers.is_empty()
        && world
            .watchers
            .iter()
            .all(|it| world.gaps.watch_broken(it, case.at));
    if !blind {
        return false;
    }
    let history = case.history();
    let here = history.step_at(case.at);
    match (here, here.and_then(|it| history.steps.get(it + 1))) {
        (Some(here), Some(next)) => {
            next.earliest <= case.at && next.union != history.steps[here].union
        }
        // Nothing was seen any more: the state may have changed.
        _ => world.end < case.at + NEAR_NS || here.is_none(),
    }
}

fn answered_with_error(case: &Case<'_>) -> Option<Conclusion> {
    case.error_rcode()?;
    let mut conclusion = Conclusion::new(Code::ErrorRcode, Confidence::Observed);
    conclusion.needs_api = false;
    Some(conclusion)
}

fn named_drop(case: &Case<'_>) -> Option<Conclusion> {
    let (_, drop) = case.signs.rival?;
    let reason = drop.reason.as_deref().unwrap_or_default();
    let policy = matches!(
        reason,
        "NETFILTER_DROP" | "TC_INGRESS" | "TC_EGRESS" | "BPF_CGROUP_EGRESS"
    );
    let query = drop.direction == crate::model::event::Direction::Query;
    let code = if policy && query {
        Code::PolicyDrop
    } else {
        Code::KernelDrop
    };
    let mut conclusion = Conclusion::new(code, Confidence::Observed);
    conclusion.needs_api = false;
    Some(conclusion)
}

fn answer_left_backend(case: &Case<'_>) -> Option<Conclusion> {
    let answer = case.attempt.origin.answer.map(|it| it.at);
    let replied = case
        .attempt
        .delivery
        .as_ref()
        .and_then(|(_, it)| it.replied);
    let late = answer.is_some() || replied.is_some_and(|it| it >= case.over());
    if !late && replied.is_none() {
        return None;
    }
    let (code, confidence) = match late {
        true => (Code::BackendSlow, Confidence::Observed),
        // It left in time and was not seen to arrive.
        false => (Code::Unexplained, Confidence::Inferred),
    };
    let mut conclusion = Conclusion::new(code, confidence);
    conclusion.needs_api = false;
    Some(conclusion)
}

fn no_backend(case: &Case<'_>) -> Option<Conclusion> {
    let no_packet = case.signs.at_send && case.backend.is_none();
    if !(case.signs.rejected || no_packet || case.untranslated) {
        return None;
    }
    let history = case.history();
    let step = case.step?;
    let confidence = match case.signs.rejected {
        true => Confidence::Observed,
        // An errno names no culprit.
        false => Confidence::Inferred,
    };
    let like = case.like();
    let usable = |step: usize| history.usable(step, like);
    let turned = (1..=step)
        .rev()
        .find(|it| (usable(*it) == 0) != (usable(it - 1) == 0) && !history.steps[*it].baseline);
    let change = turned.and_then(|step| {
        (history.usable_changes.iter())
            .position(|it| it.step == step && it.address.is_ipv4() == like.is_ipv4())
    });
    let transition = change.map(|it| history.usable_changes[it].transition);
    if usable(step) == 0 {
        let mut conclusion = Conclusion::new(Code::NoEndpoints, confidence);
        conclusion.transition = transition;
        conclusion.change = change;
        return Some(conclusion);
    }
    let node = case.attempt.node.as_str();
    let programs = &case.service.programs;
    let since = turned.map(|it| case.at.since(history.steps[it].at));
    let rules = change.map_or(RulesFact::Unknown, |it| programs.fact(node, it, case.at));
    let lag = match (since, rules) {
        (_, RulesFact::AfterChange) | (None, _) => false,
        (Some(_), RulesFact::BeforeChange) => true,
        // Without a rejection it takes the commit to know that the rule was missing, not passed by.
        (Some(since), RulesFact::Unknown) => since <= NEAR_NS && !case.untranslated,
    };
    if lag {
        let mut conclusion = Conclusion::new(Code::ProgrammingLag, confidence);
        conclusion.transition = transition;
        conclusion.change = change;
        conclusion.convergence = change.and_then(|change| {
            let at = history.usable_changes[change].at;
            convergence_at(case, change)
                .or((case.at.since(at) > SECOND).then_some(Convergence::Late))
        });
        return Some(conclusion);
    }
    if case.untranslated {
        return None;
    }
    // The rules had long known an endpoint, and yet it was dropped before one was chosen.
    Some(Conclusion::new(Code::PolicyDrop, Confidence::Inferred))
}

/// The next transition by which the chosen endpoint ceases to be ready.
fn retirement<'a>(case: &Case<'a>) -> Option<(usize, &'a Transition)> {
    let (key, _) = case.state()?;
    let (history, step) = (case.history(), case.step?);
    (history.transitions.iter().enumerate()).find(|(index, it)| {
        history.step_of[*index] > step
            && it.endpoint.address == key.address
            && it.endpoint.uid == key.uid
            && !it.after.is_some_and(|it| it.ready)
    })
}

fn backend_ready(case: &Case<'_>) -> Option<Conclusion> {
    let (key, state) = case.state()?;
    if !state.conditions.ready {
        return None;
    }
    let undelivered = case.attempt.delivery.is_none();
    if !case.signs.backend_absent() && undelivered {
        return None;
    }
    let confidence = match case.signs.backend_absent() {
        true => Confidence::Observed,
        false => Confidence::Inferred,
    };
    let followed = retirement(case).filter(|(_, it)| it.at.since(case.at) <= NEAR_NS);
    if let Some((index, transition)) = followed {
        let answered_since = case.world.answers.any_within(
            key.address,
            case.at + LAST_BREATH_NS,
            transition.at + SECOND,
        );
        if !answered_since {
            let mut conclusion = Conclusion::new(Code::BackendDiedFirst, confidence);
            conclusion.transition = Some(index);
            let changes = case.history().usable_changes.iter();
            conclusion.change = changes.enumerate().find_map(|(change, it)| {
                (!it.usable && it.address == key.address && it.at >= transition.at)
                    .then_some(change)
            });
            return Some(conclusion);
        }
    }
    if case.signs.closed {
        return Some(Conclusion::new(Code::BackendClosed, Confidence::Observed));
    }
    if case.signs.gone {
        return Some(Conclusion::new(Code::KernelDrop, Confidence::Observed));
    }
    // Delivered, and no reply until the client gave up: only if its node was recorded until then.
    let recorded = case.backend_node().is_some_and(|node| case.recorded(node));
    recorded.then(|| Conclusion::new(Code::BackendSilent, Confidence::Inferred))
}

/// Confidence where the state of the backend is the main evidence.
fn by_state(case: &Case<'_>) -> Confidence {
    match case.signs.backend_absent() || case.signs.flooded {
        true => Confidence::Observed,
        false => Confidence::Inferred,
    }
}

fn backend_terminating(case: &Case<'_>) -> Option<Conclusion> {
    let (key, state) = case.state()?;
    if !(state.conditions.terminating && state.conditions.serving) {
        return None;
    }
    let seen = case.signs.backend_absent() || case.signs.flooded || case.attempt.delivery.is_some();
    if !seen && case.backend_node().is_some_and(|node| case.recorded(node)) {
        // It still serves, and its node was recorded: the packet was lost on the way.
        return None;
    }
    let mut conclusion = Conclusion::new(Code::TerminatingBackend, by_state(case));
    conclusion.transition = case.history().last_transition(case.step?, key.address);
    conclusion.change = case.withdrawal();
    conclusion.convergence = conclusion.change.and_then(|it| convergence_at(case, it));
    let late = conclusion.convergence == Some(Convergence::Late);
    if case.flow == Some(Flow::New) && case.ready() > 0 && late {
        conclusion.code = Code::ProgrammingLag;
        conclusion.contributing.push(Code::TerminatingBackend);
    }
    Some(conclusion)
}

fn backend_not_ready(case: &Case<'_>) -> Option<Conclusion> {
    let (key, state) = case.state()?;
    let conditions = state.conditions;
    if conditions.ready || conditions.serving || conditions.terminating {
        return None;
    }
    let history = case.history();
    let step = case.step?;
    let was_ready = (history.steps.iter().take(step))
        .any(|it| it.union.get(key).is_some_and(|it| it.conditions.ready));
    if was_ready {
        return None;
    }
    let mut conclusion = Conclusion::new(Code::BackendNotReady, by_state(case));
    conclusion.transition = history.last_transition(step, key.address);
    Some(conclusion)
}

fn backend_withdrawn(case: &Case<'_>) -> Option<Conclusion> {
    let (step, backend) = (case.step?, case.backend?.ip());
    let history = case.history();
    let serves = case
        .state()
        .is_some_and(|(_, it)| it.conditions.ready || it.conditions.serving);
    if serves || !history.ever(step, backend) {
        return None;
    }
    let change = case.withdrawal()?;
    let node = case.attempt.node.as_str();
    let rules = case.service.programs.fact(node, change, case.at);
    let mut conclusion = Conclusion::new(Code::ProgrammingLag, by_state(case));
    match case.flow {
        Some(Flow::New) => {}
        Some(Flow::Old) => conclusion.code = Code::StaleConntrack,
        // Rules that had changed send no new flow there.
        None if rules == RulesFact::AfterChange => {
            conclusion.code = Code::StaleConntrack;
            conclusion.confidence = Confidence::Inferred;
        }
        None => {
            conclusion.confidence = Confidence::Ambiguous;
            conclusion.alternatives.push(Code::StaleConntrack);
        }
    }
    conclusion.transition = history.last_transition(step, backend);
    conclusion.change = Some(change);
    conclusion.convergence = convergence_at(case, change);
    if history.usable(step, backend) == 0 {
        conclusion.contributing.push(Code::NoEndpoints);
    }
    let pinned_after = case
        .attempt
        .origin
        .previous
        .is_some_and(|it| it > withdrawn_at(case, change));
    if conclusion.code == Code::StaleConntrack && pinned_after {
        // Its first packet was itself sent there by late rules.
        conclusion.contributing.push(Code::ProgrammingLag);
    }
    Some(conclusion)
}

fn withdrawn_at(case: &Case<'_>, change: usize) -> Timestamp {
    case.history().usable_changes[change].at
}

fn convergence_at(case: &Case<'_>, change: usize) -> Option<Convergence> {
    let programs = &case.service.programs;
    programs.convergence(case.history(), &case.attempt.node, change)
}

fn unnamed_drop(case: &Case<'_>) -> Option<Conclusion> {
    case.signs.unnamed?;
    let mut conclusion = Conclusion::new(Code::KernelDrop, Confidence::Observed);
    conclusion.needs_api = false;
    Some(conclusion)
}
