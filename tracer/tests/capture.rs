//! The programs in a real kernel, with real sockets on loopback. Needs root; says so where it is skipped.

#![expect(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slicetrace::bpf::{Capture, Error, Options, Sizes};
use slicetrace::model::Timestamp;
use slicetrace::model::event::{Direction, Event, Point, SocketPacket};

const TXID: u16 = 0x1267;

/// A cgroup to stand for the root, with one child that this process sits in; both go with the value.
struct Cgroup {
    root: PathBuf,
    before: PathBuf,
}

impl Cgroup {
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let (_, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(at))
        })?;
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let before = mount.join(own);
        let root = mount.join(format!("slicetrace-test-{}", std::process::id()));
        fs::create_dir_all(root.join("pod")).ok()?;
        let cgroup = Self { root, before };
        enter(&cgroup.root.join("pod"));
        Some(cgroup)
    }

    fn id(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(self.root.join("pod")).unwrap().ino()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        enter(&self.before);
        for directory in [self.root.join("pod"), self.root.clone()] {
            if let Err(error) = fs::remove_dir(&directory) {
                eprintln!("{} is left behind: {error}", directory.display());
            }
        }
    }
}

fn enter(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
}

fn clock_offset_ns() -> i64 {
    let mono = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(wall.as_nanos()).unwrap() - (mono.tv_sec() * 1_000_000_000 + mono.tv_nsec())
}

fn cookie(socket: &UdpSocket) -> u64 {
    let mut value = 0_u64;
    let mut length = 8;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    value
}

/// `www.example. A`, with an OPT record behind the question as most resolvers send it.
fn query() -> Vec<u8> {
    let mut bytes = TXID.to_be_bytes().to_vec();
    bytes.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 1]);
    bytes.extend(b"\x03www\x07example\x00\x00\x01\x00\x01");
    bytes.extend(b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00");
    bytes
}

/// Starts capturing under `cgroup`; `None`, with the reason printed, where this machine cannot.
fn start(cgroup: &Cgroup) -> Option<Capture> {
    let options = Options {
        cgroup_root: cgroup.root.clone(),
        netns_scope: false,
        vxlan_ports: vec![8472],
        sizes: Sizes::default(),
    };
    let began = Instant::now();
    match Capture::start(&options) {
        Ok(capture) => {
            println!("attached in {:?}", began.elapsed());
            assert_eq!(capture.missing_hooks(), &Default::default());
            Some(capture)
        }
        Err(error @ (Error::Privilege { .. } | Error::Types(_))) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads until `done` says that everything is there, for two seconds at most.
fn read_until(capture: &mut Capture, events: &mut Vec<Event>, done: impl Fn(&[Event]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !done(events) {
        assert!(Instant::now() < deadline, "not all of it came: {events:#?}");
        let stats = capture.read(clock_offset_ns(), events);
        assert_eq!((stats.overwritten, stats.malformed), (0, 0));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn packets(events: &[Event]) -> impl Iterator<Item = &SocketPacket> {
    events.iter().filter_map(|event| match event {
        Event::Socket(socket) => Some(socket),
        _ => None,
    })
}

fn at(events: &[Event], point: Point, direction: Direction) -> &SocketPacket {
    let mut found =
        packets(events).filter(|s| s.packet.point == point && s.packet.direction == direction);
    let first = found.next().unwrap();
    assert!(found.next().is_none(), "seen twice: {events:#?}");
    first
}

#[test]
fn a_query_its_answer_and_a_refusal_are_recorded_whole() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: loading eBPF programs needs root");
        return;
    }
    let Some(cgroup) = Cgroup::new() else {
        println!("skipped: no cgroup2 mount that groups can be made in");
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
    let own_netns = {
        use std::os::unix::fs::MetadataExt as _;
        u32::try_from(fs::metadata("/proc/self/ns/net").unwrap().ino()).unwrap()
    };
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
