//! Pure functions from what nodes recorded to a timeline with verdicts: no I/O, no clock, no async.
//!
//! On a node, [`attempts`] turns kernel events into flights and [`traffic`] into per-second counts. Over all nodes,
//! [`timeline()`] turns records into lines; the same code judges live records, merged ones and a recorded file.
//!
//! Inside: `slices` (what the API said, and when) and `rules` (when nodes took it over) are the control plane's side;
//! `join` (flights to attempts), `path` (where an attempt went) and `chains` (attempts to queries) the packets'; `verdict` puts
//! them together, `show` and `summary` lay out the result.

pub mod attempts;
pub mod timeline;
pub mod traffic;

mod answers;
mod chains;
mod clocks;
mod gaps;
mod join;
mod path;
mod rules;
mod show;
mod slices;
mod summary;
mod verdict;

pub use timeline::{Options, Timeline, timeline};

#[cfg(test)]
mod tests;
