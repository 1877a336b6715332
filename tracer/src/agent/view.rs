//! What the API of the agent shows: the store, its health, and the gaps that are still open.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::writer::Writer;
use crate::api::Health;
use crate::api::server::{Source, read_store};
use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen, NodeRecord, Record};
use crate::node::clock::Clock;
use crate::store::Reading;

/// How long a finished attempt is held back for late drops and ICMP errors, and a little more.
const SETTLE: Duration = Duration::from_millis(450);

/// What the main loop and the API share.
#[derive(Debug)]
pub(super) struct View {
    node: String,
    path: PathBuf,
    clock: Arc<Clock>,
    writer: Writer,
    /// Asks the main loop to hand everything it has to the writer.
    flush: mpsc::Sender<oneshot::Sender<()>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Timestamp>,
    ready: bool,
    broken: Option<Timestamp>,
    unreplied: Vec<Record>,
}

impl View {
    /// A view on the store at `path`.
    pub(super) fn new(
        node: String,
        path: PathBuf,
        clock: Arc<Clock>,
        writer: Writer,
        flush: mpsc::Sender<oneshot::Sender<()>>,
    ) -> Self {
        Self {
            node,
            path,
            clock,
            writer,
            flush,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is a single assignment: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every program is attached since then.
    pub(super) fn attached(&self, since: Timestamp) {
        self.state().since = Some(since);
    }

    /// The first lists are in.
    pub(super) fn ready(&self) {
        self.state().ready = true;
    }

    /// Queries that wait in a server of this node now.
    pub(super) fn unreplied(&self, records: Vec<Record>) {
        self.state().unreplied = records;
    }

    /// Since when a watch on the API that tells transitions is broken.
    pub(super) fn broken_since(&self, from: Option<Timestamp>) {
        self.state().broken = from;
    }
}

impl Source for View {
    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Healthy attempts of a moment ago are still held back for what may follow them.
            tokio::time::sleep(SETTLE).await;
            let (done, wait) = oneshot::channel();
            if self.flush.send(done).await.is_ok() {
                // An error means that the agent stops: what it has is being written anyway.
                let _ = wait.await;
            }
            self.writer.flush().await;
        })
    }

    fn records(&self, from: Timestamp, to: Timestamp) -> Result<Reading, String> {
        let mut reading = read_store(&self.path, from, to)?;
        // A watch that is still broken has no end yet; whoever reads now must know all the same.
        let now = self.clock.now();
        let (open, unreplied) = {
            let state = self.state();
            (state.broken, state.unreplied.clone())
        };
        let waiting = unreplied
            .into_iter()
            .filter(|it| it.at() >= from && it.at() <= to);
        reading.records.extend(waiting.map(|record| NodeRecord {
            node: self.node.clone(),
            record,
        }));
        let open = open.map(|from| (from, GapKind::WatchBroken));
        // What waits in memory for a full disk is not in this answer.
        let unwritten = self.writer.unwritten_since();
        let unwritten = unwritten.map(|from| (from, GapKind::RecordsLost));
        for (from, what) in open.into_iter().chain(unwritten) {
            if from > to {
                continue;
            }
            let gap = GapSeen {
                from,
                to: now,
                what,
                count: 0,
            };
            reading.records.push(NodeRecord {
                node: self.node.clone(),
                record: Record::Gap(gap),
            });
        }
        Ok(reading)
    }

    fn health(&self) -> Health {
        let state = self.state();
        Health {
            ready: state.ready,
            node: self.node.clone(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            since: state.since,
        }
    }
}
