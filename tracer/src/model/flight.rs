//! A flight: what *one node* recorded of one attempt. The client's node and the backend's node each have one; on a node
//! that has both ends it is the same. [`crate::correlate`] joins them by client address, port, txid and time.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Timestamp;
use super::event::{Conntrack, Direction, Packet, Point, Question};

/// One node's record of one attempt (one packet of a query and what came of it).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flight {
    /// Address and port the client sent from, as seen on this node.
    pub client: SocketAddr,
    /// DNS transaction id; `None` where no packet ever existed.
    pub txid: Option<u16>,
    /// First time this node saw anything of it.
    pub at: Timestamp,
    /// The client's side, if the client's socket is on this node.
    pub origin: Option<Origin>,
    /// The server's side, if the packet reached a server's socket on this node.
    pub delivery: Option<Delivery>,
    /// The question, where seen.
    pub question: Option<Question>,
    /// Hops of the packet and its reply on this node, by time. Empty for healthy flights unless asked for.
    pub trail: Vec<Hop>,
    /// Drops of the packet or of its reply on this node, by time.
    pub drops: Vec<Drop>,
    /// How the client was told that it failed.
    pub refusals: Vec<Refusal>,
    /// A part of the trail may be missing: slots were overwritten before they could be copied.
    pub trail_lost: bool,
}

impl Flight {
    /// Moves every time in it by `by_ns` nanoseconds, from its node's clock to another one.
    pub fn shift(&mut self, by_ns: i64) {
        let move_to = |time: &mut Timestamp| *time = *time + by_ns;
        move_to(&mut self.at);
        if let Some(origin) = &mut self.origin {
            move_to(&mut origin.sent);
            move_to(&mut origin.recorded_since);
            move_to(&mut origin.completed);
            origin.previous.iter_mut().for_each(move_to);
            origin.closed.iter_mut().for_each(move_to);
            origin.answer.iter_mut().for_each(|it| move_to(&mut it.at));
        }
        if let Some(delivery) = &mut self.delivery {
            move_to(&mut delivery.at);
            delivery.replied.iter_mut().for_each(move_to);
        }
        self.trail.iter_mut().for_each(|it| move_to(&mut it.at));
        self.drops.iter_mut().for_each(|it| move_to(&mut it.at));
        for refusal in &mut self.refusals {
            match refusal {
                Refusal::Icmp { at, .. } | Refusal::Socket { at, .. } => move_to(at),
            }
        }
    }
}

/// The client's side of a flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// When the packet left the client's socket (or the send was refused).
    pub sent: Timestamp,
    /// Socket cookie.
    pub cookie: u64,
    /// Who asked.
    pub owner: Owner,
    /// Address the process asked for, before any connect-time load balancer, where seen.
    pub asked: Option<SocketAddr>,
    /// Destination in the packet as it left the socket (after OUTPUT and POSTROUTING for host processes);
    /// `None` where no packet existed.
    pub destination: Option<SocketAddr>,
    /// When an earlier packet of this client address:port towards the Service was last seen before this one, on this node.
    pub previous: Option<Timestamp>,
    /// Since when this node has recorded without a break: before it, [`Origin::previous`] could not have been seen.
    pub recorded_since: Timestamp,
    /// Conntrack time-outs of this node's namespace, as they were then.
    pub timeouts: ConntrackTimeouts,
    /// The answer as it reached the client's socket.
    pub answer: Option<Answer>,
    /// When the client's socket was closed, if it was before the answer.
    pub closed: Option<Timestamp>,
    /// When this node stopped waiting for an answer.
    pub completed: Timestamp,
}

/// `nf_conntrack_udp_timeout` and `nf_conntrack_udp_timeout_stream` of a namespace, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConntrackTimeouts {
    /// For a flow that has had no more than a question and an answer.
    pub unreplied_ns: i64,
    /// For a flow that has had traffic both ways for two seconds.
    pub stream_ns: i64,
}

