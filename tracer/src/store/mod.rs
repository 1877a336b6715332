//! The only place that knows the database: a node's records in one SQLite file.
//!
//! The agent's store and a recording (`*.slicetrace`) have the same tables, which anybody can read with `sqlite3` or
//! DuckDB; `docs/formats.md` describes them. Files that are not ours, or newer than this program, are never changed.

mod lock;
mod read;
mod retain;
mod schema;
mod write;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub use lock::Lock;
pub use read::{AFTER, BEFORE, Reading, Span};
pub use retain::{Retained, Retention};
pub use schema::{APPLICATION_ID, VERSION};
pub use write::{AddressRole, KnownAddress, Recording};

/// Why a store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file.
    #[error("{}: no such file; name a recording made by `slicetrace record`, or an agent's store", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be opened or made.
    #[error("{}: cannot be opened ({reason}); check the path and its permissions", path.display())]
    Unopenable {
        /// The file.
        path: PathBuf,
        /// What the system or SQLite said.
        reason: String,
    },
    /// Another agent writes to it.
    #[error("{}: another agent is writing to it; stop that one, or give this one another file with --db", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// Not an SQLite file.
    #[error("{}: not an SQLite file, so not a recording or store of slicetrace; it was left as it is", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// An SQLite file of another program.
    #[error("{}: an SQLite file of another program (application id {id:#010x}); it was left as it is, name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its `application_id`.
        id: i32,
    },
    /// Written by a newer slicetrace.
    #[error("{}: has schema {found}, this slicetrace knows up to {known}; it was left as it is, use a newer slicetrace", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
        /// [`VERSION`].
        known: i32,
    },
    /// An empty file has nothing to read.
    #[error("{}: is empty; the recording was never begun, record again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Written by an older slicetrace, and opened without the right to change it.
    #[error("{}: has schema {found}, this slicetrace reads {known}; copy it and open the copy with `slicetrace record` of this version", path.display())]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
        /// [`VERSION`].
        known: i32,
    },
    /// SQLite failed.
    #[error("{doing} {}: {source}{}", path.display(), hint(source))]
    Sqlite {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A record cannot be written as JSON.
    #[error("a record of node {node} cannot be written as JSON: {source}; please report it")]
    Encode {
        /// The node.
        node: String,
        /// What serde said.
        source: serde_json::Error,
    },
}

/// What to do about the failures that people can do something about.
fn hint(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "; make room on the disk or lower --keep-bytes",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "; another process holds it, stop it or try again"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "; the file or its folder may not be written by this user"
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            "; the file is damaged, `sqlite3 FILE .recover` may save a part of it"
        }
        _ => "",
    }
}

impl Error {
    fn from_sqlite(source: rusqlite::Error, doing: &'static str, path: &Path) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase { path },
            Some(ErrorCode::CannotOpen) => Self::Unopenable {
                path,
                reason: source.to_string(),
            },
            _ => Self::Sqlite {
                doing,
                path,
                source,
            },
        }
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens a store to write to, making it if it is not there, bringing an older one up to date.
    ///
    /// # Errors
    /// When it is not ours, newer, or cannot be opened; the file is unchanged then.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        // Looked at read-only first: a plain open may already change the header, or replay a foreign journal.
        let identity = match std::fs::metadata(path) {
            Ok(data) if data.len() > 0 || !data.is_file() => {
                schema::identify(&connect_read_only(path)?, path)?
            }
            Ok(_) => schema::Identity::Empty,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => schema::Identity::Empty,
            Err(error) => return Err(unopenable(path, &error)),
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let fail = |source| Error::from_sqlite(source, "opening", path);
        let mut connection = Connection::open_with_flags(path, flags).map_err(fail)?;
        connection.busy_timeout(BUSY).map_err(fail)?;
        schema::migrate(&mut connection, path, identity)?;
        // The file stays whole whatever dies; with NORMAL the last transactions may be lost with the power, no more.
        connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))
            .map_err(fail)?;
        connection
            .pragma_update(None, "synchronous", "NORMAL")
            .map_err(fail)?;
        connection
            .pragma_update_and_check(None, "journal_size_limit", WAL_BYTES, |_| Ok(()))
            .map_err(fail)?;
        Ok(Self {
            connection,
            path: path.to_owned(),
        })
    }

    /// Opens a store or a recording to read it, also from a folder that cannot be written, and while an agent writes.
    ///
    /// # Errors
    /// When it is not there, not ours, newer or older, or cannot be opened.
    pub fn read_only(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let connection = connect_read_only(path)?;
        match schema::identify(&connection, path)? {
            schema::Identity::Empty => Err(Error::Empty {
                path: path.to_owned(),
            }),
            schema::Identity::Ours(found) if found < VERSION => Err(Error::Older {
                path: path.to_owned(),
                found,
                known: VERSION,
            }),
            schema::Identity::Ours(_) => Ok(Self {
                connection,
                path: path.to_owned(),
            }),
        }
    }

    /// Ends a recording: everything is in the one file afterwards, which can be copied and read anywhere.
    ///
    /// # Errors
    /// When SQLite cannot write, or another process has it open.
    pub fn finish(self) -> Result<(), Error> {
        let fail = |source| Error::from_sqlite(source, "finishing", &self.path);
        self.connection
            .pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
            .map_err(fail)?;
        self.connection
            .close()
            .map_err(|(_, source)| Error::from_sqlite(source, "closing", &self.path))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn fail(&self, doing: &'static str) -> impl Fn(rusqlite::Error) -> Error + '_ {
        move |source| Error::from_sqlite(source, doing, &self.path)
    }
}

/// How long to wait for another process's transaction.
const BUSY: Duration = Duration::from_secs(5);

/// The write-ahead log is cut back to this after each checkpoint.
const WAL_BYTES: i64 = 4 << 20;

fn unopenable(path: &Path, error: &std::io::Error) -> Error {
    Error::Unopenable {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// Opens without the right to change anything.
fn connect_read_only(path: &Path) -> Result<Connection, Error> {
    match std::fs::metadata(path) {
        Ok(data) if data.is_dir() => {
            return Err(Error::Unopenable {
                path: path.to_owned(),
                reason: "it is a folder".to_owned(),
            });
        }
        // A pipe would be waited for, and a device has neither a beginning nor an end.
        Ok(data) if !data.is_file() => {
            return Err(Error::Unopenable {
                path: path.to_owned(),
                reason: "it is not a regular file".to_owned(),
            });
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(unopenable(path, &error)),
    }
    let fail = |source| Error::from_sqlite(source, "opening", path);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_timeout(BUSY).map_err(fail)?;
    let probe = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| {
        row.get::<_, i64>(0)
    });
    match probe {
        Ok(_) => Ok(connection),
        // A file in WAL mode wants its -shm file, which cannot be made in a folder that is not ours to write
        // (sqlite.org/wal.html#readonly). Without a -wal file everything is in the main file and nobody writes.
        Err(error)
            if matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)
            ) && !with_suffix(path, "-wal").exists() =>
        {
            let uri = immutable_uri(path);
            Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).map_err(fail)
        }
        Err(error) => Err(fail(error)),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// `file:` URI with everything but unreserved characters escaped (RFC 3986, 2.3).
fn immutable_uri(path: &Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri.push_str("?immutable=1");
    uri
}

#[cfg(test)]
mod tests;
