//! Truth.
