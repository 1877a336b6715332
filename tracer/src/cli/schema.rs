//! `slicetrace schema`: the JSON Schema of the timeline's lines, as it is checked in.

use std::io::{self, Write as _};

use super::{Ending, Failure};

pub(super) fn run() -> Result<Ending, Failure> {
    let text = crate::render::schema::text().map_err(|error| Failure::Failed(error.to_string()))?;
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Ending::Done)
}
