//! One agent for one store.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::{Error, unopenable};

/// The right to write to a store as its agent. SQLite would let two agents take turns, and each would take the other's
/// records for its own past; who only reads is not hindered.
#[derive(Debug)]
pub struct Lock {
    /// Locked by flock(2), of which SQLite's own locks, by fcntl(2), know nothing. It has to stay open until the process
    /// ends or has closed the store: closing any descriptor of a file drops every fcntl lock on it (fcntl_locking(2)).
    _file: File,
}

impl Lock {
    /// Takes it, making the file if it is not there.
    ///
    /// # Errors
    /// [`Error::Taken`], or when the file cannot be opened.
    pub fn take(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| unopenable(path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Taken {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(unopenable(path, &error)),
        }
    }
}
