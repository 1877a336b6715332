//! From the kernel's CLOCK_MONOTONIC to wall-clock time.
//!
//! The offset between the two drifts with NTP's corrections and jumps when somebody sets the clock, so it is sampled
//! again and again, and a jump is told.

use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::model::Timestamp;

/// The clocks or the node's identity cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// `clock_gettime`.
    #[error("cannot read the clock {clock}: {error}; is a seccomp profile in the way?")]
    Read {
        /// Which.
        clock: &'static str,
        /// Why.
        error: Errno,
    },
}

/// A jump of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Wall minus monotonic before, nanoseconds.
    pub old_offset_ns: i64,
    /// Wall minus monotonic now.
    pub new_offset_ns: i64,
    /// Wall-clock time at which it was noticed, by the new offset.
    pub at: Timestamp,
}

/// Converts times. Shared freely; one task calls [`Clock::resample`] every second or so.
#[derive(Debug)]
pub struct Clock {
    offset_ns: AtomicI64,
    error_ns: AtomicI64,
}

/// Readings a sample is chosen from.
const READINGS: usize = 16;
/// adjtime slews by at most 500 ppm (5 ms in 10 s); anything faster was a step.
const STEP_NS: i64 = 10_000_000;

impl Clock {
    /// Takes the first sample.
    ///
    /// # Errors
    /// When a clock cannot be read.
    pub fn new() -> Result<Self, ClockError> {
        let sample = Sample::tightest()?;
        Ok(Self {
            offset_ns: AtomicI64::new(sample.offset_ns),
            error_ns: AtomicI64::new(sample.error_ns),
        })
    }

    /// Wall-clock time of a CLOCK_MONOTONIC time in nanoseconds (`bpf_ktime_get_ns`).
    pub fn wall(&self, monotonic_ns: u64) -> Timestamp {
        let monotonic = i64::try_from(monotonic_ns).unwrap_or(i64::MAX);
        Timestamp(monotonic.saturating_add(self.offset_ns.load(Ordering::Relaxed)))
    }

    /// Now, as the kernel's events of now would be stamped: by the sampled offset, not by CLOCK_REALTIME, so that our
    /// own times and the kernel's sort together.
    pub fn now(&self) -> Timestamp {
        // The monotonic clock was readable when this was made; there is no time without it.
        read(ClockId::CLOCK_MONOTONIC, "MONOTONIC").map_or(Timestamp(0), |now| {
            Timestamp(now.saturating_add(self.offset_ns.load(Ordering::Relaxed)))
        })
    }

    /// Bound of the offset's error when it was sampled, nanoseconds.
    pub fn error_ns(&self) -> i64 {
        self.error_ns.load(Ordering::Relaxed)
    }

    /// Samples again. Returns the jump if the offset moved by more than slewing can in ten seconds.
    ///
    /// # Errors
    /// When a clock cannot be read.
    pub fn resample(&self) -> Result<Option<Step>, ClockError> {
        Ok(self.apply(Sample::tightest()?))
    }

    fn apply(&self, sample: Sample) -> Option<Step> {
        let new = sample.offset_ns;
        let old = self.offset_ns.swap(new, Ordering::Relaxed);
        self.error_ns.store(sample.error_ns, Ordering::Relaxed);
        (new.abs_diff(old) > STEP_NS.unsigned_abs()).then(|| Step {
            old_offset_ns: old,
            new_offset_ns: new,
            at: self.now(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    offset_ns: i64,
    error_ns: i64,
}

impl Sample {
    /// The wall clock read between two readings of the monotonic one is known to half their distance; an interrupt in
    /// between widens it, so the tightest of several counts.
    fn tightest() -> Result<Self, ClockError> {
        let mut best: Option<Self> = None;
        for _ in 0..READINGS {
            let before = read(ClockId::CLOCK_MONOTONIC, "MONOTONIC")?;
            let wall = read(ClockId::CLOCK_REALTIME, "REALTIME")?;
            let after = read(ClockId::CLOCK_MONOTONIC, "MONOTONIC")?;
            let error_ns = (after - before) / 2;
            if best.is_none_or(|best| error_ns < best.error_ns) {
                best = Some(Self {
                    offset_ns: wall - (before + error_ns),
                    error_ns,
                });
            }
        }
        best.ok_or(ClockError::Read {
            clock: "MONOTONIC",
            error: Errno::EINVAL,
        })
    }
}

fn read(id: ClockId, clock: &'static str) -> Result<i64, ClockError> {
    let time = clock_gettime(id).map_err(|error| ClockError::Read { clock, error })?;
    Ok(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// `/proc/sys/kernel/random/boot_id`: nodes that share it share their clocks. Empty if it cannot be read.
pub fn boot_id() -> String {
    trimmed("/proc/sys/kernel/random/boot_id")
}

/// `uname -r`. Empty if it cannot be read.
pub fn kernel_release() -> String {
    trimmed("/proc/sys/kernel/osrelease")
}

fn trimmed(file: &str) -> String {
    fs::read_to_string(file)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn monotonic_times_become_wall_times() {
        let clock = Clock::new().unwrap();
        let before = read(ClockId::CLOCK_REALTIME, "REALTIME").unwrap();
        let monotonic = read(ClockId::CLOCK_MONOTONIC, "MONOTONIC").unwrap();
        let after = read(ClockId::CLOCK_REALTIME, "REALTIME").unwrap();
        let wall = clock.wall(u64::try_from(monotonic).unwrap()).0;
        let slack = clock.error_ns() + 1_000_000;
        assert!((before - slack..=after + slack).contains(&wall));
        assert!(clock.now().0 >= wall);
        assert!(clock.wall(u64::MAX) > clock.now());
    }

    #[test]
    fn slewing_is_followed_and_a_step_is_told() {
        let clock = Clock::new().unwrap();
        assert_eq!(clock.resample().unwrap(), None);
        let old = clock.offset_ns.load(Ordering::Relaxed);
        let at = |offset_ns| Sample {
            offset_ns,
            error_ns: 50,
        };
        assert_eq!(clock.apply(at(old + 1_000_000)), None);
        assert_eq!(clock.wall(0).0, old + 1_000_000);
        let step = clock.apply(at(old - 3_600_000_000_000)).unwrap();
        assert_eq!(step.old_offset_ns, old + 1_000_000);
        assert_eq!(step.new_offset_ns, old - 3_600_000_000_000);
        assert_eq!(clock.error_ns(), 50);
    }

    #[test]
    fn this_boot_has_a_name() {
        assert_eq!(boot_id().len(), 36);
        assert!(kernel_release().starts_with(|first: char| first.is_ascii_digit()));
    }
}
