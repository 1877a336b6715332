#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use super::*;
use crate::model::event::{Conntrack, Packet, SocketPacket};
use crate::model::flight::{Origin, Refusal};
use crate::model::record::{GapKind, Side};

const MS: i64 = MILLISECOND;

struct Nobody;

impl Owners for Nobody {
    fn owner(&self, _: u64, pid: u32, comm: &str, _: IpAddr) -> Owner {
        Owner {
            process: Some(comm.to_owned()),
            pid: Some(pid),
            ..Owner::default()
        }
    }
}

fn at(milliseconds: i64) -> Timestamp {
    Timestamp(1_000 * SECOND + milliseconds * MS)
}

fn client() -> SocketAddr {
    "10.42.1.17:40000".parse().unwrap()
}

fn frontend() -> SocketAddr {
    "10.43.0.10:53".parse().unwrap()
}

fn backend() -> SocketAddr {
    "10.42.2.5:53".parse().unwrap()
}

fn packet(ms: i64, point: Point, direction: Direction, server: SocketAddr) -> Packet {
    let (source, destination) = match direction {
        Direction::Query => (client(), server),
        Direction::Reply => (server, client()),
    };
    Packet {
        at: at(ms),
        point,
        direction,
        source,
        destination,
        txid: Some(7),
        dns_flags: Some(0x0100),
        netns: 1,
        device: None,
        encapsulated: false,
        conntrack: Conntrack::NONE,
    }
}

fn socket(packet: Packet, cookie: u64) -> Event {
    Event::Socket(SocketPacket {
        packet,
        cookie,
        cgroup: 1,
        pid: 12,
        comm: "dig".to_owned(),
        asked: Some(frontend()),
        question: Some(Question {
            name: "example.".to_owned(),
            kind: "A".to_owned(),
        }),
    })
}

fn query(ms: i64) -> Event {
    socket(
        packet(ms, Point::SocketOut, Direction::Query, frontend()),
        1,
    )
}

fn answer(ms: i64) -> Event {
    socket(packet(ms, Point::SocketIn, Direction::Reply, frontend()), 1)
}

fn delivery(ms: i64) -> Event {
    socket(packet(ms, Point::SocketIn, Direction::Query, backend()), 2)
}

fn reply(ms: i64) -> Event {
    socket(packet(ms, Point::SocketOut, Direction::Reply, backend()), 2)
}

fn released(ms: i64) -> Event {
    Event::Released {
        at: at(ms),
        cookie: 1,
    }
}

fn dropped(ms: i64, direction: Direction, reason: &str) -> Event {
    Event::Drop {
        packet: packet(ms, Point::Rx, direction, backend()),
        reason: Some(reason.to_owned()),
        location: Some("somewhere".to_owned()),
    }
}

fn icmp(ms: i64, quoted: SocketAddr) -> Event {
    Event::Refusal {
        packet: packet(ms, Point::Rx, Direction::Query, quoted),
        reporter: quoted.ip(),
        icmp_type: 3,
        icmp_code: 3,
    }
}

fn limits(record_all: bool) -> Limits {
    Limits {
        record_all,
        ..Limits::default()
    }
}

fn assembler(record_all: bool) -> Assembler {
    Assembler::new(
        at(-600_000),
        ConntrackTimeouts::default(),
        limits(record_all),
    )
}

fn feed(assembler: &mut Assembler, events: impl IntoIterator<Item = Event>) {
    for event in events {
        assembler.feed(event, &Nobody);
    }
}

/// Runs the agent's loop in steps of 50 ms; the hop log is `hops`.
fn run(assembler: &mut Assembler, from: i64, to: i64, hops: &[Packet]) -> Vec<Flight> {
    let mut flights = Vec::new();
    for step in (from..=to).step_by(50) {
        flights.extend(assembler.advance(at(step)));
        let (keys, since) = assembler.wanted();
        let found = hops.iter().filter(|it| {
            it.at >= since
                && it.at <= at(step)
                && it
                    .txid
                    .is_some_and(|txid| keys.contains(&(it.client(), txid)))
        });
        assembler.hops(found.cloned().collect(), false);
    }
    flights
}

