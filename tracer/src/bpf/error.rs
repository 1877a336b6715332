//! What can go wrong when capturing starts or is changed.

use std::io;
use std::path::PathBuf;

use super::types;

/// Why capturing could not start, or a map could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process may not load eBPF programs.
    #[error(
        "not allowed to load eBPF programs: run as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (missing: {missing})"
    )]
    Privilege {
        /// Names of the capabilities that are missing.
        missing: String,
    },
    /// The kernel's type information is missing or lacks something.
    #[error(transparent)]
    Types(#[from] types::Error),
    /// The cgroup root is not there.
    #[error(
        "cannot open the cgroup directory {path}: {source}. Mount cgroup2 there, or name another directory with --cgroup"
    )]
    Cgroup {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cgroup root is something else.
    #[error(
        "{0} is not in a cgroup2 file system; name its mount point with --cgroup (on hybrid systems /sys/fs/cgroup/unified)"
    )]
    NotCgroup2(PathBuf),
    /// An option makes no sense.
    #[error("{0}")]
    Options(String),
    /// The object could not be loaded: no program was.
    #[error(
        "the kernel refused the eBPF maps or the object: {0}. A locked-down kernel or a security module may forbid eBPF"
    )]
    Load(String),
    /// Nothing could be attached.
    #[error("no eBPF program could be attached; the first failure: {0}")]
    Nothing(String),
    /// A map is not in the object: the object and this program do not belong together.
    #[error("the eBPF object has no map {0}; rebuild slicetrace")]
    NoMap(&'static str),
    /// A map could not be changed or read.
    #[error("cannot use the eBPF map {map}: {reason}")]
    Map {
        /// The map.
        map: &'static str,
        /// What aya and the system said.
        reason: String,
    },
    /// Not every address could be put into the kernel's set.
    #[error(
        "{address} and {} more addresses cannot be watched: {reason}; at most 16,384 can, watch fewer Services with an agent", of - watched - 1
    )]
    Unwatched {
        /// The first of them.
        address: std::net::SocketAddr,
        /// All that should be watched.
        of: usize,
        /// Those that are.
        watched: usize,
        /// What aya and the system said.
        reason: String,
    },
    /// A log could not be mapped.
    #[error("cannot map the log {map} into memory: {source}")]
    Mapping {
        /// The map.
        map: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The number of CPUs is unknown.
    #[error("cannot tell how many CPUs there may be from {path}: {source}")]
    Cpus {
        /// The file.
        path: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// An error of aya's with its causes, which its own text leaves out.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
