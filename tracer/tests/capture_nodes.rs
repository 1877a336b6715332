//! The programs on two "nodes", which are network namespaces joined by VXLAN, with a Service address translated by
//! netfilter on one of them. Needs root, `ip` and `nft`; says so where it is skipped.

#![expect(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use slicetrace::bpf::{Capture, Error, Options, Sizes};
use slicetrace::model::Timestamp;
use slicetrace::model::event::{Direction, Event, Packet, Point};
use slicetrace::node::cgroups;

const TXID: u16 = 0x0815;
const SERVICE: &str = "10.43.0.10:53";
const BACKEND: &str = "10.99.0.2:53";
const RULES: &str = "\
table ip nat { chain output { type nat hook output priority -100; \
ip daddr 10.43.0.10 udp dport 53 dnat to 10.99.0.2:53; }; }
table ip filter { chain output { type filter hook output priority 0; }; }";

/// Two namespaces; they and everything in them go with the value.
struct Nodes {
    names: [String; 2],
}

impl Nodes {
    fn new() -> Self {
        hide_mounts();
        let pid = std::process::id();
        let nodes = Self {
            names: [format!("st-{pid}-a"), format!("st-{pid}-b")],
        };
        let [a, b] = &nodes.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!(
            "link add name eth0 netns {a} type veth peer name eth0 netns {b}"
        ));
        for (name, own, other) in [(a, 1, 2), (b, 2, 1)] {
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} addr add 10.98.0.{own}/24 dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!(
                "-n {name} link add flannel.1 type vxlan id 1 dstport 8472 local 10.98.0.{own} remote 10.98.0.{other}"
            ));
            ip(&format!(
                "-n {name} addr add 10.99.0.{own}/24 dev flannel.1"
            ));
            ip(&format!("-n {name} link set flannel.1 up"));
        }
        ip(&format!("-n {a} route add 10.43.0.0/16 dev flannel.1"));
        nodes
    }

    fn path(&self, node: usize) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.names[node])
    }

    fn inode(&self, node: usize) -> u32 {
        u32::try_from(fs::metadata(self.path(node)).unwrap().ino()).unwrap()
    }

    fn nft(&self, node: usize, rules: &str) {
        let done = Command::new("ip")
            .args(["netns", "exec", &self.names[node], "nft", rules])
            .output()
            .unwrap();
        assert!(done.status.success(), "{rules}: {done:?}");
    }

    /// A socket in one of the namespaces.
    fn bind(&self, node: usize, address: &str) -> UdpSocket {
        let namespace = File::open(self.path(node)).unwrap();
        let address: SocketAddr = address.parse().unwrap();
        // A thread of its own, so that no other test finds itself elsewhere.
        std::thread::spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
            let socket = UdpSocket::bind(address).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            socket
        })
        .join()
        .unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for name in &self.names {
            match Command::new("ip").args(["netns", "del", name]).status() {
                Ok(status) if status.success() => {}
                other => eprintln!("namespace {name} is left behind: {other:?}"),
            }
        }
    }
}

/// Gives this thread, and what it starts, a mount namespace of its own: `ip netns add` makes /run/netns a mount point, which
/// nobody would remove.
fn hide_mounts() {
    const NOTHING: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NOTHING, "/", NOTHING, private, NOTHING).unwrap();
    fs::create_dir_all("/run/netns").unwrap();
    let own = MsFlags::empty();
    mount(Some("tmpfs"), "/run/netns", Some("tmpfs"), own, NOTHING).unwrap();
}

fn ip(arguments: &str) {
    let done = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(done.status.success(), "ip {arguments}: {done:?}");
}

fn query() -> Vec<u8> {
    let mut bytes = TXID.to_be_bytes().to_vec();
    bytes.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    bytes.extend(b"\x0akubernetes\x00\x00\x1c\x00\x01");
    bytes
}

