//! The thread that writes records to the store, so that a slow disk never holds up the reading of the kernel's logs.
//!
//! Records wait in memory for at most [`BATCH`]; when the store cannot be written (a full disk), or not fast enough, they
//! wait longer, within [`MEMORY_LIMIT`], and what no longer fits is counted and becomes a gap. What the API said goes
//! last: without it no attempt could be judged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen, NodeRecord, Record};
use crate::node::clock::Clock;
use crate::store::{KnownAddress, Retention, Store};

/// How long a record may wait for its transaction.
const BATCH: Duration = Duration::from_millis(200);
/// How often the store's bounds are enforced.
const RETAIN: Duration = Duration::from_secs(30);
/// How long to wait after a failed write.
const RETRY: Duration = Duration::from_secs(1);
/// Records kept in memory while the store cannot be written: some 2 KB each.
const MEMORY_LIMIT: usize = 20_000;
/// As many again of what the API said.
const STATES_LIMIT: usize = 20_000;

enum Message {
    Write(Vec<Record>),
    Remember(Vec<KnownAddress>),
    Flush(oneshot::Sender<()>),
    Stop,
}

/// Hands records to the writing thread.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    sender: Sender<Message>,
    queue: Arc<Queue>,
}

/// What the thread has not taken yet: it may be waiting for the disk.
#[derive(Debug, Default)]
struct Queue {
    length: AtomicUsize,
    refused: Mutex<Dropped>,
    /// Since when records wait because the store cannot be written.
    unwritten: Mutex<Option<Timestamp>>,
}

/// Records given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dropped {
    /// Packets, rules, counts: from, to, how many.
    observed: Option<(Timestamp, Timestamp, u64)>,
    /// What the API said.
    states: Option<(Timestamp, Timestamp, u64)>,
}

impl Dropped {
    fn add(&mut self, record: &Record) {
        let at = record.at();
        let end = match record {
            Record::Gap(gap) => gap.to,
            Record::Flight(flight) => flight.origin.as_ref().map_or(at, |it| it.completed),
            Record::Traffic(traffic) => traffic.last_answer,
            _ => at,
        };
        self.merge(match record {
            Record::Service(_) | Record::Slice(_) | Record::NodeState(_) => Self {
                states: Some((at, end, 1)),
                ..Self::default()
            },
            _ => Self {
                observed: Some((at, end, 1)),
                ..Self::default()
            },
        });
    }

    fn merge(&mut self, other: Self) {
        let merge = |into: &mut Option<(Timestamp, Timestamp, u64)>, more| {
            if let Some((from, to, count)) = more {
                let (old_from, old_to, old_count) = into.unwrap_or((from, to, 0));
                *into = Some((old_from.min(from), old_to.max(to), old_count + count));
            }
        };
        merge(&mut self.observed, other.observed);
        merge(&mut self.states, other.states);
    }

    fn gaps(self) -> impl Iterator<Item = Record> {
        let gap = |what| {
            move |(from, to, count)| {
                Record::Gap(GapSeen {
                    from,
                    to,
                    what,
                    count,
                })
            }
        };
        let observed = self.observed.map(gap(GapKind::RecordsLost));
        let states = self.states.map(gap(GapKind::WatchBroken));
        observed.into_iter().chain(states)
    }
}

/// The writing thread; it ends when it is told to or every [`Writer`] is dropped, after a last write.
#[derive(Debug)]
pub(super) struct WriterThread(oneshot::Receiver<()>);

/// How long and how large the store may become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Oldest record kept.
    pub keep_for: Duration,
    /// Largest file, bytes.
    pub keep_bytes: u64,
}

