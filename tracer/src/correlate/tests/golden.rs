//! One scene for each cause: what the timeline must say.

use crate::model::record::{GapKind, Record};
use crate::model::timeline::{
    ApiFact, AttemptResult, Basis, Code, Confidence, Convergence, Flow, Line, Outcome, ProcessFact,
    Programming, RulesFact, Translation,
};

use super::scene::*;

const OLD: &str = "10.42.2.115";
const OTHER: &str = "10.42.3.42";
const NEW: &str = "10.42.1.76";

fn programming(timeline: &crate::correlate::Timeline) -> Vec<&Programming> {
    let lines = timeline.lines.iter();
    lines
        .filter_map(|it| match it {
            Line::Programming(it) => Some(it),
            _ => None,
        })
        .collect()
}

/// Two replicas on two nodes; one is retired at 0 ms and gone at 500 ms.
fn two_replicas() -> Scene {
    let mut scene = Scene::new(vec![
        endpoint(OLD, "n2", READY),
        endpoint(OTHER, "n3", READY),
    ]);
    for at in [-800, -400, -50] {
        scene.answered("n1", ms(at), OLD, "n2");
    }
    scene
}

fn retire(scene: &mut Scene) {
    scene.slice(
        ms(0),
        vec![
            endpoint(OLD, "n2", TERMINATING_SERVING),
            endpoint(OTHER, "n3", READY),
        ],
    );
}

fn remove(scene: &mut Scene, at: i64) {
    scene.slice(ms(at), vec![endpoint(OTHER, "n3", READY)]);
}

#[test]
fn late_rules_on_one_node() {
    for client in ["n1", "n2"] {
        let mut scene = two_replicas();
        retire(&mut scene);
        remove(&mut scene, 500);
        for node in ["n1", "n2", "n3"] {
            let delay = if node == client { 2_000 } else { 40 };
            scene.commit(node, ms(delay), OLD, 0, 2);
        }
        let sent = scene.query(client, ms(1_340)).towards(OLD);
        scene.dropped(
            &sent,
            "n2",
            "NEIGH_FAILED",
            std::net::SocketAddr::new(ip(OLD), 53),
        );
        scene.sent(sent);
        let timeline = scene.timeline();
        let verdict = verdict(&timeline);
        assert_eq!(verdict.code, Code::ProgrammingLag);
        assert_eq!(verdict.confidence, Confidence::Observed);
        assert_eq!(verdict.convergence, Some(Convergence::Late));
        assert_eq!(verdict.lag_ns, Some(840 * MS));
        assert_eq!(verdict.transition.as_deref(), Some("t2"));
        assert_eq!(verdict.facts.api, ApiFact::Gone);
        assert_eq!(verdict.facts.rules, RulesFact::BeforeChange);
        assert_eq!(verdict.facts.process, ProcessFact::Stopped);
        assert_eq!(
            verdict.text,
            format!(
                "{client}'s rules still sent a new flow to coredns-115 (10.42.2.115), withdrawn for 1.340 s and gone for \
                 840 ms; they changed 2.000 s after the API, late."
            )
        );
        assert_eq!(
            verdict.remedy.as_deref(),
            Some(
                format!(
                    "Find out why {client}'s rules were late; a lameduck (and grace period) of 1.400 s would have \
                     answered this one."
                )
                .as_str()
            )
        );
        let (attempt, _) = failed(&timeline)[0];
        assert_eq!(attempt.result, AttemptResult::Dropped);
        assert_eq!(attempt.flow, Some(Flow::New));
        assert_eq!(attempt.translation, Some(Translation::Netfilter));
        assert_eq!(attempt.backend.unwrap().ip(), ip(OLD));
        let late = programming(&timeline);
        let late = late.iter().find(|it| it.node == client).unwrap();
        assert_eq!((late.lag_ns, late.basis), (2_000 * MS, Basis::Rules));
        assert_eq!(late.convergence, Some(Convergence::Late));
        let summary = &timeline.summaries[0];
        assert_eq!(
            (
                summary.events,
                summary.minimum_ready,
                summary.zero_ready_events
            ),
            (2, Some(1), 0)
        );
        assert_eq!((summary.failed, summary.unanswered), (1, 1));
    }
}

#[test]
fn rules_in_time_but_the_backend_was_already_gone() {
    let mut scene = two_replicas();
    remove(&mut scene, 0);
    scene.commit("n1", ms(90), OLD, 1, 3);
    let sent = scene.query("n1", ms(60)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "OTHERHOST",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::ProgrammingLag);
    assert_eq!(verdict.convergence, Some(Convergence::Normal));
    assert_eq!(verdict.lag_ns, Some(60 * MS));
    assert_eq!(verdict.facts.rules, RulesFact::BeforeChange);
}

