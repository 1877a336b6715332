//! Text from outside made harmless: what a terminal could obey, what hides or reverses text, what has no end.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar as _;

/// Longer words are cut in the middle; a DNS name in presentation form can be a thousand characters.
pub(super) const LONGEST: usize = 256;

/// Makes a word harmless: control characters and invisible direction marks are shown as escapes (they could otherwise
/// rewrite the terminal), endless ones cut; with `ascii`, our symbols become ASCII and everything else an escape.
pub(super) fn clean(word: &str, ascii: bool) -> Cow<'_, str> {
    if word.len() <= LONGEST && word.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(word);
    }
    let mut text = String::with_capacity(word.len());
    for character in word.chars() {
        match character {
            ' '..='~' => text.push(character),
            _ if dangerous(character) => text.extend(character.escape_unicode()),
            _ if !ascii => text.push(character),
            _ => match plain(character) {
                Some(replacement) => text.push_str(replacement),
                None => text.extend(character.escape_unicode()),
            },
        }
    }
    let count = text.chars().count();
    if count > LONGEST {
        let head: String = text.chars().take(LONGEST - 64).collect();
        let tail: String = text.chars().skip(count - 60).collect();
        text = format!("{head}{}{tail}", if ascii { "..." } else { "…" });
    }
    Cow::Owned(text)
}

/// A whole sentence without anything that a terminal could obey.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if dangerous(character) {
            escaped.extend(character.escape_unicode());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Characters that a terminal obeys, or that make text look like other text (Unicode TR 36, 2.10).
fn dangerous(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
        || character.width().unwrap_or(0) == 0
}

/// Our own symbols in ASCII, of the same width where columns depend on it.
const fn plain(symbol: char) -> Option<&'static str> {
    Some(match symbol {
        '◆' => "*",
        '✗' => "x",
        '⚠' => "!",
        '○' => "o",
        '│' => "|",
        '╰' => "`",
        '→' => "->",
        '▸' => ">",
        '⇢' => "=>",
        '·' => "-",
        '–' => "-",
        '…' => "...",
        '×' => "x",
        'µ' => "u",
        '±' => "+-",
        _ => return None,
    })
}
