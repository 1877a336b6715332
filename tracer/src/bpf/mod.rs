//! The only place that knows aya: loads the eBPF programs, fills their maps, reads their logs.
//!
//! [`Capture`] is the whole of it: start it, tell it which addresses are the DNS Service's, read [`Event`]s from it, and
//! copy the hops of an attempt that went wrong before the log comes round to them. Reading makes no system calls.

mod addresses;
mod children;
mod decode;
mod error;
#[cfg(feature = "ebpf-log")]
mod lines;
mod load;
mod log;
mod memory;
mod offsets;
mod prerequisites;
mod question;
mod reasons;
mod symbols;
mod types;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use slicetrace_common::{counter, log as logs};

pub use error::Error;
pub use types::Error as TypesError;

use crate::model::Timestamp;
use crate::model::event::{Event, Packet};
use crate::model::record::Lost;
use children::Children;
use decode::{PACKET_WORDS, SOCKET_WORDS};
use log::Log;
use memory::Mapping;
use reasons::Reasons;
use symbols::Symbols;
use types::Types;

/// Nested programs can log a little out of order: how far a scan goes on past the time it was asked for, nanoseconds.
const DISORDER_NS: i64 = 1_000_000;

/// Names of the hooks, in the order of their counters.
const HOOKS: [(&str, u32); 8] = [
    ("cgroup_egress", counter::CGROUP_EGRESS),
    ("cgroup_ingress", counter::CGROUP_INGRESS),
    ("net_dev_queue", counter::NET_DEV_QUEUE),
    ("netif_receive_skb", counter::NETIF_RECEIVE_SKB),
    ("kfree_skb", counter::KFREE_SKB),
    ("sk_error", counter::SK_ERROR),
    ("sock_addr", counter::SOCK_ADDR),
    ("sock_release", counter::SOCK_RELEASE),
];

/// What to capture, and how much memory to spend on it.
#[derive(Clone, Debug)]
pub struct Options {
    /// cgroup2 directory whose sockets are recorded: the mount's root, or a subtree.
    pub cgroup_root: PathBuf,
    /// Record hops and drops only in the namespaces given to [`Capture::scope`].
    pub netns_scope: bool,
    /// UDP ports that carry VXLAN; at most four, further ones are refused.
    pub vxlan_ports: Vec<u16>,
    /// Sizes of the logs.
    pub sizes: Sizes,
}

/// Slots for one CPU in each log; rounded up to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Packets at sockets, 424 bytes each.
    pub sockets: u32,
    /// Packets at devices, 104 bytes each.
    pub hops: u32,
    /// Drops, refusals and socket errors, 104 bytes each.
    pub drops: u32,
}

impl Default for Sizes {
    /// 4,096 packets at sockets, 16,384 hops and 4,096 drops: 3.9 MB for each CPU.
    fn default() -> Self {
        Self {
            sockets: 4096,
            hops: 16384,
            drops: 4096,
        }
    }
}

/// What one [`Capture::read`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Slots that became events.
    pub read: u64,
    /// Slots overwritten before they were read.
    pub overwritten: u64,
    /// Slots that made no sense.
    pub malformed: u64,
}

/// The attached programs and their logs. Dropping it detaches everything.
#[derive(Debug)]
pub struct Capture {
    // Links go before the programs they belong to.
    children: Children,
    ebpf: Ebpf,
    missing: BTreeMap<String, String>,
    positions: Mapping,
    sockets: Log<Mapping>,
    hops: Log<Mapping>,
    drops: Log<Mapping>,
    sets: addresses::Sets,
    reasons: Reasons,
    symbols: Symbols,
    overwritten: u64,
    #[cfg(feature = "ebpf-log")]
    lines: lines::Lines,
}

impl Capture {
    /// Loads and attaches every program. Nothing is recorded before [`Capture::watch`] names an address.
    ///
    /// # Errors
    ///
    /// Missing privileges, type information or cgroup2 mount; an object the kernel refuses; or no hook at all that works.
    /// A single hook that does not is in [`Capture::missing_hooks`].
    pub fn start(options: &Options) -> Result<Self, Error> {
        prerequisites::privilege()?;
        let root = prerequisites::cgroup(&options.cgroup_root)?;
        let types = Types::read(Path::new(types::KERNEL), None)?;
        let cpus = aya::util::nr_cpus().map_err(|(path, source)| Error::Cpus { path, source })?;
        let sizes = load::rounded(options.sizes)?;
        let mut ebpf = load::object(options, sizes, cpus, &types)?;
        let positions = mapping(
            &mut ebpf,
            "POSITIONS",
            cpus * logs::COUNT as usize * size_of::<slicetrace_common::Position>() / 8,
        )?;
        let mut open = |name, which, words, slots: u32| {
            mapping(&mut ebpf, name, cpus * slots as usize * words)
                .map(|records| Log::new(records, which, words, slots, cpus))
        };
        let sockets = open("SOCKETS", logs::SOCKETS, SOCKET_WORDS, sizes.sockets)?;
        let hops = open("HOPS", logs::HOPS, PACKET_WORDS, sizes.hops)?;
        let drops = open("DROPS", logs::DROPS, PACKET_WORDS, sizes.drops)?;
        #[cfg(feature = "ebpf-log")]
        let lines = lines::Lines::open(&mut ebpf);
        let mut symbols = Symbols::new("/proc/kallsyms");
        symbols.refresh();
        let missing = load::attach(&mut ebpf, &root)?;
        let mut capture = Self {
            children: Children::of(&options.cgroup_root),
            ebpf,
            missing,
            positions,
            sockets,
            hops,
            drops,
            sets: addresses::Sets::default(),
            reasons: Reasons::read(&types),
            symbols,
            overwritten: 0,
            #[cfg(feature = "ebpf-log")]
            lines,
        };
        capture.refresh_children()?;
        Ok(capture)
    }

