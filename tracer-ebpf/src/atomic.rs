//! Atomic operations that return the value before: programs on one CPU can interrupt each other.

use core::intrinsics::{AtomicOrdering, atomic_xadd, atomic_xchg};

/// Adds one and returns the value before. `AtomicU64` has no such operation on this target; the intrinsic has.
///
/// # Safety
///
/// `counter` is valid and aligned.
#[inline(always)]
pub unsafe fn fetch_add(counter: *mut u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, 1) }
}

/// Stores a value and returns the one before. A full barrier.
///
/// # Safety
///
/// `place` is valid and aligned.
#[inline(always)]
pub unsafe fn exchange(place: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(place, value) }
}
