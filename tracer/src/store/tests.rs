#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::model::Timestamp;
use crate::model::event::{Conntrack, Direction, Point, Question};
use crate::model::flight::{
    Answer, ConntrackTimeouts, Delivery, Drop, Flight, Hop, Origin, Owner, PodName, Refusal,
};
use crate::model::record::*;

const SECOND: i64 = 1_000_000_000;
/// 2026-09-07T21:04:07Z.
const NOON: i64 = 1_788_815_047 * SECOND;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn on(node: &str, record: Record) -> NodeRecord {
    NodeRecord {
        node: node.to_owned(),
        record,
    }
}

fn node_info(started: i64, last: i64) -> Record {
    Record::Node(NodeInfo {
        started: Timestamp(started),
        last_record_at: Timestamp(last),
        kernel: "6.18.0".into(),
        boot_id: "b".into(),
        tool_version: "0.1.0".into(),
        dataplane: Some("kube-proxy-iptables".into()),
        hooks: BTreeMap::from([("cgroup_egress".into(), u64::MAX), ("kfree_skb".into(), 1)]),
        missing_hooks: BTreeMap::from([("sock_release".into(), "EPERM".into())]),
        lost: Lost {
            overwritten: 1,
            missed: 2,
            reserve: 3,
            unreadable: 4,
        },
        hears_rules: true,
        records_all: false,
    })
}

fn slice(at: i64, name: &str, version: &str) -> Record {
    Record::Slice(SliceSeen {
        at: Timestamp(at),
        service: "kube-system/kube-dns".into(),
        slice: name.into(),
        resource_version: version.into(),
        deleted: false,
        listed: true,
        trigger: Some(Timestamp(at - SECOND)),
        endpoints: vec![EndpointSeen {
            address: "10.42.0.149".parse().unwrap(),
            ports: vec![53, 5353],
            conditions: Conditions {
                ready: true,
                serving: true,
                terminating: false,
            },
            node: Some("master".into()),
            pod: None,
            uid: Some("u".into()),
        }],
    })
}

fn flight(at: i64) -> Flight {
    let (client, service) = (address("10.42.2.17:41822"), address("10.43.0.10:53"));
    let backend = address("10.42.0.149:53");
    Flight {
        client,
        txid: Some(4711),
        at: Timestamp(at),
        origin: Some(Origin {
            sent: Timestamp(at),
            cookie: u64::MAX,
            owner: Owner {
                pod: Some(PodName {
                    namespace: "default".into(),
                    name: "probe-7xk".into(),
                }),
                container: None,
                process: Some("nslookup\u{1b}[31m".into()),
                pid: Some(812),
            },
            asked: Some(service),
            destination: Some(service),
            previous: None,
            recorded_since: Timestamp(at - 9),
            timeouts: ConntrackTimeouts::default(),
            answer: Some(Answer {
                at: Timestamp(at + 412_345),
                rcode: 2,
                truncated: true,
                source: service,
            }),
            closed: Some(Timestamp(at + 1)),
            completed: Timestamp(at + 2),
        }),
        delivery: Some(Delivery {
            at: Timestamp(at + 3),
            backend,
            owner: Owner::default(),
            replied: None,
            netns: 7,
        }),
        question: Some(Question {
            name: "a\\000b.example.".into(),
            kind: "TYPE65".into(),
        }),
        trail: vec![Hop {
            at: Timestamp(at),
            netns: 4_026_532_201,
            device: Some("eth0".into()),
            point: Point::Tx,
            direction: Direction::Query,
            source: client,
            destination: backend,
            encapsulated: true,
            conntrack: Conntrack(0x98),
        }],
        drops: vec![Drop {
            at: Timestamp(at),
            reason: Some("NEIGH_FAILED".into()),
            location: None,
            direction: Direction::Query,
            netns: 0,
            device: None,
            source: client,
            destination: backend,
            conntrack: Conntrack::NONE,
        }],
        refusals: vec![
            Refusal::Icmp {
                at: Timestamp(at),
                reporter: "2001:db8::1".parse().unwrap(),
                icmp_type: 3,
                icmp_code: 3,
                netns: 1,
                quoted_destination: backend,
            },
            Refusal::Socket {
                at: Timestamp(at),
                errno: 111,
                at_send: true,
            },
        ],
        trail_lost: true,
    }
}

