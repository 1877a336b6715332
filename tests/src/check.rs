//! Compares a timeline with what was injected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use slicetrace::model::Timestamp;
use slicetrace::model::timeline::{
    Attempt, Basis, Code, Confidence, Gap, GapKind, Line, Outcome, Programming, Query, Summary,
    Transition, Verdict,
};

use crate::truth::{ClientQuery, ClientResult, Noise, Resolved, Truth, UNWRITTEN_NS};

/// How far times may lie from the lab's.
const NEAR_NS: u64 = 50_000_000;
/// Farther than this from any change of the API a verdict whose cause is certain may not be ambiguous.
const DOUBT_NS: i64 = 200_000_000;
/// So many differences are printed.
const SHOWN: usize = 20;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Failed queries whose verdicts were compared.
    pub compared: usize,
    /// Their verdicts.
    pub verdicts: BTreeMap<&'static str, usize>,
    /// Verdicts by code and node of the client.
    pub places: BTreeMap<(Code, String), usize>,
    /// Verdicts that left it open.
    pub ambiguous: usize,
    /// Where timeline and truth differ; empty: they agree.
    pub differences: Vec<String>,
}

impl Report {
    /// Nothing differs.
    pub fn agrees(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.agrees() {
            write!(
                f,
                "agrees with what was injected: {} failed queries",
                self.compared
            )?;
            for (code, count) in &self.verdicts {
                write!(f, ", {code} {count}")?;
            }
            if self.ambiguous > 0 {
                write!(
                    f,
                    " ({} of them left open between two causes)",
                    self.ambiguous
                )?;
            }
            return Ok(());
        }
        write!(
            f,
            "DIFFERS from what was injected in {} points:",
            self.differences.len()
        )?;
        for difference in self.differences.iter().take(SHOWN) {
            write!(f, "\n  {difference}")?;
        }
        match self.differences.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Compares the output of `slicetrace timeline --output json` with the truth.
///
/// # Errors
/// If the output is not a whole timeline of one Service.
pub fn compare(truth: &Truth, timeline: &str) -> Result<Report> {
    let lines = timeline
        .lines()
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("not a line of a timeline: {line}"))
        })
        .collect::<Result<Vec<Line>>>()?;
    let summary = lines
        .iter()
        .find_map(|line| match line {
            Line::Summary(summary) if summary.service == truth.service => Some(summary),
            _ => None,
        })
        .context("the timeline has no summary: it is incomplete")?;
    let queries = lines.iter().filter_map(|line| match line {
        Line::Query(query) => Some(query.as_ref()),
        _ => None,
    });
    let mut report = Report::default();
    report.totals(truth, summary);
    report.windows(truth, summary);
    report.transitions(truth, &lines);
    report.programming(truth, &lines);
    report.queries(truth, queries);
    report.gaps(truth, &lines);
    // Doubt is honest, but a tool that always doubts is of no use.
    if report.ambiguous * 20 > report.compared.max(20) {
        report.differ(format!(
            "{} of {} verdicts are ambiguous",
            report.ambiguous, report.compared
        ));
    }
    Ok(report)
}

impl Report {
    fn differ(&mut self, what: String) {
        self.differences.push(what);
    }

    fn equal<T: PartialEq + fmt::Debug>(&mut self, what: &str, found: T, expected: T) {
        if found != expected {
            self.differ(format!("{what}: {found:?}, the lab has {expected:?}"));
        }
    }

