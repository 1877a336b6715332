//! The programs in a real kernel, with real sockets on loopback. Needs root; says so where it is skipped.

#![expect(clippy::unwrap_used, reason = "a test stops where something is wrong")]

mod support;

use std::collections::{BTreeSet, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{SystemTime, UNIX_EPOCH};

use slicetrace::bpf::Capture;
use slicetrace::model::Timestamp;
use slicetrace::model::event::{Direction, Event, Point, SocketPacket};

use support::{
    Cgroup, TXID, clock_offset_ns, cookie, own_netns, packets, query, read_until, start,
};

fn at(events: &[Event], point: Point, direction: Direction) -> &SocketPacket {
    let mut found =
        packets(events).filter(|s| s.packet.point == point && s.packet.direction == direction);
    let first = found.next().unwrap();
    assert!(found.next().is_none(), "seen twice: {events:#?}");
    first
}

#[test]
fn a_query_its_answer_and_a_refusal_are_recorded_whole() {
    let Some(cgroup) = Cgroup::new() else {
        return;
    };
    let Some(mut capture) = start(&cgroup) else {
        return;
    };
    let server = UdpSocket::bind("127.0.0.53:0").unwrap();
    let backend = server.local_addr().unwrap();
    // Bound and closed again: nobody listens there.
    let closed = {
        let socket = UdpSocket::bind("127.0.0.54:0").unwrap();
        socket.local_addr().unwrap()
    };
    crowded(&mut capture, backend);
    capture.watch(&BTreeSet::from([backend, closed])).unwrap();
    let before = Timestamp(
        i64::try_from(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos(),
        )
        .unwrap(),
    );

    answered(&mut capture, &cgroup, &server, backend, before);
    unconnected(&mut capture, &server, backend);
    with_options(&mut capture, &server, backend, before);
    refused(&mut capture, closed);
    forgotten(&mut capture, &server, backend);

    let lost = capture.lost();
    assert_eq!(lost.total(), 0, "{lost:?}");
    for (hook, count) in capture.hooks() {
        assert!(count > 0, "{hook} saw nothing");
    }
    assert_eq!(capture.hop_horizon(0), None);
}

fn answered(
    capture: &mut Capture,
    cgroup: &Cgroup,
    server: &UdpSocket,
    backend: SocketAddr,
    before: Timestamp,
) {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(backend).unwrap();
    let (source, id) = (client.local_addr().unwrap(), cookie(&client));
    client.send(&query()).unwrap();
    let mut bytes = [0; 512];
    let (length, from) = server.recv_from(&mut bytes).unwrap();
    assert_eq!(from, source);
    // The answer: QR, RD, RA, NXDOMAIN.
    bytes[2..4].copy_from_slice(&[0x81, 0x83]);
    server.send_to(&bytes[..length], from).unwrap();
    client.recv(&mut bytes).unwrap();
    drop(client);

    let mut events = Vec::new();
    read_until(capture, &mut events, |events| {
        events.iter().any(|e| matches!(e, Event::Released { .. }))
    });
    let out = at(&events, Point::SocketOut, Direction::Query);
    assert_eq!(out.cookie, id);
    assert_eq!(out.cgroup, cgroup.id());
    assert_eq!(out.pid, std::process::id());
    assert!(!out.comm.is_empty());
    assert_eq!(out.asked, Some(backend));
    assert_eq!(
        (out.packet.source, out.packet.destination),
        (source, backend)
    );
    assert_eq!(out.packet.txid, Some(TXID));
    let question = out.question.as_ref().unwrap();
    assert_eq!(
        (question.name.as_str(), question.kind.as_str()),
        ("www.example.", "A")
    );
    let own_netns = own_netns();
    assert_eq!(out.packet.netns, own_netns);

    let delivered = at(&events, Point::SocketIn, Direction::Query);
    assert_eq!(delivered.cookie, cookie(server));
    assert_eq!(delivered.question, out.question);
    let replied = at(&events, Point::SocketOut, Direction::Reply);
    assert_eq!(replied.cookie, cookie(server));
    assert_eq!(replied.pid, std::process::id());
    let answer = at(&events, Point::SocketIn, Direction::Reply);
    assert_eq!(answer.cookie, id);
    assert_eq!(answer.packet.dns_flags, Some(0x8183));
    let Some(Event::Released { cookie, at }) = events.last() else {
        panic!("the close is not the last: {events:#?}")
    };
    assert_eq!(*cookie, id);
    let times: Vec<_> = [out, delivered, replied, answer]
        .iter()
        .map(|s| s.packet.at)
        .chain([*at])
        .collect();
    assert!(times.is_sorted() && times[0] >= before, "{times:?}");

    let (hops, overwritten) =
        capture.trails(&HashSet::from([(source, TXID)]), before, clock_offset_ns());
    assert!(!overwritten);
    let seen: Vec<_> = hops
        .iter()
        .map(|hop| (hop.point, hop.direction, hop.device.as_deref(), hop.netns))
        .collect();
    assert_eq!(
        seen,
        [
            (Point::Tx, Direction::Query, Some("lo"), own_netns),
            (Point::Rx, Direction::Query, Some("lo"), own_netns),
            (Point::Tx, Direction::Reply, Some("lo"), own_netns),
            (Point::Rx, Direction::Reply, Some("lo"), own_netns),
        ]
    );
    let (none, _) = capture.trails(&HashSet::from([(source, 1)]), before, clock_offset_ns());
    assert_eq!(none, []);
}

/// `sendto` without `connect`, and bytes that are no DNS message.
fn unconnected(capture: &mut Capture, server: &UdpSocket, backend: SocketAddr) {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&query(), backend).unwrap();
    client.send_to(b"short", backend).unwrap();
    client.send_to(&query()[..20], backend).unwrap();
    let mut bytes = [0; 512];
    for _ in 0..3 {
        server.recv_from(&mut bytes).unwrap();
    }
    let mut events = Vec::new();
    read_until(capture, &mut events, |events| packets(events).count() == 6);
    let sent: Vec<_> = packets(&events)
        .filter(|s| s.packet.point == Point::SocketOut)
        .collect();
    assert!(sent.iter().all(|s| s.asked == Some(backend)), "{sent:#?}");
    assert!(sent[0].question.is_some());
    assert_eq!((sent[1].packet.txid, &sent[1].question), (None, &None));
    assert_eq!(
        (sent[2].packet.txid, &sent[2].question),
        (Some(TXID), &None)
    );
}

