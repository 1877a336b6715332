//! Packets to a DNS Service that are no queries.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::Result;

use crate::lab::rules::CLUSTER_IP;

/// What `lab noise` does: sends them from fresh ports.
pub(crate) fn send() -> Result<()> {
    for packet in packets() {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.send_to(&packet, (CLUSTER_IP, 53))?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Every beginning of a whole query, the whole with bytes behind it, a name that never ends, one that points at itself,
/// counts that promise more than there is, a reply that nobody asked for, and bytes that mean nothing.
pub(crate) fn packets() -> Vec<Vec<u8>> {
    let query =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05noise\x04test\x00\x00\x01\x00\x01";
    let header = &query[..12];
    let mut packets: Vec<Vec<u8>> = (0..query.len()).map(|end| query[..end].to_vec()).collect();
    packets.push([header, &[0x3f; 200]].concat());
    packets.push([header, b"\xc0\x0c\x00\x01\x00\x01"].concat());
    packets.push([header, b"\xff\xff\x00\x01\x00\x01"].concat());
    packets.push([header, b"\x05\x00\x1b[3\n\x00\x00\x01\x00\x01"].concat());
    packets.push([&[0xff; 12][..], &query[12..]].concat());
    packets.push([b"\x12\x34\x81\x80", &query[4..]].concat());
    packets.push(vec![0; 1400]);
    packets.push((0u8..=255).cycle().skip(7).step_by(101).take(512).collect());
    packets
}
