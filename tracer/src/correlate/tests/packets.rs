//! Attempts, flows, translations and chains.

use std::net::SocketAddr;

use super::scene::*;
use crate::model::event::Conntrack;
use crate::model::flight::Answer;
use crate::model::record::{Record, Side, Traffic};
use crate::model::timeline::{Flow, Outcome, Translation};

const A: &str = "10.42.2.115";
const B: &str = "10.42.3.42";

fn scene() -> Scene {
    Scene::new(vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)])
}

/// Closed after `after` milliseconds.
fn closing(mut sent: Sent, after: i64) -> Sent {
    let origin = sent.flight.origin.as_mut().unwrap();
    origin.closed = Some(sent.at + after * MS);
    origin.completed = sent.at + after * MS;
    sent
}

fn answering(mut sent: Sent, after: i64) -> Sent {
    let origin = sent.flight.origin.as_mut().unwrap();
    origin.answer = Some(Answer {
        at: sent.at + after * MS,
        rcode: 0,
        truncated: false,
        source: frontend(),
    });
    origin.closed = None;
    origin.completed = sent.at + after * MS;
    sent
}

/// The same question as `first`.
fn again(mut sent: Sent, first: &Sent, txid: u16) -> Sent {
    sent.flight.question.clone_from(&first.flight.question);
    sent.flight.txid = Some(txid);
    sent
}

fn flow_of(edit: impl FnOnce(&mut Sent)) -> Option<Flow> {
    let mut scene = scene();
    let mut sent = scene.query("n1", ms(0));
    edit(&mut sent);
    scene.sent(sent);
    queries(&scene.timeline())[0].attempts[0].flow
}

#[test]
fn a_flow_is_new_or_old_only_where_that_is_known() {
    const CONFIRMED_NEW: u8 = slicetrace_common::conntrack::PRESENT
        | slicetrace_common::conntrack::CONFIRMED
        | slicetrace_common::conntrack::DST_NAT
        | 2;
    let since = |sent: &mut Sent, previous: Option<i64>, recorded: i64| {
        let origin = sent.flight.origin.as_mut().unwrap();
        origin.previous = previous.map(ms);
        origin.recorded_since = ms(recorded);
    };
    let entry = |sent: &mut Sent| sent.hop(SocketAddr::new(ip(A), 53), Conntrack(CONFIRMED_NEW));
    // An earlier packet: within 30 s, beyond 120 s, between.
    assert_eq!(
        flow_of(|it| since(it, Some(-20_000), -600_000)),
        Some(Flow::Old)
    );
    assert_eq!(
        flow_of(|it| since(it, Some(-130_000), -600_000)),
        Some(Flow::New)
    );
    assert_eq!(flow_of(|it| since(it, Some(-60_000), -600_000)), None);
    // None, and recorded for long enough, or not.
    assert_eq!(flow_of(|it| since(it, None, -121_000)), Some(Flow::New));
    assert_eq!(flow_of(|it| since(it, None, -60_000)), None);
    // An entry that is not established lives 30 s.
    let unreplied = flow_of(|it| {
        since(it, None, -31_000);
        entry(it);
    });
    assert_eq!(unreplied, Some(Flow::New));
    let young = flow_of(|it| {
        since(it, None, -10_000);
        entry(it);
    });
    assert_eq!(young, None);
    // What the kernel says outweighs what we remember.
    let mut scene = scene();
    let mut sent = scene.query("n1", ms(0)).towards(A);
    since(&mut sent, Some(-10_000), -600_000);
    scene.sent(sent);
    assert_eq!(
        queries(&scene.timeline())[0].attempts[0].flow,
        Some(Flow::New)
    );
}

#[test]
fn who_translated() {
    let of = |edit: &dyn Fn(&mut Sent)| {
        let mut scene = scene();
        let mut sent = scene.query("n1", ms(0));
        edit(&mut sent);
        scene.sent(sent);
        let timeline = scene.timeline();
        let attempt = queries(&timeline)[0].attempts[0].clone();
        (attempt.translation, attempt.backend.map(|it| it.ip()))
    };
    let backend = SocketAddr::new(ip(A), 53);
    let nat = |it: &mut Sent| {
        it.hop(
            backend,
            Conntrack(
                slicetrace_common::conntrack::PRESENT | slicetrace_common::conntrack::DST_NAT,
            ),
        )
    };
    assert_eq!(of(&nat), (Some(Translation::Netfilter), Some(ip(A))));
    let device = |it: &mut Sent| it.hop(backend, Conntrack::NONE);
    assert_eq!(of(&device), (Some(Translation::Bpf), Some(ip(A))));
    let socket = |it: &mut Sent| it.flight.origin.as_mut().unwrap().destination = Some(backend);
    assert_eq!(of(&socket), (Some(Translation::Socket), Some(ip(A))));
    let direct = |it: &mut Sent| {
        let origin = it.flight.origin.as_mut().unwrap();
        (origin.asked, origin.destination) = (Some(backend), Some(backend));
    };
    assert_eq!(of(&direct), (Some(Translation::None), Some(ip(A))));
    assert_eq!(of(&|_| {}), (Some(Translation::None), None));
}