#[test]
fn the_backend_was_shutting_down() {
    for reason in [None, Some("NO_SOCKET")] {
        let mut scene = two_replicas();
        retire(&mut scene);
        scene.commit("n1", ms(300), OLD, 0, 2);
        let sent = scene.query("n1", ms(200)).towards(OLD);
        match reason {
            Some(reason) => {
                scene.dropped(&sent, "n2", reason, std::net::SocketAddr::new(ip(OLD), 53))
            }
            None => scene.delivered(&sent, OLD, "n2", None),
        }
        scene.sent(sent);
        let verdict = verdict(&scene.timeline());
        assert_eq!(verdict.code, Code::TerminatingBackend);
        assert_eq!(verdict.facts.api, ApiFact::TerminatingServing);
        assert_eq!(verdict.convergence, Some(Convergence::Normal));
        let confidence = match reason {
            Some(_) => Confidence::Observed,
            None => Confidence::Inferred,
        };
        assert_eq!(verdict.confidence, confidence);
    }
}

#[test]
fn a_terminating_backend_behind_late_rules_is_their_fault() {
    let mut scene = two_replicas();
    retire(&mut scene);
    scene.commit("n1", ms(3_000), OLD, 0, 2);
    let sent = scene.query("n1", ms(1_500)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::ProgrammingLag);
    assert_eq!(verdict.contributing, [Code::TerminatingBackend]);
    assert_eq!(verdict.convergence, Some(Convergence::Late));
}

#[test]
fn the_process_stopped_before_the_api_knew() {
    let mut scene = two_replicas();
    remove(&mut scene, 1_000);
    scene.commit("n1", ms(1_100), OLD, 0, 2);
    let sent = scene.query("n1", ms(160)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::BackendDiedFirst);
    assert_eq!(verdict.confidence, Confidence::Observed);
    assert_eq!(verdict.lag_ns, Some(-840 * MS));
    assert_eq!(verdict.facts.api, ApiFact::Ready);
    assert_eq!(verdict.facts.process, ProcessFact::Stopped);
    assert_eq!(verdict.facts.rules, RulesFact::BeforeChange);
}

#[test]
fn killed_with_the_query_in_its_queue() {
    let mut scene = two_replicas();
    remove(&mut scene, 1_000);
    let sent = scene.query("n1", ms(160)).towards(OLD);
    scene.delivered(&sent, OLD, "n2", None);
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::BackendDiedFirst);
    assert_eq!(verdict.confidence, Confidence::Inferred);
}

#[test]
fn within_the_watch_delay_two_stories_fit() {
    let mut scene = two_replicas();
    remove(&mut scene, 1_000);
    let sent = scene.query("n1", ms(997)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.confidence, Confidence::Ambiguous);
    assert_eq!(verdict.code, Code::BackendDiedFirst);
    assert_eq!(verdict.alternatives, [Code::ProgrammingLag]);
    assert!(
        verdict
            .text
            .starts_with("Either backend-died-first or programming-lag: ")
    );
}

#[test]
fn one_that_answers_afterwards_was_not_dead() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(160)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    scene.answered("n1", ms(600), OLD, "n2");
    remove(&mut scene, 1_000);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::BackendClosed);
}

/// One replica, replaced: nothing usable from 0 to 2,000 ms.
fn one_replica() -> Scene {
    let mut scene = Scene::new(vec![endpoint(OLD, "n2", READY)]);
    scene.answered("n1", ms(-500), OLD, "n2");
    scene.slice(ms(0), vec![endpoint(NEW, "n1", NOT_READY)]);
    scene.slice(ms(2_000), vec![endpoint(NEW, "n1", READY)]);
    scene.commit("n3", ms(60), OLD, 0, 2);
    scene.commit("n3", ms(2_080), NEW, 2, 0);
    scene
}

#[test]
fn nothing_to_answer() {
    let mut scene = one_replica();
    let sent = scene.query("n3", ms(700)).rejected();
    scene.sent(sent);
    let timeline = scene.timeline();
    let verdict = verdict(&timeline);
    assert_eq!(verdict.code, Code::NoEndpoints);
    assert_eq!(verdict.confidence, Confidence::Observed);
    assert_eq!(verdict.lag_ns, Some(700 * MS));
    assert_eq!(verdict.facts.api, ApiFact::NoEndpoints);
    assert_eq!(verdict.facts.rules, RulesFact::AfterChange);
    assert_eq!(
        verdict.remedy.as_deref(),
        Some("A second ready replica would have saved this one.")
    );
    assert_eq!(queries(&timeline)[1].outcome, Outcome::Refused);
    let summary = &timeline.summaries[0];
    assert_eq!(summary.minimum_ready, Some(0));
    assert_eq!(summary.zero_ready_events, 1);
    assert_eq!(summary.zero_ready_ns, 2_000 * MS);
    assert_eq!(summary.zero_ready_windows[0].failed, 1);
    assert_eq!(transitions(&timeline).len(), 3);
}