#[test]
fn a_healthy_query_becomes_a_row_or_a_flight_but_not_both() {
    for record_all in [false, true] {
        let mut assembler = assembler(record_all);
        feed(&mut assembler, [answer(3), query(0), released(4)]);
        let flights = run(&mut assembler, 0, 1_000, &[]);
        let rows = assembler.traffic(at(10_000));
        assert_eq!(flights.len(), usize::from(record_all));
        assert_eq!(rows.len(), usize::from(!record_all));
        if let [flight] = &flights[..] {
            let origin = flight.origin.as_ref().unwrap();
            assert_eq!(origin.answer.unwrap().at, at(3));
            assert_eq!(origin.completed, at(3));
            assert_eq!(origin.closed, None);
            assert_eq!(origin.owner.process.as_deref(), Some("dig"));
        }
        if let [row] = &rows[..] {
            assert_eq!((row.side, row.count), (Side::Client, 1));
            assert_eq!(row.latency_us, [(4_096, 1)].into());
        }
    }
}

#[test]
fn both_ends_on_one_node_make_one_flight() {
    let mut assembler = assembler(true);
    feed(&mut assembler, [query(0), delivery(1), reply(2), answer(3)]);
    let flights = run(&mut assembler, 0, 1_000, &[]);
    let [flight] = &flights[..] else {
        panic!("{flights:?}")
    };
    let delivery = flight.delivery.as_ref().unwrap();
    assert_eq!(
        (delivery.backend, delivery.replied),
        (backend(), Some(at(2)))
    );
}

#[test]
fn a_servers_node_has_a_flight_without_the_client() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [delivery(1), reply(2)]);
    assert!(run(&mut assembler, 0, 1_000, &[]).is_empty());
    let rows = assembler.traffic(at(10_000));
    assert_eq!(
        (rows[0].side, rows[0].backend),
        (Side::Server, Some(backend()))
    );
}

#[test]
fn closing_the_socket_ends_an_unanswered_query_and_its_trail_is_kept() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0), released(700)]);
    let hops = [
        packet(1, Point::Tx, Direction::Query, frontend()),
        packet(2, Point::Rx, Direction::Query, backend()),
        // Before it was sent: another query's.
        packet(-1, Point::Rx, Direction::Query, frontend()),
    ];
    let flights = run(&mut assembler, 0, 2_000, &hops);
    let [flight] = &flights[..] else {
        panic!("{flights:?}")
    };
    let origin = flight.origin.as_ref().unwrap();
    assert_eq!((origin.closed, origin.completed), (Some(at(700)), at(700)));
    let points: Vec<Point> = flight.trail.iter().map(|it| it.point).collect();
    assert_eq!(points, [Point::SocketOut, Point::Tx, Point::Rx]);
    assert!(!flight.trail_lost);
}

#[test]
fn a_trail_that_is_copied_twice_by_two_offsets_of_the_clock_is_one() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0), released(1_500)]);
    let tx = packet(1, Point::Tx, Direction::Query, frontend());
    // Overdue after a second: first copy. The second one, when it is handed out, sees a later hop too.
    assert!(run(&mut assembler, 0, 1_300, std::slice::from_ref(&tx)).is_empty());
    let shifted = Packet {
        at: tx.at + 10,
        ..tx.clone()
    };
    let late = packet(1_400, Point::Rx, Direction::Query, frontend());
    let flights = run(&mut assembler, 1_350, 3_000, &[shifted, late.clone()]);
    let times: Vec<Timestamp> = flights[0].trail.iter().map(|it| it.at).collect();
    assert_eq!(times, [at(0), tx.at, late.at]);
}

#[test]
fn a_trail_that_never_comes_is_said_to_be_lost() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0), released(700)]);
    assert!(assembler.advance(at(1_100)).is_empty());
    let flights = assembler.advance(at(5_000));
    assert!(flights[0].trail_lost);

    let mut assembler = self::assembler(false);
    feed(&mut assembler, [query(0), released(700)]);
    assembler.advance(at(1_100));
    let (keys, since) = assembler.wanted();
    assert!(keys.contains(&(client(), 7)) && since <= at(0));
    assembler.hops(Vec::new(), true);
    assert!(assembler.advance(at(1_150))[0].trail_lost);
}

