//! One thing on the timeline, with its details under a gutter.

use std::io::{self, Write};

use super::Style;
use super::layout::{Flow, Tone, coloured};

/// One thing on the timeline: its time, a symbol, a title, and details under a gutter.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    time: String,
    symbol: &'static str,
    tone: Tone,
    title: Flow,
    /// Indent of the first line, of the others, and text.
    details: Vec<(usize, usize, Flow)>,
    closed: bool,
}

/// Columns of the time and the space after it.
pub(super) const TIME: usize = 14;

/// Columns before the text of an entry.
pub(super) const GUTTER: usize = TIME + 2;

impl Entry {
    pub(super) fn new(time: &str, symbol: &'static str, tone: Tone, title: Flow) -> Self {
        Self {
            time: time.to_owned(),
            symbol,
            tone,
            title,
            details: Vec::new(),
            closed: false,
        }
    }

    /// A detail under it; its first line and its others are indented by so many columns after the gutter.
    pub(super) fn detail(mut self, first: usize, rest: usize, flow: Flow) -> Self {
        self.details.push((first, rest, flow));
        self
    }

    /// The last detail ends the gutter.
    pub(super) fn close(mut self) -> Self {
        self.closed = true;
        self
    }

    pub(super) fn write(&self, out: &mut dyn Write, style: &Style) -> io::Result<()> {
        let pad = " ".repeat(TIME);
        let gutter = format!("{pad}│ ");
        let blank = format!("{pad}  ");
        // The symbol is a word of its own in its own tone, drawn before the title.
        let mut first = Vec::new();
        write!(first, "{:<TIME$}", self.time)?;
        coloured(&mut first, style, self.tone, self.symbol)?;
        first.push(b' ');
        out.write_all(&first)?;
        let rest = if self.details.is_empty() {
            &blank
        } else {
            &gutter
        };
        self.title.line(out, style, "", rest)?;
        let last = self.details.len().wrapping_sub(1);
        for (position, (indent, hang, flow)) in self.details.iter().enumerate() {
            if self.closed && position == last {
                flow.line(out, style, &format!("{pad}╰ "), &blank)?;
            } else {
                let [first, rest] = [indent, hang].map(|columns| " ".repeat(*columns));
                flow.line(
                    out,
                    style,
                    &format!("{gutter}{first}"),
                    &format!("{gutter}{rest}"),
                )?;
            }
        }
        Ok(())
    }
}
