//! One thing the kernel told us, decoded: the input of [`crate::correlate::attempts`].
//!
//! Times are the node's wall clock. Addresses and ports are as they stood in the packet at that point.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// A kernel event that concerns a watched DNS Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A DNS packet left or reached a socket on this node.
    Socket(SocketPacket),
    /// The kernel dropped a DNS packet.
    Drop {
        /// The packet.
        packet: Packet,
        /// Name in `enum skb_drop_reason` without its prefix, such as `NO_SOCKET`; `None` before Linux 5.17.
        reason: Option<String>,
        /// Kernel function that dropped it; `None` if kallsyms is hidden from us.
        location: Option<String>,
    },
    /// An ICMP error that quotes a DNS packet passed a device; `packet` is the quoted one, with the device it passed.
    Refusal {
        /// The quoted packet (its `direction` is that of the quoted packet).
        packet: Packet,
        /// Outer source address of the ICMP message.
        reporter: IpAddr,
        /// ICMP type.
        icmp_type: u8,
        /// ICMP code.
        icmp_code: u8,
    },
    /// A socket was told an error (`inet_sk_error_report`), or a send was refused at once.
    SocketError {
        /// When.
        at: Timestamp,
        /// Socket cookie, where known.
        cookie: Option<u64>,
        /// Local end of the socket.
        local: SocketAddr,
        /// Remote end of the socket (the address asked for, where the send was refused).
        remote: SocketAddr,
        /// The errno, positive.
        errno: i32,
        /// The send itself failed: no packet exists.
        at_send: bool,
    },
    /// The client's socket was closed.
    Released {
        /// When.
        at: Timestamp,
        /// Socket cookie.
        cookie: u64,
    },
}

/// A DNS packet at one point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// When.
    pub at: Timestamp,
    /// Where.
    pub point: Point,
    /// Which way.
    pub direction: Direction,
    /// Source at this point.
    pub source: SocketAddr,
    /// Destination at this point.
    pub destination: SocketAddr,
    /// DNS transaction id; `None` if too few bytes were there.
    pub txid: Option<u16>,
    /// DNS flags word; `None` if too few bytes were there.
    pub dns_flags: Option<u16>,
    /// Inode of the network namespace; 0 unknown.
    pub netns: u32,
    /// Device name; `None` unknown or none.
    pub device: Option<String>,
    /// It was the inner packet of a tunnel.
    pub encapsulated: bool,
    /// What conntrack said of it here.
    pub conntrack: Conntrack,
}

impl Packet {
    /// The client's end: source of a query, destination of a reply.
    pub const fn client(&self) -> SocketAddr {
        match self.direction {
            Direction::Query => self.source,
            Direction::Reply => self.destination,
        }
    }

    /// The server's end: destination of a query, source of a reply.
    pub const fn server(&self) -> SocketAddr {
        match self.direction {
            Direction::Query => self.destination,
            Direction::Reply => self.source,
        }
    }
}

/// A [`Packet`] at a socket, with the socket's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPacket {
    /// The packet; `point` is `socket-out` or `socket-in`.
    pub packet: Packet,
    /// Socket cookie.
    pub cookie: u64,
    /// cgroup2 id of the socket.
    pub cgroup: u64,
    /// Thread group id of the process that asked; 0 unknown.
    pub pid: u32,
    /// Its name; empty unknown.
    pub comm: String,
    /// Address it asked for, before any connect-time load balancer.
    pub asked: Option<SocketAddr>,
    /// The question, where one could be decoded.
    pub question: Option<Question>,
}

/// Name and type of a DNS question.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Question {
    /// Presentation form (RFC 4343 escapes), with the trailing dot, case as sent.
    pub name: String,
    /// Type as its mnemonic, `TYPE65` style where it has none (RFC 3597).
    #[serde(rename = "type")]
    pub kind: String,
}

/// Where a packet was seen.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// It left a socket.
    SocketOut,
    /// It was queued on a device.
    Tx,
    /// A device handed it up.
    Rx,
    /// It reached a socket.
    SocketIn,
}

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Towards the DNS Service.
    Query,
    /// From it.
    Reply,
}

/// What the conntrack entry attached to a packet said (`skb->_nfct`), as the bits of [`slicetrace_common::conntrack`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conntrack(pub u8);

impl Conntrack {
    /// No entry was attached, or it belongs to an outer packet.
    pub const NONE: Self = Self(0);

    /// An entry was attached.
    pub const fn present(self) -> bool {
        self.0 & slicetrace_common::conntrack::PRESENT != 0
    }

    /// This very packet created the entry: the flow is new. (`IP_CT_NEW` with a confirmed entry proves nothing.)
    pub const fn created_by_this_packet(self) -> bool {
        self.present() && self.0 & slicetrace_common::conntrack::CONFIRMED == 0
    }

    /// The entry was established: the flow is old. `IP_CT_ESTABLISHED` is 0, `IP_CT_ESTABLISHED_REPLY` is 3
    /// (include/uapi/linux/netfilter/nf_conntrack_common.h).
    pub const fn established(self) -> bool {
        self.present() && matches!(self.0 & slicetrace_common::conntrack::INFO_MASK, 0 | 3)
    }

    /// The entry rewrites the destination.
    pub const fn destination_nat(self) -> bool {
        self.present() && self.0 & slicetrace_common::conntrack::DST_NAT != 0
    }
}
