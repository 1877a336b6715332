//! The flights that are not finished yet, and how a packet finds its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen};

use super::open::Open;

/// Open flights by age, by client and by socket; bounded: the oldest gives way.
#[derive(Debug)]
pub(super) struct Flights {
    open: BTreeMap<u64, Open>,
    room: usize,
    next: u64,
    /// Client, txid, number. One port can have a flight open for every txid there is: a look-up must not go through them.
    by_client: BTreeSet<(SocketAddr, Option<u16>, u64)>,
    /// Socket cookie, txid, number.
    by_cookie: BTreeSet<(u64, Option<u16>, u64)>,
    evicted: Option<GapSeen>,
}

impl Flights {
    pub(super) fn new(room: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            room,
            next: 0,
            by_client: BTreeSet::new(),
            by_cookie: BTreeSet::new(),
            evicted: None,
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Open> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Open> {
        self.open.get_mut(&id)
    }

    /// All, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Open> {
        self.open.values()
    }

    /// All with their numbers, oldest first.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (u64, &mut Open)> {
        self.open.iter_mut().map(|(id, open)| (*id, open))
    }

    /// Flights of a client address:port, oldest first; of one txid if it is known.
    pub(super) fn of_client(&self, client: SocketAddr, txid: Option<u16>) -> Vec<u64> {
        of(&self.by_client, client, txid)
    }

    /// Flights of a client's socket, oldest first; of one txid if it is known.
    pub(super) fn of_socket(&self, cookie: u64, txid: Option<u16>) -> Vec<u64> {
        of(&self.by_cookie, cookie, txid)
    }

    /// The newest flight of a client address:port (and txid, if it is known) that `fits`.
    pub(super) fn newest(
        &self,
        client: SocketAddr,
        txid: Option<u16>,
        fits: impl Fn(&Open) -> bool,
    ) -> Option<u64> {
        let all = self.of_client(client, txid);
        all.into_iter().rev().find(|id| self.is(*id, &fits))
    }

    /// Whether it is open and `fits`.
    pub(super) fn is(&self, id: u64, fits: impl Fn(&Open) -> bool) -> bool {
        self.get(id).is_some_and(fits)
    }

    pub(super) fn insert(&mut self, open: Open) -> u64 {
        if self.open.len() >= self.room {
            self.evict(open.flight.at);
        }
        let id = self.next;
        self.next += 1;
        let txid = open.flight.txid;
        self.by_client.insert((open.flight.client, txid, id));
        if let Some(cookie) = open.cookie() {
            self.by_cookie.insert((cookie, txid, id));
        }
        self.open.insert(id, open);
        id
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        let txid = open.flight.txid;
        self.by_client.remove(&(open.flight.client, txid, id));
        if let Some(cookie) = open.cookie() {
            self.by_cookie.remove(&(cookie, txid, id));
        }
        Some(open)
    }

    /// Flights given up for lack of room since the last call, as a gap.
    pub(super) fn lost(&mut self) -> Option<GapSeen> {
        self.evicted.take()
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

/// Numbers under a key, in their order.
fn of<K: Ord + Copy>(
    index: &BTreeSet<(K, Option<u16>, u64)>,
    key: K,
    txid: Option<u16>,
) -> Vec<u64> {
    let (first, last) = match txid {
        Some(_) => (txid, txid),
        None => (None, Some(u16::MAX)),
    };
    let range = index.range((key, first, 0)..=(key, last, u64::MAX));
    let mut ids: Vec<u64> = range.map(|(_, _, id)| *id).collect();
    ids.sort_unstable();
    ids
}
