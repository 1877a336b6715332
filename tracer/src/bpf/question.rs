//! The question section of a DNS query, from its wire form (RFC 1035, 4.1.2) to words.

use std::fmt::Write as _;

use crate::model::event::Question;

/// Longest name on the wire, with its length bytes and the root (RFC 1035, 2.3.4).
const LONGEST: usize = 255;

/// Decodes the first question. `None` if it is cut off, too long, or its name uses compression: nothing comes before
/// the first question that it could point back to, so a pointer there is a forgery or a loop.
pub(super) fn decode(bytes: &[u8]) -> Option<Question> {
    let mut name = String::new();
    let mut at = 0;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // The two upper bits mark a pointer (11) or are reserved (RFC 6891 dropped 01).
        if length > 63 || at + length >= LONGEST {
            return None;
        }
        for &byte in bytes.get(at..at + length)? {
            match byte {
                b'.' | b'\\' => {
                    name.push('\\');
                    name.push(char::from(byte));
                }
                0x21..=0x7e => name.push(char::from(byte)),
                // RFC 4343, 2.1: a backslash and three decimal digits.
                _ => write!(name, "\\{byte:03}").ok()?,
            }
        }
        name.push('.');
        at += length;
    }
    if name.is_empty() {
        name.push('.');
    }
    let kind = bytes.get(at..at + 2)?;
    // The class has to be there as well, or the question is cut off.
    bytes.get(at + 2..at + 4)?;
    Some(Question {
        name,
        kind: mnemonic(u16::from_be_bytes([kind[0], kind[1]])),
    })
}

/// The name of a type (the IANA registry "Resource Record (RR) TYPEs"); `TYPE65280` where it is none of the usual ones
/// (RFC 3597, 5).
fn mnemonic(kind: u16) -> String {
    let name = match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        13 => "HINFO",
        15 => "MX",
        16 => "TXT",
        24 => "SIG",
        25 => "KEY",
        28 => "AAAA",
        29 => "LOC",
        33 => "SRV",
        35 => "NAPTR",
        39 => "DNAME",
        41 => "OPT",
        43 => "DS",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        50 => "NSEC3",
        52 => "TLSA",
        64 => "SVCB",
        65 => "HTTPS",
        99 => "SPF",
        251 => "IXFR",
        252 => "AXFR",
        255 => "ANY",
        257 => "CAA",
        other => return format!("TYPE{other}"),
    };
    name.to_owned()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(bytes: &[u8]) -> Option<(String, String)> {
        decode(bytes).map(|question| (question.name, question.kind))
    }

    #[test]
    fn a_captured_question_is_read() {
        // dig AAAA kubernetes.default.svc.cluster.local, from the byte after the header, with its OPT record behind.
        let captured = b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x1c\x00\x01\
            \x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00";
        assert_eq!(
            text(captured).unwrap(),
            (
                "kubernetes.default.svc.cluster.local.".to_owned(),
                "AAAA".to_owned()
            )
        );
    }

    #[test]
    fn odd_names_are_escaped_and_case_is_kept() {
        assert_eq!(
            text(b"\x05a.b\\c\x03D \xff\x00\x00\x01\x00\x01").unwrap().0,
            "a\\.b\\\\c.D\\032\\255."
        );
        assert_eq!(
            text(b"\x00\x00\x02\x00\x01").unwrap(),
            (".".to_owned(), "NS".to_owned())
        );
        assert_eq!(text(b"\x00\xff\x00\x00\x01").unwrap().1, "TYPE65280");
    }

    #[test]
    fn loops_truncation_and_overlong_names_are_refused() {
        // A pointer to itself (the question starts at offset 12), and one after a label.
        assert_eq!(decode(b"\xc0\x0c\x00\x01\x00\x01"), None);
        assert_eq!(decode(b"\x01a\xc0\x0c\x00\x01\x00\x01"), None);
        let whole = b"\x03www\x07example\x00\x00\x01\x00\x01";
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length]), None, "{length} bytes");
        }
        let mut long = Vec::new();
        for _ in 0..4 {
            long.push(63);
            long.extend([b'x'; 63]);
        }
        long.extend(b"\x00\x00\x01\x00\x01");
        assert_eq!(decode(&long), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(question) = decode(&bytes) {
                prop_assert!(question.name.ends_with('.'));
            }
        }
    }
}
