//! The only place that reads the kernel's structures. Offsets come from `CONFIG` and are constants to the verifier, so
//! that pointers it knows the type of ([`Skb`], [`Sock`]) are read by plain loads, without a helper call. A plain load
//! from a pointer that turns out to be wrong yields 0: the kernel catches the fault.

use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_kernel};
use slicetrace_common::{Address, conntrack, mapped};

use crate::maps::config;
use crate::parse::Bytes;

/// `AF_INET` and `AF_INET6` (include/linux/socket.h).
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// `NFCT_INFOMASK` (include/linux/skbuff.h).
const NFCT_INFO: u64 = 7;
/// Bits of `enum ip_conntrack_status` (include/uapi/linux/netfilter/nf_conntrack_common.h).
const IPS_SEEN_REPLY: u64 = 1 << 1;
const IPS_CONFIRMED: u64 = 1 << 3;
const IPS_SRC_NAT: u64 = 1 << 4;
const IPS_DST_NAT: u64 = 1 << 5;

/// A plain load from a pointer whose type the verifier knows.
///
/// # Safety
///
/// `base` came from the context of a BTF tracepoint, or from such a load.
#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: the verifier checks the access against the kernel's own types.
    unsafe { core::ptr::read(base.add(offset as usize).cast()) }
}

/// A load through the helper that catches faults, for addresses without a type.
#[inline(always)]
fn probe<T: Copy>(base: u64, offset: u32) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset)) as *const T).ok() }
}

/// Where a packet was: namespace and device.
#[derive(Clone, Copy)]
pub struct Place {
    /// Inode of the network namespace; 0 unknown.
    pub netns: u32,
    /// Interface index; 0 unknown.
    pub ifindex: u32,
    /// Address of the device's name; 0 unknown.
    pub name: u64,
}

impl Place {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        netns: 0,
        ifindex: 0,
        name: 0,
    };

    /// The interface name, NUL-padded.
    #[inline(always)]
    pub fn device(&self) -> [u8; 16] {
        if self.name == 0 {
            return [0; 16];
        }
        probe(self.name, 0).unwrap_or([0; 16])
    }
}

/// The linear part of a packet's data from some header on.
pub struct Linear {
    start: u64,
    length: u32,
}

impl Bytes for Linear {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        if offset + N as u32 > self.length {
            return None;
        }
        probe(self.start, offset)
    }
}

/// A `struct sk_buff` handed to a BTF tracepoint.
#[derive(Clone, Copy)]
pub struct Skb(pub *const u8);

impl Skb {
    /// `skb->protocol` as a number (`ETH_P_IP`, …).
    #[inline(always)]
    pub fn protocol(self) -> u16 {
        // SAFETY: a typed pointer from the context.
        u16::from_be(unsafe { load(self.0, config!(offsets.skb_protocol)) })
    }

    /// From `skb->data` on: the network header where a device has just handed the packet up, and before
    /// `skb_reset_network_header` ran.
    #[inline(always)]
    pub fn from_data(self) -> Option<Linear> {
        // SAFETY: typed pointers from the context.
        let (head, data, tail): (u64, u64, u32) = unsafe {
            (
                load(self.0, config!(offsets.skb_head)),
                load(self.0, config!(offsets.skb_data)),
                load(self.0, config!(offsets.skb_tail)),
            )
        };
        let length = (head + u64::from(tail)).checked_sub(data)?;
        Some(Linear {
            start: data,
            length: length as u32,
        })
    }

    /// From the network header on: where a packet is sent, or was dropped on its way up.
    #[inline(always)]
    pub fn from_network_header(self) -> Option<Linear> {
        // SAFETY: typed pointers from the context.
        let (head, header, tail): (u64, u16, u32) = unsafe {
            (
                load(self.0, config!(offsets.skb_head)),
                load(self.0, config!(offsets.skb_network_header)),
                load(self.0, config!(offsets.skb_tail)),
            )
        };
        let length = tail.checked_sub(u32::from(header))?;
        Some(Linear {
            start: head + u64::from(header),
            length,
        })
    }

