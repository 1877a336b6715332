//! Netlink messages and attributes, no more of them than rule notifications need.
//!
//! Layouts: include/uapi/linux/netlink.h (`nlmsghdr`, `nlattr`: host byte order, padded to four bytes),
//! include/uapi/linux/netfilter/nfnetlink.h (`nfgenmsg`). Numbers *inside* nftables attributes are big-endian.

/// One netlink message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// `nlmsg_type`.
    pub(super) kind: u16,
    /// What follows the header.
    pub(super) payload: &'a [u8],
}

/// The bytes are not what their length fields say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a length field points outside the netlink message")]
pub(super) struct Malformed;

const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// `NLA_TYPE_MASK`: without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;

/// Splits off the first `length` bytes and the padding after them (which the last one may lack).
fn split(bytes: &[u8], length: usize, least: usize) -> Result<(&[u8], &[u8]), Malformed> {
    if length < least || length > bytes.len() {
        return Err(Malformed);
    }
    let next = length.next_multiple_of(4).min(bytes.len());
    Ok((&bytes[..length], &bytes[next..]))
}

/// The messages of one datagram. Ends after the first malformed one.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Malformed>> {
    let mut rest = Some(datagram);
    std::iter::from_fn(move || {
        let bytes = rest.take().filter(|bytes| !bytes.is_empty())?;
        Some((|| {
            let header: &[u8; MESSAGE_HEADER] = bytes.first_chunk().ok_or(Malformed)?;
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            let (message, next) = split(bytes, length, MESSAGE_HEADER)?;
            rest = Some(next);
            Ok(Message {
                kind: u16::from_ne_bytes([header[4], header[5]]),
                payload: &message[MESSAGE_HEADER..],
            })
        })())
    })
}

/// The attributes in `bytes`, as type and payload. Ends after the first malformed one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let bytes = rest.take().filter(|bytes| !bytes.is_empty())?;
        Some((|| {
            let header: &[u8; ATTRIBUTE_HEADER] = bytes.first_chunk().ok_or(Malformed)?;
            let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            let (attribute, next) = split(bytes, length, ATTRIBUTE_HEADER)?;
            rest = Some(next);
            Ok((
                u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK,
                &attribute[ATTRIBUTE_HEADER..],
            ))
        })())
    })
}

/// The first attribute of a type.
pub(super) fn find(bytes: &[u8], wanted: u16) -> Result<Option<&[u8]>, Malformed> {
    for attribute in attributes(bytes) {
        let (kind, payload) = attribute?;
        if kind == wanted {
            return Ok(Some(payload));
        }
    }
    Ok(None)
}

/// A big-endian number.
pub(super) fn be32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_be_bytes)
}

/// A NUL-terminated name.
pub(super) fn name(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
pub(super) mod build {
    //! Writes what the parent module reads.

    #![expect(clippy::unwrap_used, reason = "tests")]

    /// One attribute with its padding.
    pub(in super::super) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len() + super::ATTRIBUTE_HEADER).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// One message with its padding.
    pub(in super::super) fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len() + super::MESSAGE_HEADER).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.resize(super::MESSAGE_HEADER, 0);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::build::{attribute, message};
    use super::*;

    #[test]
    fn messages_and_attributes_are_split_at_their_padding() {
        let body = [attribute(1, b"abc"), attribute(2 | 0x8000, b"defgh")].concat();
        let datagram = [message(7, &body), message(8, b"x")].concat();
        let read: Vec<_> = messages(&datagram).map(Result::unwrap).collect();
        assert_eq!(read[0].kind, 7);
        assert_eq!(
            attributes(read[0].payload).collect::<Vec<_>>(),
            [Ok((1, &b"abc"[..])), Ok((2, &b"defgh"[..]))]
        );
        assert_eq!((read[1].kind, read[1].payload), (8, &b"x"[..]));
    }

    #[test]
    fn lengths_that_point_outside_end_the_reading() {
        let mut lying = attribute(1, b"abc");
        lying[0] = 200;
        assert_eq!(attributes(&lying).collect::<Vec<_>>(), [Err(Malformed)]);
        // A length of zero would otherwise be read for ever.
        assert_eq!(attributes(&[0; 8]).collect::<Vec<_>>(), [Err(Malformed)]);
        assert_eq!(messages(&[0; 20]).collect::<Vec<_>>(), [Err(Malformed)]);
        assert_eq!(attributes(&[9]).collect::<Vec<_>>(), [Err(Malformed)]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            assert!(messages(&bytes).count() <= bytes.len());
            assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