#[test]
fn still_rejected_after_an_endpoint_was_ready() {
    let mut scene = one_replica();
    let sent = scene.query("n3", ms(2_050)).rejected();
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::ProgrammingLag);
    assert_eq!(verdict.convergence, Some(Convergence::Normal));
    assert_eq!(verdict.facts.api, ApiFact::EndpointsExist);
    assert_eq!(verdict.lag_ns, Some(50 * MS));
}

#[test]
fn rejected_long_after_the_rules_knew_is_a_policy() {
    let mut scene = one_replica();
    let sent = scene.query("n3", ms(9_000)).rejected();
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(
        (verdict.code, verdict.confidence),
        (Code::PolicyDrop, Confidence::Inferred)
    );
}

#[test]
fn the_last_replica_serves_while_it_terminates() {
    let mut scene = Scene::new(vec![endpoint(OLD, "n2", READY)]);
    scene.slice(ms(0), vec![endpoint(OLD, "n2", TERMINATING_SERVING)]);
    scene.answered("n1", ms(100), OLD, "n2");
    scene.answered("n1", ms(300), OLD, "n2");
    scene.slice(
        ms(400),
        vec![
            endpoint(OLD, "n2", TERMINATING_SERVING),
            endpoint(NEW, "n1", READY),
        ],
    );
    let timeline = scene.timeline();
    assert!(failed(&timeline).is_empty());
    let window = &timeline.summaries[0].zero_ready_windows[0];
    assert_eq!((window.answered_by_terminating, window.failed), (2, 0));
    assert_eq!(window.to, Some(ms(400)));
}

#[test]
fn an_old_flow_to_a_backend_that_is_gone() {
    let mut scene = two_replicas();
    remove(&mut scene, 0);
    scene.commit("n1", ms(90), OLD, 0, 2);
    let mut sent = scene.query("n1", ms(5_000)).pinned_to(OLD);
    sent.flight.origin.as_mut().unwrap().previous = Some(ms(-2_000));
    scene.dropped(
        &sent,
        "n2",
        "NEIGH_FAILED",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.code, Code::StaleConntrack);
    assert_eq!(verdict.facts.rules, RulesFact::AfterChange);
    assert!(verdict.remedy.unwrap().contains("new port"));
}

#[test]
fn a_flow_of_unknown_age_is_ambiguous_while_the_rules_are_unknown() {
    let mut scene = two_replicas();
    remove(&mut scene, 0);
    let mut sent = scene.query("n1", ms(300));
    let unconfirmed = slicetrace_common::conntrack::PRESENT
        | slicetrace_common::conntrack::CONFIRMED
        | slicetrace_common::conntrack::DST_NAT
        | 2;
    sent.hop(
        std::net::SocketAddr::new(ip(OLD), 53),
        crate::model::event::Conntrack(unconfirmed),
    );
    sent.flight.origin.as_mut().unwrap().recorded_since = ms(0);
    scene.dropped(
        &sent,
        "n2",
        "NEIGH_FAILED",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(verdict.confidence, Confidence::Ambiguous);
    assert_eq!(verdict.alternatives, [Code::StaleConntrack]);
}

#[test]
fn a_closed_port_without_a_transition() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(
        (verdict.code, verdict.confidence),
        (Code::BackendClosed, Confidence::Observed)
    );
    assert_eq!(verdict.transition, None);
}

#[test]
fn delivered_and_no_reply() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.delivered(&sent, OLD, "n2", None);
    scene.sent(sent);
    scene.answered("n1", ms(5_000), OLD, "n2");
    let verdict = verdict(&scene.timeline());
    assert_eq!(
        (verdict.code, verdict.confidence),
        (Code::BackendSilent, Confidence::Inferred)
    );
    assert_eq!(verdict.facts.process, ProcessFact::Alive);
}

