//! A timeline as text for people and as NDJSON for programs.

pub mod json;
pub mod missing;
pub mod schema;
pub mod text;

use crate::model::timeline::{Header, Line, Summary};

/// What is shown: the parts of a timeline, in the order of the format.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// What it covers and how far it can be trusted.
    pub header: &'a Header,
    /// Transitions, programming, queries and gaps by time.
    pub lines: &'a [Line],
    /// Totals of each Service.
    pub summaries: &'a [Summary],
}

#[cfg(test)]
mod tests;