    fn totals(&mut self, truth: &Truth, summary: &Summary) {
        let count = |wanted: &dyn Fn(ClientResult) -> bool| {
            truth
                .queries
                .iter()
                .filter(|query| wanted(query.result))
                .count() as u64
        };
        let resolved = |answered: bool| -> u64 {
            let all = truth.resolved.iter();
            all.filter(|it| it.answered == answered)
                .map(|it| it.questions)
                .sum()
        };
        let answered = count(&|result| result == ClientResult::Answered) + resolved(true);
        let failed = count(&|result| result != ClientResult::Answered) + resolved(false);
        let noise: u64 = truth.noise.iter().map(|it| it.packets).sum();
        let expected = &truth.expected;
        let unseen = truth.queries.iter().filter(|it| it.unseen).count() as u64;
        for (what, found, most, noise) in [
            ("queries", summary.queries, answered + failed, noise),
            ("answered", summary.answered, answered, noise),
            ("failed", summary.failed, failed, noise),
        ] {
            // What is no query may be counted or not; what no agent looked at may be missing.
            if !(most.saturating_sub(unseen)..=most + noise).contains(&found) {
                self.differ(format!("{what}: {found}, the lab has {most}"));
            }
        }
        self.equal("events", summary.events, expected.events);
        self.equal(
            "minimumReady",
            summary.minimum_ready,
            Some(expected.minimum_ready),
        );
        self.equal(
            "zeroReadyEvents",
            summary.zero_ready_events,
            expected.zero_ready_events,
        );
        self.equal("lostRecords", summary.lost_records, 0);
        self.equal("missingNodes", summary.missing_nodes.as_slice(), &[]);
    }

    fn windows(&mut self, truth: &Truth, summary: &Summary) {
        let expected = &truth.expected.zero_ready_windows;
        self.equal(
            "zeroReadyWindows",
            summary.zero_ready_windows.len(),
            expected.len(),
        );
        let near = |found: Option<Timestamp>, wanted: Option<Timestamp>| match (found, wanted) {
            (Some(found), Some(wanted)) => found.since(wanted).unsigned_abs() <= NEAR_NS,
            (found, wanted) => found == wanted,
        };
        for (found, wanted) in summary.zero_ready_windows.iter().zip(expected) {
            if !near(Some(found.from), Some(wanted.from)) || !near(found.to, wanted.to) {
                self.differ(format!(
                    "a time without a ready endpoint: {found:?}, the lab has {wanted:?}"
                ));
            }
        }
    }

