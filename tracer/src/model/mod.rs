//! Plain data, serde, no I/O: what a node records ([`record`], [`flight`]) and what a user is shown ([`timeline`]).

pub mod event;
pub mod flight;
pub mod pod;
pub mod record;
pub mod time;
pub mod timeline;
pub mod verdict;

pub use time::Timestamp;
