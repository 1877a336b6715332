//! Transitions from what watches saw, and what nodes made of them.

use super::scene::*;
use crate::model::Timestamp;
use crate::model::record::{EndpointSeen, GapKind, Record, SliceSeen};
use crate::model::timeline::{Basis, Code, Convergence, Line, Programming};

const A: &str = "10.42.2.115";
const B: &str = "10.42.3.42";

fn slice(name: &str, version: &str, at: Timestamp, endpoints: Vec<EndpointSeen>) -> SliceSeen {
    SliceSeen {
        at,
        service: SERVICE.to_owned(),
        slice: name.to_owned(),
        resource_version: version.to_owned(),
        deleted: false,
        listed: false,
        trigger: None,
        endpoints,
    }
}

fn programming(timeline: &crate::correlate::Timeline) -> Vec<Programming> {
    let lines = timeline.lines.iter();
    lines
        .filter_map(|it| match it {
            Line::Programming(it) => Some(it.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn a_list_at_the_start_is_no_transition() {
    let timeline = Scene::new(vec![endpoint(A, "n2", READY)]).timeline();
    assert!(transitions(&timeline).is_empty());
    assert_eq!(timeline.summaries[0].minimum_ready, Some(1));
    assert_eq!(timeline.summaries[0].events, 0);
}

#[test]
fn the_earliest_watch_gives_the_time_and_the_others_their_delay() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY)]);
    scene.slice(ms(100), vec![]);
    let timeline = scene.timeline();
    let all = transitions(&timeline);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].at, ms(100));
    let delays: Vec<(&str, i64)> = all[0]
        .seen_by
        .iter()
        .map(|(node, it)| (node.as_str(), *it))
        .collect();
    assert_eq!(delays, [("n1", 0), ("n2", 2 * MS), ("n3", 5 * MS)]);
    assert_eq!((all[0].ready_before, all[0].ready_after), (1, 0));
    assert_eq!((all[0].before, all[0].after), (Some(READY), None));
}

#[test]
fn an_endpoint_that_moves_between_slices_does_not_change() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY)]);
    let second = slice("kube-dns-b", "101", ms(100), vec![endpoint(A, "n2", READY)]);
    scene.push("n1", Record::Slice(second));
    let first = slice("kube-dns-a", "102", ms(101), vec![]);
    // Another node saw the removal first: resourceVersions give the order.
    scene.push(
        "n2",
        Record::Slice(SliceSeen {
            at: ms(99),
            ..first.clone()
        }),
    );
    scene.push("n1", Record::Slice(first));
    let timeline = scene.timeline();
    assert!(
        transitions(&timeline).is_empty(),
        "{:#?}",
        transitions(&timeline)
    );
}

#[test]
fn the_same_address_of_another_pod_goes_and_comes() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY)]);
    let mut other = endpoint(A, "n2", READY);
    other.uid = Some("another".to_owned());
    scene.slice(ms(100), vec![other]);
    let timeline = scene.timeline();
    let all = transitions(&timeline);
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].after, all[1].before), (None, None));
    assert_eq!((all[0].ready_before, all[0].ready_after), (1, 1));
    assert_eq!(timeline.summaries[0].events, 1);
}

#[test]
fn an_endpoint_without_a_pod_is_followed_by_its_address() {
    let mut bare = endpoint(A, "n2", READY);
    (bare.pod, bare.uid, bare.node) = (None, None, None);
    let mut scene = Scene::new(vec![bare.clone()]);
    bare.conditions = NOT_READY;
    scene.slice(ms(100), vec![bare]);
    let timeline = scene.timeline();
    assert_eq!(transitions(&timeline).len(), 1);
    assert_eq!(transitions(&timeline)[0].endpoint.uid, None);
}

#[test]
fn what_a_new_list_shows_after_a_broken_watch_happened_somewhere_in_between() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)]);
    for node in ["n1", "n2", "n3"] {
        scene.gap(node, ms(1_000), ms(4_000), GapKind::WatchBroken);
        let mut listed = slice(
            "kube-dns-a",
            "109",
            ms(4_000),
            vec![endpoint(B, "n3", READY)],
        );
        listed.listed = true;
        scene.push(node, Record::Slice(listed));
    }
    let sent = scene.query("n1", ms(2_500)).towards(A);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(A), 53),
    );
    scene.sent(sent);
    let timeline = scene.timeline();
    let all = transitions(&timeline);
    assert_eq!((all[0].at, all[0].not_before), (ms(4_000), Some(ms(1_000))));
    assert_eq!(verdict(&timeline).code, Code::CaptureGap);
}

