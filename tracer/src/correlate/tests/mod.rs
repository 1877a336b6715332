//! Tests over whole timelines, built by hand.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod api;
mod golden;
mod packets;
mod properties;
mod scene;
