//! A failed or recovered query: what was asked, each attempt, and why it failed.

use super::entry::Entry;
use super::index::Index;
use super::layout::{Flow, Tone};
use super::{Style, trail, words};
use crate::model::timeline::{
    ApiFact, Attempt, AttemptResult, Conditions, Confidence, Flow as Newness, Outcome, ProcessFact,
    Query, RefusalKind, RulesFact, Translation, Verdict,
};

/// The verdict that a query is told under: that of its first attempt that has one.
pub(super) fn verdict(query: &Query) -> Option<&Verdict> {
    query
        .attempts
        .iter()
        .find_map(|attempt| attempt.verdict.as_ref())
}

/// A query that people need to hear of: it failed, or one of its attempts did.
pub(super) fn troubled(query: &Query) -> bool {
    query.outcome != Outcome::Answered || verdict(query).is_some()
}

/// Whether it was answered after an attempt that was not.
pub(super) fn recovered(query: &Query) -> bool {
    query.outcome == Outcome::Answered
        && query
            .attempts
            .iter()
            .any(|attempt| attempt.result != AttemptResult::Answered)
}

pub(super) const fn tone(query: &Query) -> Tone {
    match query.outcome {
        Outcome::Answered => Tone::Warn,
        Outcome::Late | Outcome::Refused | Outcome::Unanswered => Tone::Bad,
    }
}

/// `late rules on worker2 (programming-lag)`
pub(super) fn cause(query: &Query) -> String {
    verdict(query).map_or_else(
        || "no verdict".to_owned(),
        |verdict| words::verdict(verdict, &query.node),
    )
}

/// `A kubernetes.default.svc.cluster.local.`
pub(super) fn question(query: &Query) -> String {
    match &query.question {
        Some(question) => format!("{} {}", question.kind, question.name),
        // Where a packet was seen, it was something else than a query as RFC 1035 has it.
        None if query
            .attempts
            .iter()
            .any(|it| it.txid.is_some() || !it.trail.is_empty()) =>
        {
            "no readable question".to_owned()
        }
        None => "no packet was sent".to_owned(),
    }
}

/// Sooner than this, nanoseconds, nobody waits.
const AT_ONCE: i64 = 10_000_000;

/// How it ended.
fn ending(query: &Query) -> (Tone, String) {
    let took = words::duration(query.completed_at.since(query.at));
    match query.outcome {
        Outcome::Answered if recovered(query) => (Tone::Warn, format!("recovered after {took}")),
        Outcome::Answered => (Tone::Warn, format!("answered after {took}")),
        Outcome::Late => (Tone::Bad, format!("failed: answered too late, {took}")),
        Outcome::Refused if query.completed_at.since(query.at) < AT_ONCE => {
            (Tone::Bad, "failed: refused at once".to_owned())
        }
        Outcome::Refused => (Tone::Bad, format!("failed: refused after {took}")),
        Outcome::Unanswered => (Tone::Bad, format!("failed: unanswered for {took}")),
    }
}

pub(super) fn entry(query: &Query, index: &Index<'_>, style: &Style) -> Entry {
    let title = Flow::new()
        .text(tone(query), &cause(query))
        .then(" ·")
        .keep(Tone::Bold, &words::client(&query.client))
        .then(" ·")
        .keep(Tone::Plain, &question(query));
    let entry = Entry::new(&style.clock.time(query.at), "✗", tone(query), title);
    details(entry, query, index)
}

