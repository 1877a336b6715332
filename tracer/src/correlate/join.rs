//! From the flights of all nodes to attempts: the client's flight with what other nodes saw of the same packet.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::event::{Direction, Question};
use crate::model::flight::{Delivery, Drop, Flight, Hop, Origin, Owner, Refusal};

const MILLISECOND: i64 = 1_000_000;

/// How far the times of one moment may lie apart on nodes that share a clock (conversion from the monotonic clock).
const SAME_CLOCK_NS: i64 = 2 * MILLISECOND;

/// The same on nodes whose clocks were not compared.
const OTHER_CLOCK_NS: i64 = 2_000 * MILLISECOND;

/// How long after it was sent anything is still put down to an attempt.
const MEMORY_NS: i64 = 60_000 * MILLISECOND;

/// One packet of a query, with everything any node saw of it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// Node of the client.
    pub(super) node: String,
    pub(super) client: SocketAddr,
    pub(super) txid: Option<u16>,
    pub(super) origin: Origin,
    pub(super) question: Option<Question>,
    /// Where it was delivered, and on which node.
    pub(super) delivery: Option<(String, Delivery)>,
    pub(super) trail: Vec<(String, Hop)>,
    pub(super) drops: Vec<(String, Drop)>,
    pub(super) refusals: Vec<(String, Refusal)>,
    /// Nodes where a part of the trail was overwritten.
    pub(super) trail_lost: Vec<String>,
    /// The client's socket was not seen: the drop in its node's OUTPUT is all there is.
    pub(super) unseen_client: bool,
    /// When the client sent the same packet again, if it did.
    pub(super) repeated: Option<Timestamp>,
}

impl Attempt {
    fn new(node: &str, flight: Flight, origin: Origin) -> Self {
        let mut attempt = Self {
            node: node.to_owned(),
            client: flight.client,
            txid: flight.txid,
            origin,
            question: flight.question.clone(),
            delivery: None,
            trail: Vec::new(),
            drops: Vec::new(),
            refusals: Vec::new(),
            trail_lost: Vec::new(),
            unseen_client: false,
            repeated: None,
        };
        attempt.add(node, flight);
        attempt
    }

    fn add(&mut self, node: &str, flight: Flight) {
        match (&mut self.delivery, flight.delivery) {
            (None, Some(delivery)) => self.delivery = Some((node.to_owned(), delivery)),
            // The reply came after the first flight had been handed out.
            (Some((_, known)), Some(again)) => known.replied = known.replied.or(again.replied),
            (_, None) => {}
        }
        if self.question.is_none() {
            self.question = flight.question;
        }
        if flight.trail_lost {
            self.trail_lost.push(node.to_owned());
        }
        self.trail
            .extend(flight.trail.into_iter().map(|it| (node.to_owned(), it)));
        self.drops
            .extend(flight.drops.into_iter().map(|it| (node.to_owned(), it)));
        self.refusals
            .extend(flight.refusals.into_iter().map(|it| (node.to_owned(), it)));
    }

    fn sort(&mut self) {
        self.trail
            .sort_by_key(|(_, it)| (it.at, it.direction == Direction::Reply, it.point));
        self.drops.sort_by_key(|(_, it)| it.at);
        self.refusals.sort_by_key(|(_, it)| it.at());
    }

    pub(super) const fn sent(&self) -> Timestamp {
        self.origin.sent
    }

    /// The answer came before the client asked again or closed its socket.
    pub(super) fn answered_in_time(&self) -> bool {
        self.origin.answer.is_some_and(|answer| {
            self.origin.closed.is_none_or(|it| it >= answer.at)
                && self.repeated.is_none_or(|it| it >= answer.at)
        })
    }
}

/// What is left of flights that belong to no attempt whose client was recorded.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// By time sent.
    pub(super) attempts: Vec<Attempt>,
    /// Flights whose client's node is not in the records.
    pub(super) strays: u64,
}