#[test]
fn absence_proves_nothing_where_records_were_lost() {
    for node in ["n1", "n2"] {
        let mut scene = two_replicas();
        let sent = scene.query("n1", ms(100)).towards(OLD);
        scene.delivered(&sent, OLD, "n2", None);
        scene.sent(sent);
        scene.gap(node, ms(900), ms(950), GapKind::RecordsLost);
        assert_eq!(verdict(&scene.timeline()).code, Code::CaptureGap);
    }
    // A gap on a node that has nothing to do with it, or at another time, hides nothing.
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.delivered(&sent, OLD, "n2", None);
    scene.sent(sent);
    scene.gap("n3", ms(900), ms(950), GapKind::RecordsLost);
    scene.gap("n1", ms(2_900), ms(2_950), GapKind::RecordsLost);
    assert_eq!(verdict(&scene.timeline()).code, Code::BackendSilent);
}

#[test]
fn what_a_killed_agent_had_not_written_yet_is_not_called_lost() {
    let code = |down| {
        let mut scene = two_replicas();
        let sent = scene.query("n1", ms(100)).towards(OLD);
        scene.sent(sent);
        scene.gap("n2", ms(down), ms(down + 1_000), GapKind::AgentDown);
        verdict(&scene.timeline()).code
    };
    // The client had given up before; the delivery on the backend's node may have been in the agent's memory.
    assert_eq!(code(3_000), Code::CaptureGap);
    assert_eq!(code(9_000), Code::Unexplained);
}

#[test]
fn what_was_seen_stands_beside_lost_records() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    scene.gap("n1", ms(0), ms(950), GapKind::RecordsLost);
    assert_eq!(verdict(&scene.timeline()).code, Code::BackendClosed);
}

#[test]
fn a_drop_by_another_name_wins_however_near_a_transition_is() {
    let mut scene = two_replicas();
    remove(&mut scene, 1_000);
    let sent = scene.query("n1", ms(900)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "UDP_CSUM",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(
        (verdict.code, verdict.confidence),
        (Code::KernelDrop, Confidence::Observed)
    );
    assert_eq!(
        verdict.text,
        "n2's kernel dropped the query for UDP_CSUM in somewhere."
    );
}

#[test]
fn a_late_reply_is_slow_not_silent() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.delivered(&sent, OLD, "n2", Some(ms(1_600)));
    scene.sent(sent);
    let verdict = verdict(&scene.timeline());
    assert_eq!(
        (verdict.code, verdict.confidence),
        (Code::BackendSlow, Confidence::Observed)
    );
}

#[test]
fn flooded_copies_of_answered_queries_do_no_harm() {
    let mut scene = two_replicas();
    scene.answered("n1", ms(100), OLD, "n2");
    let Record::Flight(flight) = &scene.records.last().unwrap().record else {
        panic!("the last record is the client's flight");
    };
    let sent = Sent {
        node: "n1",
        client: flight.client,
        at: flight.at,
        flight: (**flight).clone(),
    };
    scene.dropped(
        &sent,
        "n2",
        "OTHERHOST",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.dropped(
        &sent,
        "n2",
        "UDP_CSUM",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    let timeline = scene.timeline();
    assert!(failed(&timeline).is_empty());
    assert_eq!(timeline.summaries[0].answered, 4);
}

#[test]
fn a_retransmission_that_is_answered_recovers_the_query() {
    let mut scene = two_replicas();
    let first = scene.query("n1", ms(100)).towards(OLD);
    let mut second = scene.query_from("n1", first.client, ms(5_100));
    let origin = second.flight.origin.as_mut().unwrap();
    origin.previous = Some(ms(100));
    origin.answer = Some(crate::model::flight::Answer {
        at: ms(5_101),
        rcode: 0,
        truncated: false,
        source: frontend(),
    });
    origin.closed = None;
    origin.completed = ms(5_101);
    let mut first = first;
    let origin = first.flight.origin.as_mut().unwrap();
    origin.closed = None;
    origin.completed = ms(5_101);
    scene.dropped(
        &first,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.delivered(&second, OLD, "n2", Some(ms(5_101)));
    scene.sent(first);
    scene.sent(second);
    let timeline = scene.timeline();
    let query = queries(&timeline)[3];
    assert_eq!(query.attempts.len(), 2);
    assert_eq!(query.outcome, Outcome::Answered);
    assert_eq!(query.latency_ns, Some(5_001 * MS));
    assert_eq!(
        query.attempts[0].verdict.as_ref().unwrap().code,
        Code::BackendClosed
    );
    assert_eq!(query.attempts[1].flow, Some(Flow::Old));
    assert!(query.attempts[1].verdict.is_none());
    let summary = &timeline.summaries[0];
    assert_eq!(
        (summary.recovered, summary.failed, summary.retransmissions),
        (1, 0, 1)
    );
    assert_eq!((summary.queries, summary.attempts), (4, 5));
}

#[test]
fn without_the_backends_node_nothing_is_called_silent() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.sent(sent);
    let mut records = scene.all();
    records.retain(|it| it.node != "n2");
    let mut options = scene.options();
    options.missing = vec![("n2".to_owned(), "no agent answered".to_owned())];
    let timeline = crate::correlate::timeline(records, &options);
    let verdict = verdict(&timeline);
    assert_eq!(verdict.code, Code::Unexplained);
    assert!(
        verdict.text.contains("the backend's node was not recorded"),
        "{}",
        verdict.text
    );
    assert_eq!(timeline.summaries[0].missing_nodes, ["n2"]);
}

#[test]
fn a_verdict_is_final_after_a_minute_or_a_transition() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(OLD), 53),
    );
    scene.sent(sent);
    scene.end = ms(30_000);
    assert!(!queries(&scene.timeline())[3].is_final);
    scene.end = ms(60_101);
    assert!(queries(&scene.timeline())[3].is_final);
    scene.end = ms(30_000);
    remove(&mut scene, 1_000);
    assert!(queries(&scene.timeline())[3].is_final);
}