/// The attempts and the reasons, under an entry.
pub(super) fn details(mut entry: Entry, query: &Query, index: &Index<'_>) -> Entry {
    for (position, attempt) in query.attempts.iter().enumerate() {
        let earlier = position.checked_sub(1).map(|_| &query.attempts[0]);
        entry = entry.detail(0, 3, attempt_flow(query, attempt, earlier, index));
        if let Some(trail) = trail::flow(attempt, &query.node) {
            entry = entry.detail(3, 3, trail);
        }
        let text = attempt.verdict.as_ref().map(|verdict| &verdict.text);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            entry = entry.detail(3, 3, sentence(Flow::new(), text));
        }
    }
    let mut reasons: Vec<(u32, &Verdict)> = Vec::new();
    for attempt in &query.attempts {
        let Some(verdict) = &attempt.verdict else {
            continue;
        };
        let known = reasons.iter().any(|(_, told)| {
            (told.facts, &told.remedy, told.confidence)
                == (verdict.facts, &verdict.remedy, verdict.confidence)
        });
        if !known {
            reasons.push((attempt.n, verdict));
        }
    }
    let (tone, end) = ending(query);
    let mut last = Flow::new().keep(tone, &end);
    for (n, verdict) in &reasons {
        last = last.then(" ·");
        if reasons.len() > 1 {
            last = last.keep(Tone::Plain, &format!("attempt {n}:"));
        }
        last = last.join(facts(verdict));
    }
    entry.detail(0, 0, last).close()
}

fn attempt_flow(
    query: &Query,
    attempt: &Attempt,
    first: Option<&Attempt>,
    index: &Index<'_>,
) -> Flow {
    let mut flow = Flow::new().keep(Tone::Bold, &attempt.n.to_string());
    if let Some(first) = first {
        flow = flow.keep(Tone::Plain, &words::signed(attempt.at.since(first.at)));
        flow = flow.at_column(3);
    }
    let mut way = Vec::new();
    if first.is_none_or(|first| first.source != attempt.source) {
        way.push(format!(":{}", attempt.source.port()));
    }
    if first.is_none_or(|first| first.asked != attempt.asked) {
        way.extend(attempt.asked.map(words::address));
    }
    if let Some(backend) = attempt
        .backend
        .filter(|backend| Some(*backend) != attempt.asked)
    {
        way.push(words::address(backend));
    }
    let arrow = if first.is_some() { "→ " } else { "" };
    flow = flow.keep(Tone::Plain, &format!("{arrow}{}", way.join(" → ")));
    if first.is_none() {
        flow = flow.at_column(3);
    }
    for remark in remarks(query, attempt, index) {
        flow = flow.then(",").text(Tone::Plain, &remark);
    }
    let (tone, result) = result(attempt);
    flow.then(";").text(tone, &result)
}

/// What is to be said of the backend and the flow.
fn remarks(query: &Query, attempt: &Attempt, index: &Index<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    match attempt.translation {
        Some(Translation::Ipvs) => remarks.push("translated by IPVS".to_owned()),
        Some(Translation::Socket) => remarks.push("translated at the socket".to_owned()),
        Some(Translation::Bpf) => remarks.push("translated by BPF".to_owned()),
        Some(Translation::Netfilter | Translation::None) | None => {}
    }
    let Some(backend) = attempt.backend else {
        remarks.push("no backend was chosen".to_owned());
        if let Some(ready) = attempt.ready_endpoints {
            remarks.push(words::count(
                u64::from(ready),
                "endpoint ready",
                "endpoints ready",
            ));
        }
        return remarks;
    };
    let (since, withdrawn) = index.state_for(
        &query.service,
        backend.ip(),
        attempt.at,
        attempt.backend_state,
    );
    let healthy = attempt.verdict.is_none();
    // The verdict's sentence says for how long.
    let told = attempt
        .verdict
        .as_ref()
        .is_some_and(|verdict| !verdict.text.is_empty());
    let state = match attempt.backend_state {
        None if since.is_none() && healthy => None,
        None if since.is_none() => Some("in no slice"),
        state => Some(words::conditions(state)),
    };
    if let Some(state) = state {
        let ready = attempt.backend_state
            == Some(Conditions {
                ready: true,
                serving: true,
                terminating: false,
            });
        match since.filter(|_| !ready && !told) {
            Some(since) => remarks.push(format!("{state} for {}", words::duration(since))),
            None => remarks.push(state.to_owned()),
        }
    }
    if let Some(withdrawn) = withdrawn.filter(|_| !told) {
        remarks.push(format!("withdrawn for {}", words::duration(withdrawn)));
    }
    if !healthy {
        match attempt.flow {
            Some(Newness::New) => remarks.push("new flow".to_owned()),
            Some(Newness::Old) => remarks.push("old flow".to_owned()),
            None => {}
        }
    }
    remarks
}

