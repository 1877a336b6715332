//! Rows into records. A row that cannot be understood is skipped and counted: what can be read still counts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{OptionalExtension as _, Params, Row};
use serde::de::DeserializeOwned;

use super::write::{AddressRole, KnownAddress, Recording};
use super::{Error, Store};
use crate::model::Timestamp;
use crate::model::record::{
    GapKind, GapSeen, NodeInfo, NodeRecord, NodeSeen, PodName, Record, RuleCommit, ServiceSeen,
    Side, SliceSeen, Traffic,
};

/// How far before the asked time records are handed out too, nanoseconds: an attempt is judged by the rule commits,
/// transitions and earlier packets of the same port before it, and conntrack remembers a stream for two minutes.
pub const BEFORE: i64 = 300_000_000_000;

/// How far after it: a verdict can change for a minute.
pub const AFTER: i64 = 60_000_000_000;

/// What was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The records, by kind, each kind by time.
    pub records: Vec<NodeRecord>,
    /// Rows that could not be understood and were left out.
    pub corrupt: u64,
}

/// From the first to the last thing recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First.
    pub from: Timestamp,
    /// Last.
    pub to: Timestamp,
}

impl Store {
    /// The records needed to judge everything between `from` and `to`: those of that time, of [`BEFORE`] and [`AFTER`],
    /// the latest state of each Service, slice and node before, every gap that touches it, every node's facts.
    ///
    /// # Errors
    /// When SQLite cannot read the tables at all.
    pub fn read(&self, from: Timestamp, to: Timestamp) -> Result<Reading, Error> {
        let (from, to) = ((from - BEFORE).0, (to + AFTER).0);
        let mut reading = Reading::default();
        // One snapshot: an agent may be writing.
        let transaction = self
            .connection
            .unchecked_transaction()
            .map_err(self.fail("reading"))?;
        // The latest run, and every run that reaches into the time.
        self.rows(
            &mut reading,
            "SELECT * FROM nodes AS n WHERE (started_ns <= ?2 AND last_record_at_ns >= ?1)
             OR started_ns = (SELECT max(started_ns) FROM nodes WHERE node = n.node AND started_ns <= ?2)
             ORDER BY started_ns",
            [from, to],
            node,
        )?;
        // A state holds until the next: the latest before the time belongs to it, and ties are kept in the order written.
        self.rows(
            &mut reading,
            "SELECT * FROM services AS s WHERE at_ns <= ?2 AND at_ns >= coalesce(
               (SELECT max(at_ns) FROM services
                WHERE node = s.node AND service = s.service AND at_ns < ?1), ?1)
             ORDER BY at_ns, rowid",
            [from, to],
            service,
        )?;
        self.rows(
            &mut reading,
            "SELECT * FROM slices AS s WHERE at_ns <= ?2 AND at_ns >= coalesce(
               (SELECT max(at_ns) FROM slices
                WHERE node = s.node AND service = s.service AND slice = s.slice AND at_ns < ?1), ?1)
             ORDER BY at_ns, rowid",
            [from, to],
            slice,
        )?;
        self.rows(
            &mut reading,
            "SELECT * FROM node_states AS s WHERE at_ns <= ?2 AND at_ns >= coalesce(
               (SELECT max(at_ns) FROM node_states
                WHERE node = s.node AND name = s.name AND at_ns < ?1), ?1)
             ORDER BY at_ns, rowid",
            [from, to],
            node_state,
        )?;
        self.rows(
            &mut reading,
            "SELECT * FROM rule_commits WHERE at_ns BETWEEN ?1 AND ?2 ORDER BY at_ns, rowid",
            [from, to],
            rules,
        )?;
        self.rows(
            &mut reading,
            "SELECT node, detail FROM flights WHERE at_ns BETWEEN ?1 AND ?2 ORDER BY at_ns, rowid",
            [from, to],
            flight,
        )?;
        self.rows(
            &mut reading,
            "SELECT * FROM traffic WHERE second_ns BETWEEN ?1 AND ?2 ORDER BY second_ns, rowid",
            [from, to],
            traffic,
        )?;
        self.rows(
            &mut reading,
            "SELECT * FROM gaps WHERE from_ns <= ?2 AND to_ns >= ?1 ORDER BY from_ns, rowid",
            [from, to],
            gap,
        )?;
        // What was deleted to keep the bounds is as little known as what was never recorded.
        self.rows(
            &mut reading,
            "SELECT node, from_ns, to_ns, 'records-lost' AS what, count FROM purged
             WHERE from_ns <= ?2 AND to_ns >= ?1 ORDER BY node",
            [from, to],
            gap,
        )?;
        transaction.finish().map_err(self.fail("reading"))?;
        Ok(reading)
    }

    /// What this recording holds; `None` for an agent's store.
    ///
    /// # Errors
    /// When SQLite cannot read the table, or it makes no sense.
    pub fn recording(&self) -> Result<Option<Recording>, Error> {
        self.connection
            .query_row(
                "SELECT * FROM recording ORDER BY rowid DESC LIMIT 1",
                [],
                |row| {
                    Ok(Recording {
                        from: time(row, "from_ns")?,
                        to: time(row, "to_ns")?,
                        made: time(row, "made_ns")?,
                        tool_version: row.get("tool_version")?,
                        missing: json(row, "missing")?,
                    })
                },
            )
            .optional()
            .map_err(self.fail("reading"))
    }

    /// The whole time that this store covers; `None` if nothing is in it.
    ///
    /// # Errors
    /// When SQLite cannot read the tables.
    pub fn span(&self) -> Result<Option<Span>, Error> {
        if let Some(Recording { from, to, .. }) = self.recording()? {
            return Ok(Some(Span { from, to }));
        }
        // Where a node says from when to when it recorded, that counts: states may be listed from long before.
        let (from, to): (Option<i64>, Option<i64>) = self
            .connection
            .query_row(
                "SELECT min(from_ns), max(to_ns) FROM (
                   SELECT min(started_ns) AS from_ns, max(last_record_at_ns) AS to_ns FROM nodes
                   UNION ALL SELECT min(at_ns), max(at_ns) FROM flights
                   UNION ALL SELECT min(second_ns), max(last_answer_ns) FROM traffic
                   UNION ALL SELECT min(at_ns), max(at_ns) FROM slices WHERE NOT listed
                   UNION ALL SELECT min(from_ns), max(to_ns) FROM gaps)",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(self.fail("reading"))?;
        Ok(from.zip(to).map(|(from, to)| Span {
            from: Timestamp(from),
            to: Timestamp(to),
        }))
    }

    /// Up to when a node's agent said that everything is written; `None` if it never ran with this store.
    ///
    /// # Errors
    /// When SQLite cannot read the table.
    pub fn recorded_until(&self, node: &str) -> Result<Option<Timestamp>, Error> {
        self.connection
            .query_row(
                "SELECT max(last_record_at_ns) FROM nodes WHERE node = ?1",
                [node],
                |row| row.get::<_, Option<i64>>(0),
            )
            .map(|time| time.map(Timestamp))
            .map_err(self.fail("reading"))
    }

    /// Slices of each Service that a node saw last and that were not deleted then.
    ///
    /// # Errors
    /// When SQLite cannot read the table.
    pub fn known_slices(&self, node: &str) -> Result<BTreeMap<String, Vec<String>>, Error> {
        let fail = self.fail("reading slices from");
        let mut statement = self
            .connection
            .prepare(
                "SELECT service, slice FROM slices AS s WHERE node = ?1 AND NOT deleted AND rowid =
                   (SELECT rowid FROM slices WHERE node = s.node AND service = s.service AND slice = s.slice
                    ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
            )
            .map_err(&fail)?;
        let rows = statement
            .query_map([node], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(&fail)?;
        let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // A row that is not text is not ours to tell about.
        for (service, slice) in rows.flatten() {
            known.entry(service).or_default().push(slice);
        }
        Ok(known)
    }

    /// The last known addresses, newest first; rows that cannot be understood are left out.
    ///
    /// # Errors
    /// When SQLite cannot read the table.
    pub fn known_addresses(&self) -> Result<Vec<KnownAddress>, Error> {
        let fail = self.fail("reading addresses from");
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT service, address, role, last_seen_ns FROM known_addresses
                 ORDER BY last_seen_ns DESC, service, address, role",
            )
            .map_err(&fail)?;
        let mut rows = statement.query([]).map_err(&fail)?;
        let mut known = Vec::new();
        while let Some(row) = rows.next().map_err(&fail)? {
            if let Ok(address) = known_address(row) {
                known.push(address);
            }
        }
        Ok(known)
    }

    fn rows(
        &self,
        into: &mut Reading,
        sql: &str,
        parameters: impl Params,
        decode: fn(&Row<'_>) -> rusqlite::Result<Record>,
    ) -> Result<(), Error> {
        let fail = self.fail("reading");
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let mut rows = statement.query(parameters).map_err(&fail)?;
        while let Some(row) = rows.next().map_err(&fail)? {
            match (row.get("node"), decode(row)) {
                (Ok(node), Ok(record)) => into.records.push(NodeRecord { node, record }),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::debug!(%error, path = %self.path.display(), "a row was left out");
                    into.corrupt += 1;
                }
            }
        }
        Ok(())
    }
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(invalid)
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error))
}

fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp)
}

fn count(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

fn address(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<SocketAddr>> {
    row.get::<_, Option<String>>(column)?
        .map(|text| text.parse().map_err(invalid))
        .transpose()
}

fn node(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record::Node(NodeInfo {
        started: time(row, "started_ns")?,
        last_record_at: time(row, "last_record_at_ns")?,
        kernel: row.get("kernel")?,
        boot_id: row.get("boot_id")?,
        tool_version: row.get("tool_version")?,
        dataplane: row.get("dataplane")?,
        hooks: json(row, "hooks")?,
        missing_hooks: json(row, "missing_hooks")?,
        lost: json(row, "lost")?,
        hears_rules: row.get("hears_rules")?,
        records_all: row.get("records_all")?,
    }))
}

fn service(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record::Service(ServiceSeen {
        at: time(row, "at_ns")?,
        service: row.get("service")?,
        frontends: json(row, "frontends")?,
        resource_version: row.get("resource_version")?,
    }))
}

fn slice(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record::Slice(SliceSeen {
        at: time(row, "at_ns")?,
        service: row.get("service")?,
        slice: row.get("slice")?,
        resource_version: row.get("resource_version")?,
        deleted: row.get("deleted")?,
        listed: row.get("listed")?,
        trigger: row.get::<_, Option<i64>>("trigger_ns")?.map(Timestamp),
        endpoints: json(row, "endpoints")?,
    }))
}

