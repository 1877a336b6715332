//! Pure functions from what nodes recorded to a timeline with verdicts: no I/O, no clock, no async.
//!
//! On a node, [`attempts`] turns kernel events into flights and [`traffic`] into per-second counts. Over all nodes,
//! [`timeline`] turns records into lines; the same code judges live records, merged ones and a recorded file.

pub mod attempts;
pub mod traffic;
