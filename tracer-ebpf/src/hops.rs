//! Packets at devices, and the ICMP errors among them.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use slicetrace_common::{Packet, counter, kind, point};

use crate::kernel::{Place, Skb};
use crate::log;
use crate::maps::count;
use crate::parse::{self, Bytes, Content, Datagram, Header, Unreachable};
use crate::scope::{Ends, in_scope};

/// A datagram of the Service, ready to be written.
pub struct Seen {
    /// The datagram.
    pub datagram: Datagram,
    /// It was within a tunnel.
    pub encapsulated: bool,
    /// One of [`slicetrace_common::direction`].
    pub direction: u8,
    /// Transaction id.
    pub txid: u16,
    /// DNS flags.
    pub dns_flags: u16,
    /// 1: no room for a DNS header.
    pub short: u8,
}

/// Decides whether a datagram is the Service's, and reads its DNS header.
#[inline(always)]
pub fn recognise(bytes: &impl Bytes, datagram: Datagram, encapsulated: bool) -> Option<Seen> {
    let ends = Ends::of(&datagram)?;
    let (txid, dns_flags, short) = match parse::header(bytes, &datagram) {
        Header::Complete(txid, flags) => (txid, flags, 0),
        Header::Short => (0, 0, 1),
        Header::Unreadable => {
            count(counter::LOST_UNREADABLE);
            return None;
        }
    };
    Some(Seen {
        datagram,
        encapsulated,
        direction: ends.direction(dns_flags),
        txid,
        dns_flags,
        short,
    })
}

/// Fills a slot; the sequence number is left alone.
///
/// # Safety
///
/// `packet` is a slot that was reserved.
#[inline(always)]
pub unsafe fn fill(packet: *mut Packet, seen: &Seen, place: Place, point: u8, conntrack: u8) {
    // SAFETY: the caller's promise.
    unsafe {
        (*packet).time = bpf_ktime_get_ns();
        (*packet).source = seen.datagram.source;
        (*packet).destination = seen.datagram.destination;
        (*packet).source_port = seen.datagram.source_port;
        (*packet).destination_port = seen.datagram.destination_port;
        (*packet).txid = seen.txid;
        (*packet).dns_flags = seen.dns_flags;
        (*packet).netns = place.netns;
        (*packet).ifindex = place.ifindex;
        (*packet).device = place.device();
        (*packet).point = point;
        (*packet).kind = kind::UDP;
        (*packet).direction = seen.direction;
        (*packet).encapsulated = u8::from(seen.encapsulated);
        (*packet).conntrack = conntrack;
        (*packet).icmp_type = 0;
        (*packet).icmp_code = 0;
        (*packet).short = seen.short;
        (*packet).detail = [0; 2];
    }
}

/// A packet was queued on a device.
#[inline(always)]
pub fn sent(skb: Skb) -> Option<()> {
    if skb.protocol() != parse::ETH_P_IP {
        return None;
    }
    let bytes = skb.from_network_header()?;
    match parse::content(&bytes) {
        Content::Datagram(datagram, encapsulated) => {
            let seen = recognise(&bytes, datagram, encapsulated)?;
            record(skb, &seen, point::TX, counter::NET_DEV_QUEUE)
        }
        _ => None,
    }
}

/// A device handed a packet up.
#[inline(always)]
pub fn received(skb: Skb) -> Option<()> {
    if skb.protocol() != parse::ETH_P_IP {
        return None;
    }
    let bytes = skb.from_data()?;
    match parse::content(&bytes) {
        Content::Datagram(datagram, encapsulated) => {
            let seen = recognise(&bytes, datagram, encapsulated)?;
            record(skb, &seen, point::RX, counter::NETIF_RECEIVE_SKB)
        }
        Content::Icmp(at, reporter) => {
            refused(skb, &bytes, parse::unreachable(&bytes, at, reporter)?)
        }
        Content::Other => None,
    }
}

#[inline(always)]
fn record(skb: Skb, seen: &Seen, point: u8, hook: u32) -> Option<()> {
    let place = skb.at_device();
    if !in_scope(place.netns) {
        return None;
    }
    count(hook);
    // The conntrack entry of an encapsulated packet is the tunnel's.
    let conntrack = if seen.encapsulated {
        0
    } else {
        skb.conntrack()
    };
    let slot = log::hop()?;
    // SAFETY: a reserved slot.
    unsafe { fill(slot.record, seen, place, point, conntrack) };
    slot.publish();
    Some(())
}

/// An ICMP error quotes a datagram. Routers may quote as little as the ports (RFC 792), so that txid can be missing.
#[inline(always)]
fn refused(skb: Skb, bytes: &impl Bytes, error: Unreachable) -> Option<()> {
    let ends = Ends::of(&error.quoted)?;
    let (txid, dns_flags, short) = match parse::header(bytes, &error.quoted) {
        Header::Complete(txid, flags) => (txid, flags, 0),
        Header::Short | Header::Unreadable => (0, 0, 1),
    };
    let seen = Seen {
        datagram: error.quoted,
        encapsulated: false,
        direction: ends.direction(dns_flags),
        txid,
        dns_flags,
        short,
    };
    let place = skb.at_device();
    if !in_scope(place.netns) {
        return None;
    }
    count(counter::NETIF_RECEIVE_SKB);
    let slot = log::drop()?;
    // SAFETY: a reserved slot.
    unsafe {
        // The entry attached to the error is the flow's it quotes, in another direction: of no use to who reads bits.
        fill(slot.record, &seen, place, point::RX, 0);
        (*slot.record).kind = kind::ICMP_ERROR;
        (*slot.record).icmp_type = 3;
        (*slot.record).icmp_code = error.code;
        (*slot.record).detail = core::mem::transmute::<[u8; 16], [u64; 2]>(error.reporter);
    }
    slot.publish();
    Some(())
}
