//! The thread that writes records to the store, so that a slow disk never holds up the reading of the kernel's logs.
//!
//! Records wait in memory for at most [`BATCH`]; when the store cannot be written (a full disk), they wait longer,
//! within [`MEMORY_LIMIT`], and what no longer fits is counted and becomes a gap.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
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
/// Records kept in memory while the store cannot be written.
const MEMORY_LIMIT: usize = 100_000;

enum Message {
    Write(Vec<Record>),
    Remember(Vec<KnownAddress>),
    Flush(oneshot::Sender<()>),
}

/// Hands records to the writing thread.
#[derive(Clone, Debug)]
pub(super) struct Writer(Sender<Message>);

/// The writing thread; it ends when every [`Writer`] is dropped, after a last write.
#[derive(Debug)]
pub(super) struct WriterThread(JoinHandle<()>);

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
    let thread = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || {
            Loop {
                node,
                store,
                bounds,
                clock,
                waiting: VecDeque::new(),
                dropped: None,
                failing: false,
            }
            .run(&receiver);
        })?;
    Ok((Writer(sender), WriterThread(thread)))
}

impl Writer {
    /// Queues records. They are in the store within [`BATCH`].
    pub(super) fn write(&self, records: Vec<Record>) {
        if !records.is_empty() && self.0.send(Message::Write(records)).is_err() {
            warn!("the store's thread has ended; records are lost");
        }
    }

    /// Keeps the watched addresses for a start without the API.
    pub(super) fn remember(&self, known: Vec<KnownAddress>) {
        // An error means that the thread ended: nothing can be kept any more, and `write` says so.
        let _ = self.0.send(Message::Remember(known));
    }

    /// Waits until everything queued so far is in the store, or could not be written.
    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.0.send(Message::Flush(done)).is_ok() {
            // An error means that the thread ended, after its last write.
            let _ = wait.await;
        }
    }
}

impl WriterThread {
    /// Waits for the last write. Drop every [`Writer`] first.
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            warn!("the store's thread panicked; the last records may be lost");
        }
    }
}

struct Loop {
    node: String,
    store: Store,
    bounds: Bounds,
    clock: Arc<Clock>,
    waiting: VecDeque<NodeRecord>,
    /// Records that no longer fitted into memory: from, to, how many.
    dropped: Option<(Timestamp, Timestamp, u64)>,
    failing: bool,
}

impl Loop {
    fn run(mut self, receiver: &Receiver<Message>) {
        let mut next_write = Instant::now() + BATCH;
        let mut next_retain = Instant::now();
        loop {
            let wait = next_write.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(wait) {
                Ok(Message::Write(records)) => self.take(records),
                Ok(Message::Remember(known)) => {
                    if let Err(error) = self.store.remember(&known) {
                        warn!("the watched addresses could not be kept: {error}");
                    }
                }
                Ok(Message::Flush(done)) => {
                    self.write();
                    // Nobody waits any more: fine.
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
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
        for record in records {
            if self.waiting.len() == MEMORY_LIMIT
                && let Some(oldest) = self.waiting.pop_front()
            {
                let at = oldest.record.at();
                let (from, to, count) = self.dropped.unwrap_or((at, at, 0));
                self.dropped = Some((from.min(at), to.max(at), count + 1));
            }
            self.waiting.push_back(NodeRecord {
                node: self.node.clone(),
                record,
            });
        }
    }

    fn write(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        if let Some((from, to, count)) = self.dropped {
            let gap = GapSeen {
                from,
                to,
                what: GapKind::RecordsLost,
                count,
            };
            self.waiting.push_back(NodeRecord {
                node: self.node.clone(),
                record: Record::Gap(gap),
            });
        }
        match self.store.write(self.waiting.make_contiguous()) {
            Ok(()) => {
                self.waiting.clear();
                self.dropped = None;
                if std::mem::take(&mut self.failing) {
                    info!("the store can be written again");
                }
            }
            Err(error) => {
                if self.dropped.is_some() {
                    self.waiting.pop_back();
                }
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(
                        "the store cannot be written, up to {MEMORY_LIMIT} records are kept in memory meanwhile: {error}"
                    );
                }
            }
        }
    }
}
