//! NDJSON, schema `slicetrace/1`: one [`Line`] a line, the summaries last.

use std::io::{self, Write};

use serde::Serialize;

use super::Shown;
use crate::model::timeline::{Header, Line, Summary};

/// A line by reference, with the same `kind` tags as [`Line`].
#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
enum End<'a> {
    Header(&'a Header),
    Summary(&'a Summary),
}

/// Writes everything and flushes.
///
/// # Errors
/// Of the writer.
pub fn write(out: &mut dyn Write, shown: Shown<'_>) -> io::Result<()> {
    line(out, &End::Header(shown.header))?;
    for one in shown.lines {
        // The header and the summaries have their places.
        if !matches!(one, Line::Header(_) | Line::Summary(_)) {
            line(out, one)?;
        }
    }
    for summary in shown.summaries {
        line(out, &End::Summary(summary))?;
    }
    out.flush()
}

fn line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(value).map_err(io::Error::other)?;
    bytes.push(b'\n');
    out.write_all(&bytes)
}
