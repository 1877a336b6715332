//! From slots of the logs to [`Event`]s.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use slicetrace_common::{
    Address, Packet as PacketSlot, Socket as SocketSlot, direction, kind, point,
};

use super::question;
use super::reasons::Reasons;
use super::symbols::Symbols;
use crate::model::Timestamp;
use crate::model::event::{Conntrack, Direction, Event, Packet, Point, SocketPacket};

/// Size of a slot in words of eight bytes.
pub(super) const PACKET_WORDS: usize = size_of::<PacketSlot>() / 8;
/// Size of a slot in words of eight bytes.
pub(super) const SOCKET_WORDS: usize = size_of::<SocketSlot>() / 8;

/// A slot of `HOPS` or `DROPS`; `None` if the words are too few.
pub(super) fn packet_slot(words: &[u64]) -> Option<PacketSlot> {
    let words = words.get(..PACKET_WORDS)?;
    // SAFETY: as many aligned bytes as the structure has, which is of integers only: any bits are a value.
    Some(unsafe { words.as_ptr().cast::<PacketSlot>().read() })
}

/// A slot of `SOCKETS`; `None` if the words are too few.
pub(super) fn socket_slot(words: &[u64]) -> Option<SocketSlot> {
    let words = words.get(..SOCKET_WORDS)?;
    // SAFETY: as above.
    Some(unsafe { words.as_ptr().cast::<SocketSlot>().read() })
}

/// What a slot of `SOCKETS` says; `None` if it is none of ours. `offset_ns` is wall clock − monotonic clock.
pub(super) fn socket(slot: &SocketSlot, offset_ns: i64) -> Option<Event> {
    if slot.packet.point == point::RELEASE {
        return Some(Event::Released {
            at: time(slot.packet.time, offset_ns),
            cookie: slot.cookie,
        });
    }
    let question = slot
        .question
        .get(..usize::from(slot.question_len))
        .and_then(question::decode);
    Some(Event::Socket(SocketPacket {
        packet: packet(&slot.packet, offset_ns)?,
        cookie: slot.cookie,
        cgroup: slot.cgroup,
        pid: slot.pid,
        comm: text(&slot.comm).unwrap_or_default(),
        asked: (slot.asked_port != 0).then(|| end(slot.asked, slot.asked_port)),
        question,
    }))
}

/// What a slot of `DROPS` says; `None` if it is none of ours.
pub(super) fn drop(
    slot: &PacketSlot,
    offset_ns: i64,
    reasons: &Reasons,
    symbols: &mut Symbols,
) -> Option<Event> {
    let [first, second] = slot.detail;
    Some(match (slot.point, slot.kind) {
        (point::SOCKET_ERROR | point::SEND_REFUSED, _) => Event::SocketError {
            at: time(slot.time, offset_ns),
            cookie: (second != 0).then_some(second),
            local: end(slot.source, slot.source_port),
            remote: end(slot.destination, slot.destination_port),
            errno: i32::try_from(first).ok()?,
            at_send: slot.point == point::SEND_REFUSED,
        },
        (_, kind::ICMP_ERROR) => {
            let mut reporter: Address = [0; 16];
            reporter[..8].copy_from_slice(&first.to_ne_bytes());
            reporter[8..].copy_from_slice(&second.to_ne_bytes());
            Event::Refusal {
                packet: packet(slot, offset_ns)?,
                reporter: address(reporter),
                icmp_type: slot.icmp_type,
                icmp_code: slot.icmp_code,
            }
        }
        (point::DROP, kind::UDP) => Event::Drop {
            packet: packet(slot, offset_ns)?,
            reason: reasons.name(second),
            location: symbols.function(first),
        },
        _ => return None,
    })
}

