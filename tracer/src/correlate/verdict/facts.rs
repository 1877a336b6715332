//! The three facts that go with every verdict, whatever it concludes.

use crate::model::timeline::{ApiFact, Code, Facts, Flow, ProcessFact, RulesFact};

use super::{Case, Conclusion};

const SECOND: i64 = 1_000_000_000;

pub(super) fn facts(case: &Case<'_>, conclusion: &Conclusion) -> Facts {
    Facts {
        api: api(case),
        rules: rules(case, conclusion),
        process: process(case),
    }
}

fn api(case: &Case<'_>) -> ApiFact {
    let Some(step) = case.step else {
        return ApiFact::Unknown;
    };
    let Some(backend) = case.backend else {
        return match case.usable() {
            0 => ApiFact::NoEndpoints,
            _ => ApiFact::EndpointsExist,
        };
    };
    match case.state().map(|(_, it)| it.conditions) {
        Some(it) if it.ready => ApiFact::Ready,
        Some(it) if it.terminating && it.serving => ApiFact::TerminatingServing,
        Some(it) if it.terminating => ApiFact::Terminating,
        Some(_) => ApiFact::NotReady,
        None if case.history().ever(step, backend.ip()) => ApiFact::Gone,
        None => ApiFact::Unknown,
    }
}

fn rules(case: &Case<'_>, conclusion: &Conclusion) -> RulesFact {
    if case.signs.rejected {
        // The packet itself shows the rules: they had no endpoint.
        match conclusion.code {
            Code::NoEndpoints => return RulesFact::AfterChange,
            Code::ProgrammingLag => return RulesFact::BeforeChange,
            _ => {}
        }
    }
    let Some(change) = conclusion.change else {
        return RulesFact::Unknown;
    };
    let withdrawn = case.history().usable_changes.get(change);
    let after = withdrawn.is_some_and(|it| !it.usable && it.at <= case.at);
    if after && case.flow == Some(Flow::New) {
        // A new flow was sent there: the rules still said so.
        return RulesFact::BeforeChange;
    }
    case.service
        .programs
        .fact(&case.attempt.node, change, case.at)
}

fn process(case: &Case<'_>) -> ProcessFact {
    let Some(backend) = case.backend else {
        return ProcessFact::Unknown;
    };
    if case.signs.backend_absent() {
        return ProcessFact::Stopped;
    }
    let replied = case
        .attempt
        .delivery
        .as_ref()
        .and_then(|(_, it)| it.replied);
    // The address may be another pod's later.
    let until = next_owner(case).unwrap_or(case.world.end);
    if replied.is_some() || case.world.answers.any_within(backend.ip(), case.at, until) {
        return ProcessFact::Alive;
    }
    let asked = case.attempt.delivery.is_some() && case.world.end.since(case.at) >= SECOND;
    match asked {
        true => ProcessFact::Stopped,
        false => ProcessFact::Unknown,
    }
}

/// When another pod got the backend's address.
fn next_owner(case: &Case<'_>) -> Option<crate::model::Timestamp> {
    let (key, _) = case.state().or_else(|| {
        let step = case.step?;
        let address = case.backend?.ip();
        (0..=step)
            .rev()
            .find_map(|it| case.history().state(it, address))
    })?;
    let other = case.history().transitions.iter().find(|it| {
        it.at > case.at
            && it.endpoint.address == key.address
            && it.endpoint.uid != key.uid
            && it.after.is_some()
    });
    other.map(|it| it.at)
}
