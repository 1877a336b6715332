//! Records into rows.

use std::net::SocketAddr;

use rusqlite::{Transaction, params};
use serde::Serialize;

use super::{Error, Store};
use crate::model::Timestamp;
use crate::model::flight::Flight;
use crate::model::record::{GapKind, NodeInfo, NodeRecord, Record, Side, SliceSeen, Traffic};

/// A watched address as it was last known, so that an agent can start while the API is away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KnownAddress {
    /// `namespace/name` of the Service.
    pub service: String,
    /// The address and port.
    pub address: SocketAddr,
    /// What it is.
    pub role: AddressRole,
    /// When it was last in the API.
    pub last_seen: Timestamp,
}

/// What a watched address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressRole {
    /// A Service address.
    Frontend,
    /// An endpoint's.
    Endpoint,
}

impl AddressRole {
    /// The name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Endpoint => "endpoint",
        }
    }
}

/// What a recording was asked to hold, and what is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// From.
    pub from: Timestamp,
    /// To.
    pub to: Timestamp,
    /// When it was made.
    pub made: Timestamp,
    /// Version of the program that made it.
    pub tool_version: String,
    /// Agents that gave no records, by name, with the reason.
    pub missing: std::collections::BTreeMap<String, String>,
}

/// The name of a gap's kind, as in JSON.
pub(super) const fn gap_name(what: GapKind) -> &'static str {
    match what {
        GapKind::RecordsLost => "records-lost",
        GapKind::AgentDown => "agent-down",
        GapKind::WatchBroken => "watch-broken",
        GapKind::NodeMissing => "node-missing",
    }
}

/// The name of a side, as in JSON.
pub(super) const fn side_name(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

impl Store {
    /// Writes records in one transaction: all of them or none.
    ///
    /// A [`NodeInfo`] replaces the earlier one of the same node and `started`; everything else is added.
    ///
    /// # Errors
    /// When SQLite cannot write; nothing was written then.
    pub fn write(&mut self, records: &[NodeRecord]) -> Result<(), Error> {
        self.write_parts(&[records])
    }

    /// The same, of records that lie in several places.
    ///
    /// # Errors
    /// When SQLite cannot write; nothing was written then.
    pub fn write_parts(&mut self, parts: &[&[NodeRecord]]) -> Result<(), Error> {
        let path = self.path.clone();
        let fail = |source| Error::from_sqlite(source, "writing to", &path);
        let transaction = self.connection.transaction().map_err(fail)?;
        for NodeRecord { node, record } in parts.iter().copied().flatten() {
            write_one(&transaction, node, record).map_err(|error| match error {
                RowError::Sqlite(source) => fail(source),
                RowError::Json(source) => Error::Encode {
                    node: node.clone(),
                    source,
                },
            })?;
        }
        transaction.commit().map_err(fail)
    }

    /// Says what a recording holds; an agent's store has no such thing.
    ///
    /// # Errors
    /// When SQLite cannot write.
    pub fn describe(&mut self, recording: &Recording) -> Result<(), Error> {
        let missing =
            serde_json::to_string(&recording.missing).map_err(|source| Error::Encode {
                node: "(recording)".to_owned(),
                source,
            })?;
        self.connection
            .execute(
                "INSERT INTO recording VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    recording.from.0,
                    recording.to.0,
                    recording.made.0,
                    recording.tool_version,
                    missing
                ],
            )
            .map(drop)
            .map_err(self.fail("writing to"))
    }

    /// Remembers watched addresses, each with its latest sighting.
    ///
    /// # Errors
    /// When SQLite cannot write; nothing was changed then.
    pub fn remember(&mut self, addresses: &[KnownAddress]) -> Result<(), Error> {
        let path = self.path.clone();
        let fail = |source| Error::from_sqlite(source, "writing addresses to", &path);
        let transaction = self.connection.transaction().map_err(fail)?;
        for known in addresses {
            transaction
                .prepare_cached(
                    "INSERT INTO known_addresses VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT DO UPDATE SET last_seen_ns = max(last_seen_ns, excluded.last_seen_ns)",
                )
                .and_then(|mut statement| {
                    statement.execute(params![
                        known.service,
                        known.address.to_string(),
                        known.role.name(),
                        known.last_seen.0
                    ])
                })
                .map_err(fail)?;
        }
        // Pods come and go; what had gone a day before the latest sighting is of no use to anybody.
        transaction
            .execute(
                "DELETE FROM known_addresses AS k WHERE last_seen_ns < ?1 +
                   (SELECT max(last_seen_ns) FROM known_addresses WHERE service = k.service)",
                [-DAY],
            )
            .map_err(fail)?;
        transaction.commit().map_err(fail)
    }
}

/// Nanoseconds.
const DAY: i64 = 86_400_000_000_000;

