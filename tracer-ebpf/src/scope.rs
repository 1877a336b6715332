//! What is ours to record, cheapest question first: the port, the address, the namespace.

use slicetrace_common::{Address, Watched, direction};

use crate::maps::{ADDRESSES, NETNS, PORTS, config};
use crate::parse::Datagram;

/// QR: the message is a response (RFC 1035, 4.1.1).
const QR: u16 = 0x8000;

/// Which ends of a datagram are the DNS Service's.
#[derive(Clone, Copy)]
pub struct Ends {
    to: bool,
    from: bool,
}

impl Ends {
    /// Looks both ends up; `None` if neither is watched.
    #[inline(always)]
    pub fn of(datagram: &Datagram) -> Option<Self> {
        let ends = Self {
            to: watched(&datagram.destination, datagram.destination_port),
            from: watched(&datagram.source, datagram.source_port),
        };
        (ends.to || ends.from).then_some(ends)
    }

    /// One of [`direction`]. Only where both ends are the Service's (a server that forwards to another) do the DNS flags
    /// decide.
    #[inline(always)]
    pub fn direction(self, dns_flags: u16) -> u8 {
        if self.to && !(self.from && dns_flags & QR != 0) {
            direction::QUERY
        } else {
            direction::REPLY
        }
    }
}

/// Whether an address and port (host order) belong to the DNS Service.
#[inline(always)]
pub fn watched(address: &Address, port: u16) -> bool {
    let Some(word) = PORTS.get(u32::from(port >> 6)) else {
        return false;
    };
    if word >> (port & 63) & 1 == 0 {
        return false;
    }
    ADDRESSES
        .get_ptr(&Watched {
            address: *address,
            port,
            pad: [0; 6],
        })
        .is_some()
}

/// Whether a namespace is recorded. An unknown one is: where the kernel no longer knows, user space decides by the rest.
#[inline(always)]
pub fn in_scope(netns: u32) -> bool {
    config!(netns_scope) == 0 || netns == 0 || NETNS.get_ptr(&netns).is_some()
}
