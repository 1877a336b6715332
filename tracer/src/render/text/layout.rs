//! Words into lines: cleaned of what a terminal could obey, wrapped at word boundaries, coloured last.

use std::io::{self, Write};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::Style;
use super::clean::clean;

/// How a word looks on a terminal with colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Dim,
    Bold,
    Good,
    Warn,
    Bad,
}

impl Tone {
    /// The parameter of Select Graphic Rendition (ECMA-48, 8.3.117).
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Dim => Some("2"),
            Self::Bold => Some("1"),
            Self::Good => Some("32"),
            Self::Warn => Some("33"),
            Self::Bad => Some("31"),
        }
    }
}

/// Words that stay on one line if they can.
#[derive(Clone, Debug, Default)]
struct Phrase {
    words: Vec<(Tone, String)>,
    /// Column (within the text) at which it should begin.
    column: Option<usize>,
}

/// A paragraph.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    phrases: Vec<Phrase>,
}

/// Units that stay with their number.
const UNITS: [&str; 6] = ["ns", "µs", "ms", "s", "min", "h"];

impl Flow {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Words that may be parted anywhere, except a number from its unit.
    pub(super) fn text(mut self, tone: Tone, text: &str) -> Self {
        for word in text.split_whitespace() {
            let unit = word.trim_end_matches([',', '.', ';', ':', ')']);
            let last = self.phrases.last_mut().filter(|phrase| {
                UNITS.contains(&unit)
                    && phrase.words.last().is_some_and(|(_, number)| {
                        number.ends_with(|last: char| last.is_ascii_digit())
                    })
            });
            match last {
                Some(phrase) => phrase.words.push((tone, word.to_owned())),
                None => self.phrases.push(Phrase {
                    words: vec![(tone, word.to_owned())],
                    column: None,
                }),
            }
        }
        self
    }

    /// Words that stay together if they fit on a line.
    pub(super) fn keep(self, tone: Tone, text: &str) -> Self {
        self.keep_all(&[(tone, text)])
    }

    /// The same in several tones.
    pub(super) fn keep_all(mut self, parts: &[(Tone, &str)]) -> Self {
        let words: Vec<_> = parts
            .iter()
            .flat_map(|(tone, text)| text.split_whitespace().map(|word| (*tone, word.to_owned())))
            .collect();
        if !words.is_empty() {
            self.phrases.push(Phrase {
                words,
                column: None,
            });
        }
        self
    }

    /// The last phrase begins at this column of the text, if it fits there.
    pub(super) fn at_column(mut self, column: usize) -> Self {
        if let Some(phrase) = self.phrases.last_mut() {
            phrase.column = Some(column);
        }
        self
    }

    /// Adds to the last word, without a space.
    pub(super) fn then(mut self, text: &str) -> Self {
        if let Some((_, word)) = self
            .phrases
            .last_mut()
            .and_then(|phrase| phrase.words.last_mut())
        {
            word.push_str(text);
        }
        self
    }

    /// Another paragraph's words after these.
    pub(super) fn join(mut self, other: Self) -> Self {
        self.phrases.extend(other.phrases);
        self
    }

    /// Columns it takes when it is not wrapped.
    pub(super) fn width(&self, style: &Style) -> usize {
        self.phrases.iter().fold(0, |width, phrase| {
            let start = width + usize::from(width > 0);
            phrase.column.map_or(start, |column| start.max(column)) + phrase_width(phrase, style)
        })
    }

    /// Writes it, wrapped; `first` and `rest` go before the first and the other lines.
    pub(super) fn line(
        &self,
        out: &mut dyn Write,
        style: &Style,
        first: &str,
        rest: &str,
    ) -> io::Result<()> {
        let room = style.width.saturating_sub(rest.width()).max(16);
        let mut prefix = first;
        for line in self.wrap(style, room) {
            let prefix_text = clean(prefix, style.ascii);
            if line.is_empty() {
                writeln!(out, "{}", prefix_text.trim_end())?;
            } else {
                out.write_all(prefix_text.as_bytes())?;
                for piece in &line {
                    piece.write(out, style)?;
                }
                writeln!(out)?;
            }
            prefix = rest;
        }
        Ok(())
    }

    fn wrap(&self, style: &Style, room: usize) -> Vec<Vec<Piece>> {
        let mut lines = Lines {
            room,
            done: Vec::new(),
            line: Vec::new(),
            used: 0,
        };
        for phrase in &self.phrases {
            let width = phrase_width(phrase, style);
            if let Some(column) = phrase.column.filter(|column| {
                lines.done.is_empty() && *column > lines.used && column + width <= room
            }) {
                lines.space(column - lines.used);
            } else if !lines.fits(width)
                && width <= room
                && (width * 3 <= room * 2 || lines.used * 2 > room)
            {
                lines.next();
            }
            for (tone, word) in &phrase.words {
                lines.word(*tone, &clean(word, style.ascii));
            }
        }
        lines.done.push(lines.line);
        lines.done
    }
}

fn phrase_width(phrase: &Phrase, style: &Style) -> usize {
    let words: usize = phrase
        .words
        .iter()
        .map(|(_, word)| clean(word, style.ascii).width())
        .sum();
    words + phrase.words.len().saturating_sub(1)
}

/// A run of text in one tone.
#[derive(Clone, Debug)]
struct Piece {
    tone: Tone,
    text: String,
}

impl Piece {
    fn write(&self, out: &mut dyn Write, style: &Style) -> io::Result<()> {
        match self.tone.code().filter(|_| style.colour) {
            Some(code) => write!(out, "\x1b[{code}m{}\x1b[0m", self.text),
            None => out.write_all(self.text.as_bytes()),
        }
    }
}