#[test]
fn one_watch_that_works_is_enough() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)]);
    for node in ["n1", "n2"] {
        scene.gap(node, ms(1_000), ms(4_000), GapKind::WatchBroken);
    }
    let gone = slice(
        "kube-dns-a",
        "109",
        ms(3_000),
        vec![endpoint(B, "n3", READY)],
    );
    scene.push("n3", Record::Slice(gone));
    let sent = scene.query("n1", ms(2_500)).towards(A);
    scene.dropped(
        &sent,
        "n2",
        "NO_SOCKET",
        std::net::SocketAddr::new(ip(A), 53),
    );
    scene.sent(sent);
    assert_eq!(verdict(&scene.timeline()).code, Code::BackendDiedFirst);
}

#[test]
fn a_commit_may_come_before_our_watch_saw_the_transition() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)]);
    scene.commit("n1", ms(98), A, 0, 2);
    // Touched, with no net effect on the address.
    scene.commit("n2", ms(110), A, 2, 2);
    scene.commit("n2", ms(150), A, 1, 3);
    scene.slice(ms(100), vec![endpoint(B, "n3", READY)]);
    let all = programming(&scene.timeline());
    let found: Vec<(&str, i64)> = all.iter().map(|it| (it.node.as_str(), it.lag_ns)).collect();
    assert_eq!(found, [("n1", -2 * MS), ("n2", 50 * MS)]);
    assert!(
        all.iter()
            .all(|it| it.convergence == Some(Convergence::Normal))
    );
}

#[test]
fn commits_go_with_the_change_in_their_direction() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)]);
    scene.slice(
        ms(0),
        vec![endpoint(A, "n2", NOT_READY), endpoint(B, "n3", READY)],
    );
    scene.slice(
        ms(1_000),
        vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)],
    );
    scene.slice(ms(2_000), vec![endpoint(B, "n3", READY)]);
    scene.commit("n1", ms(60), A, 0, 2);
    scene.commit("n1", ms(1_060), A, 2, 0);
    scene.commit("n1", ms(2_060), A, 0, 2);
    let all = programming(&scene.timeline());
    let lags: Vec<(&str, i64)> = all
        .iter()
        .map(|it| (it.transition.as_str(), it.lag_ns))
        .collect();
    assert_eq!(lags, [("t1", 60 * MS), ("t2", 60 * MS), ("t3", 60 * MS)]);
}

#[test]
fn without_commits_new_flows_are_bounds_and_no_more() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY)]);
    scene.slice(
        ms(0),
        vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)],
    );
    // The first new flow to B comes ten seconds later: nobody asked before, so nothing is late.
    scene.answered("n1", ms(10_000), B, "n3");
    scene.answered("n2", ms(400), B, "n3");
    let all = programming(&scene.timeline());
    let found: Vec<_> = all
        .iter()
        .map(|it| (it.node.as_str(), it.basis, it.convergence))
        .collect();
    assert_eq!(
        found,
        [
            ("n2", Basis::FirstNewFlow, Some(Convergence::Normal)),
            ("n1", Basis::FirstNewFlow, None)
        ]
    );
}

#[test]
fn a_new_flow_to_a_withdrawn_endpoint_proves_late_rules() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY), endpoint(B, "n3", READY)]);
    scene.slice(ms(0), vec![endpoint(B, "n3", READY)]);
    for at in [300, 1_700] {
        let sent = scene.query("n1", ms(at)).towards(A);
        scene.dropped(
            &sent,
            "n2",
            "NEIGH_FAILED",
            std::net::SocketAddr::new(ip(A), 53),
        );
        scene.sent(sent);
    }
    let timeline = scene.timeline();
    let all = programming(&timeline);
    assert_eq!((all[0].at, all[0].basis), (ms(1_700), Basis::FirstNewFlow));
    assert_eq!(all[0].convergence, Some(Convergence::Late));
    // The first attempt as well: 0.3 s after the transition, but of a node that was late.
    for (_, verdict) in failed(&timeline) {
        assert_eq!(verdict.code, Code::ProgrammingLag);
        assert_eq!(verdict.convergence, Some(Convergence::Late));
    }
}

#[test]
fn the_fallback_to_terminating_endpoints_ends_when_another_is_ready() {
    let mut scene = Scene::new(vec![endpoint(A, "n2", READY)]);
    scene.slice(ms(0), vec![endpoint(A, "n2", TERMINATING_SERVING)]);
    scene.slice(
        ms(1_000),
        vec![
            endpoint(A, "n2", TERMINATING_SERVING),
            endpoint(B, "n3", READY),
        ],
    );
    scene.commit("n1", ms(1_060), A, 0, 2);
    scene.commit("n1", ms(1_060) + 1, B, 2, 0);
    let all = programming(&scene.timeline());
    // A became unusable when B became ready, not when it began to terminate.
    assert!(
        all.iter()
            .all(|it| it.transition == "t2" && it.lag_ns / MS == 60),
        "{all:#?}"
    );
    // One line: the node has taken the transition over with the last of its commits.
    assert_eq!((all.len(), all[0].lag_ns), (1, 60 * MS + 1));
}
