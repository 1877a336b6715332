//! Attempts and queries as a timeline shows them.

use std::net::SocketAddr;

use crate::model::event::Direction;
use crate::model::flight::Refusal;
use crate::model::timeline::{
    Attempt as Shown, AttemptDrop, AttemptRefusal, AttemptResult, Client, Flow, Outcome, Query,
    RefusalKind, TrailHop,
};

use super::chains::Chain;
use super::join::Attempt;
use super::path;
use super::verdict::{Case, Service, World, verdict};

const SECOND: i64 = 1_000_000_000;

/// A chain as a query, with verdicts. `id` is left empty.
pub(super) fn query(world: &World<'_>, service: &Service, chain: &Chain) -> Option<Query> {
    let first = chain.first()?;
    let frontend = |it: SocketAddr| service.frontends.contains(&it);
    let mut attempts = Vec::new();
    let mut is_final = true;
    let mut rejected: Option<SocketAddr> = None;
    for (index, attempt) in chain.iter().enumerate() {
        let backend = path::backend(attempt, frontend);
        let flow = flow_in_chain(attempt, rejected);
        rejected = backend.is_none().then_some(attempt.client);
        let case = Case::new(world, service, attempt, backend, flow);
        let judged = verdict(&case);
        is_final &= judged.as_ref().is_none_or(|(_, it)| *it);
        let verdict = judged.map(|(it, _)| it);
        attempts.push(shown(
            &case,
            attempt,
            u32::try_from(index + 1).unwrap_or(u32::MAX),
            verdict,
        ));
    }
    let answer = (chain.iter()).find_map(|it| {
        let answer = it.origin.answer?;
        let closed = it.origin.closed.is_some_and(|closed| closed < answer.at);
        (!closed).then_some(answer)
    });
    let last = attempts.last()?.result;
    let outcome = match (answer, last) {
        (Some(_), _) => Outcome::Answered,
        (None, AttemptResult::Late) => Outcome::Late,
        (None, AttemptResult::Refused) => Outcome::Refused,
        (None, _) => Outcome::Unanswered,
    };
    let over = chain
        .iter()
        .map(|it| it.origin.closed.unwrap_or(it.origin.completed))
        .max();
    let owner = first.origin.owner.clone();
    Some(Query {
        id: String::new(),
        at: first.sent(),
        completed_at: answer.map(|it| it.at).or(over).unwrap_or(first.sent()),
        service: service.name.clone(),
        node: first.node.clone(),
        is_final,
        revision: 1,
        client: Client {
            address: first.client.ip(),
            namespace: owner.pod.as_ref().map(|it| it.namespace.clone()),
            pod: owner.pod.map(|it| it.name),
            container: owner.container,
            process: owner.process,
            pid: owner.pid,
        },
        question: chain.iter().find_map(|it| it.question.clone()),
        outcome,
        latency_ns: answer.map(|it| it.at.since(first.sent())),
        attempts,
    })
}

/// The flow of an attempt, given where an earlier packet of the chain was turned away before it left a conntrack entry.
pub(super) fn flow_in_chain(attempt: &Attempt, rejected: Option<SocketAddr>) -> Option<Flow> {
    path::flow(attempt, rejected == Some(attempt.client))
}

fn shown(
    case: &Case<'_>,
    attempt: &Attempt,
    n: u32,
    verdict: Option<crate::model::timeline::Verdict>,
) -> Shown {
    let answer = attempt.origin.answer;
    let history = &case.service.history;
    let like = case
        .backend
        .or(attempt.origin.asked)
        .unwrap_or(attempt.client)
        .ip();
    Shown {
        n,
        at: attempt.sent(),
        source: attempt.client,
        txid: attempt.txid,
        asked: attempt.origin.asked.or(attempt.origin.destination),
        translation: path::translation(attempt, case.backend),
        backend: case.backend,
        flow: case.flow,
        backend_state: case
            .step
            .zip(case.backend)
            .and_then(|(step, backend)| history.state(step, backend.ip()))
            .map(|(_, it)| it.conditions),
        ready_endpoints: case.step.map(|step| history.ready(step, like)),
        result: result(attempt),
        rcode: answer.map(|it| rcode(it.rcode)),
        latency_ns: answer.map(|it| it.at.since(attempt.sent())),
        trail: (attempt.trail.iter())
            .map(|(node, hop)| TrailHop {
                at: hop.at,
                node: node.clone(),
                netns: (hop.netns != 0).then_some(hop.netns),
                device: hop.device.clone(),
                point: hop.point,
                direction: hop.direction,
                source: hop.source,
                destination: hop.destination,
            })
            .collect(),
        drops: (attempt.drops.iter())
            .map(|(node, drop)| AttemptDrop {
                at: drop.at,
                node: node.clone(),
                reason: drop.reason.clone(),
                location: drop.location.clone(),
                direction: drop.direction,
            })
            .collect(),
        refusals: attempt
            .refusals
            .iter()
            .map(|(node, it)| refusal(node, it))
            .collect(),
        verdict,
    }
}

