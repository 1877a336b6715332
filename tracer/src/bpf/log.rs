//! Reads the circular logs while the kernel writes them (the protocol: [`slicetrace_common::seq`]).

use std::sync::atomic::{AtomicU64, Ordering, fence};

use slicetrace_common::{Position, log, seq};

/// Most unpublished positions of one CPU that are looked at again; there are next to none.
const PENDING: usize = 4096;
const POSITION_WORDS: usize = size_of::<Position>() / 8;

/// Memory that others write: read word by word, never through a reference to a record.
pub(super) trait Memory {
    /// The word at an index, which is in bounds.
    fn word(&self, index: usize) -> &AtomicU64;
}

/// One log: `slots` records of `words` words for each CPU, and the positions of its writers.
#[derive(Debug)]
pub(super) struct Log<M> {
    records: M,
    which: u32,
    words: usize,
    slots: u64,
    cursors: Vec<Cursor>,
}

/// How far one CPU's part was read.
#[derive(Clone, Debug, Default)]
struct Cursor {
    next: u64,
    /// Reserved, but not published when we came by.
    pending: Vec<u64>,
}

/// How often something was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) read: u64,
    pub(super) overwritten: u64,
}

enum Slot {
    Complete,
    /// Not written yet, or given up.
    Empty,
    /// A writer is in it, of this lap or a later one.
    Busy,
    /// A later lap has it.
    Overwritten,
}

impl<M: Memory> Log<M> {
    /// `which` is one of [`slicetrace_common::log`], `slots` a power of two.
    pub(super) fn new(records: M, which: u32, words: usize, slots: u32, cpus: usize) -> Self {
        Self {
            records,
            which,
            words,
            slots: u64::from(slots),
            cursors: vec![Cursor::default(); cpus],
        }
    }

    /// Gives every record that was published since the last call to `each`, as words, CPU by CPU.
    pub(super) fn drain(&mut self, positions: &M, mut each: impl FnMut(&[u64])) -> Found {
        let mut found = Found::default();
        let mut record = vec![0; self.words];
        for cpu in 0..self.cursors.len() {
            let end = self.end(positions, cpu);
            let mut cursor = std::mem::take(&mut self.cursors[cpu]);
            let oldest = end.saturating_sub(self.slots);
            found.overwritten += oldest.saturating_sub(cursor.next);
            let fresh = cursor.next.max(oldest)..end;
            let mut pending = Vec::new();
            for position in cursor.pending.drain(..).chain(fresh) {
                match self.copy(cpu, position, &mut record) {
                    Slot::Complete => {
                        found.read += 1;
                        each(&record);
                    }
                    Slot::Busy => pending.push(position),
                    Slot::Empty if position >= oldest => pending.push(position),
                    // Given up by its writer a lap ago, who counted it.
                    Slot::Empty => {}
                    Slot::Overwritten => found.overwritten += 1,
                }
            }
            let excess = pending.len().saturating_sub(PENDING);
            pending.drain(..excess);
            found.overwritten += excess as u64;
            cursor.pending = pending;
            cursor.next = end;
            self.cursors[cpu] = cursor;
        }
        found
    }

    /// Gives every readable record to `each`, newest first for each CPU, until it returns false (for that CPU). Moves no
    /// cursor. Returns whether some CPU's part was gone through to its end although older records had been in it.
    pub(super) fn scan(&self, positions: &M, mut each: impl FnMut(&[u64]) -> bool) -> bool {
        let mut record = vec![0; self.words];
        let mut overwritten = false;
        for cpu in 0..self.cursors.len() {
            let end = self.end(positions, cpu);
            let oldest = end.saturating_sub(self.slots);
            let mut stopped = false;
            for position in (oldest..end).rev() {
                if let Slot::Complete = self.copy(cpu, position, &mut record)
                    && !each(&record)
                {
                    stopped = true;
                    break;
                }
            }
            overwritten |= !stopped && oldest > 0;
        }
        overwritten
    }

    /// The oldest record that can be read, of every CPU whose part has been overwritten at least once.
    pub(super) fn oldest(&self, positions: &M, mut each: impl FnMut(&[u64])) {
        let mut record = vec![0; self.words];
        for cpu in 0..self.cursors.len() {
            let end = self.end(positions, cpu);
            let oldest = end.saturating_sub(self.slots);
            if oldest == 0 {
                continue;
            }
            for position in oldest..end {
                if let Slot::Complete = self.copy(cpu, position, &mut record) {
                    each(&record);
                    break;
                }
            }
        }
    }

    fn end(&self, positions: &M, cpu: usize) -> u64 {
        let index = (cpu * log::COUNT as usize + self.which as usize) * POSITION_WORDS;
        positions.word(index).load(Ordering::Relaxed)
    }