#[test]
fn a_retransmission_is_a_flight_of_its_own_and_remembers_the_first() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0), query(2_500), answer(2_503)]);
    let flights = run(&mut assembler, 0, 4_000, &[]);
    assert_eq!(flights.len(), 2);
    let origins: Vec<&Origin> = flights
        .iter()
        .map(|it| it.origin.as_ref().unwrap())
        .collect();
    assert_eq!(origins[0].answer, None);
    assert_eq!(origins[0].completed, at(2_503));
    assert_eq!(origins[1].previous, Some(at(0)));
    assert!(origins[1].answer.is_some());
    // Kept in full: no row counts them again.
    assert!(assembler.traffic(at(10_000)).is_empty());
}

#[test]
fn a_retry_on_a_new_port_after_a_refusal_is_kept_in_full() {
    let mut assembler = assembler(false);
    let again = |point, direction| {
        let mut again = packet(12, point, direction, frontend());
        match direction {
            Direction::Query => again.source.set_port(40_001),
            Direction::Reply => again.destination.set_port(40_001),
        }
        socket(again, 9)
    };
    feed(
        &mut assembler,
        [
            query(0),
            icmp(1, backend()),
            Event::SocketError {
                at: at(2),
                cookie: Some(1),
                local: client(),
                remote: frontend(),
                errno: 111,
                at_send: false,
            },
            again(Point::SocketOut, Direction::Query),
            again(Point::SocketIn, Direction::Reply),
        ],
    );
    let mut flights = run(&mut assembler, 0, 2_000, &[]);
    flights.sort_by_key(|it| it.at);
    assert_eq!(flights.len(), 2);
    assert_eq!(flights[0].refusals.len(), 2);
    assert_eq!(flights[0].origin.as_ref().unwrap().completed, at(2));
}

#[test]
fn one_icmp_entry_keeps_the_first_quote_and_the_last_sight() {
    let mut assembler = assembler(false);
    feed(
        &mut assembler,
        [
            query(0),
            icmp(1, backend()),
            icmp(2, frontend()),
            released(900),
        ],
    );
    let flights = run(&mut assembler, 0, 2_000, &[]);
    let [
        Refusal::Icmp {
            at: seen,
            quoted_destination,
            ..
        },
    ] = &flights[0].refusals[..]
    else {
        panic!("{flights:?}")
    };
    assert_eq!((*seen, *quoted_destination), (at(2), backend()));
}

#[test]
fn a_refused_send_is_a_flight_without_a_packet() {
    let mut assembler = assembler(false);
    feed(
        &mut assembler,
        [Event::SocketError {
            at: at(0),
            cookie: Some(1),
            local: client(),
            remote: frontend(),
            errno: 1,
            at_send: true,
        }],
    );
    let flights = run(&mut assembler, 0, 1_000, &[]);
    let origin = flights[0].origin.as_ref().unwrap();
    assert_eq!((origin.asked, origin.destination), (Some(frontend()), None));
    assert_eq!(flights[0].txid, None);
    assert!(!flights[0].trail_lost);
}

#[test]
fn drops_reach_the_flight_whichever_log_is_read_first() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut assembler = assembler(false);
        let events = [
            query(0),
            dropped(1, Direction::Query, "NO_SOCKET"),
            released(900),
        ];
        feed(&mut assembler, order.map(|it| events[it].clone()));
        let flights = run(&mut assembler, 900, 2_500, &[]);
        assert_eq!(flights.len(), 1, "{flights:?}");
        assert_eq!(flights[0].drops.len(), 1);
    }
}

#[test]
fn two_packets_that_wait_for_one_neighbour_each_get_a_drop() {
    let mut assembler = assembler(false);
    feed(
        &mut assembler,
        [
            query(0),
            query(2_500),
            dropped(3_000, Direction::Query, "NEIGH_FAILED"),
            dropped(3_000, Direction::Query, "NEIGH_FAILED"),
            released(5_000),
        ],
    );
    let flights = run(&mut assembler, 0, 6_000, &[]);
    let drops: Vec<usize> = flights.iter().map(|it| it.drops.len()).collect();
    assert_eq!(drops, [1, 1]);
}

