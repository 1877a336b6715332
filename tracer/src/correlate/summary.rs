//! The totals of a Service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::Timestamp;
use crate::model::record::{Side, Traffic};
use crate::model::timeline::{AttemptResult, Code, Outcome, Query, Summary, ZeroReadyWindow};

use super::slices::Step;
use super::verdict::Service;

/// The totals of what lies between `from` and `to`.
pub(super) fn summary(
    service: &Service,
    queries: &[&Query],
    traffic: &[&Traffic],
    (from, to): (Timestamp, Timestamp),
) -> Summary {
    let mut verdicts: BTreeMap<String, u64> = BTreeMap::new();
    let (mut attempts, mut retransmissions, mut recovered) = (0, 0, 0);
    let mut outcomes: BTreeMap<u8, u64> = BTreeMap::new();
    for query in queries {
        *outcomes.entry(query.outcome as u8).or_default() += 1;
        let mut failed = false;
        for (index, attempt) in query.attempts.iter().enumerate() {
            attempts += 1;
            let repeats = query.attempts[..index].iter().any(|it| {
                (it.source, it.txid) == (attempt.source, attempt.txid) && it.txid.is_some()
            });
            retransmissions += u64::from(repeats);
            if let Some(verdict) = &attempt.verdict {
                *verdicts.entry(verdict.code.name().to_owned()).or_default() += 1;
                failed |= verdict.code != Code::ErrorRcode;
            }
        }
        recovered += u64::from(failed && query.outcome == Outcome::Answered);
    }
    let healthy: u64 = (traffic.iter())
        .filter(|it| it.side == Side::Client)
        .map(|it| it.count)
        .sum();
    let count = |outcome: Outcome| outcomes.get(&(outcome as u8)).copied().unwrap_or(0);
    let (late, refused, unanswered) = (
        count(Outcome::Late),
        count(Outcome::Refused),
        count(Outcome::Unanswered),
    );
    let answered = count(Outcome::Answered) + healthy;
    let failed = late + refused + unanswered;
    let history = &service.history;
    let families = families(service);
    let mut changes: Vec<usize> = (history.transitions.iter().zip(&history.step_of))
        .filter(|(it, _)| it.at >= from && it.at <= to)
        .map(|(_, step)| *step)
        .collect();
    changes.dedup();
    let zero = |step: usize| families.iter().any(|like| history.ready(step, *like) == 0);
    let windows = windows(&history.steps, zero, (from, to));
    let zero_ready_windows: Vec<ZeroReadyWindow> = (windows.iter())
        .map(|(begin, end)| window(service, queries, traffic, (*begin, *end)))
        .collect();
    let seen = history.steps.iter().enumerate().filter(|(index, step)| {
        step.at <= to
            && history
                .steps
                .get(index + 1)
                .is_none_or(|next| next.at > from)
    });
    Summary {
        service: service.name.clone(),
        queries: answered + failed,
        answered,
        late,
        refused,
        unanswered,
        failed,
        recovered,
        attempts: attempts + healthy,
        retransmissions,
        verdicts,
        events: changes.len() as u64,
        minimum_ready: seen
            .flat_map(|(step, _)| families.iter().map(move |like| history.ready(step, *like)))
            .min(),
        zero_ready_events: changes.iter().filter(|step| zero(**step)).count() as u64,
        zero_ready_ns: (windows.iter())
            .map(|(begin, end)| end.unwrap_or(to).since(*begin))
            .sum(),
        zero_ready_windows,
        lost_records: 0,
        missing_nodes: Vec::new(),
    }
}

/// One address for each family that the Service has.
fn families(service: &Service) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = service.frontends.iter().map(|it| it.ip()).collect();
    if addresses.is_empty() {
        let keys = service.history.steps.iter().flat_map(|it| it.union.keys());
        addresses = keys.map(|it| it.address).collect();
    }
    let mut families: Vec<IpAddr> = Vec::new();
    for ipv4 in [true, false] {
        families.extend(addresses.iter().find(|it| it.is_ipv4() == ipv4));
    }
    families
}

/// When there was no ready endpoint, between two times; no end: it lasted beyond the second.
fn windows(
    steps: &[Step],
    zero: impl Fn(usize) -> bool,
    (from, to): (Timestamp, Timestamp),
) -> Vec<(Timestamp, Option<Timestamp>)> {
    let mut windows = Vec::new();
    let mut since: Option<Timestamp> = None;
    for (index, step) in steps.iter().enumerate() {
        match (zero(index), since) {
            (true, None) => since = Some(step.at),
            (false, Some(begin)) => {
                since = None;
                windows.push((begin, Some(step.at)));
            }
            _ => {}
        }
    }
    windows.extend(since.map(|begin| (begin, None)));
    (windows.into_iter())
        .filter(|(begin, end)| *begin < to && end.is_none_or(|it| it > from))
        .map(|(begin, end)| (begin.max(from), end.filter(|it| *it <= to)))
        .collect()
}

fn window(
    service: &Service,
    queries: &[&Query],
    traffic: &[&Traffic],
    (from, to): (Timestamp, Option<Timestamp>),
) -> ZeroReadyWindow {
    let inside = |at: Timestamp| at >= from && to.is_none_or(|to| at < to);
    let attempts = || {
        queries
            .iter()
            .flat_map(|it| &it.attempts)
            .filter(|it| inside(it.at))
    };
    let by_terminating = attempts().filter(|it| {
        let state = it.backend_state;
        it.result == AttemptResult::Answered && state.is_some_and(|it| it.terminating && it.serving)
    });
    let history = &service.history;
    // Only the backend's own node knows the backend of a healthy attempt, so that each is in one such row: that of the
    // client's side if both were there. Rows that lie wholly inside: what they show is a lower bound.
    let rows = (traffic.iter()).filter(|it| {
        inside(it.first_answer)
            && inside(it.last_answer)
            && (history.step_at(it.first_answer).zip(it.backend))
                .and_then(|(step, backend)| history.state(step, backend.ip()))
                .is_some_and(|(_, it)| it.conditions.terminating && it.conditions.serving)
    });
    ZeroReadyWindow {
        from,
        to,
        answered_by_terminating: by_terminating.count() as u64
            + rows.map(|it| it.count).sum::<u64>(),
        failed: attempts()
            .filter(|it| it.result != AttemptResult::Answered)
            .count() as u64,
    }
}