/// How an attempt ended.
pub(super) fn result(attempt: &Attempt) -> AttemptResult {
    if attempt.answered_in_time() {
        return AttemptResult::Answered;
    }
    let over = attempt
        .repeated
        .or(attempt.origin.closed)
        .unwrap_or(attempt.origin.completed);
    let reply_came_late = attempt.drops.iter().any(|(node, it)| {
        *node == attempt.node
            && it.direction == Direction::Reply
            && it.reason.as_deref() == Some("NO_SOCKET")
            && it.at >= over
    });
    if attempt.origin.answer.is_some() || reply_came_late {
        return AttemptResult::Late;
    }
    // Only what told the client before it would have noticed by itself; ARP failures are told after three seconds.
    let told = attempt.refusals.iter().any(|(node, it)| {
        *node == attempt.node && it.at() <= over + SECOND && it.at().since(attempt.sent()) <= SECOND
    });
    let dropped = (attempt.drops.iter()).any(|(_, it)| it.reason.as_deref() != Some("OTHERHOST"));
    match (told, dropped) {
        (true, _) => AttemptResult::Refused,
        (false, true) => AttemptResult::Dropped,
        (false, false) => AttemptResult::Unanswered,
    }
}

fn refusal(node: &str, refusal: &Refusal) -> AttemptRefusal {
    let node = node.to_owned();
    match refusal {
        Refusal::Icmp {
            at,
            reporter,
            icmp_type,
            icmp_code,
            quoted_destination,
            ..
        } => AttemptRefusal {
            at: *at,
            node,
            how: RefusalKind::Icmp,
            what: icmp_name(quoted_destination.is_ipv4(), *icmp_type, *icmp_code),
            from: Some(*reporter),
        },
        Refusal::Socket { at, errno, at_send } => AttemptRefusal {
            at: *at,
            node,
            how: if *at_send {
                RefusalKind::Send
            } else {
                RefusalKind::Socket
            },
            what: errno_name(*errno),
            from: None,
        },
    }
}

/// RFC 792 and RFC 1812 5.2.7.1, RFC 4443 3.1.
fn icmp_name(ipv4: bool, kind: u8, code: u8) -> String {
    let name = match (ipv4, kind, code) {
        (true, 3, 0) => "net-unreachable",
        (true, 3, 1) | (false, 1, 3) => "host-unreachable",
        (true, 3, 2) => "protocol-unreachable",
        (true, 3, 3) | (false, 1, 4) => "port-unreachable",
        (true, 3, 4) | (false, 2, 0) => "packet-too-big",
        (true, 3, 9 | 10 | 13) | (false, 1, 1) => "administratively-prohibited",
        (false, 1, 0) => "no-route",
        (true, 11, 0) | (false, 3, 0) => "time-exceeded",
        _ => return format!("type {kind} code {code}"),
    };
    name.to_owned()
}

/// Linux errno values (include/uapi/asm-generic/errno-base.h, errno.h).
fn errno_name(errno: i32) -> String {
    let name = match errno {
        1 => "EPERM",
        13 => "EACCES",
        89 => "EDESTADDRREQ",
        99 => "EADDRNOTAVAIL",
        100 => "ENETDOWN",
        101 => "ENETUNREACH",
        103 => "ECONNABORTED",
        111 => "ECONNREFUSED",
        113 => "EHOSTUNREACH",
        _ => return format!("errno {errno}"),
    };
    name.to_owned()
}

/// IANA DNS RCODEs.
fn rcode(code: u8) -> String {
    let name = match code {
        0 => "NOERROR",
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        6 => "YXDOMAIN",
        7 => "YXRRSET",
        8 => "NXRRSET",
        9 => "NOTAUTH",
        10 => "NOTZONE",
        _ => return format!("RCODE{code}"),
    };
    name.to_owned()
}