    fn copy(&self, cpu: usize, position: u64, record: &mut [u64]) -> Slot {
        let slot = cpu as u64 * self.slots + (position & (self.slots - 1));
        let start = slot as usize * self.words;
        let before = self.records.word(start).load(Ordering::Relaxed);
        if before == seq::BUSY {
            return Slot::Busy;
        }
        if before < position + 1 {
            return Slot::Empty;
        }
        if before > position + 1 {
            return Slot::Overwritten;
        }
        fence(Ordering::Acquire);
        for (n, word) in record.iter_mut().enumerate() {
            *word = self.records.word(start + n).load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        // A writer takes the slot before it touches the payload: if the number still stands, nothing was touched.
        if self.records.word(start).load(Ordering::Relaxed) == before {
            Slot::Complete
        } else {
            Slot::Overwritten
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const WORDS: usize = 8;
    const SLOTS: u32 = 16;

    #[derive(Clone)]
    struct Plain(Arc<Vec<AtomicU64>>);

    impl Plain {
        fn zeroed(words: usize) -> Self {
            Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
        }
    }

    impl Memory for Plain {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }
    }

    /// What the eBPF side does (`tracer-ebpf/src/log.rs`), for one CPU.
    struct Writer {
        records: Plain,
        positions: Plain,
    }

    impl Writer {
        fn reserve(&self) -> Option<(usize, u64)> {
            let position = self.positions.word(0).fetch_add(1, Ordering::SeqCst);
            let start = (position & u64::from(SLOTS - 1)) as usize * WORDS;
            let before = self.records.word(start).swap(seq::BUSY, Ordering::SeqCst);
            if before == seq::BUSY {
                return None;
            }
            if before > position + 1 {
                self.records.word(start).swap(before, Ordering::SeqCst);
                return None;
            }
            Some((start, position))
        }

        fn write(&self, start: usize, value: u64) {
            for n in 1..WORDS {
                self.records
                    .word(start + n)
                    .store(value.wrapping_mul(n as u64), Ordering::Relaxed);
            }
        }

        fn publish(&self, start: usize, position: u64) {
            self.records
                .word(start)
                .swap(position + 1, Ordering::SeqCst);
        }

        fn append(&self) {
            if let Some((start, position)) = self.reserve() {
                self.write(start, position + 1);
                self.publish(start, position);
            }
        }
    }

    fn pair() -> (Writer, Log<Plain>) {
        let writer = Writer {
            records: Plain::zeroed(WORDS * SLOTS as usize),
            positions: Plain::zeroed(POSITION_WORDS * log::COUNT as usize),
        };
        let log = Log::new(writer.records.clone(), 0, WORDS, SLOTS, 1);
        (writer, log)
    }

    fn whole(record: &[u64]) -> bool {
        (1..WORDS).all(|n| record[n] == record[0].wrapping_mul(n as u64))
    }

    #[test]
    fn a_reader_never_gets_a_torn_record_and_accounts_for_every_one() {
        let (writer, mut log) = pair();
        let positions = writer.positions.clone();
        let done = Arc::new(AtomicBool::new(false));
        const RECORDS: u64 = 2_000_000;
        let thread = std::thread::spawn({
            let done = Arc::clone(&done);
            move || {
                for n in 0..RECORDS {
                    writer.append();
                    if n % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                done.store(true, Ordering::SeqCst);
            }
        });
        let mut total = Found::default();
        let mut last = 0;
        loop {
            let finished = done.load(Ordering::SeqCst);
            let found = log.drain(&positions, |record| {
                assert!(whole(record), "torn: {record:?}");
                last = last.max(record[0]);
            });
            total.read += found.read;
            total.overwritten += found.overwritten;
            log.scan(&positions, |record| {
                assert!(whole(record), "torn in a scan: {record:?}");
                true
            });
            if finished {
                break;
            }
        }
        thread.join().unwrap();
        assert_eq!(last, RECORDS);
        assert!(total.read > 0);
        assert_eq!(total.read + total.overwritten, RECORDS);
    }

    #[test]
    fn an_interrupted_writer_keeps_its_slot_and_is_read_when_it_is_done() {
        let (writer, mut log) = pair();
        let positions = writer.positions.clone();
        let (start, position) = writer.reserve().unwrap();
        writer.append();
        let mut seen = Vec::new();
        log.drain(&positions, |record| seen.push(record[0]));
        assert_eq!(seen, [2]);
        // A whole lap later somebody wants the slot that the first writer is still in.
        for _ in 0..SLOTS - 2 {
            writer.append();
        }
        assert!(writer.reserve().is_none());
        writer.write(start, position + 1);
        writer.publish(start, position);
        log.drain(&positions, |record| {
            assert!(whole(record));
            seen.push(record[0]);
        });
        assert!(seen.contains(&1), "{seen:?}");
    }

    #[test]
    fn what_was_overwritten_is_counted_exactly() {
        let (writer, mut log) = pair();
        let positions = writer.positions.clone();
        for _ in 0..SLOTS + 5 {
            writer.append();
        }
        let found = log.drain(&positions, |_| {});
        assert_eq!(
            found,
            Found {
                read: u64::from(SLOTS),
                overwritten: 5
            }
        );
        let mut oldest = Vec::new();
        log.oldest(&positions, |record| oldest.push(record[0]));
        assert_eq!(oldest, [6]);
        assert!(log.scan(&positions, |_| true));
        assert!(!log.scan(&positions, |_| false));
    }
}
