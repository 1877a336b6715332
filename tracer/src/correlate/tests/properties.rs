//! What must hold of any records.
//!
//! - Order and repetition of records change nothing.
//! - No records, however incomplete or contradictory, make it panic; sums agree.
//! - A conclusion from something seen (`observed`) names evidence that is in the attempt.
//! - Taking away what *other* nodes saw of an attempt, or rule commits, never makes a code appear that is not weaker, or in
//!   the family of the original one (see `weaker`).

use proptest::prelude::*;

use super::scene::*;
use crate::correlate::{Timeline, timeline};
use crate::model::event::Direction;
use crate::model::record::{Conditions, GapKind, NodeRecord, Record};
use crate::model::timeline::{Code, Confidence, Line, Outcome};

const BACKENDS: [(&str, &str); 3] = [
    ("10.42.2.115", "n2"),
    ("10.42.3.42", "n3"),
    ("10.42.1.76", "n1"),
];

/// One thing that happens in a scene.
#[derive(Clone, Debug)]
enum Act {
    Slice(i64, Vec<(usize, Conditions)>),
    Commit(&'static str, i64, usize, bool),
    Ask(&'static str, i64, usize, How),
    Gap(&'static str, i64, i64, GapKind),
}

/// How a query fares.
#[derive(Clone, Copy, Debug)]
enum How {
    Answered,
    Dropped(&'static str, bool),
    Delivered(Option<i64>),
    Rejected,
    Silent,
}

fn node() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["n1", "n2", "n3"])
}

fn conditions() -> impl Strategy<Value = Conditions> {
    prop::sample::select(vec![
        READY,
        TERMINATING_SERVING,
        NOT_READY,
        Conditions {
            ready: false,
            serving: false,
            terminating: true,
        },
    ])
}

fn how() -> impl Strategy<Value = How> {
    let reasons = prop::sample::select(vec![
        "NO_SOCKET",
        "NEIGH_FAILED",
        "OTHERHOST",
        "UDP_CSUM",
        "NETFILTER_DROP",
        "NOT_SPECIFIED",
    ]);
    prop_oneof![
        3 => Just(How::Answered),
        3 => (reasons, any::<bool>()).prop_map(|(reason, new)| How::Dropped(reason, new)),
        2 => prop::option::of(1..3_000_i64).prop_map(How::Delivered),
        1 => Just(How::Rejected),
        1 => Just(How::Silent),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let time = -500..8_000_i64;
    let gap = prop::sample::select(vec![
        GapKind::RecordsLost,
        GapKind::AgentDown,
        GapKind::WatchBroken,
    ]);
    prop_oneof![
        3 => (time.clone(), prop::collection::vec((0..3_usize, conditions()), 0..3))
            .prop_map(|(at, endpoints)| Act::Slice(at, endpoints)),
        2 => (node(), time.clone(), 0..3_usize, any::<bool>())
            .prop_map(|(node, at, backend, adds)| Act::Commit(node, at, backend, adds)),
        6 => (node(), time.clone(), 0..3_usize, how())
            .prop_map(|(node, at, backend, how)| Act::Ask(node, at, backend, how)),
        1 => (node(), time, 0..2_000_i64, gap)
            .prop_map(|(node, at, length, what)| Act::Gap(node, at, length, what)),
    ]
}

/// Plays acts by time, so that resourceVersions grow with it.
fn play(mut acts: Vec<Act>) -> Scene {
    acts.sort_by_key(|it| match it {
        Act::Slice(at, _)
        | Act::Commit(_, at, _, _)
        | Act::Ask(_, at, _, _)
        | Act::Gap(_, at, _, _) => *at,
    });
    let endpoints = |wanted: &[(usize, Conditions)]| {
        let mut found = Vec::new();
        for (index, conditions) in wanted {
            let (address, node) = BACKENDS[*index];
            found.push(endpoint(address, node, *conditions));
        }
        found
    };
    let mut scene = Scene::new(endpoints(&[(0, READY), (1, READY)]));
    for act in acts {
        match act {
            Act::Slice(at, wanted) => scene.slice(ms(at), endpoints(&wanted)),
            Act::Commit(node, at, backend, adds) => {
                let (added, removed) = if adds { (2, 0) } else { (0, 2) };
                scene.commit(node, ms(at), BACKENDS[backend].0, added, removed);
            }
            Act::Gap(node, at, length, what) => scene.gap(node, ms(at), ms(at + length), what),
            Act::Ask(node, at, backend, how) => {
                let (address, backend_node) = BACKENDS[backend];
                let destination = std::net::SocketAddr::new(ip(address), 53);
                match how {
                    How::Answered => scene.answered(node, ms(at), address, backend_node),
                    How::Dropped(reason, new) => {
                        let sent = scene.query(node, ms(at));
                        let sent = if new {
                            sent.towards(address)
                        } else {
                            sent.pinned_to(address)
                        };
                        scene.dropped(&sent, backend_node, reason, destination);
                        scene.sent(sent);
                    }
                    How::Delivered(replied) => {
                        let sent = scene.query(node, ms(at)).towards(address);
                        let replied = replied.map(|it| ms(at + it));
                        scene.delivered(&sent, address, backend_node, replied);
                        scene.sent(sent);
                    }
                    How::Rejected => {
                        let sent = scene.query(node, ms(at)).rejected();
                        scene.sent(sent);
                    }
                    How::Silent => {
                        let sent = scene.query(node, ms(at)).towards(address);
                        scene.sent(sent);
                    }
                }
            }
        }
    }
    scene
}

fn scene() -> impl Strategy<Value = Scene> {
    prop::collection::vec(act(), 0..25).prop_map(play)
}

/// Codes by client port and time: stable names of attempts across record sets.
fn codes(timeline: &Timeline) -> std::collections::BTreeMap<u16, (Code, Confidence)> {
    let all = failed(timeline).into_iter();
    all.map(|(attempt, it)| (attempt.source.port(), (it.code, it.confidence)))
        .collect()
}

/// Whether `less`, from fewer records, may be said where `more` was said from all of them.
///
/// Besides the honest ends, evidence that is taken away leaves the cause that was known beneath it: a late rule commit
/// that is not known leaves the terminating backend; the drop that names a cause or the reply that was slow leave what the
/// API says of the backend.
fn weaker(more: Code, less: (Code, Confidence)) -> bool {
    let (less, confidence) = less;
    if less == more
        || matches!(less, Code::Unexplained | Code::CaptureGap)
        || confidence == Confidence::Ambiguous
    {
        return true;
    }
    match more {
        Code::ProgrammingLag => matches!(less, Code::TerminatingBackend | Code::PolicyDrop),
        // The commit that showed that the rules had changed.
        Code::PolicyDrop => less == Code::ProgrammingLag || by_state(less),
        // A drop or reply that another node saw.
        Code::KernelDrop | Code::BackendSlow | Code::CaptureGap | Code::Unexplained => {
            by_state(less)
        }
        _ => false,
    }
}

/// Codes that rest on the API's state of the backend and on the absence of an answer.
fn by_state(code: Code) -> bool {
    matches!(
        code,
        Code::ProgrammingLag
            | Code::StaleConntrack
            | Code::TerminatingBackend
            | Code::BackendNotReady
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_and_repetition_change_nothing(
        (scene, shuffled) in scene().prop_flat_map(|scene| {
            let all = scene.all();
            (Just(scene), Just(all).prop_shuffle())
        }),
        repeated in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let mut records = shuffled;
        for index in repeated {
            let record = index.get(&records).clone();
            records.push(record);
        }
        prop_assert_eq!(timeline(records, &scene.options()), scene.timeline());
    }

    #[test]
    fn any_part_of_the_records_gives_a_timeline_whose_sums_agree(
        scene in scene(),
        kept in prop::collection::vec(any::<bool>(), 200),
    ) {
        let records: Vec<NodeRecord> = (scene.all().into_iter())
            .zip(kept.into_iter().cycle())
            .filter_map(|(record, kept)| kept.then_some(record))
            .collect();
        let timeline = timeline(records, &scene.options());
        for it in &timeline.summaries {
            prop_assert_eq!(it.queries, it.answered + it.failed);
            prop_assert_eq!(it.failed, it.late + it.refused + it.unanswered);
            prop_assert!(it.zero_ready_ns >= 0);
            let counted: u64 = it.verdicts.values().sum();
            let shown = queries(&timeline).into_iter()
                .filter(|query| query.service == it.service)
                .flat_map(|query| &query.attempts)
                .filter(|attempt| attempt.verdict.is_some())
                .count();
            prop_assert_eq!(counted, shown as u64);
        }
        let times: Vec<_> = timeline.lines.iter().map(|line| match line {
            Line::Transition(it) => it.at,
            Line::Programming(it) => it.at,
            Line::Query(it) => it.at,
            Line::Gap(it) => it.from,
            Line::Header(_) | Line::Summary(_) => unreachable!("not among the lines"),
        }).collect();
        prop_assert!(times.is_sorted());
    }

    #[test]
    fn every_failure_has_a_verdict_and_no_success_has_one(scene in scene()) {
        let timeline = scene.timeline();
        for query in queries(&timeline) {
            let failed = query.attempts.iter().all(|it| it.verdict.is_some());
            prop_assert_eq!(failed, query.outcome != Outcome::Answered);
        }
    }

    #[test]
    fn an_observed_cause_was_observed(scene in scene()) {
        let timeline = scene.timeline();
        for (attempt, verdict) in failed(&timeline) {
            if verdict.confidence != Confidence::Observed {
                continue;
            }
            let query_drop = attempt.drops.iter().any(|it| it.direction == Direction::Query);
            match verdict.code {
                Code::BackendSlow => {
                    let replied = scene.records.iter().any(|it| match &it.record {
                        Record::Flight(flight) => {
                            flight.client == attempt.source
                                && flight.delivery.as_ref().is_some_and(|it| it.replied.is_some())
                        }
                        _ => false,
                    });
                    prop_assert!(replied, "{:?}", attempt);
                }
                Code::Unexplained | Code::CaptureGap | Code::BackendSilent => {
                    prop_assert!(false, "{verdict:?}");
                }
                _ => prop_assert!(query_drop, "{attempt:?}"),
            }
            prop_assert!(verdict.alternatives.is_empty());
        }
    }

    #[test]
    fn fewer_records_never_give_a_stronger_verdict(
        scene in scene(),
        kept in prop::collection::vec(any::<bool>(), 200),
    ) {
        // What another node saw of a failed attempt, and rule commits. Answers stay: they exonerate.
        let mut kept = kept.into_iter().cycle();
        let records = scene.all().into_iter().filter(|it| {
            let removable = match &it.record {
                Record::Flight(flight) => flight.origin.is_none()
                    && flight.delivery.as_ref().is_none_or(|it| it.replied.is_none()),
                Record::Rules(_) => true,
                _ => false,
            };
            !removable || kept.next() == Some(true)
        });
        let less = codes(&timeline(records.collect(), &scene.options()));
        for (port, (more, confidence)) in codes(&scene.timeline()) {
            let Some(less) = less.get(&port) else { continue };
            prop_assert!(
                confidence == Confidence::Ambiguous || weaker(more, *less),
                "port {}: {:?} became {:?}", port, more, less
            );
        }
    }
}
