//! The agent's HTTP API and its client: a node's records as NDJSON.
//!
//! `GET /v1/records?from=RFC3339&to=RFC3339` answers one [`NodeRecord`](crate::model::record::NodeRecord) a line, then
//! [`End`], so that a cut-off answer is noticed. `GET /v1/health` answers [`Health`].

pub mod client;
pub mod server;

use serde::{Deserialize, Serialize};

use crate::model::Timestamp;

/// Version of the record lines; grows when a reader of the earlier version would misunderstand them.
pub const FORMAT: &str = "1";

/// Response header that carries [`FORMAT`].
pub const FORMAT_HEADER: &str = "slicetrace-format";

/// The last line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Always true.
    pub end: bool,
    /// Lines before this one.
    pub count: u64,
    /// Rows of the store that could not be understood and were left out.
    #[serde(default)]
    pub corrupt: u64,
}

/// How an agent is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Every program is attached and the first list of the API is in.
    pub ready: bool,
    /// Its node.
    pub node: String,
    /// Its version.
    pub tool_version: String,
    /// Since when it records; `None`: not yet.
    pub since: Option<Timestamp>,
}

#[cfg(test)]
mod tests;
