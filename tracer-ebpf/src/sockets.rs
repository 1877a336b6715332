//! Packets at sockets, what processes ask for, and sockets that close.

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_sock_addr,
    helpers::{
        bpf_get_retval, bpf_get_socket_cookie, bpf_ktime_get_ns, bpf_skb_cgroup_id,
        bpf_skb_load_bytes,
    },
    programs::{SkBuffContext, SockAddrContext, SockContext},
};
use slicetrace_common::{
    Address, Asked, Packet, QUESTION_BYTES, counter, direction, mapped, point,
};

use crate::drops::Told;
use crate::hops::{fill, recognise};
use crate::kernel::{self, Place, address_of};
use crate::log;
use crate::maps::{ASKED, count};
use crate::parse::{self, Bytes, Content, UDP};
use crate::scope::watched;

/// Length of a DNS header (RFC 1035, 4.1.1).
const DNS_HEADER: u32 = 12;

/// The root's name, a type and a class.
const SHORTEST_QUESTION: u32 = 5;

impl Bytes for SkBuffContext {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.load(offset as usize).ok()
    }
}

/// A packet left a socket, or is about to be queued to one.
#[inline(always)]
pub fn packet(context: &SkBuffContext, point: u8, hook: u32) -> Option<()> {
    let protocol = context.skb.protocol() as u16;
    if u16::from_be(protocol) != parse::ETH_P_IP {
        return None;
    }
    // A tunnel's outer packet is not looked into: no client's socket sends one.
    let Content::Datagram(datagram, false) = parse::content(context) else {
        return None;
    };
    let seen = recognise(context, datagram, false)?;
    count(hook);
    let skb = context.skb.skb;
    // SAFETY: helpers on the program's own context.
    let (cookie, cgroup) = unsafe { (bpf_get_socket_cookie(skb.cast()), bpf_skb_cgroup_id(skb)) };
    let is_query = seen.direction == direction::QUERY;
    let outgoing = point == point::SOCKET_OUT;
    if is_query && outgoing && ASKED.get_ptr(&cookie).is_none() {
        // Connected before we were there, or sent without an address: its end shall be seen all the same.
        remember(cookie, &[0; 16], 0, 0);
    }
    let slot = log::socket()?;
    // SAFETY: a reserved slot, which lies in a map.
    unsafe {
        let record = slot.record;
        let address = address_of(skb, &raw mut (*record).packet.detail[0]);
        let place = Place {
            netns: kernel::netns_of_skb(address),
            ..Place::UNKNOWN
        };
        let conntrack = kernel::conntrack_of_skb(address);
        fill(&raw mut (*record).packet, &seen, place, point, conntrack);
        (*record).cookie = cookie;
        (*record).cgroup = cgroup;
        match ASKED.get_ptr(&cookie) {
            Some(asked) => {
                (*record).pid = (*asked).pid;
                (*record).asked_port = (*asked).port;
                (*record).asked = (*asked).address;
                (*record).comm = (*asked).comm;
            }
            None => {
                // A server: who sends is running; who will receive is not known yet.
                let (pid, comm) = if outgoing {
                    kernel::current()
                } else {
                    (0, [0; 16])
                };
                (*record).pid = pid;
                (*record).asked_port = 0;
                (*record).asked = [0; 16];
                (*record).comm = comm;
            }
        }
        (*record).question_len = 0;
        if is_query {
            let start = seen.datagram.payload + DNS_HEADER;
            let there = context.len().saturating_sub(start);
            let said = u32::from(seen.datagram.length).saturating_sub(DNS_HEADER);
            let length = there.min(said).min(QUESTION_BYTES as u32);
            // Verifiers before 6.8 learn nothing from "not zero", but do from "at least".
            if length >= SHORTEST_QUESTION
                && bpf_skb_load_bytes(
                    skb.cast(),
                    start,
                    (&raw mut (*record).question).cast(),
                    length,
                ) == 0
            {
                (*record).question_len = length as u16;
            }
        }
    }
    slot.publish();
    Some(())
}