    /// The device the packet is at.
    #[inline(always)]
    pub fn at_device(self) -> Place {
        // SAFETY: typed pointers, followed one by one; a NULL or stale one reads as 0.
        unsafe {
            let device: *const u8 = load(self.0, config!(offsets.skb_dev));
            let net: *const u8 = load(device, config!(offsets.dev_net));
            Place {
                netns: load(net, config!(offsets.net_inum)),
                ifindex: load(device, config!(offsets.dev_ifindex)),
                name: named(device as u64),
            }
        }
    }

    /// The same where UDP may have put lengths and flags in the pointer's place (`struct udp_dev_scratch`, net/ipv4/udp.c).
    /// Their highest byte is a flag, 0 or 1 (0x80 at most on big-endian machines), a kernel address's is 0xff.
    #[inline(always)]
    pub fn at_device_if_any(self) -> Place {
        // A number here, not a typed pointer: the verifier lets nobody look at a pointer's bits.
        let device: u64 = probe(self.0 as u64, config!(offsets.skb_dev)).unwrap_or(0);
        if device >> 56 != 0xff {
            return Place::UNKNOWN;
        }
        Place {
            netns: probe::<u64>(device, config!(offsets.dev_net))
                .and_then(|net| probe(net, config!(offsets.net_inum)))
                .unwrap_or(0),
            ifindex: probe(device, config!(offsets.dev_ifindex)).unwrap_or(0),
            name: named(device),
        }
    }

    /// Namespace of the packet's socket; 0 if it has none. Request and time-wait sockets start with `sock_common` too.
    #[inline(always)]
    pub fn socket_netns(self) -> u32 {
        // SAFETY: as above.
        unsafe {
            let sk: *const u8 = load(self.0, config!(offsets.skb_sk));
            // Newer verifiers know that this one may be NULL, and insist.
            if sk.is_null() {
                return 0;
            }
            let net: *const u8 = load(sk, config!(offsets.sk_net));
            load(net, config!(offsets.net_inum))
        }
    }

    /// What conntrack says of the packet.
    #[inline(always)]
    pub fn conntrack(self) -> u8 {
        // SAFETY: a typed pointer from the context.
        conntrack_bits(unsafe { load(self.0, config!(offsets.skb_nfct)) })
    }
}

#[inline(always)]
fn named(device: u64) -> u64 {
    if device == 0 {
        0
    } else {
        device + u64::from(config!(offsets.dev_name))
    }
}

/// Turns `skb->_nfct` into the bits of [`conntrack`].
#[inline(always)]
fn conntrack_bits(nfct: u64) -> u8 {
    let entry = nfct & !NFCT_INFO;
    let info = (nfct & NFCT_INFO) as u8;
    if entry == 0 {
        return 0;
    }
    let status: Option<u64> = match config!(offsets.nf_conn_status) {
        u32::MAX => None,
        offset => probe(entry, offset),
    };
    let Some(status) = status else {
        // Without the status only an established entry says something; it is confirmed.
        return if info == 0 || info == 3 {
            conntrack::PRESENT | conntrack::CONFIRMED | info
        } else {
            0
        };
    };
    let mut bits = conntrack::PRESENT | info;
    if status & IPS_CONFIRMED != 0 {
        bits |= conntrack::CONFIRMED;
    }
    if status & IPS_DST_NAT != 0 {
        bits |= conntrack::DST_NAT;
    }
    if status & IPS_SRC_NAT != 0 {
        bits |= conntrack::SRC_NAT;
    }
    if status & IPS_SEEN_REPLY != 0 {
        bits |= conntrack::SEEN_REPLY;
    }
    bits
}

/// A `struct sock` handed to a BTF tracepoint.
#[derive(Clone, Copy)]
pub struct Sock(pub *const u8);

impl Sock {
    /// A socket that a tracepoint may not have.
    #[inline(always)]
    pub fn nullable(sk: *const u8) -> Option<Self> {
        (!sk.is_null()).then_some(Self(sk))
    }