fn traffic(second: i64) -> Record {
    Record::Traffic(Traffic {
        second: Timestamp(second),
        service: None,
        side: Side::Server,
        client: Some(PodName {
            namespace: "default".into(),
            name: "probe".into(),
        }),
        backend: Some(address("[2001:db8::2]:53")),
        count: u64::MAX,
        first_answer: Timestamp(second + 1),
        last_answer: Timestamp(second + 2),
        latency_us: BTreeMap::from([(512, 3), (1024, 1)]),
    })
}

fn one_of_each(at: i64) -> Vec<NodeRecord> {
    let records = [
        node_info(at, at + SECOND),
        Record::Service(ServiceSeen {
            at: Timestamp(at),
            service: "kube-system/kube-dns".into(),
            frontends: vec![address("10.43.0.10:53"), address("[2001:db8::a]:53")],
            resource_version: "77".into(),
        }),
        slice(at, "kube-dns-abcde", "8123"),
        Record::NodeState(NodeSeen {
            at: Timestamp(at),
            name: "worker2".into(),
            ready: None,
        }),
        Record::Rules(RuleCommit {
            at: Timestamp(at),
            committer: "iptables-restor".into(),
            changes: vec![RuleChange {
                address: "10.42.0.149".parse().unwrap(),
                added: 1,
                removed: 2,
            }],
        }),
        Record::Flight(Box::new(flight(at))),
        traffic(at),
        Record::Gap(GapSeen {
            from: Timestamp(at),
            to: Timestamp(at + 5),
            what: GapKind::WatchBroken,
            count: 12,
        }),
    ];
    records.map(|record| on("worker2", record)).into()
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.db");
    (folder, path)
}

#[test]
fn every_kind_comes_back_as_it_was() {
    let (_folder, path) = file();
    let records = one_of_each(NOON);
    Store::open(&path).unwrap().write(&records).unwrap();
    let store = Store::read_only(&path).unwrap();
    let reading = store
        .read(Timestamp(NOON), Timestamp(NOON + SECOND))
        .unwrap();
    assert_eq!(reading.records, records);
    assert_eq!(reading.corrupt, 0);
    assert_eq!(
        store.span().unwrap(),
        Some(Span {
            from: Timestamp(NOON),
            to: Timestamp(NOON + SECOND)
        })
    );
}

#[test]
fn every_kind_survives_json_lines() {
    for record in one_of_each(NOON) {
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(
            serde_json::from_str::<NodeRecord>(&line).unwrap(),
            record,
            "{line}"
        );
    }
}

#[test]
fn the_state_before_the_time_belongs_to_it() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    let long_ago = NOON - 2 * BEFORE;
    let records = [
        on("a", slice(long_ago - 2, "s", "1")),
        on("a", slice(long_ago, "s", "2")),
        on("a", slice(long_ago - 1, "other", "3")),
        on("b", slice(long_ago - 3, "s", "4")),
        on("a", slice(NOON, "s", "5")),
        on("a", slice(NOON + AFTER + 2, "s", "6")),
        on("a", Record::Flight(Box::new(flight(long_ago)))),
        on("a", Record::Flight(Box::new(flight(NOON - BEFORE / 2)))),
    ];
    store.write(&records).unwrap();
    let reading = store.read(Timestamp(NOON), Timestamp(NOON + 1)).unwrap();
    let versions: Vec<_> = reading
        .records
        .iter()
        .filter_map(|record| match &record.record {
            Record::Slice(slice) => Some(slice.resource_version.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(versions, ["4", "3", "2", "5"]);
    let flights = reading
        .records
        .iter()
        .filter(|record| matches!(record.record, Record::Flight(_)));
    assert_eq!(flights.count(), 1);
}

#[test]
fn a_nodes_facts_are_replaced_by_run() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    store
        .write(&[
            on("a", node_info(NOON, NOON + 1)),
            on("a", node_info(NOON, NOON + 2)),
            on("a", node_info(NOON + SECOND, NOON + SECOND)),
        ])
        .unwrap();
    let reading = store
        .read(Timestamp(NOON), Timestamp(NOON + SECOND))
        .unwrap();
    let expected = [
        on("a", node_info(NOON, NOON + 2)),
        on("a", node_info(NOON + SECOND, NOON + SECOND)),
    ];
    assert_eq!(reading.records, expected);
}

#[test]
fn a_corrupt_row_costs_only_itself() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    store.write(&one_of_each(NOON)).unwrap();
    store.write(&one_of_each(NOON + 1)).unwrap();
    store
        .connection
        .execute_batch(
            "UPDATE flights SET detail = '{' WHERE rowid = 1;
             UPDATE gaps SET what = 'nonsense' WHERE rowid = 2;
             UPDATE traffic SET backend = x'00ff' WHERE rowid = 1;",
        )
        .unwrap();
    let reading = store
        .read(Timestamp(NOON), Timestamp(NOON + SECOND))
        .unwrap();
    assert_eq!(reading.corrupt, 3);
    assert_eq!(reading.records.len(), 13);
}

