//! The tables, how old files are brought up to date, and how files that are not ours are recognised.
//!
//! A file is ours if its `application_id` says so (sqlite.org/pragma.html#pragma_application_id); its `user_version` is
//! the number of migrations it has seen.

use std::path::Path;

use rusqlite::{Connection, Transaction};

use super::Error;

/// "SlTr": marks the file as slicetrace's, also for file(1).
pub const APPLICATION_ID: i32 = 0x536c_5472;

/// One step from a schema version to the next.
type Migration = fn(&Transaction<'_>) -> rusqlite::Result<()>;

/// Element N brings a file of version N to version N + 1.
const MIGRATIONS: &[Migration] = &[tables];

/// The version that this program writes.
pub const VERSION: i32 = MIGRATIONS.len() as i32;

/// Version 1. Times are nanoseconds since the Unix epoch on the clock of the row's node; lists and maps are JSON.
fn tables(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "CREATE TABLE nodes (
            node TEXT NOT NULL,
            started_ns INTEGER NOT NULL,
            last_record_at_ns INTEGER NOT NULL,
            kernel TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            tool_version TEXT NOT NULL,
            dataplane TEXT,
            hooks TEXT NOT NULL,
            missing_hooks TEXT NOT NULL,
            lost TEXT NOT NULL,
            hears_rules INTEGER NOT NULL,
            records_all INTEGER NOT NULL,
            PRIMARY KEY (node, started_ns)
        );
        CREATE TABLE services (
            node TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            service TEXT NOT NULL,
            frontends TEXT NOT NULL,
            resource_version TEXT NOT NULL
        );
        CREATE INDEX services_state ON services (node, service, at_ns);
        CREATE TABLE slices (
            node TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            service TEXT NOT NULL,
            slice TEXT NOT NULL,
            resource_version TEXT NOT NULL,
            deleted INTEGER NOT NULL,
            listed INTEGER NOT NULL,
            trigger_ns INTEGER,
            endpoints TEXT NOT NULL
        );
        CREATE INDEX slices_state ON slices (node, service, slice, at_ns);
        CREATE TABLE node_states (
            node TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            name TEXT NOT NULL,
            ready INTEGER
        );
        CREATE INDEX node_states_state ON node_states (node, name, at_ns);
        CREATE TABLE rule_commits (
            node TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            committer TEXT NOT NULL,
            changes TEXT NOT NULL
        );
        CREATE INDEX rule_commits_at ON rule_commits (at_ns);
        CREATE TABLE flights (
            node TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            client TEXT NOT NULL,
            client_port INTEGER NOT NULL,
            txid INTEGER,
            question_name TEXT,
            question_type TEXT,
            pod_namespace TEXT,
            pod TEXT,
            process TEXT,
            asked TEXT,
            backend TEXT,
            answered_at_ns INTEGER,
            rcode INTEGER,
            latency_ns INTEGER,
            drops INTEGER NOT NULL,
            detail TEXT NOT NULL
        );
        CREATE INDEX flights_at ON flights (at_ns);
        CREATE TABLE traffic (
            node TEXT NOT NULL,
            second_ns INTEGER NOT NULL,
            service TEXT,
            side TEXT NOT NULL,
            client_namespace TEXT,
            client_pod TEXT,
            backend TEXT,
            count INTEGER NOT NULL,
            first_answer_ns INTEGER NOT NULL,
            last_answer_ns INTEGER NOT NULL,
            latency_us TEXT NOT NULL
        );
        CREATE INDEX traffic_at ON traffic (second_ns);
        CREATE TABLE gaps (
            node TEXT NOT NULL,
            from_ns INTEGER NOT NULL,
            to_ns INTEGER NOT NULL,
            what TEXT NOT NULL,
            count INTEGER NOT NULL
        );
        CREATE INDEX gaps_at ON gaps (from_ns, to_ns);
        CREATE TABLE recording (
            from_ns INTEGER NOT NULL,
            to_ns INTEGER NOT NULL,
            made_ns INTEGER NOT NULL,
            tool_version TEXT NOT NULL,
            missing TEXT NOT NULL
        );
        CREATE TABLE purged (
            node TEXT NOT NULL PRIMARY KEY,
            from_ns INTEGER NOT NULL,
            to_ns INTEGER NOT NULL,
            count INTEGER NOT NULL
        );
        CREATE TABLE known_addresses (
            service TEXT NOT NULL,
            address TEXT NOT NULL,
            role TEXT NOT NULL,
            last_seen_ns INTEGER NOT NULL,
            PRIMARY KEY (service, address, role)
        );",
    )
}

/// What a file turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// Nothing is in it yet.
    Empty,
    /// Ours, of this version, which this program can read.
    Ours(i32),
}

/// Looks at a file without changing it.
///
/// # Errors
/// [`Error::NotADatabase`], [`Error::Foreign`] and [`Error::Newer`], for files that must be left alone.
pub(super) fn identify(connection: &Connection, path: &Path) -> Result<Identity, Error> {
    let fail = |source| Error::from_sqlite(source, "reading the header of", path);
    let id: i32 = connection
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(fail)?;
    let version: i32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(fail)?;
    let objects: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(fail)?;
    if id == 0 && version == 0 && objects == 0 {
        return Ok(Identity::Empty);
    }
    if id != APPLICATION_ID || version < 1 {
        return Err(Error::Foreign {
            path: path.to_owned(),
            id,
        });
    }
    if version > VERSION {
        return Err(Error::Newer {
            path: path.to_owned(),
            found: version,
            known: VERSION,
        });
    }
    Ok(Identity::Ours(version))
}

/// Brings an empty or older file of ours to [`VERSION`], one transaction a step.
pub(super) fn migrate(
    connection: &mut Connection,
    path: &Path,
    identity: Identity,
) -> Result<(), Error> {
    let fail = |source| Error::from_sqlite(source, "updating the tables of", path);
    let done = match identity {
        Identity::Empty => {
            // Only before the first table exists: the page layout differs (sqlite.org/pragma.html#pragma_auto_vacuum).
            connection
                .pragma_update(None, "auto_vacuum", "INCREMENTAL")
                .map_err(fail)?;
            0
        }
        Identity::Ours(version) => version,
    };
    for (version, migration) in (0..VERSION).zip(MIGRATIONS).skip(done as usize) {
        let transaction = connection.transaction().map_err(fail)?;
        migration(&transaction).map_err(fail)?;
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(fail)?;
        transaction
            .pragma_update(None, "user_version", version + 1)
            .map_err(fail)?;
        transaction.commit().map_err(fail)?;
    }
    Ok(())
}
