//! Pure functions from what nodes recorded to a timeline with verdicts: no I/O, no clock, no async.
pub mod timeline;
