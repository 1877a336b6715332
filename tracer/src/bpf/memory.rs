//! The logs' arrays, mapped read-only.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::log::Memory;

/// A map of the kernel in our address space, which keeps it alive.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory belongs to nobody's thread, and is only read, atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps an array that was created with `BPF_F_MMAPABLE`; `words` is its size in words of eight bytes.
    pub(super) fn new(map: BorrowedFd<'_>, words: usize) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address the kernel chooses; no memory of ours is touched.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                words * 8,
                libc::PROT_READ,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, words }),
            None => Err(std::io::Error::other("mapped at address zero")),
        }
    }
}

impl Memory for Mapping {
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "outside the mapped log");
        // SAFETY: in bounds of a mapping that lives as long as `self`; relaxed loads are allowed on read-only memory.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; nobody borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}
