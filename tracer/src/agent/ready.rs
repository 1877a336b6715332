//! The ready file: there while the agent is ready, and only then.

use std::io::{ErrorKind, Result};
use std::path::Path;

/// Removes one that an earlier run left, or this one made.
pub(super) fn clear(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Says that every program is attached and the first lists are in.
pub(super) fn tell(file: &Path) -> Result<()> {
    std::fs::write(file, "ready\n")
}