#[test]
fn a_bridge_without_anybody_left_is_gone_but_a_tunnel_without_a_target_is_not() {
    for (node, code) in [("n2", Code::ProgrammingLag), ("n1", Code::KernelDrop)] {
        let mut scene = two_replicas();
        remove(&mut scene, 0);
        scene.commit("n1", ms(90), OLD, 0, 2);
        let sent = scene.query("n1", ms(60)).towards(OLD);
        scene.dropped(
            &sent,
            node,
            "NO_TX_TARGET",
            std::net::SocketAddr::new(ip(OLD), 53),
        );
        scene.sent(sent);
        assert_eq!(verdict(&scene.timeline()).code, code);
    }
}

#[test]
fn a_terminating_backend_that_was_never_reached_is_not_to_blame() {
    let mut scene = two_replicas();
    retire(&mut scene);
    let sent = scene.query("n1", ms(200)).towards(OLD);
    scene.sent(sent);
    assert_eq!(verdict(&scene.timeline()).code, Code::Unexplained);
}

#[test]
fn a_reply_that_was_recorded_later_makes_silence_slowness() {
    let mut scene = two_replicas();
    let sent = scene.query("n1", ms(100)).towards(OLD);
    scene.delivered(&sent, OLD, "n2", None);
    scene.delivered(&sent, OLD, "n2", Some(ms(4_000)));
    scene.sent(sent);
    let timeline = scene.timeline();
    assert_eq!(queries(&timeline).len(), 4);
    assert_eq!(verdict(&timeline).code, Code::BackendSlow);
}

/// The same scene, with the backend's node on a machine of its own whose clock is far off: the same verdicts, and the header
/// says how far (without a bound: the watches give none).
#[test]
fn a_clock_that_is_seconds_off_changes_no_verdict() {
    let mut scene = two_replicas();
    retire(&mut scene);
    remove(&mut scene, 500);
    for node in ["n1", "n2", "n3"] {
        scene.commit(node, ms(2_000), OLD, 0, 2);
    }
    for at in [700, 1_200, 1_700] {
        let sent = scene.query("n1", ms(at)).towards(OLD);
        let destination = std::net::SocketAddr::new(ip(OLD), 53);
        scene.dropped(&sent, "n2", "NO_SOCKET", destination);
        scene.sent(sent);
    }
    let codes = |timeline: &crate::correlate::Timeline| -> Vec<Code> {
        failed(timeline).iter().map(|(_, it)| it.code).collect()
    };
    assert_eq!(codes(&scene.timeline()), [Code::ProgrammingLag; 3]);
    for offset in [-7_000, 3_000] {
        let mut apart = scene.all();
        for record in apart.iter_mut().filter(|it| it.node == "n2") {
            if let Record::Node(info) = &mut record.record {
                info.boot_id = "another machine".to_owned();
            }
            record.record.shift(offset * MS);
        }
        let timeline = crate::correlate::timeline(apart, &scene.options());
        assert_eq!(codes(&timeline), [Code::ProgrammingLag; 3], "{offset} ms");
        let node = timeline.header.nodes.iter().find(|it| it.name == "n2");
        let node = node.unwrap();
        // The watch of n2 is 2 ms behind that of n1 in the scene.
        assert_eq!(node.clock_offset_ns, Some((offset + 2) * MS));
        assert_eq!(node.clock_error_ns, None);
    }
}
