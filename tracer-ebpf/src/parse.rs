//! From bytes to a DNS datagram: IPv4 with options and fragments, UDP, VXLAN, ICMP errors, the DNS header. IPv6 packets
//! are passed over; the records have room for them.

use slicetrace_common::{Address, mapped};

use crate::maps::config;

/// `ETH_P_IP` (include/uapi/linux/if_ether.h).
pub const ETH_P_IP: u16 = 0x0800;
/// RFC 768.
pub const UDP: u8 = 17;
const ICMP: u8 = 1;
const UDP_HEADER: u32 = 8;
const DNS_HEADER: u16 = 12;
/// RFC 7348: flags, VNI.
const VXLAN_HEADER: u32 = 8;
const ETHERNET_HEADER: u32 = 14;
const ICMP_HEADER: u32 = 8;
/// RFC 792.
const DESTINATION_UNREACHABLE: u8 = 3;

/// Something with bytes; `None` where they are not there.
pub trait Bytes {
    /// Reads `N` bytes.
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;
}

/// A UDP datagram's ends, and where its payload is.
pub struct Datagram {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Offset of the payload: the DNS header.
    pub payload: u32,
    /// Length of the payload, by the UDP header.
    pub length: u16,
}

/// An ICMP error and the datagram it quotes.
pub struct Unreachable {
    /// Outer source.
    pub reporter: Address,
    /// ICMP code.
    pub code: u8,
    /// The quoted datagram.
    pub quoted: Datagram,
}

/// What lies at a network header.
pub enum Content {
    /// A datagram; the flag tells whether a tunnel was opened to reach it.
    Datagram(Datagram, bool),
    /// An ICMP message; offset of its header, and the outer source.
    Icmp(u32, Address),
    /// Nothing for us.
    Other,
}

/// The DNS header, as far as it is there.
pub enum Header {
    /// Transaction id and flags.
    Complete(u16, u16),
    /// The datagram is too short for one.
    Short,
    /// The datagram says it is there, but it cannot be read here.
    Unreadable,
}

/// Looks at a network header, and into a VXLAN tunnel if it is one.
#[inline(always)]
pub fn content(bytes: &impl Bytes) -> Content {
    match network(bytes, 0) {
        Content::Datagram(outer, _) if is_vxlan(outer.destination_port) => {
            match tunnelled(bytes, outer.payload) {
                Some(inner) => Content::Datagram(inner, true),
                None => Content::Other,
            }
        }
        other => other,
    }
}

/// The datagram within a VXLAN packet whose VXLAN header is at `at`.
#[inline(always)]
fn tunnelled(bytes: &impl Bytes, at: u32) -> Option<Datagram> {
    let ethernet = at + VXLAN_HEADER;
    let kind: [u8; 2] = bytes.read(ethernet + 12)?;
    if u16::from_be_bytes(kind) != ETH_P_IP {
        return None;
    }
    match network(bytes, ethernet + ETHERNET_HEADER) {
        Content::Datagram(inner, _) => Some(inner),
        _ => None,
    }
}

#[inline(always)]
fn network(bytes: &impl Bytes, at: u32) -> Content {
    // One read for the header without options and the ports: what nearly every packet needs.
    let Some(ip) = bytes.read::<28>(at) else {
        return Content::Other;
    };
    let words = u32::from(ip[0] & 0x0f);
    // A fragment other than the first has no ports.
    let offset = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff;
    if ip[0] >> 4 != 4 || words < 5 || offset != 0 {
        return Content::Other;
    }
    let transport = at + words * 4;
    match ip[9] {
        UDP => {
            let udp: [u8; 8] = if words == 5 {
                [
                    ip[20], ip[21], ip[22], ip[23], ip[24], ip[25], ip[26], ip[27],
                ]
            } else {
                match bytes.read(transport) {
                    Some(udp) => udp,
                    None => return Content::Other,
                }
            };
            Content::Datagram(
                Datagram {
                    source: mapped([ip[12], ip[13], ip[14], ip[15]]),
                    destination: mapped([ip[16], ip[17], ip[18], ip[19]]),
                    source_port: u16::from_be_bytes([udp[0], udp[1]]),
                    destination_port: u16::from_be_bytes([udp[2], udp[3]]),
                    payload: transport + UDP_HEADER,
                    length: u16::from_be_bytes([udp[4], udp[5]]).saturating_sub(8),
                },
                false,
            )
        }
        ICMP => Content::Icmp(transport, mapped([ip[12], ip[13], ip[14], ip[15]])),
        _ => Content::Other,
    }
}

/// Opens an ICMP message that may be an error about a datagram.
#[inline(always)]
pub fn unreachable(bytes: &impl Bytes, at: u32, reporter: Address) -> Option<Unreachable> {
    let [kind, code] = bytes.read(at)?;
    if kind != DESTINATION_UNREACHABLE {
        return None;
    }
    match network(bytes, at + ICMP_HEADER) {
        Content::Datagram(quoted, _) => Some(Unreachable {
            reporter,
            code,
            quoted,
        }),
        _ => None,
    }
}

/// Reads the DNS header of a datagram.
#[inline(always)]
pub fn header(bytes: &impl Bytes, datagram: &Datagram) -> Header {
    if datagram.length < DNS_HEADER {
        return Header::Short;
    }
    match bytes.read::<4>(datagram.payload) {
        Some([a, b, c, d]) => {
            Header::Complete(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
        }
        None => Header::Unreadable,
    }
}

#[inline(always)]
fn is_vxlan(port: u16) -> bool {
    port != 0
        && (port == config!(vxlan_ports[0])
            || port == config!(vxlan_ports[1])
            || port == config!(vxlan_ports[2])
            || port == config!(vxlan_ports[3]))
}