    /// `IPPROTO_UDP` for the sockets we want.
    #[inline(always)]
    pub fn protocol(self) -> u16 {
        // SAFETY: a typed pointer from the context.
        unsafe { load(self.0, config!(offsets.sk_protocol)) }
    }

    /// The pending error, a positive errno.
    #[inline(always)]
    pub fn error(self) -> i32 {
        // SAFETY: as above.
        unsafe { load(self.0, config!(offsets.sk_err)) }
    }

    /// Inode of the socket's network namespace.
    #[inline(always)]
    pub fn netns(self) -> u32 {
        // SAFETY: as above.
        unsafe {
            let net: *const u8 = load(self.0, config!(offsets.sk_net));
            load(net, config!(offsets.net_inum))
        }
    }

    /// Local port, host order.
    #[inline(always)]
    pub fn local_port(self) -> u16 {
        // SAFETY: as above.
        unsafe { load(self.0, config!(offsets.sk_num)) }
    }

    /// Remote port, host order; 0 if not connected.
    #[inline(always)]
    pub fn remote_port(self) -> u16 {
        // SAFETY: as above.
        u16::from_be(unsafe { load(self.0, config!(offsets.sk_dport)) })
    }

    /// Local address.
    #[inline(always)]
    pub fn local(self) -> Address {
        self.address(
            config!(offsets.sk_rcv_saddr),
            config!(offsets.sk_v6_rcv_saddr),
        )
    }

    /// Remote address; all zero (mapped) if not connected.
    #[inline(always)]
    pub fn remote(self) -> Address {
        self.address(config!(offsets.sk_daddr), config!(offsets.sk_v6_daddr))
    }

    #[inline(always)]
    fn address(self, v4: u32, v6: u32) -> Address {
        // SAFETY: as above.
        let family: u16 = unsafe { load(self.0, config!(offsets.sk_family)) };
        if family == AF_INET6 {
            return probe(self.0 as u64, v6).unwrap_or([0; 16]);
        }
        if family != AF_INET {
            return [0; 16];
        }
        // SAFETY: as above.
        let address: u32 = unsafe { load(self.0, v4) };
        mapped(address.to_ne_bytes())
    }
}

/// The kernel address behind a pointer that the verifier guards: a cgroup program's context *is* the `sk_buff`, and its
/// `sk` the `sock`, but only their public part may be read through them. Passing the pointer through a map makes it a
/// number, which [`probe`] may read from; `scratch` is cleared again, for user space has no use for a kernel address.
///
/// # Safety
///
/// `scratch` lies in a map.
#[inline(always)]
pub unsafe fn address_of<T>(guarded: *mut T, scratch: *mut u64) -> u64 {
    // SAFETY: the caller's promise; volatile, so that the round trip is not optimised away.
    unsafe {
        core::ptr::write_volatile(scratch, guarded as u64);
        let address = core::ptr::read_volatile(scratch);
        core::ptr::write_volatile(scratch, 0);
        address
    }
}

/// Namespace of the socket at this address; 0 unknown.
#[inline(always)]
pub fn netns_of_sock(sk: u64) -> u32 {
    probe::<u64>(sk, config!(offsets.sk_net))
        .and_then(|net| probe(net, config!(offsets.net_inum)))
        .unwrap_or(0)
}

/// Namespace of the socket of the `sk_buff` at this address; 0 unknown.
#[inline(always)]
pub fn netns_of_skb(skb: u64) -> u32 {
    probe::<u64>(skb, config!(offsets.skb_sk)).map_or(0, netns_of_sock)
}

/// What conntrack says of the `sk_buff` at this address.
#[inline(always)]
pub fn conntrack_of_skb(skb: u64) -> u8 {
    probe(skb, config!(offsets.skb_nfct)).map_or(0, conntrack_bits)
}

/// Thread group id (initial PID namespace) and name of the running process.
#[inline(always)]
pub fn current() -> (u32, [u8; 16]) {
    // The helpers that return these are missing from cgroup_skb programs of older kernels; this one never was.
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    (
        probe(task, config!(offsets.task_tgid)).unwrap_or(0),
        probe(task, config!(offsets.task_comm)).unwrap_or([0; 16]),
    )
}
