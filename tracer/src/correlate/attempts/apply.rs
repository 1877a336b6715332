//! What each kernel event means for the flights.

use std::net::{IpAddr, SocketAddr};

use crate::model::Timestamp;
use crate::model::event::{Direction, Event, Packet, Point, SocketPacket};
use crate::model::flight::{Answer, Delivery, Drop, Flight, Hop, Origin, Owner, Refusal};

use super::open::Open;
use super::waiting::Waiting;
use super::{Assembler, BEFORE_DELIVERY_NS};

impl Assembler {
    pub(super) fn apply(&mut self, waiting: Waiting) {
        let owner = waiting.owner.unwrap_or_default();
        match waiting.event {
            Event::Socket(socket) => match (socket.packet.direction, socket.packet.point) {
                (Direction::Query, Point::SocketOut | Point::Tx) => self.sent(socket, owner),
                (Direction::Query, Point::SocketIn | Point::Rx) => self.delivered(socket, owner),
                (Direction::Reply, Point::SocketOut | Point::Tx) => self.replied(&socket),
                (Direction::Reply, Point::SocketIn | Point::Rx) => self.answered(&socket),
            },
            Event::Drop {
                packet,
                reason,
                location,
            } => self.dropped(&packet, reason, location),
            Event::Refusal {
                packet,
                reporter,
                icmp_type,
                icmp_code,
            } => self.refused(&packet, reporter, icmp_type, icmp_code),
            Event::SocketError {
                at,
                cookie,
                local,
                remote,
                errno,
                at_send,
            } => self.socket_error(at, cookie, local, remote, errno, at_send, owner),
            Event::Released { at, cookie } => self.released(at, cookie),
        }
    }

    fn sent(&mut self, socket: SocketPacket, owner: Owner) {
        let packet = socket.packet;
        let client = packet.client();
        for id in self.flights.of_client(client, packet.txid) {
            if let Some(open) = self.flights.get_mut(id)
                && open.cookie() == Some(socket.cookie)
                && open.pending()
            {
                open.retransmitted();
            }
        }
        let retransmission = (self.flights)
            .newest(client, packet.txid, Open::was_retransmitted)
            .is_some();
        let origin = Origin {
            sent: packet.at,
            cookie: socket.cookie,
            owner,
            asked: socket.asked,
            destination: Some(packet.destination),
            previous: self.previous.replace(client, packet.at),
            recorded_since: self.recorded_since.max(self.previous.complete_since()),
            timeouts: self.timeouts,
            answer: None,
            closed: None,
            completed: packet.at,
        };
        let mut open = Open::new(empty(client, packet.txid, packet.at));
        open.flight.origin = Some(origin);
        open.flight.question = socket.question;
        open.socket_hop(Hop::from(&packet));
        if retransmission {
            open.repeats();
        }
        if self.limits.trails_of_all {
            open.keep_trail();
        }
        self.flights.insert(open);
    }

    fn delivered(&mut self, socket: SocketPacket, owner: Owner) {
        let packet = socket.packet;
        let delivery = Delivery {
            at: packet.at,
            backend: packet.destination,
            owner,
            replied: None,
            netns: packet.netns,
        };
        let found = self.flights.newest(packet.client(), packet.txid, |open| {
            open.flight.delivery.is_none() && open.flight.at <= packet.at
        });
        let id = match found {
            Some(id) => id,
            None => {
                let mut open = Open::new(empty(packet.client(), packet.txid, packet.at));
                if self.limits.trails_of_all {
                    open.keep_trail();
                }
                self.flights.insert(open)
            }
        };
        if let Some(open) = self.flights.get_mut(id) {
            open.flight.delivery = Some(delivery);
            if open.flight.question.is_none() {
                open.flight.question = socket.question;
            }
            open.socket_hop(Hop::from(&packet));
        }
    }

    /// A server's socket replied. With several queries of one key waiting the newest gets the reply: the replies are the
    /// same bytes, and if both come, both flights have one.
    fn replied(&mut self, socket: &SocketPacket) {
        let packet = &socket.packet;
        let found = self.flights.newest(packet.client(), packet.txid, |open| {
            (open.flight.delivery.as_ref())
                .is_some_and(|it| it.replied.is_none() && it.at <= packet.at)
        });
        if let Some(open) = found.and_then(|id| self.flights.get_mut(id)) {
            if let Some(delivery) = &mut open.flight.delivery {
                delivery.replied = Some(packet.at);
            }
            open.socket_hop(Hop::from(packet));
            if open.flight.origin.is_none() {
                open.end(packet.at);
            }
        } else {
            self.replied_late(packet);
        }
    }

    fn answered(&mut self, socket: &SocketPacket) {
        let packet = &socket.packet;
        let mut candidates = self.flights.of_socket(socket.cookie, packet.txid);
        if candidates.is_empty() {
            candidates = self.flights.of_client(packet.client(), packet.txid);
        }
        candidates.retain(|id| {
            self.flights.is(*id, |open| {
                (open.flight.origin.as_ref())
                    .is_some_and(|it| it.answer.is_none() && it.sent <= packet.at)
            })
        });
        let flags = packet.dns_flags.unwrap_or(0);
        let answer = Answer {
            at: packet.at,
            rcode: (flags & 0x000f) as u8,
            truncated: flags & 0x0200 != 0,
            source: packet.source,
        };
        for (place, id) in candidates.into_iter().rev().enumerate() {
            if let Some(open) = self.flights.get_mut(id) {
                if place == 0 {
                    if let Some(origin) = &mut open.flight.origin {
                        origin.answer = Some(answer);
                    }
                    open.socket_hop(Hop::from(packet));
                }
                // The query is over for its earlier packets too.
                open.end(packet.at);
            }
        }
    }

