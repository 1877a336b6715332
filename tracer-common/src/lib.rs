//! What the eBPF programs and user space agree on: the slots of the circular logs, the configuration that user space
//! fills before loading, and the keys of the maps.
//!
//! Everything here is `#[repr(C)]` with explicit padding, so that one layout holds on both sides. Ports, transaction ids
//! and DNS flags are in host byte order; addresses are 16 bytes in network order, IPv4 as `::ffff:a.b.c.d` (RFC 4291).
#![no_std]

/// An IPv6 address, or an IPv4 address mapped into IPv6; network byte order.
pub type Address = [u8; 16];

/// Maps an IPv4 address (network byte order) to the form that every record uses.
#[inline(always)]
pub const fn mapped(v4: [u8; 4]) -> Address {
    [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3],
    ]
}

/// Where a slot was written from ([`Packet::point`]).
pub mod point {
    /// `cgroup_skb/egress`: a socket sent it (after LOCAL_OUT and POSTROUTING).
    pub const SOCKET_OUT: u8 = 1;
    /// `net_dev_queue`: it was queued on a device.
    pub const TX: u8 = 2;
    /// `netif_receive_skb`: a device handed it up.
    pub const RX: u8 = 3;
    /// `cgroup_skb/ingress`: it was about to be queued to a socket.
    pub const SOCKET_IN: u8 = 4;
    /// `kfree_skb`: the kernel dropped it; [`Packet::detail`](super::Packet::detail) has location and reason.
    pub const DROP: u8 = 5;
    /// `inet_sk_error_report`: a socket was told an error; `detail[0]` is the errno, source is local, destination remote.
    pub const SOCKET_ERROR: u8 = 6;
    /// `cgroup/sock_release`: the client's socket was closed.
    pub const RELEASE: u8 = 7;
    /// `cgroup/sendmsg` or `connect` on the root, attached last: the call was refused; `detail[0]` is the errno.
    pub const SEND_REFUSED: u8 = 8;
}

/// What kind of packet a slot describes ([`Packet::kind`]).
pub mod kind {
    /// A UDP datagram.
    pub const UDP: u8 = 1;
    /// An ICMP error; addresses, ports and txid are those of the *quoted* datagram, `detail` is the reporter's address.
    pub const ICMP_ERROR: u8 = 2;
}

/// Which way a packet goes ([`Packet::direction`]).
pub mod direction {
    /// Towards a watched address.
    pub const QUERY: u8 = 1;
    /// From a watched address.
    pub const REPLY: u8 = 2;
}

/// Bits of [`Packet::conntrack`], read from `skb->_nfct` (include/linux/skbuff.h) and `nf_conn->status`
/// (include/uapi/linux/netfilter/nf_conntrack_common.h). All zero: no conntrack entry was attached.
///
/// At [`point::SOCKET_OUT`] POSTROUTING has confirmed the entry already, if the socket's namespace tracks connections; at
/// [`point::SOCKET_IN`] UDP has let go of it (`nf_reset_ct`), so that it is always zero.
pub mod conntrack {
    /// An entry was attached; the other bits mean something.
    pub const PRESENT: u8 = 0x80;
    /// The low three bits: `enum ip_conntrack_info`.
    pub const INFO_MASK: u8 = 0x07;
    /// The entry was already confirmed, that is: an earlier packet, or an earlier hook of this one, put it in the table.
    pub const CONFIRMED: u8 = 0x08;
    /// The entry rewrites the destination (`IPS_DST_NAT`).
    pub const DST_NAT: u8 = 0x10;
    /// The entry rewrites the source (`IPS_SRC_NAT`).
    pub const SRC_NAT: u8 = 0x20;
    /// The entry has seen a reply (`IPS_SEEN_REPLY`).
    pub const SEEN_REPLY: u8 = 0x40;
}

/// Values of [`Packet::seq`] other than position + 1.
///
/// A writer reserves position `n` by an atomic add on [`Position::next`], takes the slot by exchanging `seq` for
/// [`BUSY`], writes the payload, and publishes it by exchanging `seq` for `n + 1`. A writer that finds `BUSY` has
/// interrupted another one a whole lap behind: it gives up and counts [`counter::LOST_RESERVE`]. A reader copies the
/// payload between two reads of `seq` and keeps the copy only if both were `n + 1`.
///
/// [`BUSY`]: seq::BUSY
pub mod seq {
    /// Never written: maps start out zeroed.
    pub const EMPTY: u64 = 0;
    /// A writer is in the slot.
    pub const BUSY: u64 = u64::MAX;
}

