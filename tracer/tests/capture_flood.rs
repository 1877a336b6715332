//! A flood through logs that are far too small: every record that is read is whole, and every other one is accounted for.

#![expect(clippy::unwrap_used, reason = "a test stops where something is wrong")]

mod support;

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};

use slicetrace::bpf::Sizes;
use slicetrace::model::event::{Direction, Event};

use support::{Cgroup, own_netns, packets, start_with};

const SENDERS: usize = 4;
const QUERIES: u16 = 5000;

/// A query whose name repeats its transaction id and its sender, so that a record of two halves shows.
fn query(sender: usize, txid: u16) -> Vec<u8> {
    let name = format!("s{sender}-{txid:05}");
    let mut bytes = txid.to_be_bytes().to_vec();
    bytes.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    bytes.push(u8::try_from(name.len()).unwrap());
    bytes.extend(name.bytes());
    bytes.extend(b"\x00\x00\x01\x00\x01");
    bytes
}

#[test]
fn every_record_is_whole_and_every_other_one_is_counted() {
    let Some(cgroup) = Cgroup::new() else {
        return;
    };
    let sizes = Sizes {
        sockets: 64,
        hops: 64,
        drops: 64,
    };
    let Some(mut capture) = start_with(&cgroup, sizes) else {
        return;
    };
    // Nobody reads from it: soon its buffer is full, and the kernel drops.
    let server = UdpSocket::bind("127.0.0.53:0").unwrap();
    let backend = server.local_addr().unwrap();
    capture.watch(&BTreeSet::from([backend])).unwrap();
    let sockets: Vec<UdpSocket> = (0..SENDERS)
        .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
        .collect();
    let ports: Vec<u16> = sockets
        .iter()
        .map(|socket| socket.local_addr().unwrap().port())
        .collect();

    let running = AtomicUsize::new(SENDERS);
    let (mut read, mut overwritten, mut whole, mut full, mut placed) = (0, 0, 0, 0, 0);
    std::thread::scope(|scope| {
        for (sender, socket) in sockets.into_iter().enumerate() {
            let running = &running;
            scope.spawn(move || {
                for txid in 0..QUERIES {
                    socket.send_to(&query(sender, txid), backend).unwrap();
                    if txid % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
                drop(socket);
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        loop {
            let last = running.load(Ordering::SeqCst) == 0;
            let mut events = Vec::new();
            let stats = capture.read(0, &mut events);
            assert_eq!(stats.malformed, 0);
            read += stats.read;
            overwritten += stats.overwritten;
            for socket in packets(&events) {
                let packet = &socket.packet;
                let sender = ports
                    .iter()
                    .position(|&p| p == packet.source.port())
                    .unwrap();
                let txid = packet.txid.unwrap();
                let question = socket.question.as_ref().unwrap();
                assert_eq!(question.name, format!("s{sender}-{txid:05}."));
                assert_eq!(packet.destination, backend);
                assert_eq!(packet.direction, Direction::Query);
                whole += 1;
            }
            for event in &events {
                if let Event::Drop { packet, reason, .. } = event {
                    assert_eq!(reason.as_deref(), Some("SOCKET_RCVBUFF"));
                    assert!(ports.contains(&packet.source.port()));
                    // Older kernels do not tell where: the packet's device was overwritten.
                    assert!([0, own_netns()].contains(&packet.netns), "{packet:?}");
                    full += 1;
                    placed += u64::from(packet.netns != 0);
                }
            }
            if last {
                break;
            }
        }
    });
    let hooks = capture.hooks();
    let logged: u64 = [
        "cgroup_egress",
        "cgroup_ingress",
        "sock_release",
        "kfree_skb",
        "sk_error",
    ]
    .iter()
    .map(|hook| hooks[*hook])
    .sum();
    let lost = capture.lost();
    println!(
        "{logged} logged, {read} read, {overwritten} overwritten, {full} dropped, {placed} with their namespace; {lost:?}"
    );
    assert_eq!(hooks["cgroup_egress"], SENDERS as u64 * u64::from(QUERIES));
    assert!(whole > 0 && full > 0 && overwritten > 0);
    assert_eq!(lost.unreadable, 0);
    // A preemptible kernel may let a sender be overtaken by a whole lap: such a record is given up, and counted.
    let accounted = read + overwritten;
    assert!((logged - lost.reserve..=logged).contains(&accounted));
    assert!(capture.hop_horizon(0).is_some());
}
