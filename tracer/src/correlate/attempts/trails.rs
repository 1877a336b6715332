//! Which flights want their way through the node from the hop log, and what came of it.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::event::Packet;
use crate::model::flight::Hop;

use super::{Assembler, BEFORE_DELIVERY_NS};

impl Assembler {
    /// The trails wanted now, as (client, txid), and the time since when. After a scan of the hop log, hand what fits to
    /// [`Assembler::hops`] (also when nothing was found).
    pub fn wanted(&mut self) -> (HashSet<(SocketAddr, u16)>, Timestamp) {
        let mut keys = HashSet::new();
        let mut since = Timestamp(i64::MAX);
        self.requested.clear();
        for (id, open) in self.flights.all_mut() {
            if let (true, Some(txid)) = (open.wants_trail(), open.flight.txid) {
                open.trail_requested();
                keys.insert((open.flight.client, txid));
                let first = open.first_possible_hop(BEFORE_DELIVERY_NS);
                since = since.min(first);
                self.requested.push(id);
            }
        }
        if keys.is_empty() {
            since = Timestamp(0);
        }
        (keys, since)
    }

    /// The oldest unanswered attempt whose trail was not copied out yet: call [`Assembler::want_pending`] before the hop log
    /// wraps around to it.
    pub fn pending_since(&self) -> Option<Timestamp> {
        self.flights
            .all()
            .filter(|open| open.pending() && !open.trail_copied())
            .map(|open| open.first_possible_hop(BEFORE_DELIVERY_NS))
            .min()
    }

    /// Asks for the trails of all unanswered attempts now, because the hop log is about to overwrite them.
    pub fn want_pending(&mut self) {
        for (_, open) in self.flights.all_mut() {
            if open.pending() {
                open.want_now();
            }
        }
    }

    /// What the hop log had for the keys of the last [`Assembler::wanted`]; `lost`: a part of it had been overwritten.
    pub fn hops(&mut self, packets: Vec<Packet>, lost: bool) {
        for packet in packets {
            if let Some(id) = self.hop_owner(&packet)
                && let Some(open) = self.flights.get_mut(id)
            {
                open.add_hop(Hop::from(&packet));
            }
        }
        for id in self.requested.drain(..) {
            if let Some(open) = self.flights.get_mut(id) {
                open.trail_arrived(lost);
            }
        }
    }

    /// The attempt a hop belongs to: the newest one of its key at its time.
    fn hop_owner(&self, packet: &Packet) -> Option<u64> {
        self.flights.newest(packet.client(), packet.txid, |open| {
            open.first_possible_hop(BEFORE_DELIVERY_NS) <= packet.at
        })
    }
}
