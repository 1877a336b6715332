//! When each client address:port was last heard, as far back as a conntrack entry can live.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use crate::model::Timestamp;

/// A bounded memory of the last packet of each client address:port.
#[derive(Debug)]
pub(super) struct Previous {
    last: HashMap<SocketAddr, Timestamp>,
    by_time: BTreeSet<(Timestamp, SocketAddr)>,
    room: usize,
    complete_since: Timestamp,
}

impl Previous {
    pub(super) fn new(room: usize) -> Self {
        Self {
            last: HashMap::new(),
            by_time: BTreeSet::new(),
            room,
            complete_since: Timestamp(i64::MIN),
        }
    }

    /// Remembers a packet and returns the one before it.
    pub(super) fn replace(&mut self, client: SocketAddr, at: Timestamp) -> Option<Timestamp> {
        let before = self.last.insert(client, at);
        if let Some(before) = before {
            self.by_time.remove(&(before, client));
        }
        self.by_time.insert((at, client));
        while self.last.len() > self.room {
            if let Some((oldest, client)) = self.by_time.pop_first() {
                self.last.remove(&client);
                // From here on "no earlier packet" only holds for the time after it.
                self.complete_since = self.complete_since.max(oldest + 1);
            }
        }
        before
    }

    pub(super) fn get(&self, client: SocketAddr) -> Option<Timestamp> {
        self.last.get(&client).copied()
    }

    /// Since when the memory is complete.
    pub(super) const fn complete_since(&self) -> Timestamp {
        self.complete_since
    }

    /// Forgets what is older than any conntrack entry.
    pub(super) fn forget(&mut self, before: Timestamp) {
        while let Some((oldest, client)) = self.by_time.first().copied() {
            if oldest >= before {
                break;
            }
            self.by_time.pop_first();
            self.last.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_memory_says_since_when_it_is_complete() {
        let mut previous = Previous::new(2);
        let client = |port| SocketAddr::from(([10, 0, 0, 1], port));
        assert_eq!(previous.replace(client(1), Timestamp(10)), None);
        assert_eq!(
            previous.replace(client(1), Timestamp(20)),
            Some(Timestamp(10))
        );
        previous.replace(client(2), Timestamp(30));
        assert_eq!(previous.complete_since(), Timestamp(i64::MIN));
        previous.replace(client(3), Timestamp(40));
        assert_eq!(previous.get(client(1)), None);
        assert_eq!(previous.complete_since(), Timestamp(21));
    }

    #[test]
    fn what_no_conntrack_entry_can_remember_is_forgotten() {
        let mut previous = Previous::new(10);
        let client = SocketAddr::from(([10, 0, 0, 1], 5));
        previous.replace(client, Timestamp(10));
        previous.forget(Timestamp(10));
        assert_eq!(previous.get(client), Some(Timestamp(10)));
        previous.forget(Timestamp(11));
        assert_eq!(previous.get(client), None);
    }
}
