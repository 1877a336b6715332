//! From one node's kernel events to flights, incrementally.
//!
//! Events may arrive slightly out of order (each CPU has its own log): they are sorted in a short buffer and applied by
//! time in [`Assembler::advance`]. A flight ends when its client was answered, refused or closed its socket, or when a cap
//! passes; it is handed out a short grace later, so that late drops and ICMP errors still find it. What arrives later
//! makes a flight of its own, which [`crate::correlate::timeline()`] joins by client address, port, txid and time.
//!
//! Healthy flights become [`Traffic`] rows, everything else is kept in full; with [`Limits::record_all`] every flight is
//! kept in full and no row is made. So each attempt is counted exactly once, as a flight or in a row.

mod apply;
mod finish;
mod flights;
mod open;
mod previous;
mod trails;
mod waiting;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::model::Timestamp;
use crate::model::event::{Direction, Event, Point, Question};
use crate::model::flight::{ConntrackTimeouts, Delivery, Flight, Owner};
use crate::model::record::{GapSeen, Traffic};

use super::traffic::Aggregator;
use finish::Which;
use flights::Flights;
use previous::Previous;
use waiting::Queue;

const MILLISECOND: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;

/// Finds out who owns a socket.
pub trait Owners {
    /// The owner of a socket in `cgroup`, used by `pid` with name `comm`, bound to `address`. 0 and empty: unknown.
    fn owner(&self, cgroup: u64, pid: u32, comm: &str, address: IpAddr) -> Owner;
}

/// Bounds and times of an [`Assembler`]. Durations are nanoseconds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Keep healthy flights in full too.
    pub record_all: bool,
    /// Ask for the trails of healthy flights too (costly).
    pub trails_of_all: bool,
    /// Flights in flight at most; beyond it the oldest is given up and counted as lost.
    pub open: usize,
    /// Client address:port pairs whose last packet is remembered.
    pub previous: usize,
    /// How long events wait to be put in order.
    pub reorder_ns: i64,
    /// How long an ended flight waits for late drops, ICMP errors and hops.
    pub grace_ns: i64,
    /// How much longer a refused flight collects.
    pub refused_ns: i64,
    /// How long a client is waited for that neither gets an answer nor closes its socket.
    pub cap_ns: i64,
    /// How long a reply of a server's socket is waited for. One that comes later makes a flight of its own.
    pub server_ns: i64,
    /// How long a delivered query is remembered for such a reply.
    pub late_ns: i64,
    /// When an unanswered flight's trail is asked for.
    pub overdue_ns: i64,
    /// An answered flight that took longer is kept in full.
    pub slow_ns: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record_all: false,
            trails_of_all: false,
            open: 65_536,
            previous: 262_144,
            reorder_ns: 50 * MILLISECOND,
            grace_ns: 300 * MILLISECOND,
            refused_ns: 200 * MILLISECOND,
            cap_ns: 30 * SECOND,
            server_ns: SECOND,
            late_ns: 30 * SECOND,
            overdue_ns: SECOND,
            slow_ns: SECOND,
        }
    }
}

/// How long before its first sight at a socket a flight without a client here may have been seen on a device.
const BEFORE_DELIVERY_NS: i64 = 100 * MILLISECOND;
/// Who asked what: the same again soon after a failure may be a retry.
type Asker = (Owner, Option<Question>);

/// Turns one node's kernel events into flights.
#[derive(Debug)]
pub struct Assembler {
    recorded_since: Timestamp,
    timeouts: ConntrackTimeouts,
    limits: Limits,
    waiting: Queue,
    flights: Flights,
    previous: Previous,
    failed: HashMap<Asker, Timestamp>,
    /// When [`Assembler::forget`] was last at it.
    forgot: Timestamp,
    /// Deliveries that were handed out without a reply, by client and txid.
    late: HashMap<(SocketAddr, Option<u16>), Vec<Delivery>>,
    requested: Vec<u64>,
    traffic: Aggregator,
}

impl Assembler {
    /// An assembler on a node that has recorded without a break since `recorded_since`.
    pub fn new(recorded_since: Timestamp, timeouts: ConntrackTimeouts, limits: Limits) -> Self {
        Self {
            recorded_since,
            timeouts,
            flights: Flights::new(limits.open),
            previous: Previous::new(limits.previous),
            limits,
            waiting: Queue::default(),
            failed: HashMap::new(),
            forgot: recorded_since,
            late: HashMap::new(),
            requested: Vec::new(),
            traffic: Aggregator::default(),
        }
    }

    /// Says which Service each frontend and backend belongs to, for the rows of [`Assembler::traffic`].
    pub fn services(&mut self, services: HashMap<SocketAddr, String>) {
        self.traffic.services(services);
    }

