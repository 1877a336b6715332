//! Keeping the file within its bounds: by age, then by size. The latest state of each Service, slice and node always
//! stays, or nothing recorded after it could be judged.

use rusqlite::{Connection, OptionalExtension};

use super::{Error, Store, WAL_BYTES};
use crate::model::Timestamp;

/// The bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Oldest record to keep.
    pub not_before: Timestamp,
    /// Size of the file with its write-ahead log, bytes.
    pub keep_bytes: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Rows deleted for their age.
    pub aged: u64,
    /// Rows deleted for their size.
    pub crowded: u64,
    /// Bytes of the database file now.
    pub bytes: u64,
}

/// What is bulky and goes first when space is short, with its time column.
const BULK: [(&str, &str); 2] = [("flights", "at_ns"), ("traffic", "second_ns")];

/// What only serves to explain the bulk, and goes next.
const EVIDENCE: [(&str, &str); 2] = [("rule_commits", "at_ns"), ("gaps", "from_ns")];

impl Store {
    /// Deletes what is too old, then the oldest of what is left until the file is small enough, and gives the space back.
    ///
    /// # Errors
    /// When SQLite cannot write.
    pub fn retain(&mut self, retention: Retention) -> Result<Retained, Error> {
        let path = self.path.clone();
        let fail = |source| Error::from_sqlite(source, "deleting old records from", &path);
        let connection = &self.connection;
        let mut retained = Retained {
            aged: delete_aged(connection, retention.not_before.0).map_err(fail)?,
            ..Retained::default()
        };
        // The log may grow to its limit again before the next call.
        let budget = retention
            .keep_bytes
            .saturating_sub(WAL_BYTES.unsigned_abs());
        let budget = budget.max(retention.keep_bytes / 2);
        while used_bytes(connection).map_err(fail)? > budget {
            let deleted = delete_crowded(connection).map_err(fail)?;
            if deleted == 0 {
                break;
            }
            retained.crowded += deleted;
        }
        give_back(connection).map_err(fail)?;
        retained.bytes = file_bytes(connection).map_err(fail)?;
        Ok(retained)
    }
}

fn delete_aged(connection: &Connection, before: i64) -> rusqlite::Result<u64> {
    let statements = [
        "DELETE FROM rule_commits WHERE at_ns < ?1",
        "DELETE FROM gaps WHERE to_ns < ?1",
        "DELETE FROM nodes AS n WHERE last_record_at_ns < ?1 AND started_ns <
           (SELECT max(started_ns) FROM nodes WHERE node = n.node)",
        "DELETE FROM services AS s WHERE at_ns < ?1 AND rowid <> (SELECT rowid FROM services
           WHERE node = s.node AND service = s.service ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
        "DELETE FROM slices AS s WHERE at_ns < ?1 AND rowid <> (SELECT rowid FROM slices
           WHERE node = s.node AND service = s.service AND slice = s.slice ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
        // A slice that has been gone for so long has nothing left to explain.
        "DELETE FROM slices WHERE at_ns < ?1 AND deleted",
        "DELETE FROM node_states AS s WHERE at_ns < ?1 AND rowid <> (SELECT rowid FROM node_states
           WHERE node = s.node AND name = s.name ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
    ];
    let transaction = connection.unchecked_transaction()?;
    let mut deleted = 0;
    for (table, column) in BULK {
        deleted += delete_bulk(&transaction, table, column, before)?;
    }
    for sql in statements {
        deleted += transaction.prepare_cached(sql)?.execute([before])? as u64;
    }
    transaction.commit()?;
    Ok(deleted)
}

/// Deletes bulky rows before a moment, and remembers that there were some: a time whose records are gone must never
/// look like a time in which nothing failed.
fn delete_bulk(
    connection: &Connection,
    table: &str,
    column: &str,
    before: i64,
) -> rusqlite::Result<u64> {
    connection.execute(
        &format!(
            "INSERT INTO purged SELECT node, min({column}), max({column}), count(*)
             FROM {table} WHERE {column} < ?1 GROUP BY node
             ON CONFLICT DO UPDATE SET from_ns = min(from_ns, excluded.from_ns),
               to_ns = max(to_ns, excluded.to_ns), count = count + excluded.count"
        ),
        [before],
    )?;
    let sql = format!("DELETE FROM {table} WHERE {column} < ?1");
    Ok(connection.execute(&sql, [before])? as u64)
}

/// Deletes the oldest tenth of the bulk; of flights and traffic alike up to one moment, so that what stays is whole.
fn delete_crowded(connection: &Connection) -> rusqlite::Result<u64> {
    let transaction = connection.unchecked_transaction()?;
    let mut deleted = 0;
    let moment: Option<i64> = transaction
        .query_row(
            "WITH times AS (SELECT at_ns AS t FROM flights UNION ALL SELECT second_ns FROM traffic)
         SELECT t + 1 FROM times ORDER BY t LIMIT 1 OFFSET (SELECT count(*) / 10 FROM times)",
            [],
            |row| row.get(0),
        )
        .optional()?;
    if let Some(moment) = moment {
        for (table, column) in BULK {
            deleted += delete_bulk(&transaction, table, column, moment)?;
        }
    } else {
        for (table, column) in EVIDENCE {
            let sql = format!(
                "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY {column}
                 LIMIT max(64, (SELECT count(*) / 10 FROM {table})))"
            );
            deleted += transaction.execute(&sql, [])? as u64;
        }
    }
    if deleted == 0 {
        // Nothing but states is left: their history goes, the latest of each stays.
        deleted = [
            "DELETE FROM slices AS s WHERE rowid <> (SELECT rowid FROM slices
               WHERE node = s.node AND service = s.service AND slice = s.slice ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
            "DELETE FROM services AS s WHERE rowid <> (SELECT rowid FROM services
               WHERE node = s.node AND service = s.service ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
            "DELETE FROM node_states AS s WHERE rowid <> (SELECT rowid FROM node_states
               WHERE node = s.node AND name = s.name ORDER BY at_ns DESC, rowid DESC LIMIT 1)",
        ]
        .iter()
        .try_fold(0, |sum, sql| {
            transaction
                .execute(sql, [])
                .map(|count| sum + count as u64)
        })?;
    }
    transaction.commit()?;
    Ok(deleted)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection
        .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        .map(i64::unsigned_abs)
}

/// Bytes of pages in use.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pages = pragma(connection, "page_count")?;
    let free = pragma(connection, "freelist_count")?;
    Ok(pages.saturating_sub(free) * pragma(connection, "page_size")?)
}

/// Bytes of the database file once the log is written back.
fn file_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(pragma(connection, "page_count")? * pragma(connection, "page_size")?)
}

/// Moves free pages to the end, cuts them off, and empties the log. A reader may hold the log back: the next call does it.
fn give_back(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("PRAGMA incremental_vacuum")?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