#[test]
fn glibc_takes_a_new_port_and_the_same_txid() {
    let mut scene = scene();
    let first = closing(scene.query("n1", ms(0)), 3);
    let second = scene.query("n1", ms(4));
    let second = answering(again(second, &first, 4711), 1);
    scene.sent(first);
    scene.sent(second);
    let timeline = scene.timeline();
    let all = queries(&timeline);
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].attempts.len(), all[0].outcome),
        (2, Outcome::Answered)
    );
    assert_eq!(timeline.summaries[0].retransmissions, 0);
    assert_eq!(timeline.summaries[0].recovered, 1);
}

#[test]
fn go_takes_a_new_txid_too_but_asks_at_once() {
    for (pause, expected) in [(1, 1), (500, 2)] {
        let mut scene = scene();
        let first = closing(scene.query("n1", ms(0)), 3);
        let second = scene.query("n1", ms(3 + pause));
        let second = answering(again(second, &first, 99), 1);
        scene.sent(first);
        scene.sent(second);
        assert_eq!(queries(&scene.timeline()).len(), expected);
    }
}

#[test]
fn one_who_asks_steadily_does_not_retry() {
    let mut scene = scene();
    let first = closing(scene.query("n1", ms(0)), 1_000);
    for (txid, at) in [(1, 100), (2, 600), (3, 1_001)] {
        let next = scene.query("n1", ms(at));
        let next = answering(again(next, &first, txid), 1);
        scene.sent(next);
    }
    scene.sent(first);
    let timeline = scene.timeline();
    assert_eq!(queries(&timeline).len(), 4);
    assert_eq!(
        (
            timeline.summaries[0].failed,
            timeline.summaries[0].recovered
        ),
        (1, 0)
    );
}

#[test]
fn another_question_is_another_query() {
    let mut scene = scene();
    let first = closing(scene.query("n1", ms(0)), 3);
    let second = answering(scene.query("n1", ms(4)), 1);
    scene.sent(first);
    scene.sent(second);
    assert_eq!(queries(&scene.timeline()).len(), 2);
}

#[test]
fn rows_of_healthy_attempts_are_counted_once_each() {
    let mut scene = scene();
    let sent = answering(scene.query("n1", ms(0)), 1);
    scene.sent(sent);
    for (node, side, count) in [("n1", Side::Client, 40), ("n2", Side::Server, 25)] {
        scene.push(
            node,
            Record::Traffic(Traffic {
                second: ms(0).second(),
                service: Some(SERVICE.to_owned()),
                side,
                client: None,
                backend: None,
                count,
                first_answer: ms(1),
                last_answer: ms(900),
                latency_us: [(512, count)].into(),
            }),
        );
    }
    let timeline = scene.timeline();
    assert_eq!(timeline.summaries[0].queries, 41);
    assert_eq!(timeline.summaries[0].attempts, 41);
}

#[test]
fn what_a_terminating_backend_answered_is_counted_from_rows_once() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY)]);
    scene.slice(ms(0), vec![endpoint(A, "n2", TERMINATING_SERVING)]);
    // n2 saw 25 of other nodes' clients and 15 of its own; n1's row is of the same 25.
    for (node, side, count) in [
        ("n2", Side::Server, 25),
        ("n2", Side::Client, 15),
        ("n1", Side::Client, 25),
    ] {
        scene.push(
            node,
            Record::Traffic(Traffic {
                second: ms(1_000).second(),
                service: Some(SERVICE.to_owned()),
                side,
                client: None,
                backend: Some(SocketAddr::new(ip(A), 53)),
                count,
                first_answer: ms(1_001),
                last_answer: ms(1_900),
                latency_us: [(512, count)].into(),
            }),
        );
    }
    let timeline = scene.timeline();
    assert_eq!(
        timeline.summaries[0].zero_ready_windows[0].answered_by_terminating,
        40
    );
    assert_eq!(timeline.summaries[0].queries, 40);
}

#[test]
fn a_reject_in_output_is_an_attempt_though_no_socket_was_seen() {
    let mut scene = Scene::new(vec![]);
    let sent = scene.query("n1", ms(100));
    let mut flight = sent.bare(ms(100));
    flight.question = None;
    let mut drop = drop_of(&sent, "NETFILTER_DROP", frontend());
    drop.device = None;
    flight.drops.push(drop);
    scene.push("n1", Record::Flight(Box::new(flight)));
    let timeline = scene.timeline();
    assert_eq!(queries(&timeline).len(), 1);
    assert_eq!(
        verdict(&timeline).code,
        crate::model::timeline::Code::NoEndpoints
    );
}

#[test]
fn a_drop_whose_client_is_not_recorded_is_no_query() {
    let mut scene = scene();
    let sent = scene.query("n1", ms(100));
    scene.dropped(&sent, "n2", "NO_SOCKET", SocketAddr::new(ip(A), 53));
    assert!(queries(&scene.timeline()).is_empty());
}

#[test]
fn ids_do_not_depend_on_the_filter() {
    let mut scene = scene();
    for at in [100, 5_000, 9_000] {
        let sent = scene.query("n1", ms(at));
        scene.sent(sent);
    }
    scene.slice(ms(200), vec![endpoint(B, "n3", READY)]);
    scene.slice(ms(6_000), vec![]);
    let mut options = scene.options();
    options.from = ms(4_000);
    let part = crate::correlate::timeline(scene.all(), &options);
    let ids: Vec<&str> = queries(&part).iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["q2", "q3"]);
    assert_eq!(transitions(&part)[0].id, "t2");
}
