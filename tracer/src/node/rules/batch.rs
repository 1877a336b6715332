//! From nftables notifications to "this commit added and removed rules that name these addresses".
//!
//! The kernel announces every object of a transaction after it has taken effect and closes the list with one
//! `NFT_MSG_NEWGEN` that names the committer (net/netfilter/nf_tables_api.c: `nft_commit_notify`,
//! `nf_tables_gen_notify`). Removed rules are announced with their expressions, just as added ones are.
//!
//! An address is looked for only where an address can stand, because four bytes are found by chance in comments,
//! counters, marks and handles, and an invented "the rules changed" would turn into a wrong verdict:
//!
//! - a `nat` expression, through the registers that `immediate` expressions filled before it (nft, kube-proxy in
//!   nftables mode);
//! - the blob of an xtables target `DNAT`/`SNAT`/`NETMAP` (iptables-nft);
//! - a `cmp` whose register was loaded from the network header or from a conntrack tuple's address (`-s`, `-d`);
//! - key and data of set elements (`dnat to … map`). Their type is only in the set's definition, so every aligned
//!   word of them counts: a set of marks that equal a pod's address is not expected.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::attributes::{Malformed, Message, attributes, be32, find, name};

/// How many rules or set elements a commit added and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) added: u32,
    pub(super) removed: u32,
}

/// A commit with every address it touched, watched or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commit {
    /// Process that committed; empty if the kernel did not say.
    pub(super) committer: String,
    pub(super) touched: HashMap<IpAddr, Touched>,
    /// Messages of it that could not be read.
    pub(super) malformed: u32,
}

/// Messages of a transaction that is still being announced.
#[derive(Debug, Default)]
pub(super) struct Batch {
    commit: Commit,
    /// A part of this transaction's messages was lost: what is left could say "removed" where it was replaced.
    torn: bool,
    /// Elements of anonymous sets. These vanish with the rule that uses them, and only the set's name is announced.
    anonymous: HashMap<SetName, Vec<Vec<IpAddr>>>,
}

/// Family, table and set.
type SetName = (u8, String, String);

/// More anonymous sets than this are not remembered; their removal then goes unseen.
const ANONYMOUS_SETS: usize = 4096;

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const SUBSYSTEM: u16 = 10;
pub(super) const MSG_NEWTABLE: u16 = 0;
pub(super) const MSG_GETTABLE: u16 = 1;
pub(super) const MSG_NEWCHAIN: u16 = 3;
pub(super) const MSG_GETCHAIN: u16 = 4;
const MSG_NEWRULE: u16 = 6;
const MSG_DELRULE: u16 = 8;
const MSG_DELSET: u16 = 11;
const MSG_NEWSETELEM: u16 = 12;
const MSG_DELSETELEM: u16 = 14;
const MSG_NEWGEN: u16 = 15;

/// `struct nfgenmsg`: family, version, resource id.
const GENERAL_HEADER: usize = 4;

const LIST_ELEM: u16 = 1;
const RULE_EXPRESSIONS: u16 = 4;
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const ELEM_LIST_TABLE: u16 = 1;
const ELEM_LIST_SET: u16 = 2;
const ELEM_LIST_ELEMENTS: u16 = 3;
const ELEM_KEY: u16 = 1;
const ELEM_DATA: u16 = 2;
const ELEM_KEY_END: u16 = 10;
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const GEN_PROC_NAME: u16 = 3;

/// What a message brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// More of a transaction, or nothing of interest.
    Part,
    /// The end of a transaction.
    Commit(Commit),
    /// The end of a transaction that was not heard whole.
    Torn,
}

impl Batch {
    /// Takes one message.
    pub(super) fn take(&mut self, message: Message<'_>) -> Taken {
        if message.kind >> 8 != SUBSYSTEM {
            return Taken::Part;
        }
        let Some((general, body)) = message.payload.split_at_checked(GENERAL_HEADER) else {
            self.commit.malformed += 1;
            return Taken::Part;
        };
        let kind = message.kind & 0xff;
        if kind == MSG_NEWGEN {
            let mut commit = std::mem::take(&mut self.commit);
            commit.committer = find(body, GEN_PROC_NAME)
                .ok()
                .flatten()
                .map(name)
                .unwrap_or_default();
            return if std::mem::take(&mut self.torn) {
                Taken::Torn
            } else {
                Taken::Commit(commit)
            };
        }
        if self.object(kind, general[0], body).is_err() {
            self.commit.malformed += 1;
        }
        Taken::Part
    }

    /// Says that messages of this transaction may have been lost.
    pub(super) fn tear(&mut self) {
        self.torn = true;
        self.commit = Commit::default();
    }

    /// Forgets a transaction whose end was lost.
    pub(super) fn begin(&mut self) {
        self.torn = false;
        self.commit = Commit::default();
    }