/// The packet of a slot; `None` if its point or direction is none of ours. A drop has no point of its own in the model:
/// it counts as received.
pub(super) fn packet(slot: &PacketSlot, offset_ns: i64) -> Option<Packet> {
    let known = slot.short == 0;
    Some(Packet {
        at: time(slot.time, offset_ns),
        point: match slot.point {
            point::SOCKET_OUT => Point::SocketOut,
            point::TX => Point::Tx,
            point::RX | point::DROP => Point::Rx,
            point::SOCKET_IN => Point::SocketIn,
            _ => return None,
        },
        direction: match slot.direction {
            direction::QUERY => Direction::Query,
            direction::REPLY => Direction::Reply,
            _ => return None,
        },
        source: end(slot.source, slot.source_port),
        destination: end(slot.destination, slot.destination_port),
        txid: known.then_some(slot.txid),
        dns_flags: known.then_some(slot.dns_flags),
        netns: slot.netns,
        device: text(&slot.device),
        encapsulated: slot.encapsulated != 0,
        conntrack: Conntrack(slot.conntrack),
    })
}

/// CLOCK_MONOTONIC to wall clock.
pub(super) fn time(monotonic: u64, offset_ns: i64) -> Timestamp {
    Timestamp(i64::try_from(monotonic).unwrap_or(i64::MAX)) + offset_ns
}

fn address(address: Address) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(address)).to_canonical()
}

fn end(bytes: Address, port: u16) -> SocketAddr {
    SocketAddr::new(address(bytes), port)
}

/// A NUL-padded name; `None` if empty.
fn text(bytes: &[u8]) -> Option<String> {
    let name = bytes.split(|&byte| byte == 0).next()?;
    (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use proptest::prelude::*;
    use slicetrace_common::mapped;

    use super::*;

    fn slot() -> PacketSlot {
        let mut slot = packet_slot(&[0; PACKET_WORDS]).unwrap();
        slot.time = 5;
        slot.source = mapped([10, 42, 2, 17]);
        slot.source_port = 41822;
        slot.destination = mapped([10, 43, 0, 10]);
        slot.destination_port = 53;
        slot.txid = 4711;
        slot.point = point::DROP;
        slot.kind = kind::UDP;
        slot.direction = direction::QUERY;
        slot.device[..4].copy_from_slice(b"cni0");
        slot
    }

    #[test]
    fn a_drop_has_its_packet_and_its_clock() {
        let reasons = Reasons::default();
        let mut symbols = Symbols::new("/nonexistent");
        let Some(Event::Drop {
            packet,
            reason,
            location,
        }) = drop(&slot(), 1_000, &reasons, &mut symbols)
        else {
            panic!("not a drop")
        };
        assert_eq!(packet.at, Timestamp(1_005));
        assert_eq!(packet.source, "10.42.2.17:41822".parse().unwrap());
        assert_eq!(packet.destination, "10.43.0.10:53".parse().unwrap());
        assert_eq!(packet.txid, Some(4711));
        assert_eq!(packet.device.as_deref(), Some("cni0"));
        assert_eq!((reason, location), (None, None));
    }

    #[test]
    fn a_refusal_has_its_reporter() {
        let mut slot = slot();
        slot.point = point::RX;
        slot.kind = kind::ICMP_ERROR;
        slot.icmp_type = 3;
        slot.icmp_code = 1;
        slot.short = 1;
        let reporter = mapped([10, 42, 2, 1]);
        slot.detail = [
            u64::from_ne_bytes(reporter[..8].try_into().unwrap()),
            u64::from_ne_bytes(reporter[8..].try_into().unwrap()),
        ];
        let event = drop(
            &slot,
            0,
            &Reasons::default(),
            &mut Symbols::new("/nonexistent"),
        );
        let Some(Event::Refusal {
            packet,
            reporter,
            icmp_type: 3,
            icmp_code: 1,
        }) = event
        else {
            panic!("{event:?}")
        };
        assert_eq!(reporter, "10.42.2.1".parse::<IpAddr>().unwrap());
        assert_eq!(packet.txid, None);
    }

    proptest! {
        #[test]
        fn no_words_panic(words in proptest::collection::vec(any::<u64>(), SOCKET_WORDS), offset in any::<i64>()) {
            socket(&socket_slot(&words).unwrap(), offset);
            drop(&packet_slot(&words).unwrap(), offset, &Reasons::default(), &mut Symbols::new("/nonexistent"));
        }
    }
}