fn start() -> Option<Capture> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: loading eBPF programs needs root");
        return None;
    }
    for tool in ["ip", "nft"] {
        if Command::new(tool).arg("-V").output().is_err() {
            println!("SKIPPED: {tool} is not installed");
            return None;
        }
    }
    let cgroup_root = match cgroups::mount() {
        Ok(root) => root,
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    let options = Options {
        cgroup_root,
        netns_scope: true,
        vxlan_ports: vec![8472],
        sizes: Sizes::default(),
    };
    match Capture::start(&options) {
        Ok(capture) => {
            assert_eq!(capture.missing_hooks(), &Default::default());
            Some(capture)
        }
        Err(error @ (Error::Privilege { .. } | Error::Types(_))) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Events whose packet or socket is this client's, until `done`.
fn read_until(
    capture: &mut Capture,
    client: SocketAddr,
    done: impl Fn(&[Event]) -> bool,
) -> Vec<Event> {
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut mine = Vec::new();
    while !done(&mine) {
        assert!(Instant::now() < deadline, "not all of it came: {mine:#?}");
        let mut events = Vec::new();
        capture.read(0, &mut events);
        mine.extend(events.into_iter().filter(|event| match event {
            Event::Socket(socket) => socket.packet.client().port() == client.port(),
            Event::Drop { packet, .. } | Event::Refusal { packet, .. } => {
                packet.client().port() == client.port()
            }
            Event::SocketError { local, .. } => local.port() == client.port(),
            Event::Released { .. } => true,
        }));
        std::thread::sleep(Duration::from_millis(5));
    }
    mine
}

fn packets(events: &[Event], point: Point, direction: Direction) -> Vec<&Packet> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Socket(socket) => Some(&socket.packet),
            _ => None,
        })
        .filter(|packet| packet.point == point && packet.direction == direction)
        .collect()
}

#[test]
fn a_query_is_followed_through_nat_and_a_tunnel() {
    let Some(mut capture) = start() else {
        return;
    };
    let nodes = Nodes::new();
    nodes.nft(0, RULES);
    let (service, backend): (SocketAddr, SocketAddr) =
        (SERVICE.parse().unwrap(), BACKEND.parse().unwrap());
    capture.watch(&BTreeSet::from([service, backend])).unwrap();
    capture
        .scope(&BTreeSet::from([nodes.inode(0), nodes.inode(1)]))
        .unwrap();
    let server = nodes.bind(1, BACKEND);
    let client = nodes.bind(0, "0.0.0.0:0");

    exchange(&client, &server, service);
    let source = SocketAddr::new(
        "10.99.0.1".parse().unwrap(),
        client.local_addr().unwrap().port(),
    );
    translated(&mut capture, &nodes, source, service, backend);
    rejected(&mut capture, &nodes, service, backend);
    out_of_scope(&mut capture, &nodes, &server, service);
    assert_eq!(capture.lost().total(), 0, "{:?}", capture.lost());
}

fn exchange(client: &UdpSocket, server: &UdpSocket, service: SocketAddr) {
    client.send_to(&query(), service).unwrap();
    let mut bytes = [0; 512];
    let (length, from) = server.recv_from(&mut bytes).unwrap();
    bytes[2] |= 0x80;
    server.send_to(&bytes[..length], from).unwrap();
    let (_, answered) = client.recv_from(&mut bytes).unwrap();
    assert_eq!(answered, service);
}