#[test]
fn flooded_copies_leave_a_healthy_query_healthy() {
    let mut assembler = assembler(false);
    feed(
        &mut assembler,
        [
            query(0),
            dropped(1, Direction::Query, "OTHERHOST"),
            delivery(2),
            reply(3),
            answer(4),
        ],
    );
    assert!(run(&mut assembler, 0, 1_000, &[]).is_empty());
    assert_eq!(assembler.traffic(at(10_000))[0].count, 1);
}

#[test]
fn a_drop_on_the_way_is_a_flight_with_neither_end() {
    let mut assembler = assembler(false);
    feed(
        &mut assembler,
        [dropped(1, Direction::Query, "NEIGH_FAILED")],
    );
    let hops = [packet(0, Point::Rx, Direction::Query, backend())];
    let flights = run(&mut assembler, 0, 1_000, &hops);
    assert!(flights[0].origin.is_none() && flights[0].delivery.is_none());
    assert_eq!(flights[0].trail.len(), 1);
    assert_eq!(flights[0].at, at(0));
}

#[test]
fn a_port_with_every_txid_open_does_not_slow_the_next_query_down() {
    let mut assembler = assembler(false);
    let many = |from: i64| {
        (0..60_000).map(move |n| {
            let Event::Socket(mut socket) = query(from + n / 20) else {
                unreachable!()
            };
            socket.packet.txid = Some(n as u16);
            Event::Socket(socket)
        })
    };
    let begun = std::time::Instant::now();
    feed(&mut assembler, many(0));
    assembler.advance(at(3_100));
    feed(&mut assembler, [released(3_200)]);
    assert_eq!(assembler.drain(at(4_000)).len(), 60_000);
    // Going through all of them for each took minutes.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn memory_of_failures_and_of_late_replies_is_bounded() {
    let limits = Limits {
        open: 100,
        ..Limits::default()
    };
    let mut assembler = Assembler::new(at(0), ConntrackTimeouts::default(), limits);
    for n in 0..1_000 {
        let Event::Socket(mut socket) = query(n * 2) else {
            unreachable!()
        };
        socket.comm = n.to_string();
        feed(
            &mut assembler,
            [Event::Socket(socket), delivery(n * 2), released(n * 2 + 1)],
        );
        assembler.advance(at(n * 2));
    }
    run(&mut assembler, 2_000, 10_000, &[]);
    assert!(assembler.failed.len() <= 100, "{}", assembler.failed.len());
    let late: usize = assembler.late.values().map(Vec::len).sum();
    assert!((1..=16).contains(&late), "{late}");
}

#[test]
fn a_step_of_the_clock_neither_fails_nor_answers_what_is_in_flight() {
    let mut assembler = assembler(true);
    feed(&mut assembler, [query(0), delivery(1)]);
    assert!(run(&mut assembler, 0, 100, &[]).is_empty());
    // An hour forward and back again.
    assert!(assembler.restart(at(100), at(3_600_100)).is_empty());
    feed(&mut assembler, [reply(3_600_101), answer(3_600_102)]);
    assert!(run(&mut assembler, 3_600_101, 3_610_000, &[]).is_empty());
    assembler.restart(at(3_610_000), at(10_000));
    feed(&mut assembler, [query(10_001), delivery(10_002)]);
    feed(&mut assembler, [reply(10_003), answer(10_004)]);
    let flights = run(&mut assembler, 10_005, 12_000, &[]);
    let origin = flights[0].origin.as_ref().unwrap();
    assert!(origin.answer.is_some() && origin.previous.is_none());
    assert_eq!(origin.recorded_since, at(10_000));
}

#[test]
fn what_is_in_a_row_that_was_not_taken_is_not_handed_out() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0), delivery(1), reply(2), answer(3)]);
    run(&mut assembler, 0, 1_900, &[]);
    assert!(assembler.complete_until(at(1_900)) <= at(0));
    assert_eq!(assembler.traffic(at(1_900)).len(), 1);
    assert_eq!(assembler.complete_until(at(1_900)), at(1_850));
}