/// One packet (or socket event) at one point: a slot of the logs `HOPS` and `DROPS`, and the head of [`Socket`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// [`seq`]: position + 1 in this CPU's log, once the slot is complete.
    pub seq: u64,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// Source address as it stood in the packet at this point.
    pub source: Address,
    /// Destination address as it stood in the packet at this point.
    pub destination: Address,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// DNS transaction id.
    pub txid: u16,
    /// The DNS header's second word: QR, opcode, AA, TC, RD, RA, Z, rcode (RFC 1035, 4.1.1).
    pub dns_flags: u16,
    /// Inode of the network namespace; 0 unknown.
    pub netns: u32,
    /// Interface index within that namespace; 0 unknown.
    pub ifindex: u32,
    /// Interface name, NUL-padded.
    pub device: [u8; 16],
    /// One of [`point`].
    pub point: u8,
    /// One of [`kind`]; 0 for socket events without a packet.
    pub kind: u8,
    /// One of [`direction`].
    pub direction: u8,
    /// 1 if this is the inner packet of a tunnel.
    pub encapsulated: u8,
    /// Bits of [`conntrack`].
    pub conntrack: u8,
    /// ICMP type, for [`kind::ICMP_ERROR`].
    pub icmp_type: u8,
    /// ICMP code, for [`kind::ICMP_ERROR`].
    pub icmp_code: u8,
    /// 1 if the datagram had too few bytes for a DNS header, so that txid and flags mean nothing.
    pub short: u8,
    /// DROP: `[location, reason]`; ICMP_ERROR: the reporter's [`Address`] in memory order; SOCKET_ERROR, SEND_REFUSED:
    /// `[errno, socket cookie]`.
    pub detail: [u64; 2],
}

/// Longest question section that is kept: 255 bytes of name (RFC 1035, 2.3.4), type and class, rounded up.
pub const QUESTION_BYTES: usize = 264;

/// A packet at a socket, or a socket's end: a slot of the log `SOCKETS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The packet; for [`point::RELEASE`] only seq, time and point are set.
    pub packet: Packet,
    /// Socket cookie: unique for this boot.
    pub cookie: u64,
    /// cgroup2 id of the socket's cgroup (`kernfs` id = inode number of its directory).
    pub cgroup: u64,
    /// Process (thread group) that asked last on this socket; 0 unknown.
    pub pid: u32,
    /// Port the process asked for; 0 unknown.
    pub asked_port: u16,
    /// Bytes of `question` that are filled.
    pub question_len: u16,
    /// Address the process asked for, before a connect-time load balancer; all zero: unknown.
    pub asked: Address,
    /// Name of that process, NUL-padded.
    pub comm: [u8; 16],
    /// The question section as on the wire, from the byte after the DNS header.
    pub question: [u8; QUESTION_BYTES],
}

/// What the process behind a socket asked for: value of the map `ASKED`, keyed by socket cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Address before any connect-time load balancer.
    pub address: Address,
    /// Thread group id, in the initial PID namespace.
    pub pid: u32,
    /// Port, host order; 0: the call was not seen, only the packet.
    pub port: u16,
    /// 1: seen by the program on the cgroup root only, because the process sits in no child of it.
    pub by_root: u16,
    /// Process name, NUL-padded.
    pub comm: [u8; 16],
}

/// Key of the map `ADDRESSES`: an address and port that count as this DNS Service.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The address.
    pub address: Address,
    /// Port, host order.
    pub port: u16,
    /// Explicit padding, zero.
    pub pad: [u8; 6],
}

/// Byte offsets of kernel structure members, resolved by user space from the running kernel's BTF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// `sk_buff.head`
    pub skb_head: u32,
    /// `sk_buff.data`
    pub skb_data: u32,
    /// `sk_buff.tail` (an offset from head on 64-bit kernels)
    pub skb_tail: u32,
    /// `sk_buff.network_header`
    pub skb_network_header: u32,
    /// `sk_buff.protocol`
    pub skb_protocol: u32,
    /// `sk_buff.dev`
    pub skb_dev: u32,
    /// `sk_buff.sk`
    pub skb_sk: u32,
    /// `sk_buff._nfct`
    pub skb_nfct: u32,
    /// `net_device.ifindex`
    pub dev_ifindex: u32,
    /// `net_device.name`
    pub dev_name: u32,
    /// `net_device.nd_net.net`
    pub dev_net: u32,
    /// `net.ns.inum`
    pub net_inum: u32,
    /// `sock.__sk_common.skc_net.net`
    pub sk_net: u32,
    /// `sock.__sk_common.skc_family`
    pub sk_family: u32,
    /// `sock.__sk_common.skc_num` (local port, host order)
    pub sk_num: u32,
    /// `sock.__sk_common.skc_dport` (remote port, network order)
    pub sk_dport: u32,
    /// `sock.__sk_common.skc_rcv_saddr` (local IPv4)
    pub sk_rcv_saddr: u32,
    /// `sock.__sk_common.skc_daddr` (remote IPv4)
    pub sk_daddr: u32,
    /// `sock.__sk_common.skc_v6_rcv_saddr`
    pub sk_v6_rcv_saddr: u32,
    /// `sock.__sk_common.skc_v6_daddr`
    pub sk_v6_daddr: u32,
    /// `sock.sk_err`
    pub sk_err: u32,
    /// `sock.sk_protocol`
    pub sk_protocol: u32,
    /// `task_struct.tgid`
    pub task_tgid: u32,
    /// `task_struct.comm`
    pub task_comm: u32,
    /// `nf_conn.status`; `u32::MAX` where conntrack is a module whose BTF was not there
    pub nf_conn_status: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// Drop reasons for which `skb->dev` may be no device any more (`udp_set_dev_scratch`, net/ipv4/udp.c).
