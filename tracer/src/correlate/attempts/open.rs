//! A flight that is not finished yet.

use crate::model::Timestamp;
use crate::model::event::Direction;
use crate::model::flight::{Drop, Flight, Hop, Refusal};

use super::{Asker, Limits};

/// One packet passes no place twice within this time.
const SAME_HOP_NS: i64 = 1_000_000;

/// A flight in the making, and what is still awaited of it.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) flight: Flight,
    socket_hops: Vec<Hop>,
    ended: Option<Timestamp>,
    extra_ns: i64,
    failed: bool,
    repeated: bool,
    repeats: bool,
    trail: Trail,
    copied: bool,
    overdue: bool,
    keep_trail: bool,
}

/// Where a trail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trail {
    Idle,
    Wanted { last: bool },
    Requested { last: bool },
    Complete,
}

impl Open {
    pub(super) fn new(flight: Flight) -> Self {
        Self {
            flight,
            socket_hops: Vec::new(),
            ended: None,
            extra_ns: 0,
            failed: false,
            repeated: false,
            repeats: false,
            trail: Trail::Idle,
            copied: false,
            overdue: false,
            keep_trail: false,
        }
    }

    /// A flight with neither end here, made by a drop or refusal: nothing more is awaited.
    pub(super) fn stray(flight: Flight, at: Timestamp) -> Self {
        Self {
            ended: Some(at),
            ..Self::new(flight)
        }
    }

    pub(super) fn cookie(&self) -> Option<u64> {
        self.flight.origin.as_ref().map(|it| it.cookie)
    }

    /// Still waiting for an answer, a reply or the client's end.
    pub(super) const fn pending(&self) -> bool {
        self.ended.is_none()
    }

    pub(super) fn answered(&self) -> bool {
        match (&self.flight.origin, &self.flight.delivery) {
            (Some(origin), _) => origin.answer.is_some(),
            (None, Some(delivery)) => delivery.replied.is_some(),
            (None, None) => false,
        }
    }

    pub(super) fn asker(&self) -> Option<Asker> {
        let origin = self.flight.origin.as_ref()?;
        Some((origin.owner.clone(), self.flight.question.clone()))
    }

    /// Its client sent the same packet again.
    pub(super) fn retransmitted(&mut self) {
        self.repeated = true;
        self.fail();
    }

    pub(super) const fn was_retransmitted(&self) -> bool {
        self.repeated
    }