/// Starts the thread.
pub(super) fn start(
    node: String,
    store: Store,
    bounds: Bounds,
    clock: Arc<Clock>,
) -> std::io::Result<(Writer, WriterThread)> {
    let (sender, receiver) = mpsc::channel();
    let (ended, wait) = oneshot::channel();
    let queue = Arc::<Queue>::default();
    let theirs = Arc::clone(&queue);
    std::thread::Builder::new()
        .name("store".into())
        .spawn(move || {
            Loop::new(node, store, bounds, clock, theirs).run(&receiver);
            // Nobody waits any more: fine.
            let _ = ended.send(());
        })?;
    Ok((Writer { sender, queue }, WriterThread(wait)))
}

impl Writer {
    /// Queues records. They are in the store within [`BATCH`].
    pub(super) fn write(&self, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        let count = records.len();
        if self.queue.length.load(Ordering::Relaxed) + count > MEMORY_LIMIT + STATES_LIMIT {
            let mut refused = self.queue.refused();
            records.iter().for_each(|record| refused.add(record));
            return;
        }
        self.queue.length.fetch_add(count, Ordering::Relaxed);
        if self.sender.send(Message::Write(records)).is_err() {
            warn!("the store's thread has ended; records are lost");
        }
    }

    /// Keeps the watched addresses for a start without the API.
    pub(super) fn remember(&self, known: Vec<KnownAddress>) {
        // An error means that the thread ended: nothing can be kept any more, and `write` says so.
        let _ = self.sender.send(Message::Remember(known));
    }

    /// Waits until everything queued so far is in the store, or could not be written.
    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.sender.send(Message::Flush(done)).is_ok() {
            // An error means that the thread ended, after its last write.
            let _ = wait.await;
        }
    }

    /// Since when what was recorded is not in the store, because that cannot be written.
    pub(super) fn unwritten_since(&self) -> Option<Timestamp> {
        *self.queue.unwritten()
    }

    /// Ends the thread after a last write.
    pub(super) fn stop(&self) {
        // An error means that it has ended already.
        let _ = self.sender.send(Message::Stop);
    }
}