/// Why one row could not be written.
enum RowError {
    Sqlite(rusqlite::Error),
    Json(serde_json::Error),
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn json(value: &impl Serialize) -> Result<String, RowError> {
    serde_json::to_string(value).map_err(RowError::Json)
}

fn write_one(to: &Transaction<'_>, node: &str, record: &Record) -> Result<(), RowError> {
    match record {
        Record::Node(info) => write_node(to, node, info)?,
        Record::Service(seen) => {
            to.prepare_cached("INSERT INTO services VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    node,
                    seen.at.0,
                    seen.service,
                    json(&seen.frontends)?,
                    seen.resource_version
                ])?;
        }
        Record::Slice(seen) => write_slice(to, node, seen)?,
        Record::NodeState(seen) => {
            to.prepare_cached("INSERT INTO node_states VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![node, seen.at.0, seen.name, seen.ready])?;
        }
        Record::Rules(commit) => {
            to.prepare_cached("INSERT INTO rule_commits VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![
                    node,
                    commit.at.0,
                    commit.committer,
                    json(&commit.changes)?
                ])?;
        }
        Record::Flight(flight) => write_flight(to, node, flight)?,
        Record::Traffic(traffic) => write_traffic(to, node, traffic)?,
        Record::Gap(gap) => {
            to.prepare_cached("INSERT INTO gaps VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    node,
                    gap.from.0,
                    gap.to.0,
                    gap_name(gap.what),
                    gap.count.cast_signed()
                ])?;
        }
    }
    Ok(())
}

fn write_node(to: &Transaction<'_>, node: &str, info: &NodeInfo) -> Result<(), RowError> {
    to.prepare_cached(
        "INSERT OR REPLACE INTO nodes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute(params![
        node,
        info.started.0,
        info.last_record_at.0,
        info.kernel,
        info.boot_id,
        info.tool_version,
        info.dataplane,
        json(&info.hooks)?,
        json(&info.missing_hooks)?,
        json(&info.lost)?,
        info.hears_rules,
        info.records_all
    ])?;
    Ok(())
}

fn write_slice(to: &Transaction<'_>, node: &str, seen: &SliceSeen) -> Result<(), RowError> {
    to.prepare_cached("INSERT INTO slices VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?
        .execute(params![
            node,
            seen.at.0,
            seen.service,
            seen.slice,
            seen.resource_version,
            seen.deleted,
            seen.listed,
            seen.trigger.map(|time| time.0),
            json(&seen.endpoints)?
        ])?;
    Ok(())
}

fn write_flight(to: &Transaction<'_>, node: &str, flight: &Flight) -> Result<(), RowError> {
    let origin = flight.origin.as_ref();
    let owner = origin.map(|origin| &origin.owner);
    let pod = owner.and_then(|owner| owner.pod.as_ref());
    let answer = origin.and_then(|origin| origin.answer);
    let latency = origin
        .zip(answer)
        .map(|(origin, answer)| answer.at.since(origin.sent));
    to.prepare_cached(
        "INSERT INTO flights VALUES
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
    )?
    .execute(params![
        node,
        flight.at.0,
        flight.client.ip().to_string(),
        flight.client.port(),
        flight.txid,
        flight.question.as_ref().map(|question| &question.name),
        flight.question.as_ref().map(|question| &question.kind),
        pod.map(|pod| &pod.namespace),
        pod.map(|pod| &pod.name),
        owner.and_then(|owner| owner.process.as_ref()),
        origin
            .and_then(|origin| origin.asked)
            .map(|address| address.to_string()),
        backend(flight).map(|address| address.to_string()),
        answer.map(|answer| answer.at.0),
        answer.map(|answer| answer.rcode),
        latency,
        i64::try_from(flight.drops.len()).unwrap_or(i64::MAX),
        json(flight)?
    ])?;
    Ok(())
}

/// The likely backend, for people who query the table: where it was delivered, else where it was last seen heading.
fn backend(flight: &Flight) -> Option<SocketAddr> {
    use crate::model::event::Direction;
    let last_hop = flight
        .trail
        .iter()
        .rev()
        .find(|hop| hop.direction == Direction::Query)
        .map(|hop| hop.destination);
    let last_drop = flight
        .drops
        .iter()
        .rev()
        .find(|drop| drop.direction == Direction::Query)
        .map(|drop| drop.destination);
    flight
        .delivery
        .as_ref()
        .map(|delivery| delivery.backend)
        .or(last_drop)
        .or(last_hop)
        .or_else(|| flight.origin.as_ref().and_then(|origin| origin.destination))
}

fn write_traffic(to: &Transaction<'_>, node: &str, traffic: &Traffic) -> Result<(), RowError> {
    to.prepare_cached("INSERT INTO traffic VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)")?
        .execute(params![
            node,
            traffic.second.0,
            traffic.service,
            side_name(traffic.side),
            traffic.client.as_ref().map(|client| &client.namespace),
            traffic.client.as_ref().map(|client| &client.name),
            traffic.backend.map(|address| address.to_string()),
            traffic.count.cast_signed(),
            traffic.first_answer.0,
            traffic.last_answer.0,
            json(&traffic.latency_us)?
        ])?;
    Ok(())
}
