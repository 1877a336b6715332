//! The circular logs: one part for each CPU, written as `slicetrace_common::seq` describes, so that user space can read
//! them at any moment and never sees half a record.

use aya_ebpf::{helpers::bpf_get_smp_processor_id, maps::Array};
use slicetrace_common::{Packet, Socket, counter, log, seq};

use crate::atomic::{exchange, fetch_add};
use crate::maps::{DROPS, HOPS, POSITIONS, SOCKETS, config, count};

/// A slot that is ours until it is published.
pub struct Slot<T: 'static> {
    /// The payload; its first member is the sequence number, which [`Slot::publish`] writes.
    pub record: *mut T,
    position: u64,
}

impl<T> Slot<T> {
    /// Makes the slot readable. The exchange is a full barrier: every store before it is visible to who reads `seq`.
    #[inline(always)]
    pub fn publish(self) {
        // SAFETY: every record starts with its u64 sequence number.
        unsafe { exchange(self.record.cast(), self.position + 1) };
    }
}

/// A slot for a packet at a socket.
#[inline(always)]
pub fn socket() -> Option<Slot<Socket>> {
    reserve(&SOCKETS, log::SOCKETS, config!(socket_slots))
}

/// A slot for a packet at a device.
#[inline(always)]
pub fn hop() -> Option<Slot<Packet>> {
    reserve(&HOPS, log::HOPS, config!(hop_slots))
}

/// A slot for a drop, a refusal or a socket error.
#[inline(always)]
pub fn drop() -> Option<Slot<Packet>> {
    reserve(&DROPS, log::DROPS, config!(drop_slots))
}

#[inline(always)]
fn reserve<T>(slots: &Array<T>, which: u32, per_cpu: u32) -> Option<Slot<T>> {
    // Programs do not migrate between CPUs while they run, even where they can be preempted.
    // SAFETY: a helper without arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let next = POSITIONS.get_ptr_mut(cpu * log::COUNT + which)?;
    // SAFETY: `next` is the first member of a Position that the map owns.
    let position = unsafe { fetch_add(next.cast()) };
    let record = slots.get_ptr_mut(cpu * per_cpu + (position as u32 & (per_cpu - 1)))?;
    // SAFETY: every record starts with its u64 sequence number.
    let before = unsafe { exchange(record.cast(), seq::BUSY) };
    if before == seq::BUSY {
        // We interrupted a writer that is a whole lap behind and still in this slot: it is his.
        count(counter::LOST_RESERVE);
        return None;
    }
    if before > position + 1 {
        // We were interrupted for a whole lap between reserving and taking: the slot already holds a newer record.
        // SAFETY: as above; the payload was not touched.
        unsafe { exchange(record.cast(), before) };
        count(counter::LOST_RESERVE);
        return None;
    }
    Some(Slot { record, position })
}
