//! Timelines built by hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::*;

const MS: i64 = 1_000_000;

/// 2026-09-07T21:04:00Z plus milliseconds.
fn at(ms: i64) -> Timestamp {
    Timestamp(1_788_815_040_000 * MS + ms * MS)
}

pub(super) struct Timeline {
    pub(super) header: Header,
    pub(super) lines: Vec<Line>,
    pub(super) summaries: Vec<Summary>,
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const READY: Option<Conditions> = conditions(true, true, false);
const TERMINATING: Option<Conditions> = conditions(false, true, true);
const NOT_READY: Option<Conditions> = conditions(false, false, false);

const fn conditions(ready: bool, serving: bool, terminating: bool) -> Option<Conditions> {
    Some(Conditions {
        ready,
        serving,
        terminating,
    })
}

fn node(name: &str) -> NodeHeader {
    NodeHeader {
        name: name.into(),
        recorded: true,
        reason: None,
        kernel: Some("6.1.0-28-amd64".into()),
        boot_id: Some("5c1f".into()),
        dataplane: Some("kube-proxy-iptables".into()),
        clock_offset_ns: Some(-120_000),
        clock_error_ns: Some(90_000),
        last_record_at: Some(at(20_000)),
        hooks: BTreeMap::from([
            ("cgroup_egress".into(), 12_408),
            ("cgroup_ingress".into(), 12_400),
            ("net_dev_queue".into(), 98_120),
            ("netif_receive_skb".into(), 98_100),
            ("kfree_skb".into(), 0),
        ]),
        missing_hooks: BTreeMap::new(),
        lost_records: Lost::default(),
    }
}

fn header() -> Header {
    Header {
        schema: SCHEMA.into(),
        tool_version: "0.1.0".into(),
        from: at(0),
        to: at(20_000),
        reference_node: Some("master".into()),
        services: vec![ServiceHeader {
            service: "kube-system/kube-dns".into(),
            frontends: vec![address("10.43.0.10:53")],
            upstream: None,
        }],
        nodes: vec![node("master"), node("worker1"), node("worker2")],
    }
}

fn summary() -> Summary {
    Summary {
        service: "kube-system/kube-dns".into(),
        queries: 12_408,
        answered: 12_408,
        late: 0,
        refused: 0,
        unanswered: 0,
        failed: 0,
        recovered: 1,
        attempts: 12_411,
        retransmissions: 2,
        verdicts: BTreeMap::from([("programming-lag".into(), 1)]),
        events: 3,
        minimum_ready: Some(1),
        zero_ready_events: 0,
        zero_ready_ns: 0,
        zero_ready_windows: Vec::new(),
        lost_records: 0,
        missing_nodes: Vec::new(),
    }
}

fn transition(
    id: &str,
    ms: i64,
    (pod, ip, node): (&str, &str, &str),
    (before, after): (Option<Conditions>, Option<Conditions>),
    (ready_before, ready_after): (u32, u32),
) -> Line {
    Line::Transition(Transition {
        id: id.into(),
        at: at(ms),
        not_before: Some(at(ms - 40)),
        seen_by: BTreeMap::from([("worker2".into(), 3 * MS), ("master".into(), 0)]),
        service: "kube-system/kube-dns".into(),
        endpoint: Endpoint {
            address: ip.parse().unwrap(),
            node: Some(node.into()),
            pod: Some(pod.into()),
            uid: Some("8f1c".into()),
        },
        before,
        after,
        ready_before,
        ready_after,
        slice: "kube-dns-abcde".into(),
        resource_version: "8123".into(),
    })
}

fn programming(transition: &str, node: &str, from: i64, lag: i64) -> Line {
    Line::Programming(Programming {
        at: at(from + lag),
        node: node.into(),
        transition: transition.into(),
        lag_ns: lag * MS,
        convergence: Some(if lag > 1000 {
            Convergence::Late
        } else {
            Convergence::Normal
        }),
        basis: Basis::Rules,
    })
}

fn hop(ms: i64, node: &str, device: Option<&str>, point: Point, to: &str) -> TrailHop {
    TrailHop {
        at: at(ms),
        node: node.into(),
        netns: Some(4_026_532_201),
        device: device.map(str::to_owned),
        point,
        direction: Direction::Query,
        source: address("10.42.2.17:41822"),
        destination: address(to),
    }
}

const OLD: (&str, &str, &str) = ("coredns-x2k", "10.42.0.149", "master");
const NEW: (&str, &str, &str) = ("coredns-9fq", "10.42.2.42", "worker2");

fn attempt(n: u32, ms: i64, backend: &str) -> Attempt {
    Attempt {
        n,
        at: at(ms),
        source: address("10.42.2.17:41822"),
        txid: Some(4711),
        asked: Some(address("10.43.0.10:53")),
        translation: Some(Translation::Netfilter),
        backend: Some(address(backend)),
        flow: Some(Flow::New),
        backend_state: READY,
        ready_endpoints: Some(1),
        result: AttemptResult::Answered,
        rcode: Some("NOERROR".into()),
        latency_ns: Some(412_345),
        trail: Vec::new(),
        drops: Vec::new(),
        refusals: Vec::new(),
        verdict: None,
    }
}

fn verdict() -> Verdict {
    Verdict {
        code: Code::ProgrammingLag,
        confidence: Confidence::Observed,
        alternatives: Vec::new(),
        transition: Some("t2".into()),
        lag_ns: Some(840 * MS),
        convergence: Some(Convergence::Late),
        contributing: Vec::new(),
        facts: Facts {
            api: ApiFact::Gone,
            rules: RulesFact::BeforeChange,
            process: ProcessFact::Stopped,
        },
        text: "The packet went to 10.42.0.149, which had been gone for 840 ms: worker2's rules had not changed.".into(),
        remedy: Some("Find out why worker2 took 6.9 s (the others 41 ms); a lameduck of 5.9 s would have answered this one.".into()),
    }
}

fn query(id: &str, ms: i64, node: &str) -> Query {
    let mut lost = attempt(1, ms, "10.42.0.149:53");
    lost.backend_state = None;
    lost.result = AttemptResult::Dropped;
    (lost.rcode, lost.latency_ns) = (None, None);
    let to = ["10.43.0.10:53", "10.42.0.149:53"];
    lost.trail = vec![
        hop(ms, node, None, Point::SocketOut, to[0]),
        hop(ms, node, Some("eth0"), Point::Tx, to[0]),
        hop(ms, node, Some("veth1a2b"), Point::Rx, to[0]),
        hop(ms, node, Some("cni0"), Point::Rx, to[1]),
        hop(ms, node, Some("flannel.1"), Point::Tx, to[1]),
        hop(ms, node, Some("eth0"), Point::Tx, to[1]),
        hop(ms + 1, "master", Some("eth0"), Point::Rx, to[1]),
        hop(ms + 1, "master", Some("flannel.1"), Point::Rx, to[1]),
    ];
    lost.drops = vec![AttemptDrop {
        at: at(ms + 2),
        node: "master".into(),
        reason: Some("NEIGH_FAILED".into()),
        location: Some("neigh_invalidate".into()),
        direction: Direction::Query,
    }];
    lost.verdict = Some(verdict());
    Query {
        id: id.into(),
        at: at(ms),
        completed_at: at(ms + 5000),
        service: "kube-system/kube-dns".into(),
        node: node.into(),
        is_final: true,
        revision: 1,
        client: Client {
            address: "10.42.2.17".parse().unwrap(),
            namespace: Some("default".into()),
            pod: Some("probe-7xk".into()),
            container: Some("probe".into()),
            process: Some("nslookup".into()),
            pid: Some(812),
        },
        question: Some(Question {
            name: "kubernetes.default.svc.cluster.local.".into(),
            kind: "A".into(),
        }),
        outcome: Outcome::Answered,
        latency_ns: Some(5_000_412_345),
        attempts: vec![lost, attempt(2, ms + 5000, "10.42.1.195:53")],
    }
}

/// Test B of the incident that slicetrace was made for: two replicas, one deleted, one node's rules late.
pub(super) fn late_rules() -> Timeline {
    let lines = vec![
        transition("t1", 7002, OLD, (READY, TERMINATING), (2, 1)),
        programming("t1", "worker1", 7002, 38),
        programming("t1", "master", 7002, 41),
        transition("t2", 12_031, OLD, (TERMINATING, None), (1, 1)),
        Line::Query(Box::new(query("q41", 12_871, "worker2"))),
        programming("t1", "worker2", 7002, 6941),
        transition("t3", 14_220, NEW, (NOT_READY, READY), (1, 2)),
    ];
    Timeline {
        header: header(),
        lines,
        summaries: vec![summary()],
    }
}

/// One replica deleted gracefully: no ready endpoint for a while, and nothing lost.
pub(super) fn graceful() -> Timeline {
    let lines = vec![
        transition("t1", 7002, OLD, (READY, TERMINATING), (1, 0)),
        programming("t1", "worker2", 7002, 25),
        transition("t2", 8100, NEW, (None, NOT_READY), (0, 0)),
        transition("t3", 9015, NEW, (NOT_READY, READY), (0, 1)),
        transition("t4", 12_031, OLD, (TERMINATING, None), (1, 1)),
        Line::Gap(Gap {
            from: at(15_000),
            to: at(17_500),
            node: "worker1".into(),
            what: GapKind::WatchBroken,
            count: 0,
        }),
    ];
    let summary = Summary {
        recovered: 0,
        retransmissions: 0,
        verdicts: BTreeMap::new(),
        events: 4,
        minimum_ready: Some(0),
        zero_ready_events: 2,
        zero_ready_ns: 2013 * MS,
        zero_ready_windows: vec![ZeroReadyWindow {
            from: at(7002),
            to: Some(at(9015)),
            answered_by_terminating: 287,
            failed: 0,
        }],
        ..summary()
    };
    Timeline {
        header: header(),
        lines,
        summaries: vec![summary],
    }
}

/// How many failures of each of two causes [`incident`] has.
pub(super) const ALIKE: usize = 40;

/// Many failures of two causes.
pub(super) fn incident() -> Timeline {
    let mut timeline = late_rules();
    timeline
        .lines
        .retain(|line| !matches!(line, Line::Query(_)));
    for n in 0..ALIKE {
        let ms = 12_040 + 25 * n as i64;
        let node = if n % 4 == 0 { "worker1" } else { "worker2" };
        let mut late = query(&format!("q{n}"), ms, node);
        late.client.pod = Some(format!("probe-{}", n % 7));
        if n % 2 == 0 {
            late.outcome = Outcome::Unanswered;
            late.attempts.truncate(1);
        }
        timeline.lines.push(Line::Query(Box::new(late)));
        let mut refused = query(&format!("r{n}"), ms + 6000, "worker2");
        refused.outcome = Outcome::Refused;
        refused.client.namespace = None;
        refused.client.pod = None;
        refused.completed_at = refused.at;
        refused.attempts.truncate(1);
        let attempt = &mut refused.attempts[0];
        attempt.backend = None;
        attempt.ready_endpoints = Some(0);
        attempt.result = AttemptResult::Refused;
        attempt.trail.clear();
        attempt.drops.clear();
        attempt.refusals = vec![AttemptRefusal {
            at: at(ms + 6000),
            node: "worker2".into(),
            how: RefusalKind::Icmp,
            what: "port-unreachable".into(),
            from: Some("10.43.0.10".parse().unwrap()),
        }];
        attempt.verdict = Some(Verdict {
            code: Code::NoEndpoints,
            transition: None,
            convergence: None,
            facts: Facts {
                api: ApiFact::NoEndpoints,
                rules: RulesFact::Unknown,
                process: ProcessFact::Unknown,
            },
            text: "The Service had no usable endpoint, and worker2 rejected the packet.".into(),
            remedy: Some("A second replica would have answered this one.".into()),
            ..verdict()
        });
        timeline.lines.push(Line::Query(Box::new(refused)));
    }
    timeline.summaries = vec![Summary {
        failed: 60,
        refused: 40,
        unanswered: 20,
        answered: 12_348,
        recovered: 20,
        verdicts: BTreeMap::from([("no-endpoints".into(), 40), ("programming-lag".into(), 40)]),
        ..summary()
    }];
    timeline
}

/// One node not reached, one whose hooks saw nothing, one that lost records and lacks a hook.
pub(super) fn blind() -> Timeline {
    let mut timeline = late_rules();
    let nodes = &mut timeline.header.nodes;
    nodes[0].lost_records = Lost {
        overwritten: 12,
        missed: 1,
        ..Lost::default()
    };
    nodes[0].missing_hooks = BTreeMap::from([(
        "kfree_skb".into(),
        "the kernel has no such tracepoint (ENOENT)".into(),
    )]);
    nodes[1] = NodeHeader {
        recorded: false,
        reason: Some("agent http://10.0.0.2:9754: connection refused".into()),
        clock_offset_ns: None,
        clock_error_ns: None,
        hooks: BTreeMap::new(),
        ..node("worker1")
    };
    nodes[2].hooks.values_mut().for_each(|seen| *seen = 0);
    nodes[2].clock_error_ns = None;
    timeline
        .lines
        .retain(|line| !matches!(line, Line::Query(_)));
    timeline.lines.push(Line::Gap(Gap {
        from: at(3000),
        to: at(3000),
        node: "master".into(),
        what: GapKind::RecordsLost,
        count: 13,
    }));
    timeline.lines.push(Line::Gap(Gap {
        from: at(0),
        to: at(20_000),
        node: "worker1".into(),
        what: GapKind::NodeMissing,
        count: 0,
    }));
    timeline.summaries[0].recovered = 0;
    timeline.summaries[0].verdicts.clear();
    timeline.summaries[0].lost_records = 13;
    timeline.summaries[0].missing_nodes = vec!["worker1".into()];
    timeline
}

/// No node has records.
pub(super) fn nothing() -> Timeline {
    let mut header = header();
    header.reference_node = None;
    header.nodes = vec![NodeHeader {
        recorded: false,
        reason: Some("agent http://10.0.0.2:9754: connection refused".into()),
        hooks: BTreeMap::new(),
        last_record_at: None,
        ..node("worker1")
    }];
    Timeline {
        header,
        lines: Vec::new(),
        summaries: Vec::new(),
    }
}

/// Names that a terminal could obey, and names without end.
pub(super) fn hostile() -> Timeline {
    let mut timeline = late_rules();
    for line in &mut timeline.lines {
        if let Line::Query(query) = line {
            query.client.process = Some("\u{1b}]0;owned\u{7}\u{1b}[2Jsh".into());
            query.question = Some(Question {
                name: format!("{}.\u{202e}moc.elpmaxe.", "a-very-long-label".repeat(30)),
                kind: "A\r\n0 failed".into(),
            });
        }
        if let Line::Transition(transition) = line {
            transition.endpoint.pod = Some(format!("coredns-{}", "x".repeat(90)));
            transition.endpoint.node = Some("node\nwith\u{0}nul".into());
        }
    }
    timeline.header.nodes[0].reason = Some("\u{9b}31m".into());
    timeline.header.nodes[0].recorded = false;
    timeline
}
