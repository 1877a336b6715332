//! Events that wait to be put in order of time: each CPU has its own log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::model::Timestamp;
use crate::model::event::Event;
use crate::model::flight::Owner;

/// An event that waits for its turn; `owner` was looked up when it arrived.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) at: Timestamp,
    order: u64,
    pub(super) event: Event,
    pub(super) owner: Option<Owner>,
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

/// The waiting events, earliest first; of one time in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<Waiting>>,
    order: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Timestamp, event: Event, owner: Option<Owner>) {
        self.order += 1;
        self.heap.push(Reverse(Waiting {
            at,
            order: self.order,
            event,
            owner,
        }));
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.heap.pop().map(|Reverse(first)| first)
    }

    /// The first, unless it is later than `until`.
    pub(super) fn pop_until(&mut self, until: Timestamp) -> Option<Waiting> {
        self.first().filter(|first| *first <= until)?;
        self.pop()
    }

    /// Time of the first.
    pub(super) fn first(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse(first)| first.at)
    }
}