    /// Replaces the set of addresses that count as the DNS Service.
    pub fn watch(&mut self, addresses: &BTreeSet<SocketAddr>) -> Result<(), Error> {
        self.sets.watch(&mut self.ebpf, addresses)
    }

    /// Replaces the set of network namespaces (inodes) that are recorded; without effect unless
    /// [`Options::netns_scope`] is set.
    pub fn scope(&mut self, netns: &BTreeSet<u32>) -> Result<(), Error> {
        self.sets.scope(&mut self.ebpf, netns)
    }

    /// Attaches to first-level children of the cgroup root that are new: until then, what processes there ask for is
    /// seen only as a load balancer on the root left it.
    pub fn refresh_children(&mut self) -> Result<(), Error> {
        let refused = self.children.refresh(&mut self.ebpf)?;
        self.missing.extend(refused);
        Ok(())
    }

    /// Appends what the kernel logged since the last call, by time. `clock_offset_ns` is wall clock − CLOCK_MONOTONIC.
    /// An event that was just being written comes with the next call, though it is older than others of this one.
    pub fn read(&mut self, clock_offset_ns: i64, events: &mut Vec<Event>) -> ReadStats {
        #[cfg(feature = "ebpf-log")]
        self.lines.print();
        let start = events.len();
        let mut stats = ReadStats::default();
        let sockets = self.sockets.drain(&self.positions, |words| {
            let event =
                decode::socket_slot(words).and_then(|slot| decode::socket(&slot, clock_offset_ns));
            match event {
                Some(event) => events.push(event),
                None => stats.malformed += 1,
            }
        });
        let drops = self.drops.drain(&self.positions, |words| {
            let event = decode::packet_slot(words).and_then(|slot| {
                decode::drop(&slot, clock_offset_ns, &self.reasons, &mut self.symbols)
            });
            match event {
                Some(event) => events.push(event),
                None => stats.malformed += 1,
            }
        });
        events[start..].sort_by_key(time);
        stats.read = sockets.read + drops.read - stats.malformed;
        stats.overwritten = sockets.overwritten + drops.overwritten;
        self.overwritten += stats.overwritten;
        stats
    }

    /// Copies the hops of some attempts (client address and txid) since a time out of the log, by time. The flag tells
    /// whether hops of that time were overwritten already.
    pub fn trails(
        &mut self,
        wanted: &HashSet<(SocketAddr, u16)>,
        since: Timestamp,
        clock_offset_ns: i64,
    ) -> (Vec<Packet>, bool) {
        let mut hops = Vec::new();
        let overwritten = self.hops.scan(&self.positions, |words| {
            let Some(slot) = decode::packet_slot(words) else {
                return true;
            };
            let at = decode::time(slot.time, clock_offset_ns);
            if at < since {
                return at + DISORDER_NS >= since;
            }
            if let Some(packet) = decode::packet(&slot, clock_offset_ns)
                && let Some(txid) = packet.txid
                && wanted.contains(&(packet.client(), txid))
            {
                hops.push(packet);
            }
            true
        });
        hops.sort_by_key(|packet| packet.at);
        (hops, overwritten)
    }

    /// Since when every hop can still be read, on every CPU: trails have to be copied before this overtakes them. `None`
    /// while nothing was overwritten.
    pub fn hop_horizon(&mut self, clock_offset_ns: i64) -> Option<Timestamp> {
        let mut horizon = None;
        self.hops.oldest(&self.positions, |words| {
            if let Some(slot) = decode::packet_slot(words) {
                horizon = horizon.max(Some(decode::time(slot.time, clock_offset_ns)));
            }
        });
        horizon
    }

    /// How often each hook saw a packet, a call or a socket of the Service.
    pub fn hooks(&self) -> BTreeMap<String, u64> {
        HOOKS
            .iter()
            .map(|&(name, index)| (name.to_owned(), self.count(index)))
            .collect()
    }

    /// Hooks that could not be attached, and why. A hook of several programs is named by the program.
    pub fn missing_hooks(&self) -> &BTreeMap<String, String> {
        &self.missing
    }

    /// What was lost so far. `overwritten` counts what [`Capture::read`] came too late for.
    pub fn lost(&self) -> Lost {
        Lost {
            overwritten: self.overwritten,
            missed: load::missed(&self.ebpf),
            reserve: self.count(counter::LOST_RESERVE) + self.count(counter::LOST_INSERT),
            unreadable: self.count(counter::LOST_UNREADABLE),
        }
    }

    fn count(&self, index: u32) -> u64 {
        let map: Option<PerCpuArray<&MapData, u64>> = self
            .ebpf
            .map("COUNTERS")
            .and_then(|map| map.try_into().ok());
        map.and_then(|map| map.get(&index, 0).ok())
            .map_or(0, |values| values.iter().sum())
    }
}

/// When an event happened.
fn time(event: &Event) -> Timestamp {
    match event {
        Event::Socket(socket) => socket.packet.at,
        Event::Drop { packet, .. } | Event::Refusal { packet, .. } => packet.at,
        Event::SocketError { at, .. } | Event::Released { at, .. } => *at,
    }
}

fn mapping(ebpf: &mut Ebpf, name: &'static str, words: usize) -> Result<Mapping, Error> {
    use std::os::fd::AsFd as _;
    let Some(aya::maps::Map::Array(array)) = ebpf.map(name) else {
        return Err(Error::NoMap(name));
    };
    Mapping::new(array.fd().as_fd(), words).map_err(|source| Error::Mapping { map: name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_can_move_between_threads() {
        const fn sendable<T: Send>() {}
        const { sendable::<Capture>() };
    }
}