fn node_state(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record::NodeState(NodeSeen {
        at: time(row, "at_ns")?,
        name: row.get("name")?,
        ready: row.get("ready")?,
    }))
}

fn rules(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record::Rules(RuleCommit {
        at: time(row, "at_ns")?,
        committer: row.get("committer")?,
        changes: json(row, "changes")?,
    }))
}

fn flight(row: &Row<'_>) -> rusqlite::Result<Record> {
    json(row, "detail").map(Box::new).map(Record::Flight)
}

fn traffic(row: &Row<'_>) -> rusqlite::Result<Record> {
    let namespace: Option<String> = row.get("client_namespace")?;
    let pod: Option<String> = row.get("client_pod")?;
    Ok(Record::Traffic(Traffic {
        second: time(row, "second_ns")?,
        service: row.get("service")?,
        side: match row.get_ref("side")?.as_str()? {
            "client" => Side::Client,
            "server" => Side::Server,
            _ => return Err(invalid(FromSqlError::InvalidType)),
        },
        client: namespace
            .zip(pod)
            .map(|(namespace, name)| PodName { namespace, name }),
        backend: address(row, "backend")?,
        count: count(row, "count")?,
        first_answer: time(row, "first_answer_ns")?,
        last_answer: time(row, "last_answer_ns")?,
        latency_us: json(row, "latency_us")?,
    }))
}

fn gap(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record::Gap(GapSeen {
        from: time(row, "from_ns")?,
        to: time(row, "to_ns")?,
        what: match row.get_ref("what")?.as_str()? {
            "records-lost" => GapKind::RecordsLost,
            "agent-down" => GapKind::AgentDown,
            "watch-broken" => GapKind::WatchBroken,
            "node-missing" => GapKind::NodeMissing,
            _ => return Err(invalid(FromSqlError::InvalidType)),
        },
        count: count(row, "count")?,
    }))
}

fn known_address(row: &Row<'_>) -> rusqlite::Result<KnownAddress> {
    Ok(KnownAddress {
        service: row.get("service")?,
        address: row
            .get::<_, String>("address")?
            .parse::<SocketAddr>()
            .map_err(invalid)?,
        role: match row.get_ref("role")?.as_str()? {
            "frontend" => AddressRole::Frontend,
            "endpoint" => AddressRole::Endpoint,
            _ => return Err(invalid(FromSqlError::InvalidType)),
        },
        last_seen: time(row, "last_seen_ns")?,
    })
}