fn result(attempt: &Attempt) -> (Tone, String) {
    let rcode = attempt.rcode.as_deref().unwrap_or("with an unknown code");
    let took = attempt.latency_ns.map(words::duration);
    match attempt.result {
        AttemptResult::Answered => {
            let tone = if attempt.verdict.is_some() {
                Tone::Bad
            } else {
                Tone::Good
            };
            let took = took.map(|took| format!(" in {took}")).unwrap_or_default();
            (tone, format!("answered {rcode}{took}"))
        }
        AttemptResult::Late => {
            let took = took
                .map(|took| format!(" after {took}"))
                .unwrap_or_default();
            (Tone::Bad, format!("answered {rcode}{took}, too late"))
        }
        AttemptResult::Refused => (Tone::Bad, format!("refused: {}", refusals(attempt))),
        AttemptResult::Dropped if attempt.refusals.is_empty() => (Tone::Bad, "dropped".to_owned()),
        AttemptResult::Dropped => (Tone::Bad, format!("dropped, told: {}", refusals(attempt))),
        AttemptResult::Unanswered => (Tone::Bad, "no answer".to_owned()),
    }
}

/// `port-unreachable from 10.43.0.10, ECONNREFUSED at the socket`
fn refusals(attempt: &Attempt) -> String {
    let mut told: Vec<String> = Vec::new();
    for refusal in &attempt.refusals {
        let text = match (refusal.how, refusal.from) {
            (RefusalKind::Icmp, Some(from)) => format!("{} from {from}", refusal.what),
            (RefusalKind::Icmp, None) => refusal.what.clone(),
            (RefusalKind::Socket, _) => format!("{} at the socket", refusal.what),
            (RefusalKind::Send, _) => format!("{} at send", refusal.what),
        };
        if !told.contains(&text) {
            told.push(text);
        }
    }
    if told.is_empty() {
        "how is not known".to_owned()
    } else {
        told.join(", ")
    }
}

/// `API: gone · rules: not yet changed · process: stopped.  <remedy>`
fn facts(verdict: &Verdict) -> Flow {
    let api = match verdict.facts.api {
        ApiFact::Ready => "ready",
        ApiFact::TerminatingServing => "terminating, serving",
        ApiFact::Terminating => "terminating, not serving",
        ApiFact::NotReady => "not ready",
        ApiFact::Gone => "gone",
        ApiFact::NoEndpoints => "no usable endpoint",
        ApiFact::EndpointsExist => "usable endpoints existed",
        ApiFact::Unknown => "unknown",
    };
    let rules = match verdict.facts.rules {
        RulesFact::BeforeChange => "not yet changed",
        RulesFact::AfterChange => "changed",
        RulesFact::Unknown => "unknown",
    };
    let process = match verdict.facts.process {
        ProcessFact::Alive => "alive",
        ProcessFact::Stopped => "stopped",
        ProcessFact::Unknown => "unknown",
    };
    let mut flow = Flow::new()
        .keep(Tone::Plain, &format!("API: {api}"))
        .then(" ·")
        .keep(Tone::Plain, &format!("rules: {rules}"))
        .then(" ·")
        .keep(Tone::Plain, &format!("process: {process}"));
    match verdict.confidence {
        Confidence::Observed => {}
        Confidence::Inferred => {
            flow = flow
                .then(" ·")
                .keep(Tone::Plain, "inferred from what was absent");
        }
        Confidence::Ambiguous => {
            flow = flow.then(" ·").keep(Tone::Warn, "more than one cause fits");
        }
    }
    if !verdict.contributing.is_empty() {
        let names: Vec<_> = verdict
            .contributing
            .iter()
            .map(|code| code.name())
            .collect();
        flow = flow
            .then(" ·")
            .keep(Tone::Plain, &format!("also true: {}", names.join(", ")));
    }
    flow = flow.then(".");
    match &verdict.remedy {
        Some(remedy) => sentence(flow, remedy),
        None => flow,
    }
}

/// A sentence, with its full stop.
fn sentence(flow: Flow, text: &str) -> Flow {
    let flow = flow.text(Tone::Plain, text);
    if text.ends_with(['.', '!', '?']) {
        flow
    } else {
        flow.then(".")
    }
}