/// Joins flights. `same_clock` says whether two nodes share a clock, `frontend` whether an address is a Service's own.
/// `flights` must be sorted by time and node.
pub(super) fn join(
    flights: Vec<(String, Flight)>,
    same_clock: impl Fn(&str, &str) -> bool,
    frontend: impl Fn(SocketAddr) -> bool,
) -> Joined {
    let mut attempts = Vec::new();
    let mut parts = Vec::new();
    for (node, mut flight) in flights {
        match flight.origin.take() {
            Some(origin) => attempts.push(Attempt::new(&node, flight, origin)),
            None => parts.push((node, flight)),
        }
    }
    attempts.sort_by(|a, b| {
        (a.sent(), &a.node, a.client, a.txid).cmp(&(b.sent(), &b.node, b.client, b.txid))
    });
    mark_repeated(&mut attempts);
    let mut by_key: HashMap<(SocketAddr, Option<u16>), Vec<usize>> = HashMap::new();
    for (index, attempt) in attempts.iter().enumerate() {
        by_key
            .entry((attempt.client, attempt.txid))
            .or_default()
            .push(index);
    }
    let mut joined = Joined::default();
    let mut unseen: BTreeMap<(SocketAddr, Option<u16>, i64), Attempt> = BTreeMap::new();
    for (node, flight) in parts {
        let candidates = by_key.get(&(flight.client, flight.txid));
        let found = candidates.and_then(|all| owner(&attempts, all, &node, &flight, &same_clock));
        match found {
            Some(index) => attempts[index].add(&node, flight),
            None if refused_in_output(&flight, &frontend) => {
                let key = (flight.client, flight.txid, flight.at.0);
                unseen
                    .entry(key)
                    .or_insert_with(|| unseen_client(&node, flight));
            }
            None => joined.strays += 1,
        }
    }
    attempts.extend(unseen.into_values());
    for attempt in &mut attempts {
        attempt.sort();
    }
    attempts.sort_by(|a, b| {
        (a.sent(), &a.node, a.client, a.txid).cmp(&(b.sent(), &b.node, b.client, b.txid))
    });
    joined.attempts = attempts;
    joined
}

/// The attempt a part belongs to: the newest of its key that had been sent then. A drop or refusal of the query rather
/// belongs to one that was not answered.
fn owner(
    attempts: &[Attempt],
    candidates: &[usize],
    node: &str,
    part: &Flight,
    same_clock: &impl Fn(&str, &str) -> bool,
) -> Option<usize> {
    let fits = |index: &&usize| {
        let attempt = &attempts[**index];
        let slack = if same_clock(&attempt.node, node) {
            SAME_CLOCK_NS
        } else {
            OTHER_CLOCK_NS
        };
        let after = part.at.since(attempt.sent());
        (-slack..=MEMORY_NS).contains(&after)
    };
    let mut newest_first = candidates.iter().rev().filter(fits).peekable();
    let newest = newest_first.peek().copied().copied();
    if let Some(delivery) = &part.delivery {
        let same = |index: &usize| {
            (attempts[*index].delivery.as_ref())
                .is_some_and(|(other, it)| other == node && it.at == delivery.at)
        };
        if let Some(index) = candidates.iter().copied().find(same) {
            return Some(index);
        }
        // One packet is delivered once.
        return newest_first
            .copied()
            .find(|index| attempts[*index].delivery.is_none());
    }
    newest_first
        .copied()
        .find(|index| attempts[*index].origin.answer.is_none())
        .or(newest)
}

fn mark_repeated(attempts: &mut [Attempt]) {
    let mut next: HashMap<(String, SocketAddr, Option<u16>, u64), Timestamp> = HashMap::new();
    for attempt in attempts.iter_mut().rev().filter(|it| it.txid.is_some()) {
        let key = (
            attempt.node.clone(),
            attempt.client,
            attempt.txid,
            attempt.origin.cookie,
        );
        attempt.repeated = next.insert(key, attempt.sent());
    }
}

/// A REJECT or DROP in OUTPUT: the packet never reached a device or a hook of its socket.
fn refused_in_output(flight: &Flight, frontend: &impl Fn(SocketAddr) -> bool) -> bool {
    flight.delivery.is_none()
        && flight.drops.iter().any(|it| {
            it.direction == Direction::Query && it.device.is_none() && frontend(it.destination)
        })
}

fn unseen_client(node: &str, flight: Flight) -> Attempt {
    let asked = flight.drops.first().map(|it| it.destination);
    let origin = Origin {
        sent: flight.at,
        cookie: 0,
        owner: Owner::default(),
        asked,
        destination: asked,
        previous: None,
        recorded_since: flight.at,
        timeouts: crate::model::flight::ConntrackTimeouts::default(),
        answer: None,
        closed: None,
        completed: flight.drops.last().map_or(flight.at, |it| it.at),
    };
    let mut attempt = Attempt::new(node, flight, origin);
    attempt.unseen_client = true;
    attempt
}