impl Queue {
    fn unwritten(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        // A single assignment.
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, Dropped> {
        // Counts only: half an addition is impossible.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriterThread {
    /// Waits for the last write. Call [`Writer::stop`] first.
    pub(super) async fn join(self) {
        if self.0.await.is_err() {
            warn!("the store's thread panicked; the last records may be lost");
        }
    }
}

struct Loop {
    node: String,
    store: Store,
    bounds: Bounds,
    clock: Arc<Clock>,
    queue: Arc<Queue>,
    /// What was observed on this node.
    observed: VecDeque<NodeRecord>,
    /// What the API said, and gaps.
    states: VecDeque<NodeRecord>,
    /// Facts and counters: the latest replaces the earlier ones.
    info: Option<NodeRecord>,
    /// Addresses that could not be kept yet.
    known: Option<Vec<KnownAddress>>,
    dropped: Dropped,
    failing: bool,
}

impl Loop {
    fn new(
        node: String,
        store: Store,
        bounds: Bounds,
        clock: Arc<Clock>,
        queue: Arc<Queue>,
    ) -> Self {
        Self {
            node,
            store,
            bounds,
            clock,
            queue,
            observed: VecDeque::new(),
            states: VecDeque::new(),
            info: None,
            known: None,
            dropped: Dropped::default(),
            failing: false,
        }
    }

    fn run(mut self, receiver: &Receiver<Message>) {
        let mut next_write = Instant::now() + BATCH;
        let mut next_retain = Instant::now();
        loop {
            let wait = next_write.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(wait) {
                Ok(Message::Write(records)) => self.take(records),
                Ok(Message::Remember(known)) => self.known = Some(known),
                Ok(Message::Flush(done)) => {
                    self.write();
                    // Nobody waits any more: fine.
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.write();
                    if let Err(error) = self.store.finish() {
                        warn!(
                            "the store was not closed properly, its write-ahead log stays: {error}"
                        );
                    }
                    return;
                }
            }
            if Instant::now() >= next_write {
                self.write();
                next_write = Instant::now() + if self.failing { RETRY } else { BATCH };
            }
            if Instant::now() >= next_retain {
                self.retain();
                next_retain = Instant::now() + RETAIN;
            }
        }
    }

    fn retain(&mut self) {
        let age = i64::try_from(self.bounds.keep_for.as_nanos()).unwrap_or(i64::MAX);
        let retention = Retention {
            not_before: self.clock.now() - age,
            keep_bytes: self.bounds.keep_bytes,
        };
        if let Err(error) = self.store.retain(retention) {
            warn!("old records could not be removed: {error}");
        }
    }

    fn take(&mut self, records: Vec<Record>) {
        self.queue
            .length
            .fetch_sub(records.len(), Ordering::Relaxed);
        for record in records {
            let record = NodeRecord {
                node: self.node.clone(),
                record,
            };
            let (queue, limit) = match record.record {
                Record::Node(_) => {
                    self.info = Some(record);
                    continue;
                }
                Record::Service(_) | Record::Slice(_) | Record::NodeState(_) | Record::Gap(_) => {
                    (&mut self.states, STATES_LIMIT)
                }
                Record::Flight(_) | Record::Traffic(_) | Record::Rules(_) => {
                    (&mut self.observed, MEMORY_LIMIT)
                }
            };
            if queue.len() == limit
                && let Some(oldest) = queue.pop_front()
            {
                self.dropped.add(&oldest.record);
            }
            queue.push_back(record);
        }
    }

    fn write(&mut self) {
        self.dropped
            .merge(std::mem::take(&mut *self.queue.refused()));
        let node = self.node.clone();
        let gaps = self.dropped.gaps().map(|record| NodeRecord {
            node: node.clone(),
            record,
        });
        let gaps: Vec<_> = gaps.collect();
        // The node's facts last: they say that everything up to then is written.
        let parts: [&[NodeRecord]; 4] = [
            self.states.make_contiguous(),
            self.observed.make_contiguous(),
            &gaps,
            self.info.as_slice(),
        ];
        if parts.iter().any(|part| !part.is_empty()) {
            let written = self.store.write_parts(&parts);
            if written.is_ok() {
                self.states.clear();
                self.observed.clear();
                self.info = None;
                self.dropped = Dropped::default();
            }
            self.tell(written);
        }
        if let Some(known) = self.known.take_if(|_| !self.failing) {
            let kept = self.store.remember(&known);
            if kept.is_err() {
                self.known = Some(known);
            }
            self.tell(kept);
        }
    }

    /// Says so once when the store cannot be written, and once when it can again.
    fn tell(&mut self, result: Result<(), crate::store::Error>) {
        let Err(error) = result else {
            if std::mem::take(&mut self.failing) {
                *self.queue.unwritten() = None;
                info!("the store can be written again");
            }
            return;
        };
        let waiting = self.states.iter().chain(&self.observed);
        let oldest = waiting.map(|it| it.record.at()).min();
        let lost = self.dropped.observed.map(|(from, ..)| from);
        *self.queue.unwritten() = oldest.into_iter().chain(lost).min();
        if !std::mem::replace(&mut self.failing, true) {
            warn!(
                "the store cannot be written, up to {MEMORY_LIMIT} records are kept in memory meanwhile: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::flight::Flight;
    use crate::model::record::{Side, SliceSeen, Traffic};

    const BOUNDS: Bounds = Bounds {
        keep_for: Duration::from_secs(3600),
        keep_bytes: 64 << 20,
    };

    fn traffic(second: i64) -> Record {
        Record::Traffic(Traffic {
            second: Timestamp(second),
            service: None,
            side: Side::Client,
            client: None,
            backend: None,
            count: 1,
            first_answer: Timestamp(second),
            last_answer: Timestamp(second + 5),
            latency_us: Default::default(),
        })
    }

    fn slice() -> Record {
        Record::Slice(SliceSeen {
            at: Timestamp(1),
            service: "kube-system/kube-dns".into(),
            slice: "kube-dns-a".into(),
            resource_version: "1".into(),
            deleted: false,
            listed: true,
            trigger: None,
            endpoints: Vec::new(),
        })
    }

    fn a_loop(store: Store) -> Loop {
        let clock = Arc::new(Clock::new().unwrap());
        Loop::new("n".into(), store, BOUNDS, clock, Arc::default())
    }

    fn count(store: &Store, kind: impl Fn(&Record) -> bool) -> usize {
        let all = store.read(Timestamp(0), Timestamp(i64::MAX)).unwrap();
        all.records.iter().filter(|it| kind(&it.record)).count()
    }

    #[test]
    fn a_full_memory_gives_up_the_oldest_packets_counts_them_and_keeps_what_the_api_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.db");
        let mut writing = a_loop(Store::open(&path).unwrap());
        let records = [slice()]
            .into_iter()
            .chain((0..MEMORY_LIMIT as i64 + 7).map(traffic));
        // As `Writer::write` does it.
        writing
            .queue
            .length
            .fetch_add(MEMORY_LIMIT + 8, Ordering::Relaxed);
        writing.take(records.collect());
        assert_eq!(writing.queue.length.load(Ordering::Relaxed), 0);
        writing.write();
        let store = Store::read_only(&path).unwrap();
        assert_eq!(count(&store, |it| matches!(it, Record::Slice(_))), 1);
        assert_eq!(
            count(&store, |it| matches!(it, Record::Traffic(_))),
            MEMORY_LIMIT
        );
        let lost = Record::Gap(GapSeen {
            from: Timestamp(0),
            to: Timestamp(6 + 5),
            what: GapKind::RecordsLost,
            count: 7,
        });
        assert_eq!(count(&store, |it| *it == lost), 1);
    }

    #[test]
    fn what_could_not_be_written_is_written_once_when_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.db");
        let mut writing = a_loop(Store::open(&path).unwrap());
        let other = rusqlite_lock(&path);
        writing.take(vec![traffic(1)]);
        writing.known = Some(Vec::new());
        writing.write();
        assert!(writing.failing);
        assert_eq!(*writing.queue.unwritten(), Some(Timestamp(1)));
        drop(other);
        writing.take(vec![traffic(2)]);
        writing.write();
        assert!(!writing.failing && writing.known.is_none());
        assert_eq!(*writing.queue.unwritten(), None);
        let store = Store::read_only(&path).unwrap();
        assert_eq!(count(&store, |it| matches!(it, Record::Traffic(_))), 2);
    }

    /// Another process's transaction.
    fn rusqlite_lock(path: &std::path::Path) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        connection
    }

    #[test]
    fn a_thread_that_hangs_does_not_let_its_queue_grow_for_ever() {
        let (sender, receiver) = mpsc::channel();
        let queue = Arc::<Queue>::default();
        let writer = Writer { sender, queue };
        for second in 0..100_000 {
            writer.write(vec![traffic(second)]);
        }
        assert!(receiver.try_iter().count() <= MEMORY_LIMIT + STATES_LIMIT);
        let refused = *writer.queue.refused();
        let (from, to, count) = refused.observed.unwrap();
        assert_eq!(count, 100_000 - (MEMORY_LIMIT + STATES_LIMIT) as u64);
        assert_eq!((from.0, to.0), (100_000 - count as i64, 99_999 + 5));
    }

    #[test]
    fn the_end_of_a_lost_attempt_lies_in_its_gap() {
        let mut dropped = Dropped::default();
        dropped.add(&traffic(3));
        let flight = Flight {
            client: "10.0.0.1:4000".parse().unwrap(),
            txid: None,
            at: Timestamp(1),
            origin: None,
            delivery: None,
            question: None,
            trail: Vec::new(),
            drops: Vec::new(),
            refusals: Vec::new(),
            trail_lost: false,
        };
        dropped.add(&Record::Flight(Box::new(flight)));
        assert_eq!(dropped.observed, Some((Timestamp(1), Timestamp(8), 2)));
        assert_eq!(dropped.states, None);
    }
}
