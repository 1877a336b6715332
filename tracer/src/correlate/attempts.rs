//! From one node's kernel events to flights, incrementally.
//!
//! Events may arrive slightly out of order (each CPU has its own log): they are sorted in a short buffer and applied by
//! time in [`Assembler::advance`]. A flight ends when its client was answered, refused or closed its socket, or when a cap
//! passes; it is handed out a short grace later, so that late drops and ICMP errors still find it. What arrives later
//! makes a flight of its own, which [`crate::correlate::timeline()`] joins by client address, port, txid and time.
//!
//! Healthy flights become [`Traffic`] rows, everything else is kept in full; with [`Limits::record_all`] every flight is
//! kept in full and no row is made. So each attempt is counted exactly once, as a flight or in a row.

mod open;
mod previous;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::model::Timestamp;
use crate::model::event::{Direction, Event, Packet, Point, Question, SocketPacket};
use crate::model::flight::{
    Answer, ConntrackTimeouts, Delivery, Drop, Flight, Hop, Origin, Owner, Refusal,
};
use crate::model::record::{GapKind, GapSeen, Traffic};

use super::traffic::Aggregator;
use open::Open;
use previous::Previous;

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

/// How long a failure makes a later answer to the same question worth keeping in full: it may be a retry.
const RETRY_NS: i64 = 5 * SECOND;

/// How long before its first sight at a socket a flight without a client here may have been seen on a device.
const BEFORE_DELIVERY_NS: i64 = 100 * MILLISECOND;

/// How long an ended flight waits for a trail that was asked for before it goes without.
const TRAIL_WAIT_NS: i64 = 2 * SECOND;

/// An event that waits for its turn; `owner` was looked up when it arrived.
#[derive(Debug)]
struct Waiting {
    at: Timestamp,
    order: u64,
    event: Event,
    owner: Option<Owner>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Which flights are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Whose grace is over.
    Due,
    /// Those, and the healthy ones that have ended.
    Healthy,
    /// All.
    All,
}

/// Who asked what: the same again soon after a failure may be a retry.
type Asker = (Owner, Option<Question>);

/// Turns one node's kernel events into flights.
#[derive(Debug)]
pub struct Assembler {
    recorded_since: Timestamp,
    timeouts: ConntrackTimeouts,
    limits: Limits,
    waiting: BinaryHeap<Reverse<Waiting>>,
    order: u64,
    open: BTreeMap<u64, Open>,
    next: u64,
    by_client: HashMap<SocketAddr, Vec<u64>>,
    by_cookie: HashMap<u64, Vec<u64>>,
    previous: Previous,
    failed: HashMap<Asker, Timestamp>,
    /// Deliveries that were handed out without a reply, by client and txid.
    late: HashMap<(SocketAddr, Option<u16>), Vec<Delivery>>,
    requested: Vec<u64>,
    traffic: Aggregator,
    evicted: Option<GapSeen>,
}

