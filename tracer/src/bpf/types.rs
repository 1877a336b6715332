//! A reader of the kernel's type information (BTF), as far as it is needed: members of structures, values of
//! enumerations, parameters of tracepoints. Format: Documentation/bpf/btf.rst.
//!
//! Written here because kernel modules have *split* BTF (their type ids and strings continue those of the kernel), and
//! conntrack is a module on many systems; the reader only walks the bytes, which keeps the start of an agent short.

use std::path::{Path, PathBuf};

/// The kernel's own types.
pub(super) const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC_PROTO: u32 = 13;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;
const POINTER: u32 = 2;
/// Nothing in a kernel is nested or aliased deeper; corrupt data may loop.
const DEPTH: usize = 32;

/// Why type information could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not there or not readable.
    #[error(
        "cannot read the kernel's type information {path}: {source}. slicetrace needs a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not BTF that we understand.
    #[error("{path} is not type information in BTF format: {what}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// A member that we read is not in this kernel.
    #[error("this kernel has no {0} in its type information; slicetrace cannot read its packets")]
    Missing(String),
}

/// The types of one BTF file, on top of those of the kernel if it is a module's.
#[derive(Debug)]
pub(super) struct Types<'base> {
    base: Option<&'base Types<'base>>,
    bytes: Vec<u8>,
    /// Offset of each type in `bytes`.
    at: Vec<usize>,
    strings: usize,
    strings_len: usize,
    /// Id of the first type here.
    first: usize,
}

impl<'base> Types<'base> {
    /// Reads a file; `base` for a module's.
    pub(super) fn read(path: &Path, base: Option<&'base Self>) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(bytes, base).map_err(|what| Error::Format {
            path: path.to_owned(),
            what,
        })
    }

    /// Indexes the types in `bytes`.
    pub(super) fn parse(bytes: Vec<u8>, base: Option<&'base Self>) -> Result<Self, &'static str> {
        let magic = bytes.get(..2).and_then(|b| b.try_into().ok());
        if magic.map(u16::from_ne_bytes) != Some(MAGIC) {
            return Err("the magic number is not that of this machine's byte order");
        }
        let header = |at| word(&bytes, at).ok_or("the header is cut off");
        let start = header(4)?;
        let types = start
            .checked_add(header(8)?)
            .ok_or("the header is nonsense")?;
        let end = types
            .checked_add(header(12)?)
            .ok_or("the header is nonsense")?;
        let strings = start
            .checked_add(header(16)?)
            .ok_or("the header is nonsense")?;
        let strings_len = header(20)?;
        if end > bytes.len()
            || strings
                .checked_add(strings_len)
                .is_none_or(|end| end > bytes.len())
        {
            return Err("it is cut off");
        }
        let mut at = Vec::new();
        let mut position = types;
        while position < end {
            at.push(position);
            let info = word(&bytes, position + 4).ok_or("a type is cut off")? as u32;
            position += 12 + extra(kind(info), count(info)).ok_or("a type of unknown kind")?;
        }
        if position != end {
            return Err("the last type is cut off");
        }
        Ok(Self {
            first: base.map_or(1, |base| base.first + base.at.len()),
            base,
            bytes,
            at,
            strings,
            strings_len,
        })
    }

    /// Offset in bytes of a member such as `nd_net.net`, through anonymous structures and unions.
    pub(super) fn member(&self, structure: &str, path: &str) -> Option<u32> {
        self.named(structure, &[STRUCT])
            .find_map(|id| self.walk(id, path, 0))
    }

    /// Names and values of an enumeration; empty if there is none of that name.
    pub(super) fn values(&self, name: &str) -> Vec<(String, u64)> {
        let Some(id) = self.named(name, &[ENUM, ENUM64]).next() else {
            return Vec::new();
        };
        let Some((types, at)) = self.find(id) else {
            return Vec::new();
        };
        let info = types.info(at);
        let size = if kind(info) == ENUM { 8 } else { 12 };
        (0..count(info))
            .filter_map(|n| {
                let entry = at + 12 + n * size;
                let name = types.string(word(&types.bytes, entry)?)?;
                let mut value = word(&types.bytes, entry + 4)? as u64;
                if size == 12 {
                    value |= (word(&types.bytes, entry + 8)? as u64) << 32;
                }
                Some((name.to_owned(), value))
            })
            .collect()
    }

    /// How many parameters a tracepoint's programs get: those of its `btf_trace_` type but for the first, which is the
    /// tracepoint's own.
    pub(super) fn tracepoint_parameters(&self, name: &str) -> Option<usize> {
        let id = self
            .named(&format!("btf_trace_{name}"), &[TYPEDEF])
            .next()?;
        let id = self.resolve(id, true)?;
        let (types, at) = self.find(id)?;
        let info = types.info(at);
        (kind(info) == FUNC_PROTO).then(|| count(info).saturating_sub(1))
    }

    fn walk(&self, id: usize, path: &str, depth: usize) -> Option<u32> {
        if depth > DEPTH {
            return None;
        }
        let (types, at) = self.find(self.resolve(id, false)?)?;
        let info = types.info(at);
        if !matches!(kind(info), STRUCT | UNION) {
            return None;
        }
        let (name, rest) = match path.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        (0..count(info)).find_map(|n| {
            let member = at + 12 + n * 12;
            let own = types.string(word(&types.bytes, member)?)?;
            let member_type = word(&types.bytes, member + 4)?;
            let mut bits = word(&types.bytes, member + 8)? as u32;
            if info >> 31 == 1 {
                bits &= 0x00ff_ffff;
            }
            let inside = if own.is_empty() {
                self.walk(member_type, path, depth + 1)?
            } else if own == name {
                match rest {
                    Some(rest) => self.walk(member_type, rest, depth + 1)?,
                    None => 0,
                }
            } else {
                return None;
            };
            Some(bits / 8 + inside)
        })
    }

    /// Follows aliases and qualifiers, and pointers if asked to.
    fn resolve(&self, mut id: usize, pointers: bool) -> Option<usize> {
        for _ in 0..DEPTH {
            let (types, at) = self.find(id)?;
            match kind(types.info(at)) {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => {
                    id = word(&types.bytes, at + 8)?;
                }
                POINTER if pointers => id = word(&types.bytes, at + 8)?,
                _ => return Some(id),
            }
        }
        None
    }

    /// Ids here (not in the base) of types of that name.
    fn named<'a>(&'a self, name: &'a str, kinds: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
        self.at.iter().enumerate().filter_map(move |(n, &at)| {
            let wanted = kinds.contains(&kind(self.info(at)))
                && word(&self.bytes, at).and_then(|offset| self.string(offset)) == Some(name);
            wanted.then_some(self.first + n)
        })
    }

    fn find(&self, id: usize) -> Option<(&Self, usize)> {
        if id < self.first {
            return self.base?.find(id);
        }
        Some((self, *self.at.get(id - self.first)?))
    }

    fn info(&self, at: usize) -> u32 {
        word(&self.bytes, at + 4).unwrap_or(0) as u32
    }

    fn string(&self, offset: usize) -> Option<&str> {
        let before = self.strings_before();
        let Some(offset) = offset.checked_sub(before) else {
            return self.base?.string(offset);
        };
        if offset >= self.strings_len {
            return None;
        }
        let bytes = self
            .bytes
            .get(self.strings + offset..self.strings + self.strings_len)?;
        std::str::from_utf8(bytes.split(|&b| b == 0).next()?).ok()
    }

    fn strings_before(&self) -> usize {
        self.base
            .map_or(0, |base| base.strings_before() + base.strings_len)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
}

const fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

const fn count(info: u32) -> usize {
    (info & 0xffff) as usize
}

/// Bytes that follow the twelve every type has; `None` for a kind that we do not know.
const fn extra(kind: u32, count: usize) -> Option<usize> {
    match kind {
        // Pointers, forwards, aliases, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => Some(0),
        // Integers, variables, declaration tags.
        1 | 14 | 17 => Some(4),
        // Arrays.
        3 => Some(12),
        // Structures, unions, sections, 64-bit enumerations.
        4 | 5 | 15 | 19 => Some(count * 12),
        // Enumerations, parameters.
        6 | 13 => Some(count * 8),
        _ => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// A small file: `struct outer { int a; union { int b; struct inner in; }; }`, `struct inner { int x; int y; }`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0in\0inner\0x\0y\0";
        let at = |name: &str| {
            let needle: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
            (strings
                .windows(needle.len())
                .position(|w| w == needle)
                .unwrap()
                + 1) as u32
        };
        let mut types: Vec<u32> = Vec::new();
        // 1: int
        types.extend([at("int"), 1 << 24, 4, 32]);
        // 2: inner
        types.extend([at("inner"), 4 << 24 | 2, 8]);
        types.extend([at("x"), 1, 0, at("y"), 1, 32]);
        // 3: the union without a name
        types.extend([0, 5 << 24 | 2, 8]);
        types.extend([at("b"), 1, 0, at("in"), 2, 0]);
        // 4: outer
        types.extend([at("outer"), 4 << 24 | 2, 12]);
        types.extend([at("a"), 1, 0, 0, 3, 32]);
        let length = types.len() as u32 * 4;
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        for value in [24, 0, length, length, strings.len() as u32] {
            bytes.extend(value.to_ne_bytes());
        }
        for value in types {
            bytes.extend(value.to_ne_bytes());
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_are_found_through_anonymous_unions() {
        let types = Types::parse(sample(), None).unwrap();
        assert_eq!(types.member("outer", "a"), Some(0));
        assert_eq!(types.member("outer", "b"), Some(4));
        assert_eq!(types.member("outer", "in.y"), Some(8));
        assert_eq!(types.member("outer", "y"), None);
        assert_eq!(types.member("other", "a"), None);
    }

    #[test]
    fn every_truncation_is_refused_and_none_panics() {
        let whole = sample();
        for length in 0..whole.len() {
            assert!(
                Types::parse(whole[..length].to_vec(), None).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn a_loop_of_types_ends() {
        let mut bytes = sample();
        // The union's second member becomes `outer` without a name: outer ⊃ union ⊃ outer.
        let union = 24 + 16 + 36;
        bytes[union + 24..union + 28].copy_from_slice(&0_u32.to_ne_bytes());
        bytes[union + 28..union + 32].copy_from_slice(&4_u32.to_ne_bytes());
        let types = Types::parse(bytes, None).unwrap();
        assert_eq!(types.member("outer", "nowhere"), None);
    }
}
