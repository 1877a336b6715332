//! The node agent: start, run, drain.
//!
//! - `run`: the main loop, and the order in which things start and stop.
//! - `pump`: from the kernel's logs to records.
//! - `apiwatch`: from the API's events to records.
//! - `addresses`: which addresses count as the DNS Service.
//! - `ready`: the file that says so.
//! - `writer`: the thread that writes records to the store.
//! - `view`: what the agent's own API shows.

mod addresses;
mod apiwatch;
pub mod config;
mod pump;
mod ready;
mod run;
mod view;
mod writer;

pub use config::Config;
pub use run::run;

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The eBPF programs.
    #[error(transparent)]
    Capture(#[from] crate::bpf::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] crate::store::Error),
    /// The cgroup2 mount.
    #[error(transparent)]
    Cgroups(#[from] crate::node::cgroups::CgroupError),
    /// The clock.
    #[error(transparent)]
    Clock(#[from] crate::node::clock::ClockError),
    /// The scope.
    #[error(transparent)]
    Netns(#[from] crate::node::netns::NetnsError),
    /// The listener.
    #[error(
        "cannot listen on {address}: {source}; is another agent running here? --listen takes another address"
    )]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A ready file of an earlier run.
    #[error(
        "the ready file {} cannot be removed: {source}; it would say that this agent is ready, give another --ready-file", path.display()
    )]
    ReadyFile {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A thread.
    #[error("cannot start the store's thread: {0}")]
    Thread(std::io::Error),
    /// Signal handlers.
    #[error("cannot handle SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
}