    /// Each change of the slice is there once, and nothing else is.
    fn transitions(&mut self, truth: &Truth, lines: &[Line]) {
        let mut found: Vec<&Transition> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Transition(transition) => Some(transition),
                _ => None,
            })
            .collect();
        for (at, address, after) in truth.changes() {
            let same = |transition: &&Transition| {
                transition.endpoint.address == IpAddr::V4(address)
                    && transition.at.since(at).unsigned_abs() <= NEAR_NS
                    && transition
                        .after
                        .map(|after| (after.ready, after.serving, after.terminating))
                        == after
            };
            match found.iter().position(same) {
                Some(position) => drop(found.swap_remove(position)),
                None => self.differ(format!("no transition of {address} to {after:?} at {at}")),
            }
        }
        for transition in found {
            self.differ(format!(
                "a transition nobody made: {} of {} at {}",
                transition.id, transition.endpoint.address, transition.at
            ));
        }
    }

    /// Each commit of rules is told of, and none that was not made; no node takes a transition over twice.
    fn programming(&mut self, truth: &Truth, lines: &[Line]) {
        let found: Vec<&Programming> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Programming(programming) => Some(programming),
                _ => None,
            })
            .collect();
        let mut seen = BTreeSet::new();
        let of = |programming: &Programming, node: &str, from: Timestamp, to: Timestamp| {
            programming.node == node
                && from - NEAR_NS.cast_signed() <= programming.at
                && programming.at <= to + NEAR_NS.cast_signed()
        };
        let commits: Vec<_> = truth.commits().collect();
        for programming in &found {
            let (node, id) = (programming.node.as_str(), programming.transition.as_str());
            if !seen.insert((node, id)) {
                self.differ(format!("{node} takes {id} over twice"));
            }
            if programming.basis == Basis::Rules
                && !commits
                    .iter()
                    .any(|(commit, from, to, _)| of(programming, commit, *from, *to))
            {
                self.differ(format!(
                    "{node}'s rules did not change at {} (for {id})",
                    programming.at
                ));
            }
        }
        for (node, from, to, uncalled) in commits {
            if !uncalled
                && !found
                    .iter()
                    .any(|programming| of(programming, node, from, to))
            {
                self.differ(format!(
                    "{node}'s rules changed from {from} to {to}, and nothing says so"
                ));
            }
        }
    }

    /// Each agent that was down left a gap, and nothing else did.
    fn gaps(&mut self, truth: &Truth, lines: &[Line]) {
        let gaps: Vec<&Gap> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Gap(gap) => Some(gap),
                _ => None,
            })
            .collect();
        let fits = |gap: &Gap, (node, from, to): (&str, Timestamp, Timestamp)| {
            gap.node == node
                && gap.what == GapKind::AgentDown
                && gap.from <= from
                && from - UNWRITTEN_NS <= gap.from
                && gap.to <= to
                && gap.to > from
        };
        for gap in &gaps {
            if !truth.blind().any(|down| fits(gap, down)) {
                self.differ(format!("a gap nobody made: {gap:?}"));
            }
        }
        for down in truth.blind() {
            if !gaps.iter().any(|gap| fits(gap, down)) {
                self.differ(format!("no gap while an agent was down: {down:?}"));
            }
        }
    }

    fn queries<'a>(&mut self, truth: &'a Truth, found: impl Iterator<Item = &'a Query>) {
        let by_name: HashMap<&str, &ClientQuery> = truth
            .queries
            .iter()
            .map(|query| (query.name.as_str(), query))
            .collect();
        let mut seen = BTreeSet::new();
        let mut resolved: BTreeMap<&str, u64> = BTreeMap::new();
        for query in found {
            let noise = |it: &Noise| IpAddr::V4(it.address) == query.client.address;
            if truth.noise.iter().any(noise) {
                continue;
            }
            let name = query.question.as_ref().map(|it| it.name.as_str());
            if let Some(known) = truth
                .resolved
                .iter()
                .find(|it| Some(it.name.as_str()) == name)
            {
                *resolved.entry(&known.name).or_default() += 1;
                self.resolved(known, query);
                continue;
            }
            let Some(known) = find(&by_name, truth, query) else {
                self.differ(format!(
                    "no client asked {:?} (from {})",
                    query.question, query.client.address
                ));
                continue;
            };
            if !seen.insert(known.name.as_str()) {
                self.differ(format!("{} is there twice", known.name));
            }
            self.query(truth, known, query);
        }
        for known in &truth.resolved {
            let found = resolved.get(known.name.as_str()).copied();
            // An answered question is kept in full only after a failed attempt.
            let needed = !known.answered || known.attempts.len() > 1;
            if needed && found != Some(known.questions) {
                self.differ(format!("{found:?} questions, not {known:?}"));
            }
        }
        for query in &truth.queries {
            if query.failed() && !query.unseen && !seen.contains(query.name.as_str()) {
                self.differ(format!(
                    "{} failed and is missing: {:?}",
                    query.name, query.expected
                ));
            }
        }
    }

    /// A resolver's question: as many attempts as it makes, each with its cause.
    fn resolved(&mut self, known: &Resolved, found: &Query) {
        let codes = |attempt: &Attempt| attempt.verdict.as_ref().map(|it| it.code);
        let attempts: Vec<Option<Code>> = found.attempts.iter().map(codes).collect();
        let answered = found.outcome == Outcome::Answered;
        if attempts != known.attempts || answered != known.answered || found.node != known.node {
            self.differ(format!(
                "{:?} of {}: {attempts:?}, {:?} on {}; must be {known:?}",
                found.question, known.tool, found.outcome, found.node
            ));
        }
        self.compared += usize::from(!answered || attempts.len() > 1);
        for verdict in found.attempts.iter().filter_map(|it| it.verdict.as_ref()) {
            *self.verdicts.entry(verdict.code.name()).or_default() += 1;
        }
    }

    fn query(&mut self, truth: &Truth, known: &ClientQuery, found: &Query) {
        let name = &known.name;
        let answered = known.result == ClientResult::Answered;
        if answered != (found.outcome == Outcome::Answered) {
            self.differ(format!(
                "{name}: {:?}, its client says {:?}",
                found.outcome, known.result
            ));
            return;
        }
        if found.attempts.len() != known.sent.len() {
            self.differ(format!(
                "{name}: {} attempts, {} packets were sent",
                found.attempts.len(),
                known.sent.len()
            ));
        }
        if found.node != known.node {
            self.differ(format!(
                "{name}: asked on {}, not {}",
                known.node, found.node
            ));
        }
        let verdicts: Vec<&Verdict> = found
            .attempts
            .iter()
            .filter_map(|attempt| attempt.verdict.as_ref())
            .collect();
        if !known.failed() {
            if let Some(verdict) = verdicts.first() {
                self.differ(format!(
                    "{name} was answered, and has the verdict {}",
                    verdict.code.name()
                ));
            }
            return;
        }
        self.compared += 1;
        if verdicts.len() != known.sent.len() {
            self.differ(format!(
                "{name}: {} verdicts for {} packets",
                verdicts.len(),
                known.sent.len()
            ));
        }
        for verdict in verdicts {
            *self.verdicts.entry(verdict.code.name()).or_default() += 1;
            *self
                .places
                .entry((verdict.code, known.node.clone()))
                .or_default() += 1;
            if verdict.confidence == Confidence::Ambiguous {
                self.ambiguous += 1;
                let sure = known.expected.len() == 1;
                if sure && !truth.changes().iter().any(|(at, ..)| near(*at, known)) {
                    self.differ(format!(
                        "{name}: ambiguous ({} or {:?}) far from any change, must be {:?}",
                        verdict.code.name(),
                        verdict.alternatives,
                        known.expected
                    ));
                }
            }
            if !fits(known, verdict) {
                let after = known.sent.first().map_or(0, |sent| sent.since(found.at));
                self.differ(format!(
                    "{name} (sent {}, {after} ns from the timeline's): {} {:?} {:?}, must be {:?}",
                    known.sent.first().copied().unwrap_or_default(),
                    verdict.code.name(),
                    verdict.convergence,
                    verdict.confidence,
                    known.expected
                ));
            }
        }
    }
}

