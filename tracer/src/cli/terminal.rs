//! What the terminal can show.

use std::io::IsTerminal;

/// Where nobody says how wide it is.
const DEFAULT_WIDTH: usize = 100;

/// Columns: `COLUMNS`, else the terminal's, else 100.
pub(super) fn width() -> usize {
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .filter(|columns| *columns > 0)
        .or_else(|| {
            terminal_size::terminal_size_of(std::io::stdout())
                .map(|(terminal_size::Width(columns), _)| usize::from(columns))
                .filter(|columns| *columns > 0)
        })
        .unwrap_or(DEFAULT_WIDTH)
}

/// Colours only on a terminal, never with `NO_COLOR` (no-color.org) or on a dumb one.
pub(super) fn colours(stream: &impl IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal()
        && !set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether only ASCII may be shown: the locale (POSIX, 8.2) does not say UTF-8.
pub(super) fn ascii(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty())
        .unwrap_or_default()
        .to_ascii_lowercase();
    !(locale.contains("utf-8") || locale.contains("utf8"))
}