    /// It is the same packet again.
    pub(super) fn repeats(&mut self) {
        self.repeats = true;
        self.fail();
    }

    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.want_now();
    }

    pub(super) fn keep_trail(&mut self) {
        self.keep_trail = true;
    }

    pub(super) fn overdue(&mut self) {
        if !self.overdue {
            self.overdue = true;
            self.want_now();
        }
    }

    pub(super) fn dropped(&mut self, drop: Drop) {
        // A bridge floods while it does not know a port: every other pod drops its copy.
        let harmless = drop.reason.as_deref() == Some("OTHERHOST");
        self.flight.drops.push(drop);
        self.flight.drops.sort_by_key(|it| it.at);
        if !harmless {
            self.fail();
        }
    }

    /// Keeps one entry for each kind of ICMP error: first quoted destination, last time and place.
    pub(super) fn icmp(&mut self, new: Refusal) {
        self.fail();
        if let Refusal::Icmp {
            at: new_at,
            reporter: new_reporter,
            icmp_type: new_type,
            icmp_code: new_code,
            netns: new_netns,
            ..
        } = new
        {
            for old in &mut self.flight.refusals {
                if let Refusal::Icmp {
                    at,
                    reporter,
                    icmp_type,
                    icmp_code,
                    netns,
                    ..
                } = old
                    && (*icmp_type, *icmp_code) == (new_type, new_code)
                {
                    *at = new_at;
                    *reporter = new_reporter;
                    *netns = new_netns;
                    return;
                }
            }
            self.flight.refusals.push(new);
        }
    }

    pub(super) fn end(&mut self, at: Timestamp) {
        self.end_after(at, 0);
    }

    pub(super) fn end_after(&mut self, at: Timestamp, extra_ns: i64) {
        if self.ended.is_none() {
            self.ended = Some(at);
            self.extra_ns = extra_ns;
            if let Some(origin) = &mut self.flight.origin {
                origin.completed = at;
            }
        }
    }

    /// The client's socket was closed without an answer.
    pub(super) fn close(&mut self, at: Timestamp) {
        if let Some(origin) = &mut self.flight.origin {
            origin.closed = Some(at);
        }
        self.fail();
        self.end(at);
    }

    /// Nothing seen of it says that it failed.
    pub(super) const fn undecided(&self) -> bool {
        !self.failed
    }

    /// When waiting becomes pointless.
    pub(super) fn deadline(&self, limits: &Limits) -> Timestamp {
        match (&self.flight.origin, &self.flight.delivery) {
            (Some(origin), _) => origin.sent + limits.cap_ns,
            (None, Some(delivery)) => delivery.at + limits.server_ns,
            (None, None) => self.flight.at,
        }
    }

    /// When it may be handed out; `None` while it is pending.
    pub(super) fn due(&self, limits: &Limits) -> Option<Timestamp> {
        let due = self.ended? + limits.grace_ns + self.extra_ns;
        let replied = self.flight.delivery.as_ref().and_then(|it| it.replied);
        Some(replied.map_or(due, |it| due.max(it + limits.grace_ns)))
    }

    /// Answered in time, nothing odd about it.
    pub(super) fn healthy(&self, slow_ns: i64) -> bool {
        const SERVFAIL: u8 = 2;
        const REFUSED: u8 = 5;
        if self.failed || self.repeats || self.repeated {
            return false;
        }
        match (&self.flight.origin, &self.flight.delivery) {
            (Some(origin), _) => origin.answer.is_some_and(|answer| {
                !matches!(answer.rcode, SERVFAIL | REFUSED)
                    && answer.at.since(origin.sent) < slow_ns
            }),
            (None, Some(delivery)) => delivery
                .replied
                .is_some_and(|replied| replied.since(delivery.at) < slow_ns),
            (None, None) => false,
        }
    }

    // The trail.

    /// The earliest time at which a hop can belong to it: a server's node sees devices before the socket.
    pub(super) fn first_possible_hop(&self, before_delivery_ns: i64) -> Timestamp {
        match self.flight.origin {
            Some(_) => self.flight.at,
            None => self.flight.at - before_delivery_ns,
        }
    }

    pub(super) fn socket_hop(&mut self, hop: Hop) {
        self.socket_hops.push(hop);
    }

    pub(super) fn want_now(&mut self) {
        let last = self.ended.is_some();
        match self.trail {
            Trail::Idle | Trail::Wanted { .. } => self.trail = Trail::Wanted { last },
            Trail::Requested { last: false }
            | Trail::Complete
            | Trail::Requested { last: true } => {}
        }
    }

    pub(super) const fn wants_trail(&self) -> bool {
        matches!(self.trail, Trail::Wanted { .. })
    }

    pub(super) const fn trail_copied(&self) -> bool {
        self.copied
    }

    pub(super) fn trail_requested(&mut self) {
        if let Trail::Wanted { last } = self.trail {
            self.trail = Trail::Requested { last };
        }
    }

    pub(super) fn trail_arrived(&mut self, lost: bool) {
        if let Trail::Requested { last } = self.trail {
            self.copied = true;
            self.flight.trail_lost |= lost;
            self.trail = if last { Trail::Complete } else { Trail::Idle };
        }
    }

    /// It is due, and its trail is wanted but not complete.
    pub(super) fn wants_final_trail(&self) -> bool {
        let wanted = self.failed || self.keep_trail || self.overdue || !self.answered();
        wanted && self.flight.txid.is_some() && self.trail != Trail::Complete
    }

    pub(super) fn add_hop(&mut self, hop: Hop) {
        if self.flight.origin.is_none() {
            self.flight.at = self.flight.at.min(hop.at);
        }
        // A trail can be copied twice, and the clock's offset have been sampled anew in between.
        let again = |known: &Hop| {
            let apart = known.at.since(hop.at).abs();
            let at = hop.at;
            apart < SAME_HOP_NS
                && (Hop {
                    at,
                    ..known.clone()
                }) == hop
        };
        if !self.flight.trail.iter().any(again) {
            self.flight.trail.push(hop);
        }
    }

    /// The finished flight.
    pub(super) fn into_flight(self, now: Timestamp) -> Flight {
        let missing = self.wants_final_trail();
        let mut flight = self.flight;
        if let Some(origin) = &mut flight.origin
            && self.ended.is_none()
        {
            origin.completed = now;
        }
        if missing && !self.copied {
            flight.trail_lost = true;
        }
        if !flight.trail.is_empty() || self.failed || missing {
            flight.trail.extend(self.socket_hops);
        }
        flight.trail.sort_by_key(|hop| {
            // At one time a query is ahead of its reply.
            (hop.at, hop.direction == Direction::Reply, hop.point)
        });
        flight
    }
}