fn translated(
    capture: &mut Capture,
    nodes: &Nodes,
    source: SocketAddr,
    service: SocketAddr,
    backend: SocketAddr,
) {
    let events = read_until(capture, source, |events| {
        !packets(events, Point::SocketIn, Direction::Reply).is_empty()
    });
    let [out] = packets(&events, Point::SocketOut, Direction::Query)[..] else {
        panic!("{events:#?}")
    };
    assert_eq!((out.source, out.destination), (source, backend));
    assert!(out.conntrack.destination_nat(), "{out:?}");
    assert_eq!(out.netns, nodes.inode(0));
    let asked = events.iter().find_map(|event| match event {
        Event::Socket(socket) => socket.asked,
        _ => None,
    });
    assert_eq!(asked, Some(service));
    let [delivered] = packets(&events, Point::SocketIn, Direction::Query)[..] else {
        panic!("{events:#?}")
    };
    assert_eq!(delivered.netns, nodes.inode(1));
    let [answer] = packets(&events, Point::SocketIn, Direction::Reply)[..] else {
        panic!("{events:#?}")
    };
    assert_eq!((answer.source, answer.destination), (service, source));
    // UDP lets go of the entry before the socket's filters run (`nf_reset_ct` in `udp_queue_rcv_one_skb`).
    assert!(!answer.conntrack.present(), "{answer:?}");

    let wanted = HashSet::from([(source, TXID)]);
    let (hops, overwritten) = capture.trails(&wanted, Timestamp(0), 0);
    assert!(!overwritten);
    let trail: Vec<_> = hops
        .iter()
        .map(|hop| {
            let node = (0..2).find(|&node| nodes.inode(node) == hop.netns).unwrap();
            let tunnel = if hop.encapsulated {
                "in VXLAN"
            } else {
                "plain"
            };
            (
                hop.direction,
                node,
                hop.point,
                hop.device.as_deref().unwrap(),
                tunnel,
            )
        })
        .collect();
    use Direction::{Query, Reply};
    use Point::{Rx, Tx};
    assert_eq!(
        trail,
        [
            (Query, 0, Tx, "flannel.1", "plain"),
            (Query, 0, Tx, "eth0", "in VXLAN"),
            (Query, 1, Rx, "eth0", "in VXLAN"),
            (Query, 1, Rx, "flannel.1", "plain"),
            (Reply, 1, Tx, "flannel.1", "plain"),
            (Reply, 1, Tx, "eth0", "in VXLAN"),
            (Reply, 0, Rx, "eth0", "in VXLAN"),
            (Reply, 0, Rx, "flannel.1", "plain"),
        ]
    );
    assert!(hops.iter().all(|hop| hop.server() == backend));
    assert!(hops[0].conntrack.destination_nat());
    assert!(!hops[1].conntrack.present());
}

/// A REJECT in OUTPUT: the send fails, no socket hook sees a packet, and the drop alone tells of it.
fn rejected(capture: &mut Capture, nodes: &Nodes, service: SocketAddr, backend: SocketAddr) {
    nodes.nft(0, "add rule ip filter output udp dport 53 reject");
    let client = nodes.bind(0, "0.0.0.0:0");
    let local = client.local_addr().unwrap();
    let error = client.send_to(&query(), service).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    let events = read_until(capture, local, |events| {
        events.iter().any(|e| matches!(e, Event::Drop { .. }))
            && events.iter().any(|e| matches!(e, Event::Refusal { .. }))
    });
    assert_eq!(
        packets(&events, Point::SocketOut, Direction::Query),
        [] as [&Packet; 0]
    );
    for event in &events {
        match event {
            Event::Drop { packet, reason, .. } => {
                assert_eq!(reason.as_deref(), Some("NETFILTER_DROP"));
                assert_eq!(packet.netns, nodes.inode(0));
                assert_eq!(packet.device, None);
                assert_eq!(packet.destination, backend);
                assert!(packet.conntrack.created_by_this_packet());
            }
            Event::Refusal {
                packet,
                icmp_type,
                icmp_code,
                ..
            } => {
                assert_eq!((*icmp_type, *icmp_code), (3, 3));
                assert_eq!(packet.txid, Some(TXID));
                assert_eq!(packet.device.as_deref(), Some("lo"));
            }
            _ => {}
        }
    }
    nodes.nft(0, "flush chain ip filter output");
}

/// With the second node alone in scope, the first one's devices are not recorded.
fn out_of_scope(capture: &mut Capture, nodes: &Nodes, server: &UdpSocket, service: SocketAddr) {
    capture.scope(&BTreeSet::from([nodes.inode(1)])).unwrap();
    let client = nodes.bind(0, "0.0.0.0:0");
    exchange(&client, server, service);
    let source = SocketAddr::new(
        "10.99.0.1".parse().unwrap(),
        client.local_addr().unwrap().port(),
    );
    read_until(capture, source, |events| {
        !packets(events, Point::SocketIn, Direction::Reply).is_empty()
    });
    let (hops, _) = capture.trails(&HashSet::from([(source, TXID)]), Timestamp(0), 0);
    let netns: HashSet<_> = hops.iter().map(|hop| hop.netns).collect();
    assert_eq!((hops.len(), netns), (4, HashSet::from([nodes.inode(1)])));
}