#[test]
fn a_reply_after_its_flight_was_handed_out_makes_another() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0), delivery(1), released(500)]);
    let first = run(&mut assembler, 0, 3_000, &[]);
    assert_eq!(first[0].delivery.as_ref().unwrap().replied, None);
    assert_eq!(assembler.complete_until(at(3_000)), at(2_950));
    feed(
        &mut assembler,
        [reply(3_100), dropped(3_101, Direction::Reply, "NO_SOCKET")],
    );
    let flights = run(&mut assembler, 3_000, 12_000, &[]);
    let [flight] = &flights[..] else {
        panic!("{flights:?}")
    };
    let delivery = flight.delivery.as_ref().unwrap();
    assert_eq!((delivery.at, delivery.replied), (at(1), Some(at(3_100))));
    assert_eq!(flight.drops[0].direction, Direction::Reply);
    assert!(assembler.traffic(at(20_000)).is_empty());
}

#[test]
fn a_servers_node_does_not_wait_for_ever_for_a_reply() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [delivery(1)]);
    let flights = run(&mut assembler, 0, 2_000, &[]);
    assert_eq!(flights[0].delivery.as_ref().unwrap().replied, None);
}

#[test]
fn nobody_waits_for_ever() {
    let mut assembler = assembler(false);
    feed(&mut assembler, [query(0)]);
    assert_eq!(assembler.pending_since(), None);
    assert!(run(&mut assembler, 0, 900, &[]).is_empty());
    assert_eq!(assembler.pending_since(), Some(at(0)));
    let flights = run(&mut assembler, 950, 31_000, &[]);
    assert_eq!(flights[0].origin.as_ref().unwrap().completed, at(30_000));
    assert_eq!(assembler.pending_since(), None);
}

#[test]
fn what_waits_when_recording_stops_is_neither_success_nor_failure() {
    let mut assembler = assembler(true);
    feed(&mut assembler, [query(0)]);
    assert!(assembler.drain(at(800)).is_empty());
    let mut assembler = self::assembler(true);
    feed(
        &mut assembler,
        [query(0), dropped(1, Direction::Query, "NO_SOCKET")],
    );
    assert_eq!(assembler.drain(at(800)).len(), 1);
}

#[test]
fn who_reads_now_sees_what_has_just_been_answered() {
    for record_all in [false, true] {
        let mut assembler = assembler(record_all);
        let mut other = packet(2, Point::SocketOut, Direction::Query, frontend());
        other.txid = Some(8);
        feed(&mut assembler, [query(0), answer(3), socket(other, 1)]);
        let flights = assembler.flush(at(4));
        let rows = assembler.traffic(at(10_000));
        assert_eq!(
            (flights.len(), rows.len()),
            if record_all { (1, 0) } else { (0, 1) }
        );
        // Once only, and the one that still waits not at all.
        assert!(assembler.flush(at(5)).is_empty());
        assert!(run(&mut assembler, 5, 2_000, &[]).is_empty());
        assert!(assembler.traffic(at(10_000)).is_empty());
    }
}

#[test]
fn a_flood_is_bounded_and_counted() {
    let mut assembler = Assembler::new(
        at(0),
        ConntrackTimeouts::default(),
        Limits {
            open: 10,
            ..Limits::default()
        },
    );
    for port in 0..25 {
        let mut packet = packet(
            i64::from(port),
            Point::SocketOut,
            Direction::Query,
            frontend(),
        );
        packet.source.set_port(50_000 + port);
        assembler.feed(socket(packet, u64::from(port)), &Nobody);
    }
    assembler.advance(at(500));
    let gap = assembler.lost().unwrap();
    assert_eq!(
        (gap.count, gap.what, gap.from),
        (15, GapKind::RecordsLost, at(0))
    );
    assert_eq!(assembler.lost(), None);
}

#[test]
fn the_same_port_with_another_question_is_no_retransmission() {
    let mut assembler = assembler(false);
    let mut other = packet(1, Point::SocketOut, Direction::Query, frontend());
    other.txid = Some(8);
    let mut other_answer = packet(3, Point::SocketIn, Direction::Reply, frontend());
    other_answer.txid = Some(8);
    feed(
        &mut assembler,
        [
            query(0),
            socket(other, 1),
            answer(2),
            socket(other_answer, 1),
            released(4),
        ],
    );
    assert!(run(&mut assembler, 0, 1_000, &[]).is_empty());
    assert_eq!(assembler.traffic(at(10_000))[0].count, 2);
}