    /// Records were lost up to `now`: what was sent before it can no longer be vouched for.
    pub fn recorded_since(&mut self, now: Timestamp) {
        self.recorded_since = self.recorded_since.max(now);
    }

    /// Takes in one event; it is applied by [`Assembler::advance`], in order of time.
    pub fn feed(&mut self, event: Event, owners: &dyn Owners) {
        let (at, owner) = match &event {
            Event::Socket(socket) => {
                let packet = &socket.packet;
                let here = match packet.point {
                    Point::SocketOut | Point::Tx => packet.source.ip(),
                    Point::SocketIn | Point::Rx => packet.destination.ip(),
                };
                // The owner matters for queries only: replies join the flight of their query.
                let owner = (packet.direction == Direction::Query)
                    .then(|| owners.owner(socket.cgroup, socket.pid, &socket.comm, here));
                (packet.at, owner)
            }
            Event::Drop { packet, .. } | Event::Refusal { packet, .. } => (packet.at, None),
            Event::SocketError {
                at, local, at_send, ..
            } => (*at, at_send.then(|| owners.owner(0, 0, "", local.ip()))),
            Event::Released { at, .. } => (*at, None),
        };
        self.waiting.push(at, event, owner);
    }

    /// Applies what was fed up to a moment ago and hands out the flights that are finished and kept in full.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Flight> {
        let until = now - self.limits.reorder_ns;
        while let Some(waiting) = self.waiting.pop_until(until) {
            self.apply(waiting);
        }
        self.expire(until);
        self.previous.forget(now - self.timeouts.stream_ns);
        if now.since(self.forgot) >= SECOND {
            self.forgot = now;
            self.forget(now);
        }
        self.finish(until, Which::Due)
    }

    /// Lets go of what can no longer matter.
    fn forget(&mut self, now: Timestamp) {
        self.failed.retain(|_, at| now.since(*at) < 60 * SECOND);
        let late = self.limits.late_ns;
        self.late.retain(|_, all| {
            all.retain(|it| now.since(it.at) < late);
            !all.is_empty()
        });
    }

    /// Applies everything and hands out every flight: the agent stops.
    pub fn drain(&mut self, now: Timestamp) -> Vec<Flight> {
        while let Some(waiting) = self.waiting.pop() {
            self.apply(waiting);
        }
        self.expire(now);
        self.finish(now, Which::All)
    }

    /// The wall clock jumped from `before` to `after`: hands out what has ended, forgets what is open (neither answered nor
    /// lost), and begins anew.
    pub fn restart(&mut self, before: Timestamp, after: Timestamp) -> Vec<Flight> {
        let flights = self.drain(before);
        self.previous = Previous::new(self.limits.previous);
        self.failed.clear();
        self.late.clear();
        self.requested.clear();
        self.recorded_since = after;
        self.forgot = after;
        flights
    }

    /// For somebody who reads now: applies everything and hands out healthy flights before their grace is over (rows of them
    /// are in [`Assembler::traffic`] then). What is late of them makes flights of its own.
    pub fn flush(&mut self, now: Timestamp) -> Vec<Flight> {
        while let Some(waiting) = self.waiting.pop() {
            self.apply(waiting);
        }
        self.finish(now, Which::Healthy)
    }

    /// Everything that began before this has been handed out.
    pub fn complete_until(&self, now: Timestamp) -> Timestamp {
        let waiting = self.waiting.first();
        let open = self.flights.all().map(|it| it.flight.at).min();
        let applied = now - self.limits.reorder_ns;
        // A row is told by its answers, of which the first was asked for a little earlier.
        let rows = self.traffic.oldest().map(|at| at - self.limits.slow_ns);
        let all = waiting.into_iter().chain(open).chain(rows);
        all.fold(applied, Ord::min)
    }

    /// Rows of healthy attempts for the seconds before `before`. A flight reaches its row up to [`Limits::cap_ns`] after it was
    /// answered, usually half a second: ask for the time up to a few seconds ago. A second may come again; its rows add up.
    pub fn traffic(&mut self, before: Timestamp) -> Vec<Traffic> {
        self.traffic.take(before)
    }

    /// Queries of other nodes' clients that reached a server's socket here and have no reply yet, as they stand: whoever
    /// reads now must not take a packet for lost that is waiting in a server. They are handed out again when they end.
    pub fn unreplied(&self) -> Vec<Flight> {
        let mut flights: Vec<_> = self.flights.all().map(|open| &open.flight).collect();
        flights.retain(|it| {
            it.origin.is_none() && it.delivery.as_ref().is_some_and(|it| it.replied.is_none())
        });
        flights.into_iter().cloned().collect()
    }

    /// Flights given up for lack of room since the last call, as a gap.
    pub fn lost(&mut self) -> Option<GapSeen> {
        self.flights.lost()
    }
}

#[cfg(test)]
mod tests;
