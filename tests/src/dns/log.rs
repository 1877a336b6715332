//! What server and client write about themselves: one JSON object a line, each in one `write`, so that a killed process
//! leaves whole lines.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use slicetrace::model::Timestamp;

/// A line of a server's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerLine {
    /// When.
    pub(crate) at: Timestamp,
    /// What.
    pub(crate) event: ServerEvent,
    /// Who asked.
    pub(crate) client: SocketAddr,
    /// DNS transaction id.
    pub(crate) txid: u16,
    /// The name asked for.
    pub(crate) name: String,
}

/// What a server did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ServerEvent {
    /// It read a query from its socket.
    Received,
    /// It handed an answer to the kernel.
    Answered,
}

/// A line of a client's log: one query, written when it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClientLine {
    /// The name asked for, unique in a scenario.
    pub(crate) name: String,
    /// The client's end.
    pub(crate) source: SocketAddr,
    /// DNS transaction id.
    pub(crate) txid: u16,
    /// Before each packet was handed to the kernel.
    pub(crate) sent: Vec<Timestamp>,
    /// After the last packet was.
    pub(crate) sent_by: Timestamp,
    /// When the client had its result.
    pub(crate) ended: Timestamp,
    /// The result.
    pub(crate) result: ClientResult,
    /// Errno of a refusal.
    pub(crate) errno: Option<i32>,
    /// Response code of an answer.
    pub(crate) rcode: Option<u16>,
}

/// How a query ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientResult {
    /// With an answer.
    Answered,
    /// Its socket was told an error.
    Refused,
    /// The send itself failed.
    SendFailed,
    /// Nothing came in time.
    TimedOut,
}

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    /// Starts one.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        File::create(path)
            .map(Self)
            .with_context(|| format!("cannot write the log {}", path.display()))
    }

    /// Adds a line.
    pub(crate) fn write(&self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        (&self.0)
            .write_all(&bytes)
            .context("cannot write to the log")
    }
}

/// Reads a log.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the log {}", path.display()))?;
    text.lines()
        .map(|line| {
            serde_json::from_str(line)
                .with_context(|| format!("{}: not a line of a log: {line}", path.display()))
        })
        .collect()
}