impl Default for ConntrackTimeouts {
    /// The kernel's defaults, 30 s and 120 s (net/netfilter/nf_conntrack_proto_udp.c).
    fn default() -> Self {
        Self {
            unreplied_ns: 30_000_000_000,
            stream_ns: 120_000_000_000,
        }
    }
}

/// Who owns a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Namespace and name of the pod; `None` for a host process or unknown.
    pub pod: Option<PodName>,
    /// Container within the pod.
    pub container: Option<String>,
    /// Process name.
    pub process: Option<String>,
    /// Thread group id.
    pub pid: Option<u32>,
}

/// A pod's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodName {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
}

/// The answer at the client's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// When it reached the socket.
    pub at: Timestamp,
    /// Response code (RFC 1035, 4.1.1).
    pub rcode: u8,
    /// TC: the client will ask again over TCP.
    pub truncated: bool,
    /// Source of the reply as the socket saw it.
    pub source: SocketAddr,
}

/// The server's side of a flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// When the query was about to be queued to the server's socket.
    pub at: Timestamp,
    /// Address of that socket: the backend.
    pub backend: SocketAddr,
    /// Who serves there.
    pub owner: Owner,
    /// When the reply left the server's socket.
    pub replied: Option<Timestamp>,
    /// Inode of the server's network namespace; 0 unknown.
    pub netns: u32,
}

/// A packet at one point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// When.
    pub at: Timestamp,
    /// Inode of the network namespace; 0 unknown.
    pub netns: u32,
    /// Device; `None` at a socket.
    pub device: Option<String>,
    /// Where.
    pub point: Point,
    /// Which way.
    pub direction: Direction,
    /// Source there.
    pub source: SocketAddr,
    /// Destination there.
    pub destination: SocketAddr,
    /// It was the inner packet of a tunnel.
    pub encapsulated: bool,
    /// What conntrack said.
    pub conntrack: Conntrack,
}

impl From<&Packet> for Hop {
    fn from(packet: &Packet) -> Self {
        Self {
            at: packet.at,
            netns: packet.netns,
            device: packet.device.clone(),
            point: packet.point,
            direction: packet.direction,
            source: packet.source,
            destination: packet.destination,
            encapsulated: packet.encapsulated,
            conntrack: packet.conntrack,
        }
    }
}

/// The kernel dropped the packet or its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// When.
    pub at: Timestamp,
    /// Reason by name; `None` if the kernel has none.
    pub reason: Option<String>,
    /// Function; `None` unknown.
    pub location: Option<String>,
    /// Which of the two packets.
    pub direction: Direction,
    /// Inode of the network namespace; 0 unknown.
    pub netns: u32,
    /// Device, where known.
    pub device: Option<String>,
    /// Source at the drop.
    pub source: SocketAddr,
    /// Destination at the drop: still the Service's, or the backend chosen.
    pub destination: SocketAddr,
    /// What conntrack said.
    pub conntrack: Conntrack,
}

/// How the client's side was told that an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "how")]
pub enum Refusal {
    /// An ICMP error quoting the query passed a device of this node.
    #[serde(rename_all = "camelCase")]
    Icmp {
        /// When it was last seen on this node.
        at: Timestamp,
        /// Outer source.
        reporter: IpAddr,
        /// ICMP type.
        icmp_type: u8,
        /// ICMP code.
        icmp_code: u8,
        /// Namespace where it was last seen.
        netns: u32,
        /// Destination of the quoted query where the ICMP was first seen: still the Service's, or the backend chosen.
        quoted_destination: SocketAddr,
    },
    /// The client's socket was told an error.
    #[serde(rename_all = "camelCase")]
    Socket {
        /// When.
        at: Timestamp,
        /// The errno, positive.
        errno: i32,
        /// The send itself failed and no packet exists.
        at_send: bool,
    },
}

impl Refusal {
    /// When the client's side was told.
    pub const fn at(&self) -> Timestamp {
        match self {
            Self::Icmp { at, .. } | Self::Socket { at, .. } => *at,
        }
    }
}