#[test]
fn files_that_are_not_ours_are_left_as_they_are() {
    let (folder, path) = file();
    std::fs::write(
        &path,
        "this is no database, but it is long enough to look at",
    )
    .unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(
        Store::open(&path),
        Err(Error::NotADatabase { .. })
    ));
    assert!(matches!(
        Store::read_only(&path),
        Err(Error::NotADatabase { .. })
    ));
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let other = folder.path().join("other.db");
    let connection = Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE t (x);").unwrap();
    drop(connection);
    let before = std::fs::read(&other).unwrap();
    assert!(matches!(
        Store::open(&other),
        Err(Error::Foreign { id: 0, .. })
    ));
    assert_eq!(std::fs::read(&other).unwrap(), before);
    assert!(!with_suffix(&other, "-wal").exists());
}

#[test]
fn a_newer_store_is_refused_and_unchanged() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    store.write(&one_of_each(NOON)).unwrap();
    store
        .connection
        .pragma_update(None, "user_version", VERSION + 1)
        .unwrap();
    store.finish().unwrap();
    let before = std::fs::read(&path).unwrap();
    for error in [
        Store::open(&path).unwrap_err(),
        Store::read_only(&path).unwrap_err(),
    ] {
        assert!(error.to_string().contains("newer slicetrace"), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn missing_empty_and_folder_are_told_apart() {
    let (folder, path) = file();
    assert!(matches!(
        Store::read_only(&path),
        Err(Error::Missing { .. })
    ));
    assert!(matches!(
        Store::read_only(folder.path()),
        Err(Error::Unopenable { .. })
    ));
    std::fs::write(&path, "").unwrap();
    assert!(matches!(Store::read_only(&path), Err(Error::Empty { .. })));
    assert!(Store::open(&path).is_ok());
}

#[test]
fn a_finished_recording_is_one_file_that_reads_without_write_permission() {
    let (folder, path) = file();
    let records = one_of_each(NOON);
    let mut store = Store::open(&path).unwrap();
    store.write(&records).unwrap();
    store.finish().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // As an agent that was killed after its log was written back leaves it: WAL mode in the header, no log beside it.
    let copy = folder.path().join("100% #copy?.db");
    let store = Store::open(&path).unwrap();
    drop(store);
    std::fs::copy(&path, &copy).unwrap();
    let uri = Connection::open_with_flags(
        immutable_uri(&copy),
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI,
    )
    .unwrap();
    let store = Store {
        connection: uri,
        path: copy,
    };
    let reading = store
        .read(Timestamp(NOON), Timestamp(NOON + SECOND))
        .unwrap();
    assert_eq!(reading.records, records);
}

#[test]
fn what_was_committed_survives_a_copy_taken_in_mid_flight() {
    let (folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    let records = one_of_each(NOON);
    store.write(&records).unwrap();
    // A transaction that never ends, as when the process is killed.
    let unfinished = store.connection.unchecked_transaction().unwrap();
    unfinished.execute("DELETE FROM flights", []).unwrap();
    let crashed = folder.path().join("crashed.db");
    for suffix in ["", "-wal"] {
        std::fs::copy(with_suffix(&path, suffix), with_suffix(&crashed, suffix)).unwrap();
    }
    let reading = Store::open(&crashed)
        .unwrap()
        .read(Timestamp(NOON), Timestamp(NOON + SECOND))
        .unwrap();
    assert_eq!(reading.records, records);
}

#[test]
fn a_reader_sees_what_a_running_agent_has_written() {
    let (_folder, path) = file();
    let mut agent = Store::open(&path).unwrap();
    let reader = Store::read_only(&path).unwrap();
    for round in 1..4 {
        agent
            .write(&[on("n", Record::Flight(Box::new(flight(NOON + round))))])
            .unwrap();
        let reading = reader.read(Timestamp(NOON), Timestamp(NOON)).unwrap();
        assert_eq!(reading.records.len() as i64, round);
        let bounds = Retention {
            not_before: Timestamp(0),
            keep_bytes: u64::MAX,
        };
        agent.retain(bounds).unwrap();
    }
    let refused = Store::read_only(&path).unwrap().write(&one_of_each(NOON));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("may not be written")
    );
}

#[test]
fn age_keeps_the_latest_state_and_says_what_is_gone() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    store.write(&one_of_each(NOON)).unwrap();
    store
        .write(&[on("worker2", slice(NOON + 1, "kube-dns-abcde", "8124"))])
        .unwrap();
    let retained = store
        .retain(Retention {
            not_before: Timestamp(NOON + 2 * SECOND),
            keep_bytes: u64::MAX,
        })
        .unwrap();
    assert_eq!(retained.aged, 5, "flight, traffic, rules, gap, older slice");
    let reading = store
        .read(Timestamp(NOON), Timestamp(NOON + 3 * SECOND))
        .unwrap();
    assert!(
        reading
            .records
            .contains(&on("worker2", slice(NOON + 1, "kube-dns-abcde", "8124")))
    );
    assert!(reading.records.contains(&on(
        "worker2",
        Record::Gap(GapSeen {
            from: Timestamp(NOON),
            to: Timestamp(NOON),
            what: GapKind::RecordsLost,
            count: 2
        })
    )));
    assert_eq!(
        reading.records.len(),
        5,
        "facts, service, slice, node state, gap"
    );
}

#[test]
fn the_file_stays_within_its_bounds_and_keeps_the_newest() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    store.write(&[on("n", slice(NOON, "s", "1"))]).unwrap();
    let bound = 6 << 20;
    for round in 0..12 {
        let batch: Vec<_> = (0..1000)
            .map(|n| {
                let at = NOON + (round * 1000 + n) * 1_000_000;
                on("n", Record::Flight(Box::new(flight(at))))
            })
            .collect();
        store.write(&batch).unwrap();
        store
            .retain(Retention {
                not_before: Timestamp(0),
                keep_bytes: bound,
            })
            .unwrap();
        let size: u64 = ["", "-wal"]
            .iter()
            .filter_map(|suffix| std::fs::metadata(with_suffix(&path, suffix)).ok())
            .map(|data| data.len())
            .sum();
        assert!(size <= bound, "{size} bytes in round {round}");
    }
    let last = NOON + 11_999 * 1_000_000;
    let reading = store.read(Timestamp(NOON), Timestamp(last)).unwrap();
    let kinds = |wanted: fn(&Record) -> bool| {
        reading
            .records
            .iter()
            .filter(|record| wanted(&record.record))
            .count()
    };
    assert_eq!(kinds(|record| matches!(record, Record::Slice(_))), 1);
    assert!(
        reading
            .records
            .contains(&on("n", Record::Flight(Box::new(flight(last)))))
    );
    let kept = kinds(|record| matches!(record, Record::Flight(_)));
    assert!(kept > 500, "{kept}");
    let lost: u64 = reading
        .records
        .iter()
        .filter_map(|record| match &record.record {
            Record::Gap(gap) => Some(gap.count),
            _ => None,
        })
        .sum();
    assert_eq!(kept as u64 + lost, 12_000);
}