impl Assembler {
    /// An assembler on a node that has recorded without a break since `recorded_since`.
    pub fn new(recorded_since: Timestamp, timeouts: ConntrackTimeouts, limits: Limits) -> Self {
        Self {
            recorded_since,
            timeouts,
            previous: Previous::new(limits.previous),
            limits,
            waiting: BinaryHeap::new(),
            order: 0,
            open: BTreeMap::new(),
            next: 0,
            by_client: HashMap::new(),
            by_cookie: HashMap::new(),
            failed: HashMap::new(),
            late: HashMap::new(),
            requested: Vec::new(),
            traffic: Aggregator::default(),
            evicted: None,
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
        self.order += 1;
        self.waiting.push(Reverse(Waiting {
            at,
            order: self.order,
            event,
            owner,
        }));
    }

    /// The trails wanted now, as (client, txid), and the time since when. After a scan of the hop log, hand what fits to
    /// [`Assembler::hops`] (also when nothing was found).
    pub fn wanted(&mut self) -> (HashSet<(SocketAddr, u16)>, Timestamp) {
        let mut keys = HashSet::new();
        let mut since = Timestamp(i64::MAX);
        self.requested.clear();
        for (id, open) in &mut self.open {
            if let (true, Some(txid)) = (open.wants_trail(), open.flight.txid) {
                open.trail_requested();
                keys.insert((open.flight.client, txid));
                let first = open.first_possible_hop(BEFORE_DELIVERY_NS);
                since = since.min(first);
                self.requested.push(*id);
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
        self.open
            .values()
            .filter(|open| open.pending() && !open.trail_copied())
            .map(|open| open.first_possible_hop(BEFORE_DELIVERY_NS))
            .min()
    }

    /// Asks for the trails of all unanswered attempts now, because the hop log is about to overwrite them.
    pub fn want_pending(&mut self) {
        for open in self.open.values_mut().filter(|open| open.pending()) {
            open.want_now();
        }
    }

    /// What the hop log had for the keys of the last [`Assembler::wanted`]; `lost`: a part of it had been overwritten.
    pub fn hops(&mut self, packets: Vec<Packet>, lost: bool) {
        for packet in packets {
            if let Some(id) = self.hop_owner(&packet)
                && let Some(open) = self.open.get_mut(&id)
            {
                open.add_hop(Hop::from(&packet));
            }
        }
        for id in self.requested.drain(..) {
            if let Some(open) = self.open.get_mut(&id) {
                open.trail_arrived(lost);
            }
        }
    }

    /// Applies what was fed up to a moment ago and hands out the flights that are finished and kept in full.
    pub fn advance(&mut self, now: Timestamp) -> Vec<Flight> {
        let until = now - self.limits.reorder_ns;
        while let Some(Reverse(first)) = self.waiting.peek() {
            if first.at > until {
                break;
            }
            if let Some(Reverse(waiting)) = self.waiting.pop() {
                self.apply(waiting);
            }
        }
        self.expire(until);
        self.previous.forget(now - self.timeouts.stream_ns);
        self.failed.retain(|_, at| now.since(*at) < 60 * SECOND);
        let late = self.limits.late_ns;
        self.late.retain(|_, all| {
            all.retain(|it| now.since(it.at) < late);
            !all.is_empty()
        });
        self.finish(until, Which::Due)
    }

    /// Applies everything and hands out every flight: the agent stops.
    pub fn drain(&mut self, now: Timestamp) -> Vec<Flight> {
        while let Some(Reverse(waiting)) = self.waiting.pop() {
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
        flights
    }

    /// For somebody who reads now: applies everything and hands out healthy flights before their grace is over (rows of them
    /// are in [`Assembler::traffic`] then). What is late of them makes flights of its own.
    pub fn flush(&mut self, now: Timestamp) -> Vec<Flight> {
        while let Some(Reverse(waiting)) = self.waiting.pop() {
            self.apply(waiting);
        }
        self.finish(now, Which::Healthy)
    }

    /// Everything that began before this has been handed out.
    pub fn complete_until(&self, now: Timestamp) -> Timestamp {
        let waiting = self.waiting.peek().map(|Reverse(it)| it.at);
        let open = self.open.values().map(|it| it.flight.at).min();
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
        let mut flights: Vec<_> = self.open.values().map(|open| &open.flight).collect();
        flights.retain(|it| {
            it.origin.is_none() && it.delivery.as_ref().is_some_and(|it| it.replied.is_none())
        });
        flights.into_iter().cloned().collect()
    }

    /// Flights given up for lack of room since the last call, as a gap.
    pub fn lost(&mut self) -> Option<GapSeen> {
        self.evicted.take()
    }

    fn apply(&mut self, waiting: Waiting) {
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
        for id in self.of_client(client, packet.txid) {
            if let Some(open) = self.open.get_mut(&id)
                && open.cookie() == Some(socket.cookie)
                && open.pending()
            {
                open.retransmitted();
            }
        }
        let retransmission = self
            .of_client(client, packet.txid)
            .into_iter()
            .any(|id| self.open.get(&id).is_some_and(Open::was_retransmitted));
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
        self.insert(open);
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
        let candidates = self.of_client(packet.client(), packet.txid);
        let found = candidates.into_iter().rev().find(|id| {
            self.open
                .get(id)
                .is_some_and(|open| open.flight.delivery.is_none() && open.flight.at <= packet.at)
        });
        let id = match found {
            Some(id) => id,
            None => {
                let mut open = Open::new(empty(packet.client(), packet.txid, packet.at));
                if self.limits.trails_of_all {
                    open.keep_trail();
                }
                self.insert(open)
            }
        };
        if let Some(open) = self.open.get_mut(&id) {
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
        let candidates = self.of_client(packet.client(), packet.txid);
        let found = candidates.into_iter().rev().find(|id| {
            self.open.get(id).is_some_and(|open| {
                (open.flight.delivery.as_ref())
                    .is_some_and(|it| it.replied.is_none() && it.at <= packet.at)
            })
        });
        if let Some(open) = found.and_then(|id| self.open.get_mut(&id)) {
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
        let mut candidates: Vec<u64> = self
            .by_cookie
            .get(&socket.cookie)
            .into_iter()
            .flatten()
            .copied()
            .filter(|id| {
                self.open
                    .get(id)
                    .is_some_and(|open| open.flight.txid == packet.txid)
            })
            .collect();
        if candidates.is_empty() {
            candidates = self.of_client(packet.client(), packet.txid);
        }
        candidates.retain(|id| {
            self.open.get(id).is_some_and(|open| {
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
            if let Some(open) = self.open.get_mut(&id) {
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
            self.insert(open);
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
        if let Some(open) = self.open.get_mut(&id) {
            open.dropped(drop);
        }
    }

    fn refused(&mut self, packet: &Packet, reporter: IpAddr, icmp_type: u8, icmp_code: u8) {
        let id = self.victim(packet, |_| true);
        let Some(open) = self.open.get_mut(&id) else {
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
            self.failed.insert(asker, packet.at);
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
            self.insert(open);
            return;
        }
        let by_cookie = cookie.and_then(|it| self.by_cookie.get(&it));
        let candidates = by_cookie.or_else(|| self.by_client.get(&local));
        let found = candidates.into_iter().flatten().rev().copied().find(|id| {
            self.open
                .get(id)
                .is_some_and(|open| open.pending() && open.flight.origin.is_some())
        });
        if let Some(open) = found.and_then(|id| self.open.get_mut(&id)) {
            open.flight.refusals.push(refusal);
            open.fail();
            open.end_after(at, self.limits.refused_ns);
            if let Some(asker) = open.asker() {
                self.failed.insert(asker, at);
            }
        }
    }

    fn released(&mut self, at: Timestamp, cookie: u64) {
        for id in self.by_cookie.get(&cookie).cloned().unwrap_or_default() {
            let Some(open) = self.open.get_mut(&id) else {
                continue;
            };
            if let Some(origin) = &mut open.flight.origin
                && origin.answer.is_none()
                && origin.closed.is_none()
                && open.pending()
            {
                open.close(at);
                if let Some(asker) = open.asker() {
                    self.failed.insert(asker, at);
                }
            }
        }
    }

    /// Ends what was waited for long enough.
    fn expire(&mut self, now: Timestamp) {
        for open in self.open.values_mut() {
            let deadline = open.deadline(&self.limits);
            if open.pending() && now >= deadline {
                let answered = open.flight.origin.is_some();
                open.end(deadline);
                if let (true, Some(asker)) = (answered, open.asker()) {
                    self.failed.insert(asker, deadline);
                }
            }
            if open.pending() && now.since(open.flight.at) >= self.limits.overdue_ns {
                open.overdue();
            }
        }
    }

    /// Hands out what is due: to the caller in full, or into the rows of traffic.
    fn finish(&mut self, now: Timestamp, which: Which) -> Vec<Flight> {
        let all = which == Which::All;
        let mut due: Vec<u64> = Vec::new();
        for (id, open) in &mut self.open {
            let Some(at) = open.due(&self.limits) else {
                if all {
                    due.push(*id);
                }
                continue;
            };
            let settled = which == Which::Healthy
                && !self.limits.trails_of_all
                && open.healthy(self.limits.slow_ns);
            if all || settled {
                due.push(*id);
            } else if now >= at {
                if open.wants_final_trail() && now.since(at) < TRAIL_WAIT_NS {
                    open.want_now();
                } else {
                    due.push(*id);
                }
            }
        }
        let mut kept = Vec::new();
        for id in due {
            let Some(open) = self.remove(id) else {
                continue;
            };
            // An attempt that was waiting when recording stopped was neither answered nor lost.
            let undecided = open.pending() && open.undecided();
            let retry = open.asker().is_some_and(|asker| {
                self.failed.get(&asker).is_some_and(|failed| {
                    (-RETRY_NS..=RETRY_NS).contains(&open.flight.at.since(*failed))
                })
            });
            let healthy = !retry && open.healthy(self.limits.slow_ns);
            let flight = open.into_flight(now);
            if let Some(delivery) = flight.delivery.as_ref().filter(|it| it.replied.is_none())
                && self.late.len() < self.limits.open
            {
                let key = (flight.client, flight.txid);
                self.late.entry(key).or_default().push(delivery.clone());
            }
            if healthy && !self.limits.record_all {
                self.traffic.add(&flight);
            } else if !undecided {
                kept.push(flight);
            }
        }
        kept.sort_by_key(|flight| flight.at);
        kept
    }

    /// The flight a drop or refusal concerns: the newest unanswered one at that time that `fits`, else the newest; if
    /// there is none, a new one that has neither client nor server here.
    fn victim(&mut self, packet: &Packet, fits: impl Fn(&Open) -> bool) -> u64 {
        let client = packet.client();
        let candidates: Vec<u64> = self
            .of_client(client, packet.txid)
            .into_iter()
            .rev()
            .filter(|id| {
                self.open
                    .get(id)
                    .is_some_and(|open| open.first_possible_hop(BEFORE_DELIVERY_NS) <= packet.at)
            })
            .collect();
        let unanswered = candidates.iter().find(|id| {
            self.open
                .get(id)
                .is_some_and(|open| !open.answered() && fits(open))
        });
        match unanswered.or(candidates.first()) {
            Some(id) => *id,
            None => self.insert(Open::stray(
                empty(client, packet.txid, packet.at),
                packet.at,
            )),
        }
    }

    /// The attempt a hop belongs to: the newest one of its key at its time.
    fn hop_owner(&self, packet: &Packet) -> Option<u64> {
        let candidates = self.of_client(packet.client(), packet.txid);
        candidates.into_iter().rev().find(|id| {
            self.open
                .get(id)
                .is_some_and(|open| open.first_possible_hop(BEFORE_DELIVERY_NS) <= packet.at)
        })
    }

    /// Flights of a client address:port, oldest first; of one txid if it is known.
    fn of_client(&self, client: SocketAddr, txid: Option<u16>) -> Vec<u64> {
        let all = self.by_client.get(&client).into_iter().flatten().copied();
        all.filter(|id| {
            txid.is_none()
                || self
                    .open
                    .get(id)
                    .is_some_and(|open| open.flight.txid == txid)
        })
        .collect()
    }

    fn insert(&mut self, open: Open) -> u64 {
        if self.open.len() >= self.limits.open {
            self.evict(open.flight.at);
        }
        let id = self.next;
        self.next += 1;
        self.by_client
            .entry(open.flight.client)
            .or_default()
            .push(id);
        if let Some(cookie) = open.cookie() {
            self.by_cookie.entry(cookie).or_default().push(id);
        }
        self.open.insert(id, open);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        unlink(&mut self.by_client, open.flight.client, id);
        if let Some(cookie) = open.cookie() {
            unlink(&mut self.by_cookie, cookie, id);
        }
        Some(open)
    }

    /// Gives up the oldest flight. It is not handed out: it would look unanswered.
    fn evict(&mut self, now: Timestamp) {
        let oldest = self.open.keys().next().copied();
        let Some(open) = oldest.and_then(|id| self.remove(id)) else {
            return;
        };
        let gap = self.evicted.get_or_insert(GapSeen {
            from: open.flight.at,
            to: now,
            what: GapKind::RecordsLost,
            count: 0,
        });
        gap.from = gap.from.min(open.flight.at);
        gap.to = gap.to.max(now);
        gap.count += 1;
    }
}

fn unlink<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<u64>>, key: K, id: u64) {
    if let Some(ids) = index.get_mut(&key) {
        ids.retain(|it| *it != id);
        if ids.is_empty() {
            index.remove(&key);
        }
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

#[cfg(test)]
mod tests;
