//! The only place that knows aya: loads the eBPF programs, fills their maps, reads their logs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::model::Timestamp;
use crate::model::event::{Event, Packet};
use crate::model::record::Lost;

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
    /// 16,384 hops, 4,096 packets at sockets and 4,096 drops: 3.8 MB for each CPU.
    fn default() -> Self {
        Self { sockets: 4096, hops: 16384, drops: 4096 }
    }
}

/// Why capturing could not start, or a map could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("not built yet")]
pub struct Error;

/// What one [`Capture::read`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Slots that became events.
    pub read: u64,
    /// Slots overwritten before they were read.
    pub overwritten: u64,
    /// Slots that did not make sense.
    pub malformed: u64,
}

/// The attached programs and their logs. Dropping it detaches everything.
#[derive(Debug)]
pub struct Capture {
    missing: BTreeMap<String, String>,
}

#[expect(clippy::unimplemented, unused_variables, reason = "signatures first")]
impl Capture {
    /// Loads and attaches every program.
    pub fn start(options: &Options) -> Result<Self, Error> {
        unimplemented!()
    }
    /// Replaces the set of addresses that count as the DNS Service.
    pub fn watch(&mut self, addresses: &BTreeSet<SocketAddr>) -> Result<(), Error> {
        unimplemented!()
    }
    /// Replaces the set of network namespaces (inodes) that are recorded.
    pub fn scope(&mut self, netns: &BTreeSet<u32>) -> Result<(), Error> {
        unimplemented!()
    }
    /// Attaches to first-level children of the cgroup root that are new.
    pub fn refresh_children(&mut self) -> Result<(), Error> {
        unimplemented!()
    }
    /// Appends what the kernel logged since the last call, by time.
    pub fn read(&mut self, clock_offset_ns: i64, events: &mut Vec<Event>) -> ReadStats {
        unimplemented!()
    }
    /// Copies the hops of some attempts (client address and txid) out of the log, by time; true: slots of that time were
    /// overwritten.
    pub fn trails(
        &mut self,
        wanted: &HashSet<(SocketAddr, u16)>,
        since: Timestamp,
        clock_offset_ns: i64,
    ) -> (Vec<Packet>, bool) {
        unimplemented!()
    }
    /// Time of the oldest hop that can still be read on every CPU; `None` while nothing was overwritten.
    pub fn hop_horizon(&mut self, clock_offset_ns: i64) -> Option<Timestamp> {
        unimplemented!()
    }
    /// How often each hook saw a packet of the Service.
    pub fn hooks(&self) -> BTreeMap<String, u64> {
        unimplemented!()
    }
    /// Hooks that could not be attached, and why.
    pub fn missing_hooks(&self) -> &BTreeMap<String, String> {
        &self.missing
    }
    /// What was lost so far.
    pub fn lost(&self) -> Lost {
        unimplemented!()
    }
}