/// Notes what the running process asked for on a socket.
#[inline(always)]
fn remember(cookie: u64, address: &Address, port: u16, by_root: u16) {
    let (pid, comm) = kernel::current();
    let asked = Asked {
        address: *address,
        pid,
        port,
        by_root,
        comm,
    };
    if ASKED.insert(&cookie, &asked, 0).is_err() {
        count(counter::LOST_INSERT);
    }
}

/// The address a `connect` or `sendmsg` was given, as the programs before us left it.
#[inline(always)]
fn given(context: &SockAddrContext, v6: bool) -> (Address, u16) {
    let call: *mut bpf_sock_addr = context.sock_addr;
    // SAFETY: loads that the verifier checks against the context's layout.
    unsafe {
        let port = u16::from_be((*call).user_port as u16);
        if !v6 {
            return (mapped((*call).user_ip4.to_ne_bytes()), port);
        }
        let words = [
            (*call).user_ip6[0],
            (*call).user_ip6[1],
            (*call).user_ip6[2],
            (*call).user_ip6[3],
        ];
        (core::mem::transmute::<[u32; 4], Address>(words), port)
    }
}

/// A process below the cgroup root asks: no load balancer on the root has seen the call yet.
#[inline(always)]
pub fn asked(context: &SockAddrContext, v6: bool) -> Option<()> {
    // SAFETY: a load that the verifier checks.
    if unsafe { (*context.sock_addr).protocol } != u32::from(UDP) {
        return None;
    }
    let (address, port) = given(context, v6);
    if !watched(&address, port) {
        return None;
    }
    count(counter::SOCK_ADDR);
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(context.as_ptr()) };
    remember(cookie, &address, port, 0);
    Some(())
}

/// The same call at the root, after every other program: was it refused?
#[inline(always)]
pub fn decided(context: &SockAddrContext, v6: bool) -> Option<()> {
    let call = context.sock_addr;
    // SAFETY: a load that the verifier checks.
    if unsafe { (*call).protocol } != u32::from(UDP) {
        return None;
    }
    let (mut address, mut port) = given(context, v6);
    // SAFETY: a helper without arguments.
    let result = unsafe { bpf_get_retval() };
    let mut ours = watched(&address, port);
    if !ours && result >= 0 {
        return None;
    }
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(context.as_ptr()) };
    match ASKED.get_ptr(&cookie) {
        // SAFETY: the map's values stay readable.
        Some(asked) if unsafe { (*asked).by_root == 0 && (*asked).port != 0 } => {
            ours = true;
            // SAFETY: as above.
            unsafe {
                address = (*asked).address;
                port = (*asked).port;
            }
        }
        _ if ours => {
            // No program of ours ran before: the process sits in the root itself.
            count(counter::SOCK_ADDR);
            remember(cookie, &address, port, 1);
        }
        _ => {}
    }
    if !ours || result >= 0 {
        return None;
    }
    // SAFETY: the context's socket is never NULL here; loads that the verifier checks.
    let (sk, local, local_port) = unsafe {
        let sk = (*call).__bindgen_anon_1.sk;
        let local = mapped((*sk).src_ip4.to_ne_bytes());
        (sk, local, (*sk).src_port as u16)
    };
    let slot = log::drop()?;
    // SAFETY: a reserved slot, which lies in a map.
    unsafe {
        let packet: *mut Packet = slot.record;
        let netns = kernel::netns_of_sock(address_of(sk, &raw mut (*packet).detail[0]));
        let told = Told {
            point: point::SEND_REFUSED,
            local: (local, local_port),
            remote: (address, port),
            netns,
            errno: result.unsigned_abs().into(),
            cookie,
        };
        told.fill(packet);
    }
    slot.publish();
    Some(())
}

/// A socket was closed.
#[inline(always)]
pub fn released(context: &SockContext) -> Option<()> {
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(context.as_ptr()) };
    ASKED.get_ptr(&cookie)?;
    count(counter::SOCK_RELEASE);
    if let Some(slot) = log::socket() {
        // SAFETY: a reserved slot.
        unsafe {
            (*slot.record).packet.time = bpf_ktime_get_ns();
            (*slot.record).packet.point = point::RELEASE;
            (*slot.record).cookie = cookie;
        }
        slot.publish();
    }
    // Failing to remove it means that it is gone already.
    let _ = ASKED.remove(&cookie);
    Some(())
}