pub const SCRATCH_REASONS: usize = 4;

/// Read-only configuration: the global `CONFIG` of the object, filled before loading.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the kernel keeps what we read.
    pub offsets: Offsets,
    /// Slots for one CPU in `SOCKETS`; a power of two.
    pub socket_slots: u32,
    /// Slots for one CPU in `HOPS`; a power of two.
    pub hop_slots: u32,
    /// Slots for one CPU in `DROPS`; a power of two.
    pub drop_slots: u32,
    /// 1: only packets in the network namespaces of the map `NETNS`.
    pub netns_scope: u32,
    /// UDP ports that carry VXLAN (host order; 0: unused).
    pub vxlan_ports: [u16; 4],
    /// See [`SCRATCH_REASONS`]; `u32::MAX`: unused.
    pub scratch_reasons: [u32; SCRATCH_REASONS],
    /// 1: the kernel's `kfree_skb` tracepoint has a reason (5.17).
    pub has_reason: u32,
    /// 1: it has the receiving socket as well (6.11).
    pub has_rx_sk: u32,
}

/// Index of a log in [`Position`]s: `cpu * log::COUNT + log`.
pub mod log {
    /// `SOCKETS`
    pub const SOCKETS: u32 = 0;
    /// `HOPS`
    pub const HOPS: u32 = 1;
    /// `DROPS`
    pub const DROPS: u32 = 2;
    /// How many logs there are.
    pub const COUNT: u32 = 3;
}

/// How many slots were reserved so far in one CPU's part of a log: an element of the map `POSITIONS`, alone in its cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Slots reserved since loading.
    pub next: u64,
    /// Explicit padding to a cache line.
    pub pad: [u64; 7],
}

/// Index into the per-CPU map `COUNTERS`.
pub mod counter {
    /// A slot was still being written by an interrupted program: the record was given up.
    pub const LOST_RESERVE: u32 = 0;
    /// A packet of a watched port whose headers lie outside the linear part.
    pub const LOST_UNREADABLE: u32 = 1;
    /// An entry could not be added to `ASKED`.
    pub const LOST_INSERT: u32 = 2;
    /// First of the hook counters: how often each saw a packet of the Service.
    pub const HOOKS: u32 = 8;
    /// `cgroup_skb/egress`
    pub const CGROUP_EGRESS: u32 = HOOKS;
    /// `cgroup_skb/ingress`
    pub const CGROUP_INGRESS: u32 = HOOKS + 1;
    /// `net_dev_queue`
    pub const NET_DEV_QUEUE: u32 = HOOKS + 2;
    /// `netif_receive_skb`
    pub const NETIF_RECEIVE_SKB: u32 = HOOKS + 3;
    /// `kfree_skb`
    pub const KFREE_SKB: u32 = HOOKS + 4;
    /// `inet_sk_error_report`
    pub const SK_ERROR: u32 = HOOKS + 5;
    /// `connect4,6` and `sendmsg4,6`
    pub const SOCK_ADDR: u32 = HOOKS + 6;
    /// `cgroup/sock_release`
    pub const SOCK_RELEASE: u32 = HOOKS + 7;
    /// Size of the map.
    pub const COUNT: u32 = 16;
}

const _: () = {
    assert!(size_of::<Packet>() == 104);
    assert!(size_of::<Socket>() == 424);
    assert!(size_of::<Asked>() == 40);
    assert!(size_of::<Watched>() == 24);
    assert!(size_of::<Offsets>() == 104);
    assert!(size_of::<Config>() == 152);
    assert!(size_of::<Position>() == 64);
};