    /// A reply to a query whose flight was handed out already: the difference between slow and silent.
    fn replied_late(&mut self, packet: &Packet) {
        let key = (packet.client(), packet.txid);
        let Some(waiting) = self.late.get_mut(&key) else {
            return;
        };
        if let Some(mut delivery) = waiting.pop() {
            delivery.replied = Some(packet.at);
            let mut open = Open::stray(empty(key.0, key.1, delivery.at), packet.at);
            open.flight.delivery = Some(delivery);
            open.socket_hop(Hop::from(packet));
            open.fail();
            self.flights.insert(open);
        }
    }

    fn dropped(&mut self, packet: &Packet, reason: Option<String>, location: Option<String>) {
        let drop = Drop {
            at: packet.at,
            reason,
            location,
            direction: packet.direction,
            netns: packet.netns,
            device: packet.device.clone(),
            source: packet.source,
            destination: packet.destination,
            conntrack: packet.conntrack,
        };
        let id = self.victim(packet, |open| {
            !open.flight.drops.iter().any(|it| {
                it.reason == drop.reason
                    && it.location == drop.location
                    && it.direction == drop.direction
                    && it.netns == drop.netns
            })
        });
        if let Some(open) = self.flights.get_mut(id) {
            open.dropped(drop);
        }
    }

    fn refused(&mut self, packet: &Packet, reporter: IpAddr, icmp_type: u8, icmp_code: u8) {
        let id = self.victim(packet, |_| true);
        let Some(open) = self.flights.get_mut(id) else {
            return;
        };
        open.icmp(Refusal::Icmp {
            at: packet.at,
            reporter,
            icmp_type,
            icmp_code,
            netns: packet.netns,
            quoted_destination: packet.destination,
        });
        if let Some(asker) = open.asker() {
            self.remember_failure(asker, packet.at);
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of Event::SocketError, used in this one place"
    )]
    fn socket_error(
        &mut self,
        at: Timestamp,
        cookie: Option<u64>,
        local: SocketAddr,
        remote: SocketAddr,
        errno: i32,
        at_send: bool,
        owner: Owner,
    ) {
        let refusal = Refusal::Socket { at, errno, at_send };
        if at_send {
            let mut open = Open::new(empty(local, None, at));
            open.flight.origin = Some(Origin {
                sent: at,
                cookie: cookie.unwrap_or(0),
                owner,
                asked: Some(remote),
                destination: None,
                previous: self.previous.get(local),
                recorded_since: self.recorded_since.max(self.previous.complete_since()),
                timeouts: self.timeouts,
                answer: None,
                closed: None,
                completed: at,
            });
            open.flight.refusals.push(refusal);
            open.end(at);
            self.flights.insert(open);
            return;
        }
        let mut candidates = cookie.map_or_else(Vec::new, |it| self.flights.of_socket(it, None));
        if candidates.is_empty() {
            candidates = self.flights.of_client(local, None);
        }
        let found = candidates.into_iter().rev().find(|id| {
            self.flights
                .is(*id, |open| open.pending() && open.flight.origin.is_some())
        });
        if let Some(open) = found.and_then(|id| self.flights.get_mut(id)) {
            open.flight.refusals.push(refusal);
            open.fail();
            open.end_after(at, self.limits.refused_ns);
            if let Some(asker) = open.asker() {
                self.remember_failure(asker, at);
            }
        }
    }

    fn released(&mut self, at: Timestamp, cookie: u64) {
        for id in self.flights.of_socket(cookie, None) {
            let Some(open) = self.flights.get_mut(id) else {
                continue;
            };
            if let Some(origin) = &mut open.flight.origin
                && origin.answer.is_none()
                && origin.closed.is_none()
                && open.pending()
            {
                open.close(at);
                if let Some(asker) = open.asker() {
                    self.remember_failure(asker, at);
                }
            }
        }
    }

    /// The flight a drop or refusal concerns: the newest unanswered one at that time that `fits`, else the newest; if
    /// there is none, a new one that has neither client nor server here.
    fn victim(&mut self, packet: &Packet, fits: impl Fn(&Open) -> bool) -> u64 {
        let client = packet.client();
        let in_time = |open: &Open| open.first_possible_hop(BEFORE_DELIVERY_NS) <= packet.at;
        (self.flights)
            .newest(client, packet.txid, |open| {
                in_time(open) && !open.answered() && fits(open)
            })
            .or_else(|| self.flights.newest(client, packet.txid, in_time))
            .unwrap_or_else(|| {
                let flight = empty(client, packet.txid, packet.at);
                self.flights.insert(Open::stray(flight, packet.at))
            })
    }
}

fn empty(client: SocketAddr, txid: Option<u16>, at: Timestamp) -> Flight {
    Flight {
        client,
        txid,
        at,
        origin: None,
        delivery: None,
        question: None,
        trail: Vec::new(),
        drops: Vec::new(),
        refusals: Vec::new(),
        trail_lost: false,
    }
}
