//! Packets that the kernel dropped, and sockets that were told an error.

use aya_ebpf::helpers::{bpf_get_socket_cookie, bpf_ktime_get_ns};
use slicetrace_common::{Address, Packet, counter, direction, point};

use crate::hops::{fill, recognise};
use crate::kernel::{Skb, Sock};
use crate::log;
use crate::maps::{ASKED, config, count};
use crate::parse::{self, Content, UDP};
use crate::scope::{in_scope, watched};

/// The kernel freed a packet that it could not use.
#[inline(always)]
pub fn dropped(skb: Skb, location: u64, reason: u32, receiver: Option<Sock>) -> Option<()> {
    if skb.protocol() != parse::ETH_P_IP {
        return None;
    }
    let bytes = skb.from_network_header()?;
    let Content::Datagram(datagram, encapsulated) = parse::content(&bytes) else {
        return None;
    };
    let seen = recognise(&bytes, datagram, encapsulated)?;
    let mut place = if is_scratch(reason) {
        skb.at_device_if_any()
    } else {
        skb.at_device()
    };
    if place.netns == 0 {
        // Dropped in OUTPUT: a socket, but no device yet. Elsewhere the device is the better witness: a packet keeps its
        // sender's socket on its way through a veth and a bridge of another namespace.
        place.netns = skb.socket_netns();
    }
    if place.netns == 0
        && let Some(receiver) = receiver
    {
        place.netns = receiver.netns();
    }
    if !in_scope(place.netns) {
        return None;
    }
    count(counter::KFREE_SKB);
    let conntrack = if seen.encapsulated {
        0
    } else {
        skb.conntrack()
    };
    let slot = log::drop()?;
    // SAFETY: a reserved slot.
    unsafe {
        fill(slot.record, &seen, place, point::DROP, conntrack);
        (*slot.record).detail = [location, u64::from(reason)];
    }
    slot.publish();
    Some(())
}

/// Whether `skb->dev` may have been overwritten before the packet was dropped for this reason.
#[inline(always)]
fn is_scratch(reason: u32) -> bool {
    reason == config!(scratch_reasons[0])
        || reason == config!(scratch_reasons[1])
        || reason == config!(scratch_reasons[2])
        || reason == config!(scratch_reasons[3])
}

/// What a socket was told, without a packet.
pub struct Told {
    /// One of [`point`].
    pub point: u8,
    /// Local address and port.
    pub local: (Address, u16),
    /// Remote address and port, or those asked for.
    pub remote: (Address, u16),
    /// Inode of the socket's namespace.
    pub netns: u32,
    /// A positive errno.
    pub errno: u64,
    /// The socket's cookie.
    pub cookie: u64,
}

impl Told {
    /// Fills a slot; the sequence number is left alone.
    ///
    /// # Safety
    ///
    /// `packet` is a slot that was reserved.
    #[inline(always)]
    pub unsafe fn fill(&self, packet: *mut Packet) {
        // SAFETY: the caller's promise.
        unsafe {
            (*packet).time = bpf_ktime_get_ns();
            (*packet).source = self.local.0;
            (*packet).destination = self.remote.0;
            (*packet).source_port = self.local.1;
            (*packet).destination_port = self.remote.1;
            (*packet).txid = 0;
            (*packet).dns_flags = 0;
            (*packet).netns = self.netns;
            (*packet).ifindex = 0;
            (*packet).device = [0; 16];
            (*packet).point = self.point;
            (*packet).kind = 0;
            (*packet).direction = direction::QUERY;
            (*packet).encapsulated = 0;
            (*packet).conntrack = 0;
            (*packet).icmp_type = 0;
            (*packet).icmp_code = 0;
            (*packet).short = 1;
            (*packet).detail = [self.errno, self.cookie];
        }
    }
}

/// A socket was told an error.
#[inline(always)]
pub fn socket_error(sk: Sock) -> Option<()> {
    if sk.protocol() != u16::from(UDP) {
        return None;
    }
    // SAFETY: the helper takes the typed pointer as it came.
    let cookie = unsafe { bpf_get_socket_cookie(sk.0.cast_mut().cast()) };
    let (local, local_port) = (sk.local(), sk.local_port());
    let (mut remote, mut remote_port) = (sk.remote(), sk.remote_port());
    let mut ours = watched(&remote, remote_port);
    if !ours && let Some(asked) = ASKED.get_ptr(&cookie) {
        ours = true;
        if remote_port == 0 {
            // Not connected: what it asked for last.
            // SAFETY: the map's values stay readable; a reused one can at worst name another query's address.
            unsafe {
                remote = (*asked).address;
                remote_port = (*asked).port;
            }
        }
    }
    if !ours {
        return None;
    }
    let netns = sk.netns();
    if !in_scope(netns) {
        return None;
    }
    count(counter::SK_ERROR);
    let slot = log::drop()?;
    let told = Told {
        point: point::SOCKET_ERROR,
        local: (local, local_port),
        remote: (remote, remote_port),
        netns,
        errno: sk.error() as u64,
        cookie,
    };
    // SAFETY: a reserved slot.
    unsafe { told.fill(slot.record) };
    slot.publish();
    Some(())
}