#[test]
fn a_recording_says_what_it_holds_and_what_not() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    assert_eq!(store.recording().unwrap(), None);
    assert_eq!(store.span().unwrap(), None);
    let recording = Recording {
        from: Timestamp(NOON),
        to: Timestamp(NOON + SECOND),
        made: Timestamp(NOON + 2 * SECOND),
        tool_version: "0.1.0".into(),
        missing: BTreeMap::from([("worker1".into(), "connection refused".into())]),
    };
    store.describe(&recording).unwrap();
    store.write(&one_of_each(NOON - SECOND)).unwrap();
    assert_eq!(store.recording().unwrap(), Some(recording));
    let span = store.span().unwrap().unwrap();
    assert_eq!(
        (span.from, span.to),
        (Timestamp(NOON), Timestamp(NOON + SECOND))
    );
}

#[test]
fn known_addresses_keep_the_latest_sighting() {
    let (_folder, path) = file();
    let mut store = Store::open(&path).unwrap();
    let known = |at| KnownAddress {
        service: "kube-system/kube-dns".into(),
        address: address("10.43.0.10:53"),
        role: AddressRole::Frontend,
        last_seen: Timestamp(at),
    };
    let mut gone = known(9 - 86_400_000_000_001);
    gone.address.set_port(54);
    store
        .remember(&[known(5), known(9), known(7), gone])
        .unwrap();
    assert_eq!(store.known_addresses().unwrap(), [known(9)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_text_breaks_a_round_trip(name in ".*", process in ".*", count in any::<u64>(), at in -SECOND..SECOND) {
        let (_folder, path) = file();
        let mut changed = flight(NOON + at);
        changed.question = Some(Question { name: name.clone(), kind: process.clone() });
        if let Some(origin) = &mut changed.origin {
            origin.owner.process = Some(process);
            origin.cookie = count;
        }
        let records = vec![
            on(&name, Record::Flight(Box::new(changed))),
            on(&name, Record::Gap(GapSeen { from: Timestamp(NOON), to: Timestamp(NOON), what: GapKind::AgentDown, count })),
        ];
        let mut store = Store::open(&path).unwrap();
        store.write(&records).unwrap();
        prop_assert_eq!(store.read(Timestamp(NOON - SECOND), Timestamp(NOON + SECOND)).unwrap().records, records);
    }

    #[test]
    fn arbitrary_bytes_are_refused_not_fatal(mut bytes in proptest::collection::vec(any::<u8>(), 1..4096), ours in any::<bool>()) {
        let (_folder, path) = file();
        if ours && bytes.len() > 16 {
            bytes[..16].copy_from_slice(b"SQLite format 3\0");
        }
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(Store::read_only(&path).is_err());
        prop_assert!(Store::open(&path).is_err());
        prop_assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn only_one_agent_writes_to_a_store_and_readers_are_not_hindered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.db");
    let lock = Lock::take(&path).unwrap();
    let mut store = Store::open(&path).unwrap();
    store.write(&[]).unwrap();
    let error = Lock::take(&path).unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
    assert!(Store::read_only(&path).is_ok());
    store.finish().unwrap();
    drop(lock);
    assert!(Lock::take(&path).is_ok());
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for error in [
        Store::read_only(&path).unwrap_err(),
        Store::open(&path).unwrap_err(),
    ] {
        assert!(error.to_string().contains("regular"), "{error}");
    }
}

#[test]
fn slices_that_were_there_at_the_end_are_known_and_deleted_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path().join("node.db")).unwrap();
    let deleted = |at, name| match slice(at, name, "9") {
        Record::Slice(mut seen) => {
            seen.deleted = true;
            Record::Slice(seen)
        }
        other => other,
    };
    let of = |node: &str, record| NodeRecord {
        node: node.to_owned(),
        record,
    };
    let records = [
        of("a", slice(1, "kube-dns-a", "1")),
        of("a", slice(1, "kube-dns-b", "2")),
        of("a", deleted(2, "kube-dns-b")),
        of("a", deleted(1, "kube-dns-c")),
        of("a", slice(2, "kube-dns-c", "3")),
        of("b", slice(1, "kube-dns-d", "4")),
    ];
    store.write(&records).unwrap();
    let known = store.known_slices("a").unwrap();
    let slices: Vec<_> = known.values().flatten().cloned().collect();
    assert_eq!(slices, ["kube-dns-a", "kube-dns-c"]);
    assert!(store.known_slices("c").unwrap().is_empty());
}