/// IP options move the ports.
fn with_options(capture: &mut Capture, server: &UdpSocket, backend: SocketAddr, before: Timestamp) {
    let mut ignored = Vec::new();
    capture.read(0, &mut ignored);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Eight times "no operation" (RFC 791).
    let options = [1_u8; 8];
    // SAFETY: the kernel reads `options` and no further.
    let result = unsafe {
        libc::setsockopt(
            client.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_OPTIONS,
            options.as_ptr().cast(),
            8,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    client.send_to(&query(), backend).unwrap();
    server.recv_from(&mut [0; 512]).unwrap();
    let mut events = Vec::new();
    read_until(capture, &mut events, |events| packets(events).count() == 2);
    for socket in packets(&events) {
        assert_eq!(socket.packet.destination, backend);
        assert_eq!(socket.packet.txid, Some(TXID));
        assert_eq!(socket.question.as_ref().unwrap().name, "www.example.");
    }
    let source = client.local_addr().unwrap();
    let wanted = HashSet::from([(source, TXID)]);
    let (hops, _) = capture.trails(&wanted, before, clock_offset_ns());
    assert_eq!(hops.len(), 2);
}

fn refused(capture: &mut Capture, closed: SocketAddr) {
    let mut ignored = Vec::new();
    capture.read(0, &mut ignored);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(closed).unwrap();
    let source = client.local_addr().unwrap();
    client.send(&query()).unwrap();
    let mut events = Vec::new();
    read_until(capture, &mut events, |events| {
        let has = |wanted: fn(&Event) -> bool| events.iter().any(wanted);
        has(|e| matches!(e, Event::Drop { .. }))
            && has(|e| matches!(e, Event::Refusal { .. }))
            && has(|e| matches!(e, Event::SocketError { .. }))
    });
    let mut kinds = HashSet::new();
    for event in &events {
        match event {
            Event::Drop {
                packet,
                reason,
                location,
            } => {
                kinds.insert("drop");
                assert_eq!(reason.as_deref(), Some("NO_SOCKET"));
                let location = location.as_deref().unwrap();
                assert!(location.contains("udp"), "{location}");
                assert_eq!((packet.source, packet.destination), (source, closed));
                assert_eq!(packet.txid, Some(TXID));
                assert_eq!(packet.direction, Direction::Query);
                assert_ne!(packet.netns, 0);
            }
            Event::Refusal {
                packet,
                reporter,
                icmp_type,
                icmp_code,
            } => {
                kinds.insert("refusal");
                assert_eq!((packet.source, packet.destination), (source, closed));
                assert_eq!(packet.txid, Some(TXID));
                assert_eq!(*reporter, closed.ip());
                // Port unreachable.
                assert_eq!((*icmp_type, *icmp_code), (3, 3));
            }
            Event::SocketError {
                cookie: id,
                local,
                remote,
                errno,
                at_send,
                ..
            } => {
                kinds.insert("error");
                assert_eq!(*id, Some(cookie(&client)));
                assert_eq!((*local, *remote), (source, closed));
                assert_eq!(*errno, libc::ECONNREFUSED);
                assert!(!at_send);
            }
            _ => {}
        }
    }
    assert_eq!(kinds.len(), 3);
}

/// An address that is no longer watched is no longer recorded, and its neighbour still is.
fn forgotten(capture: &mut Capture, server: &UdpSocket, backend: SocketAddr) {
    let mut ignored = Vec::new();
    capture.read(0, &mut ignored);
    let other = UdpSocket::bind("127.0.0.53:0").unwrap();
    capture
        .watch(&BTreeSet::from([other.local_addr().unwrap()]))
        .unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&query(), backend).unwrap();
    client
        .send_to(&query(), other.local_addr().unwrap())
        .unwrap();
    let mut bytes = [0; 512];
    server.recv_from(&mut bytes).unwrap();
    other.recv_from(&mut bytes).unwrap();
    let mut events = Vec::new();
    read_until(capture, &mut events, |events| packets(events).count() >= 2);
    let destinations: HashSet<_> = packets(&events).map(|s| s.packet.destination).collect();
    assert_eq!(destinations, HashSet::from([other.local_addr().unwrap()]));
}

/// More addresses than the kernel's set holds: those that fit are watched, the others named, and room is used again.
fn crowded(capture: &mut Capture, backend: SocketAddr) {
    let many = |network: u8| {
        (0..16_390_u16).map(move |n| {
            let [high, low] = n.to_be_bytes();
            SocketAddr::from(([network, 1, high, low], 53))
        })
    };
    let all: BTreeSet<_> = many(10).chain([backend]).collect();
    let error = capture.watch(&all).unwrap_err().to_string();
    assert!(error.contains("cannot be watched"), "{error}");
    assert!(error.contains("and 6 more"), "{error}");
    let others: BTreeSet<_> = many(11).take(16_384).collect();
    capture.watch(&others).unwrap();
}