/// A word by itself, in a tone.
pub(super) fn coloured(
    out: &mut dyn Write,
    style: &Style,
    tone: Tone,
    word: &str,
) -> io::Result<()> {
    let text = clean(word, style.ascii).into_owned();
    Piece { tone, text }.write(out, style)
}

/// Lines as they fill.
struct Lines {
    room: usize,
    done: Vec<Vec<Piece>>,
    line: Vec<Piece>,
    used: usize,
}

impl Lines {
    /// Whether so many columns, after a space, fit on this line.
    fn fits(&self, width: usize) -> bool {
        self.used + usize::from(self.needs_space()) + width <= self.room
    }

    fn needs_space(&self) -> bool {
        self.line
            .last()
            .is_some_and(|piece| !piece.text.ends_with(' '))
    }

    fn next(&mut self) {
        self.done.push(std::mem::take(&mut self.line));
        self.used = 0;
    }

    fn space(&mut self, count: usize) {
        self.put(Tone::Plain, &" ".repeat(count));
    }

    fn put(&mut self, tone: Tone, text: &str) {
        self.used += text.width();
        match self.line.last_mut().filter(|piece| piece.tone == tone) {
            Some(piece) => piece.text.push_str(text),
            None => self.line.push(Piece {
                tone,
                text: text.to_owned(),
            }),
        }
    }

    fn word(&mut self, tone: Tone, word: &str) {
        if !self.fits(word.width()) && self.used > 0 {
            self.next();
        }
        let mut rest = word;
        // A word wider than a line: parted after a label or a hyphen, so that both halves still read as parts of a name.
        while rest.width() > self.room {
            let cut = cut(rest, self.room);
            self.put(tone, &rest[..cut]);
            self.next();
            rest = &rest[cut..];
        }
        if self.needs_space() {
            self.put(tone, " ");
        }
        self.put(tone, rest);
    }
}

/// Byte position at which to part a word, at most `room` columns from its start and more than 0.
fn cut(word: &str, room: usize) -> usize {
    let mut width = 0;
    let mut hard = 0;
    let mut soft = 0;
    for (position, character) in word.char_indices() {
        width += character.width().unwrap_or(0);
        let end = position + character.len_utf8();
        if width > room && hard > 0 {
            break;
        }
        hard = end;
        if matches!(character, '.' | '/' | '-' | '_') {
            soft = end;
        }
    }
    // Not for a stub at the start of the line.
    if soft * 3 > hard { soft } else { hard }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;
    use crate::render::text::Clock;
    use crate::render::text::clean::LONGEST;
    use proptest::prelude::*;

    fn style(width: usize, ascii: bool) -> Style {
        Style {
            width,
            colour: false,
            ascii,
            clock: Clock::Utc,
            all: false,
            remark: None,
            now: None,
        }
    }

    fn lines(flow: &Flow, width: usize) -> Vec<String> {
        let mut out = Vec::new();
        flow.line(&mut out, &style(width, false), "", "  ").unwrap();
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_number_stays_with_its_unit_and_a_phrase_together() {
        let flow = Flow::new()
            .text(Tone::Plain, "it was away for 840 ms,")
            .keep(Tone::Plain, "ready → gone");
        assert_eq!(
            lines(&flow, 21),
            ["it was away for", "  840 ms,", "  ready → gone"]
        );
    }

    #[test]
    fn a_name_wider_than_the_line_is_parted_after_a_label() {
        let flow = Flow::new().text(Tone::Plain, "kubernetes.default.svc.cluster.local.");
        assert_eq!(
            lines(&flow, 26),
            ["kubernetes.default.svc.", "  cluster.local."]
        );
    }

    #[test]
    fn escapes_and_direction_marks_are_shown_not_obeyed() {
        assert_eq!(
            clean("a\u{1b}[31m\u{202e}b\r\n", false),
            "a\\u{1b}[31m\\u{202e}b\\u{d}\\u{a}"
        );
        assert_eq!(clean("µ→ü", true), "u->\\u{fc}");
        assert_eq!(clean("ü", false), "ü");
        assert!(clean(&"x".repeat(5000), false).width() <= LONGEST);
    }

    #[test]
    fn wide_characters_count_double() {
        let flow = Flow::new().text(Tone::Plain, "漢字漢字 漢字漢字");
        assert_eq!(lines(&flow, 18), ["漢字漢字", "  漢字漢字"]);
    }

    proptest! {
        #[test]
        fn any_text_fits_any_width_and_nothing_is_left_out(
            words in proptest::collection::vec(("\\PC{0,40}|.{0,20}|[a-z.-]{0,300}", any::<bool>()), 0..12),
            width in 40_usize..200,
            ascii in any::<bool>(),
        ) {
            let mut flow = Flow::new();
            let mut whole = String::new();
            for (text, keep) in &words {
                flow = if *keep { flow.keep(Tone::Bold, text) } else { flow.text(Tone::Bad, text) };
                whole.extend(text.split_whitespace().map(|word| clean(word, ascii).into_owned()));
            }
            let mut out = Vec::new();
            flow.line(&mut out, &style(width, ascii), "", "  ").unwrap();
            let found = String::from_utf8(out).unwrap();
            for line in found.lines() {
                prop_assert!(line.width() <= width, "{line}");
                prop_assert!(!line.chars().any(char::is_control));
            }
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&found), letters(&whole));
        }
    }
}
