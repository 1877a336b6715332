//! From an address in the kernel to the function it lies in.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// Functions by address. The table is read before it is needed: going through kallsyms takes the kernel a tenth of a
/// second, and the first drop of an incident is no time to stop reading the logs for that.
#[derive(Debug)]
pub(super) struct Symbols {
    path: PathBuf,
    table: Option<Table>,
    /// Contents of `/proc/modules` when the table was read: a module that came later is not in it.
    modules: String,
    known: HashMap<u64, Option<String>>,
}

/// Functions, by address; names lie in one text, where the next one's begins.
#[derive(Debug, Default)]
struct Table {
    functions: Vec<(u64, u32)>,
    names: String,
}

impl Symbols {
    /// Looks in this file: `/proc/kallsyms`.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            table: None,
            modules: String::new(),
            known: HashMap::new(),
        }
    }

    /// Reads the table, if it was not read or modules have come or gone since.
    pub(super) fn refresh(&mut self) {
        // Without modules there is no such file.
        let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
        if self.table.is_some() && modules == self.modules {
            return;
        }
        let table = File::open(&self.path).map(|file| Table::read(BufReader::new(file)));
        self.table = Some(table.unwrap_or_default());
        self.modules = modules;
        self.known.clear();
    }

    /// The function that contains an address, without the compiler's suffixes (`.part.0`, `.isra.0`); `None` if kallsyms
    /// hides addresses from us, or does not know it.
    pub(super) fn function(&mut self, address: u64) -> Option<String> {
        if !self.known.contains_key(&address) {
            self.refresh();
            let found = self.table.as_ref().and_then(|table| table.find(address));
            self.known.insert(address, found);
        }
        self.known.get(&address).cloned().flatten()
    }
}

impl Table {
    /// What cannot be read is not in it.
    fn read(mut text: impl std::io::BufRead) -> Self {
        let mut table = Self::default();
        let mut line = String::new();
        while text.read_line(&mut line).is_ok_and(|length| length > 0) {
            let mut fields = line.split_ascii_whitespace();
            if let (Some(address), Some(kind), Some(name)) =
                (fields.next(), fields.next(), fields.next())
                && matches!(kind, "t" | "T" | "w" | "W")
                && let Ok(address) = u64::from_str_radix(address, 16)
                && address != 0
                && let Ok(start) = u32::try_from(table.names.len())
            {
                table.functions.push((address, start));
                table.names.push_str(name);
                table.names.push('\n');
            }
            line.clear();
        }
        table.functions.sort_unstable();
        table.functions.shrink_to_fit();
        table.names.shrink_to_fit();
        table
    }

    /// The function with the greatest address that is not above the one wanted.
    fn find(&self, wanted: u64) -> Option<String> {
        let after = self
            .functions
            .partition_point(|(address, _)| *address <= wanted);
        let (_, start) = self.functions.get(after.checked_sub(1)?)?;
        let name = self.names.get(*start as usize..)?.lines().next()?;
        Some(match name.split_once('.') {
            Some((function, _)) if !function.is_empty() => function.to_owned(),
            _ => name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const TABLE: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t udp_queue_rcv_one_skb.part.0
ffffffff81000080 T __udp4_lib_rcv
ffffffff81000090 d not_a_function
";

    #[test]
    fn the_nearest_function_below_is_found_whatever_the_order() {
        let table = Table::read(TABLE.as_bytes());
        let find = |address| table.find(address);
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
        assert_eq!(Table::read(hidden.as_bytes()).find(u64::MAX), None);
    }

    #[test]
    fn the_table_is_read_once_and_not_at_every_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kallsyms");
        std::fs::write(&path, TABLE).unwrap();
        let mut symbols = Symbols::new(&path);
        symbols.refresh();
        std::fs::remove_file(&path).unwrap();
        let found = symbols.function(0xffff_ffff_8100_00a0);
        assert_eq!(found.as_deref(), Some("__udp4_lib_rcv"));
    }
}
