//! A load balancer at connect time, as Cilium has one: a program on the cgroup root that rewrites the address, and refuses
//! where there is no backend. It is attached before us, as it would be.

#![expect(clippy::unwrap_used, reason = "a test stops where something is wrong")]

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use slicetrace::model::event::{Direction, Event, Point};

use support::{Cgroup, cookie, packets, query, read_until, start};

/// `BPF_PROG_LOAD`, `BPF_LINK_CREATE`; program and attach types (include/uapi/linux/bpf.h).
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const CGROUP_SOCK_ADDR: u32 = 18;
const INET4_CONNECT: u32 = 10;
const UDP4_SENDMSG: u32 = 14;

/// `if (user_port == refused) return 0; user_ip4 = to; return 1;`
fn program(refused: u16, to: Ipv4Addr) -> Vec<u8> {
    const USER_IP4: i16 = 4;
    const USER_PORT: i16 = 24;
    let instruction = |code: u8, to: u8, from: u8, offset: i16, value: i32| {
        let mut bytes = vec![code, from << 4 | to];
        bytes.extend(offset.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
        bytes
    };
    [
        instruction(0x61, 2, 1, USER_PORT, 0),
        instruction(0x15, 2, 0, 4, i32::from(refused.to_be())),
        instruction(0xb7, 3, 0, 0, i32::from_ne_bytes(to.octets())),
        instruction(0x63, 1, 3, USER_IP4, 0),
        instruction(0xb7, 0, 0, 0, 1),
        instruction(0x95, 0, 0, 0, 0),
        instruction(0xb7, 0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
    ]
    .concat()
}

fn bpf(command: libc::c_long, attributes: &[u8]) -> OwnedFd {
    // SAFETY: the kernel reads `attributes`, and the instructions and licence it points to, which outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_ptr(),
            attributes.len(),
        )
    };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, nobody else's.
    unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) }
}

/// Loads the balancer and attaches it; it is detached with the value.
fn balancer(cgroup: &Cgroup, attach_type: u32, instructions: &[u8]) -> OwnedFd {
    let licence = b"GPL\0";
    let mut attributes = Vec::new();
    attributes.extend(CGROUP_SOCK_ADDR.to_ne_bytes());
    attributes.extend(u32::try_from(instructions.len() / 8).unwrap().to_ne_bytes());
    attributes.extend((instructions.as_ptr() as u64).to_ne_bytes());
    attributes.extend((licence.as_ptr() as u64).to_ne_bytes());
    // Log, version, flags, name, device.
    attributes.extend([0; 4 + 4 + 8 + 4 + 4 + 16 + 4]);
    attributes.extend(attach_type.to_ne_bytes());
    let program = bpf(PROG_LOAD, &attributes);
    let root = File::open(&cgroup.root).unwrap();
    let mut attributes = Vec::new();
    for value in [program.as_raw_fd(), root.as_raw_fd()] {
        attributes.extend(value.to_ne_bytes());
    }
    attributes.extend(attach_type.to_ne_bytes());
    attributes.extend([0; 4]);
    bpf(LINK_CREATE, &attributes)
}

#[test]
fn the_address_asked_for_is_that_before_the_balancer_and_its_refusals_are_seen() {
    let Some(cgroup) = Cgroup::new() else {
        return;
    };
    let server = UdpSocket::bind("127.0.0.55:0").unwrap();
    let backend = server.local_addr().unwrap();
    let service = SocketAddr::new("192.0.2.53".parse().unwrap(), backend.port());
    let empty: SocketAddr = "192.0.2.53:1053".parse().unwrap();
    let rules = program(empty.port(), "127.0.0.55".parse().unwrap());
    let _links = [INET4_CONNECT, UDP4_SENDMSG].map(|kind| balancer(&cgroup, kind, &rules));
    let Some(mut capture) = start(&cgroup) else {
        return;
    };
    capture
        .watch(&BTreeSet::from([service, backend, empty]))
        .unwrap();

    for connect in [true, false] {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        if connect {
            client.connect(service).unwrap();
            client.send(&query()).unwrap();
        } else {
            client.send_to(&query(), service).unwrap();
        }
        let mut events = Vec::new();
        read_until(&mut capture, &mut events, |events| {
            packets(events).count() == 2
        });
        let out = packets(&events)
            .find(|s| s.packet.point == Point::SocketOut)
            .unwrap();
        assert_eq!(out.packet.direction, Direction::Query);
        assert_eq!(out.packet.destination, backend);
        assert_eq!(out.asked, Some(service));
        drop(client);
        let mut released = Vec::new();
        read_until(&mut capture, &mut released, |events| {
            events.iter().any(|e| matches!(e, Event::Released { .. }))
        });

        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = client.local_addr().unwrap();
        let refused = if connect {
            client.connect(empty)
        } else {
            client.send_to(&query(), empty).map(|_| ())
        };
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        let mut events = Vec::new();
        read_until(&mut capture, &mut events, |events| !events.is_empty());
        let Event::SocketError {
            cookie: id,
            local: from,
            remote,
            errno,
            at_send,
            ..
        } = events[0]
        else {
            panic!("{events:#?}")
        };
        assert_eq!(id, Some(cookie(&client)));
        assert_eq!((from, remote), (local, empty));
        assert_eq!((errno, at_send), (libc::EPERM, true));
        drop(client);
        read_until(&mut capture, &mut events, |events| {
            events.iter().any(|e| matches!(e, Event::Released { .. }))
        });
    }
}
