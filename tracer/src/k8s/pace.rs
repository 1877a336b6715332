//! How long the watches wait for what, and between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How long we wait for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a page of a list, and for the head of a watch's response.
    pub(super) request: Duration,
    /// After which the server ends a watch.
    pub(super) watch: Duration,
    /// Longest silence of a server that sends bookmarks.
    pub(super) silence: Duration,
    /// How long a watch may be without a stream and not count as broken: an orderly end is followed by a new start.
    pub(super) handover: Duration,
    /// For how long after an outage changes count as late.
    pub(super) catch_up: Duration,
    /// First and longest pause between attempts.
    pub(super) backoff: (Duration, Duration),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            watch: Duration::from_secs(240),
            silence: Duration::from_secs(90),
            handover: Duration::from_millis(500),
            catch_up: Duration::from_secs(1),
            backoff: (Duration::from_millis(100), Duration::from_secs(10)),
        }
    }
}

/// Pauses that double, each cut by up to a half at random, so that a fleet of agents does not come back at one moment.
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) const fn new((first, longest): (Duration, Duration)) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// The next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        // A fresh RandomState is the standard library's source of randomness.
        let random = RandomState::new().hash_one(0) % 1024;
        pause - pause / 2048 * u32::try_from(random).unwrap_or(0)
    }

    /// Things went well: starts over.
    pub(super) const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_from_fleet_to_fleet() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(4));
        let fleet: Vec<Vec<_>> = (0..20)
            .map(|_| {
                let mut backoff = Backoff::new((first, longest));
                (0..4).map(|_| backoff.pause()).collect()
            })
            .collect();
        for pauses in &fleet {
            for (pause, full) in pauses.iter().zip([1, 2, 4, 4]) {
                let full = Duration::from_secs(full);
                assert!(*pause <= full && *pause >= full / 2, "{pauses:?}");
            }
        }
        assert!(fleet.iter().any(|pauses| pauses != &fleet[0]));
        let mut backoff = Backoff::new((first, longest));
        backoff.pause();
        backoff.reset();
        assert!(backoff.pause() <= first);
    }
}
