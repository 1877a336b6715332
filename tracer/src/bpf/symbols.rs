//! From an address in the kernel to the function it lies in.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// Functions by address, looked up in kallsyms when an address is first seen. Drops come from a few dozen places, so the
/// table of a hundred thousand symbols is read again for each rather than kept.
#[derive(Debug)]
pub(super) struct Symbols {
    path: PathBuf,
    known: HashMap<u64, Option<String>>,
}

impl Symbols {
    /// Looks in this file: `/proc/kallsyms`.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            known: HashMap::new(),
        }
    }

    /// The function that contains an address, without the compiler's suffixes (`.part.0`, `.isra.0`); `None` if kallsyms
    /// hides addresses from us, or does not know it.
    pub(super) fn function(&mut self, address: u64) -> Option<String> {
        let path = &self.path;
        self.known
            .entry(address)
            .or_insert_with(|| search(File::open(path).map(BufReader::new).ok()?, address))
            .clone()
    }
}

/// The symbol with the greatest address that is not above the one wanted.
fn search(mut table: impl std::io::BufRead, wanted: u64) -> Option<String> {
    let mut best: Option<(u64, String)> = None;
    let mut line = String::new();
    while table.read_line(&mut line).ok()? > 0 {
        let mut fields = line.split_ascii_whitespace();
        if let (Some(address), Some(kind), Some(name)) =
            (fields.next(), fields.next(), fields.next())
            && matches!(kind, "t" | "T" | "w" | "W")
            && let Ok(address) = u64::from_str_radix(address, 16)
            && address != 0
            && address <= wanted
            && best.as_ref().is_none_or(|(other, _)| *other < address)
        {
            best = Some((address, name.to_owned()));
        }
        line.clear();
    }
    best.map(|(_, name)| match name.split_once('.') {
        Some((function, _)) if !function.is_empty() => function.to_owned(),
        _ => name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t udp_queue_rcv_one_skb.part.0
ffffffff81000080 T __udp4_lib_rcv
ffffffff81000090 d not_a_function
";

    #[test]
    fn the_nearest_function_below_is_found_whatever_the_order() {
        let find = |address| search(TABLE.as_bytes(), address);
        assert_eq!(
            find(0xffff_ffff_8100_00a0).as_deref(),
            Some("__udp4_lib_rcv")
        );
        assert_eq!(
            find(0xffff_ffff_8100_0100).as_deref(),
            Some("udp_queue_rcv_one_skb")
        );
        assert_eq!(find(0xffff_0000_0000_0000), None);
    }

    #[test]
    fn hidden_addresses_name_nothing() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 T kfree_skb\n";
        assert_eq!(search(hidden.as_bytes(), u64::MAX), None);
    }
}