    /// Counts a message that could not even be told from its neighbours.
    pub(super) fn malformed(&mut self) {
        self.commit.malformed += 1;
    }

    fn object(&mut self, kind: u16, family: u8, body: &[u8]) -> Result<(), Malformed> {
        match kind {
            MSG_NEWRULE | MSG_DELRULE => {
                if let Some(expressions) = find(body, RULE_EXPRESSIONS)? {
                    let named = rule_addresses(expressions, family)?;
                    self.count(&named, kind == MSG_NEWRULE);
                }
            }
            MSG_NEWSETELEM | MSG_DELSETELEM => {
                let Some(elements) = find(body, ELEM_LIST_ELEMENTS)? else {
                    return Ok(());
                };
                let set = set_name(family, body, ELEM_LIST_TABLE, ELEM_LIST_SET)?;
                for element in attributes(elements) {
                    let (_, element) = element?;
                    let named = element_addresses(element)?;
                    self.count(&named, kind == MSG_NEWSETELEM);
                    if kind == MSG_NEWSETELEM
                        && let Some(set) = set.as_ref().filter(|set| is_anonymous(set))
                        && (self.anonymous.len() < ANONYMOUS_SETS
                            || self.anonymous.contains_key(set))
                    {
                        self.anonymous.entry(set.clone()).or_default().push(named);
                    }
                }
            }
            MSG_DELSET => {
                if let Some(set) = set_name(family, body, SET_TABLE, SET_NAME)?
                    && let Some(elements) = self.anonymous.remove(&set)
                {
                    for named in elements {
                        self.count(&named, false);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, named: &[IpAddr], added: bool) {
        for address in named {
            let touched = self.commit.touched.entry(*address).or_default();
            if added {
                touched.added += 1;
            } else {
                touched.removed += 1;
            }
        }
    }
}

fn set_name(family: u8, body: &[u8], table: u16, set: u16) -> Result<Option<SetName>, Malformed> {
    Ok(find(body, table)?
        .zip(find(body, set)?)
        .map(|(table, set)| (family, name(table), name(set))))
}

/// The kernel numbers these from the templates `__set%d` and `__map%d` that nft sends.
fn is_anonymous((_, _, set): &SetName) -> bool {
    set.starts_with("__")
}

/// Every address an element could hold: its aligned words, and its aligned 16 bytes for IPv6.
fn element_addresses(element: &[u8]) -> Result<Vec<IpAddr>, Malformed> {
    let mut named = Vec::new();
    for attribute in attributes(element) {
        let (kind, nested) = attribute?;
        if !matches!(kind, ELEM_KEY | ELEM_DATA | ELEM_KEY_END) {
            continue;
        }
        // A verdict (a map's data) has no value.
        if let Some(value) = find(nested, DATA_VALUE)? {
            words(value, &mut named);
        }
    }
    Ok(distinct(named))
}

fn words(value: &[u8], named: &mut Vec<IpAddr>) {
    for at in (0..value.len()).step_by(4) {
        if let Some(word) = value[at..].first_chunk::<4>() {
            named.push(Ipv4Addr::from(*word).into());
        }
        if let Some(words) = value[at..].first_chunk::<16>() {
            named.push(Ipv6Addr::from(*words).into());
        }
    }
}

fn distinct(mut named: Vec<IpAddr>) -> Vec<IpAddr> {
    named.sort_unstable();
    named.dedup();
    named
}

/// What an expression put into a register.
enum Loaded<'a> {
    Value(&'a [u8]),
    /// An address of the packet or of its conntrack tuple.
    PacketAddress,
}

/// The addresses a rule names.
fn rule_addresses(expressions: &[u8], family: u8) -> Result<Vec<IpAddr>, Malformed> {
    let mut registers = HashMap::new();
    let mut named = Vec::new();
    for element in attributes(expressions) {
        let (kind, expression) = element?;
        if kind != LIST_ELEM {
            continue;
        }
        let (Some(called), Some(data)) =
            (find(expression, EXPR_NAME)?, find(expression, EXPR_DATA)?)
        else {
            continue;
        };
        match name(called).as_str() {
            "immediate" => immediate(data, &mut registers)?,
            "payload" => payload(data, &mut registers)?,
            "ct" => conntrack(data, &mut registers)?,
            "bitwise" => bitwise(data, &mut registers)?,
            "cmp" => compare(data, &registers, &mut named)?,
            "nat" => nat(data, &registers, &mut named)?,
            "target" => target(data, family, &mut named)?,
            // Anything else that loads a register (meta, fib, numgen, …) loads no address.
            _ => {
                if let Some(register) = find(data, 1)?.and_then(be32) {
                    registers.remove(&register);
                }
            }
        }
    }
    Ok(distinct(named))
}

type Registers<'a> = HashMap<u32, Loaded<'a>>;

/// `NFTA_IMMEDIATE_DREG`, `NFTA_IMMEDIATE_DATA`.
fn immediate<'a>(data: &'a [u8], registers: &mut Registers<'a>) -> Result<(), Malformed> {
    if let Some(register) = find(data, 1)?.and_then(be32)
        && let Some(nested) = find(data, 2)?
        && let Some(value) = find(nested, DATA_VALUE)?
    {
        registers.insert(register, Loaded::Value(value));
    }
    Ok(())
}

/// `NFTA_PAYLOAD_DREG`, `NFTA_PAYLOAD_BASE` (1: network header).
fn payload(data: &[u8], registers: &mut Registers<'_>) -> Result<(), Malformed> {
    if let Some(register) = find(data, 1)?.and_then(be32) {
        if find(data, 2)?.and_then(be32) == Some(1) {
            registers.insert(register, Loaded::PacketAddress);
        } else {
            registers.remove(&register);
        }
    }
    Ok(())
}

/// `NFTA_CT_DREG`, `NFTA_CT_KEY` (8, 9: source and destination; 19 to 22: those of one family).
fn conntrack(data: &[u8], registers: &mut Registers<'_>) -> Result<(), Malformed> {
    if let Some(register) = find(data, 1)?.and_then(be32) {
        if matches!(find(data, 2)?.and_then(be32), Some(8 | 9 | 19..=22)) {
            registers.insert(register, Loaded::PacketAddress);
        } else {
            registers.remove(&register);
        }
    }
    Ok(())
}

/// `NFTA_BITWISE_SREG`, `NFTA_BITWISE_DREG`: a masked address is still one (`-d 10.0.0.0/8` then compares a network,
/// which equals no endpoint's address).
fn bitwise(data: &[u8], registers: &mut Registers<'_>) -> Result<(), Malformed> {
    if let Some(source) = find(data, 1)?.and_then(be32)
        && let Some(destination) = find(data, 2)?.and_then(be32)
    {
        if matches!(registers.get(&source), Some(Loaded::PacketAddress)) {
            registers.insert(destination, Loaded::PacketAddress);
        } else {
            registers.remove(&destination);
        }
    }
    Ok(())
}

/// `NFTA_CMP_SREG`, `NFTA_CMP_DATA`.
fn compare(
    data: &[u8],
    registers: &Registers<'_>,
    named: &mut Vec<IpAddr>,
) -> Result<(), Malformed> {
    if let Some(register) = find(data, 1)?.and_then(be32)
        && matches!(registers.get(&register), Some(Loaded::PacketAddress))
        && let Some(nested) = find(data, 3)?
        && let Some(value) = find(nested, DATA_VALUE)?
    {
        words(value, named);
    }
    Ok(())
}

/// `NFTA_NAT_REG_ADDR_MIN`, `NFTA_NAT_REG_ADDR_MAX`.
fn nat(data: &[u8], registers: &Registers<'_>, named: &mut Vec<IpAddr>) -> Result<(), Malformed> {
    for attribute in [3, 4] {
        if let Some(register) = find(data, attribute)?.and_then(be32)
            && let Some(Loaded::Value(value)) = registers.get(&register)
        {
            words(value, named);
        }
    }
    Ok(())
}

/// `NFTA_TARGET_NAME`, `NFTA_TARGET_REV`, `NFTA_TARGET_INFO`. Revision 0 holds `nf_nat_ipv4_multi_range_compat`, later
/// ones `nf_nat_range` or `nf_nat_range2`, which begin alike (include/uapi/linux/netfilter/nf_nat.h).
fn target(data: &[u8], family: u8, named: &mut Vec<IpAddr>) -> Result<(), Malformed> {
    let (Some(called), Some(info)) = (find(data, 1)?, find(data, 3)?) else {
        return Ok(());
    };
    let called = name(called);
    if !matches!(called.as_str(), "DNAT" | "SNAT" | "NETMAP") {
        return Ok(());
    }
    let revision = find(data, 2)?.and_then(be32).unwrap_or(0);
    let ipv6 = i32::from(family) == libc::NFPROTO_IPV6;
    // IPv6 never had the compatible layout.
    let (first, size) = if revision == 0 && !ipv6 {
        (8, 4)
    } else {
        (4, 16)
    };
    for at in [first, first + size] {
        let Some(address) = info.get(at..) else {
            return Err(Malformed);
        };
        if ipv6 {
            let bytes = address.first_chunk::<16>().ok_or(Malformed)?;
            named.push(Ipv6Addr::from(*bytes).into());
        } else {
            let bytes = address.first_chunk::<4>().ok_or(Malformed)?;
            named.push(Ipv4Addr::from(*bytes).into());
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