/// Whether a query was sent so close before a change that watches may have seen it late.
fn near(change: Timestamp, query: &ClientQuery) -> bool {
    let sent = query.sent.first().copied().unwrap_or_default();
    (-DOUBT_NS..=DOUBT_NS).contains(&change.since(sent))
}

/// By its name; where no packet existed, by the client's address and port at that time.
fn find<'a>(
    by_name: &HashMap<&str, &'a ClientQuery>,
    truth: &'a Truth,
    query: &Query,
) -> Option<&'a ClientQuery> {
    match &query.question {
        Some(question) => by_name.get(question.name.as_str()).copied(),
        None => truth.queries.iter().find(|known| {
            query
                .attempts
                .first()
                .is_some_and(|attempt| attempt.source == known.source)
                && known.sent.first().is_some_and(|sent| *sent <= query.at)
                && query.at <= known.ended
        }),
    }
}

/// A verdict fits if its cause is among those that may be true; an ambiguous one also if one of its alternatives is.
fn fits(known: &ClientQuery, verdict: &Verdict) -> bool {
    known.expected.iter().any(|cause| {
        let same = cause.code == verdict.code
            && cause
                .convergence
                .is_none_or(|lateness| verdict.convergence == Some(lateness.into()));
        let open = verdict.confidence == Confidence::Ambiguous
            && verdict.alternatives.contains(&cause.code);
        same || open
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test's panic names the line")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn time(milliseconds: i64) -> String {
        Timestamp(1_800_000_000_000_000_000 + milliseconds * 1_000_000).to_string()
    }

    /// One answered query, one that failed of `no-endpoints` in a window of two seconds.
    fn truth() -> Truth {
        let query = |name: &str, sent: i64, result: &str, expected: Value| {
            json!({
                "node": "master", "name": name, "source": "10.42.0.10:20001", "txid": 7, "sent": [time(sent)],
                "sentBy": time(sent), "ended": time(sent + 1), "result": result, "expected": expected,
            })
        };
        let endpoint = json!({
            "address": "10.42.1.10", "pod": "a", "node": "worker1", "ready": true, "serving": true, "terminating": false,
        });
        let slice = |at, endpoints: Value| {
            json!({
                "from": time(at), "to": time(at), "what": "slice", "endpoints": endpoints, "resourceVersion": 1,
            })
        };
        serde_json::from_value(json!({
            "scenario": "s", "description": "d", "service": "kube-system/kube-dns",
            "from": time(0), "load": time(10), "to": time(9000),
            "injected": [
                slice(0, json!([endpoint])), slice(3000, json!([])), slice(5000, json!([endpoint])),
                {
                    "from": time(3020), "to": time(3040), "what": "rules", "node": "master", "backends": [],
                },
            ],
            "expected": {
                "events": 2, "minimumReady": 0, "zeroReadyEvents": 1,
                "zeroReadyWindows": [{"from": time(3000), "to": time(5000)}],
            },
            "queries": [
                query("q1.test.", 1000, "answered", json!([])),
                query("q2.test.", 4000, "refused", json!([{"code": "no-endpoints", "convergence": null}])),
            ],
        }))
        .unwrap()
    }

    fn query(name: &str, outcome: &str, verdict: Value) -> Value {
        json!({
            "kind": "query", "id": "q1", "at": time(4000), "completedAt": time(4001),
            "service": "kube-system/kube-dns", "node": "master", "final": true, "revision": 1,
            "client": {
                "address": "10.42.0.10", "namespace": null, "pod": null, "container": null, "process": null, "pid": null,
            },
            "question": {"name": name, "type": "A"}, "outcome": outcome, "latencyNs": null,
            "attempts": [{
                "n": 1, "at": time(4000), "source": "10.42.0.10:20001", "txid": 7, "asked": null, "translation": null,
                "backend": null, "flow": null, "backendState": null, "readyEndpoints": 0, "result": outcome,
                "rcode": null, "latencyNs": null, "trail": [], "drops": [], "refusals": [], "verdict": verdict,
            }],
        })
    }

    fn verdict(code: &str, confidence: &str, alternatives: Value) -> Value {
        json!({
            "code": code, "confidence": confidence, "alternatives": alternatives, "transition": null, "lagNs": null,
            "convergence": null, "contributing": [],
            "facts": {"api": "no-endpoints", "rules": "unknown", "process": "unknown"}, "text": "", "remedy": null,
        })
    }

    fn summary(window_end: i64) -> Value {
        json!({
            "kind": "summary", "service": "kube-system/kube-dns", "queries": 2, "answered": 1, "late": 0, "refused": 1,
            "unanswered": 0, "failed": 1, "recovered": 0, "attempts": 2, "retransmissions": 0, "verdicts": {},
            "events": 2, "minimumReady": 0, "zeroReadyEvents": 1, "zeroReadyNs": 0, "lostRecords": 0, "missingNodes": [],
            "zeroReadyWindows": [
                {"from": time(3010), "to": time(window_end), "answeredByTerminating": 0, "failed": 1},
            ],
        })
    }

    fn transition(id: &str, at: i64, before: Value, after: Value) -> Value {
        json!({
            "kind": "transition", "id": id, "at": time(at), "notBefore": null, "seenBy": {},
            "service": "kube-system/kube-dns",
            "endpoint": {"address": "10.42.1.10", "node": "worker1", "pod": "a", "uid": null},
            "before": before, "after": after, "readyBefore": 1, "readyAfter": 1, "slice": "s", "resourceVersion": "1",
        })
    }

    fn programming(at: i64) -> Value {
        json!({
            "kind": "programming", "at": time(at), "node": "master", "transition": "t1", "lagNs": 0,
            "convergence": "normal", "basis": "rules",
        })
    }

    /// The changes of the truth, as a timeline has them.
    fn changes() -> Vec<Value> {
        let ready = json!({"ready": true, "serving": true, "terminating": false});
        vec![
            transition("t1", 3001, ready.clone(), Value::Null),
            programming(3030),
            transition("t2", 5001, Value::Null, ready),
        ]
    }

    fn differences(lines: &[Value]) -> Vec<String> {
        all_differences(&[changes(), lines.to_vec()].concat())
    }

    fn all_differences(lines: &[Value]) -> Vec<String> {
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        compare(&truth(), &text.join("\n")).unwrap().differences
    }

    #[test]
    fn the_right_cause_agrees_and_another_differs() {
        let right = query(
            "q2.test.",
            "refused",
            verdict("no-endpoints", "observed", json!([])),
        );
        assert_eq!(differences(&[right, summary(5040)]), Vec::<String>::new());
        let wrong = query(
            "q2.test.",
            "refused",
            verdict("programming-lag", "observed", json!([])),
        );
        assert_eq!(differences(&[wrong, summary(5000)]).len(), 1);
    }

    #[test]
    fn an_open_verdict_agrees_only_near_a_change_and_if_it_names_the_cause() {
        let compared = |sent, other| {
            let mut truth = truth();
            truth.queries[1].sent = vec![serde_json::from_value(json!(time(sent))).unwrap()];
            let verdict = verdict("unexplained", "ambiguous", json!([other]));
            let open = query("q2.test.", "refused", verdict);
            let lines = [changes(), vec![open, summary(5000)]].concat();
            let text: Vec<String> = lines.iter().map(Value::to_string).collect();
            compare(&truth, &text.join("\n")).unwrap().differences.len()
        };
        assert_eq!(compared(3100, "no-endpoints"), 0);
        assert_eq!(compared(3100, "kernel-drop"), 1);
        assert_eq!(compared(4000, "no-endpoints"), 1);
    }

    #[test]
    fn a_failed_query_that_is_missing_is_a_difference() {
        let found = differences(&[summary(5000)]);
        assert!(
            found.len() == 1 && found[0].contains("q2.test."),
            "{found:?}"
        );
    }

    #[test]
    fn a_failure_that_no_client_saw_is_a_difference() {
        let right = query(
            "q2.test.",
            "refused",
            verdict("no-endpoints", "observed", json!([])),
        );
        for name in ["q1.test.", "q3.test."] {
            let invented = query(
                name,
                "refused",
                verdict("no-endpoints", "observed", json!([])),
            );
            let found = differences(&[right.clone(), invented, summary(5000)]);
            assert!(found.len() == 1 && found[0].contains(name), "{found:?}");
        }
    }

    #[test]
    fn a_window_may_be_off_by_50_ms_and_no_more() {
        let right = query(
            "q2.test.",
            "refused",
            verdict("no-endpoints", "observed", json!([])),
        );
        assert_eq!(differences(&[right, summary(5051)]).len(), 1);
    }

    #[test]
    fn transitions_and_commits_are_there_once_and_in_time() {
        let right = query(
            "q2.test.",
            "refused",
            verdict("no-endpoints", "observed", json!([])),
        );
        let rest = [right, summary(5000)];
        let with = |changes: Vec<Value>| all_differences(&[changes, rest.to_vec()].concat()).len();
        assert_eq!(with(changes()), 0);
        assert_eq!(with(vec![]), 3);
        assert_eq!(
            with([changes(), vec![programming(3031)]].concat()),
            1,
            "taken over twice"
        );
        let mut late = changes();
        late[1] = programming(3100);
        assert_eq!(with(late), 2, "one that was not made, one that is missing");
        let invented = transition("t9", 6000, Value::Null, Value::Null);
        assert_eq!(with([changes(), vec![invented]].concat()), 1);
    }

    #[test]
    fn without_a_summary_the_timeline_is_incomplete() {
        assert!(compare(&truth(), "").is_err());
        assert!(compare(&truth(), "nonsense").is_err());
    }
}
