//! The maps, the configuration, and the counters.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
};
use slicetrace_common::{Asked, Config, Offsets, Packet, Position, Socket, Watched};

use crate::atomic::fetch_add;

/// `BPF_F_MMAPABLE` (include/uapi/linux/bpf.h): user space reads these arrays without system calls.
const MMAPABLE: u32 = 1 << 10;

// User space sizes the logs (slots for each possible CPU) before loading.
#[map]
pub static SOCKETS: Array<Socket> = Array::with_max_entries(1, MMAPABLE);
#[map]
pub static HOPS: Array<Packet> = Array::with_max_entries(1, MMAPABLE);
#[map]
pub static DROPS: Array<Packet> = Array::with_max_entries(1, MMAPABLE);
#[map]
pub static POSITIONS: Array<Position> = Array::with_max_entries(1, MMAPABLE);

#[map]
static COUNTERS: PerCpuArray<u64> =
    PerCpuArray::with_max_entries(slicetrace_common::counter::COUNT, 0);

/// Bit `port % 64` of word `port / 64`: the port is watched on some address.
#[map]
pub static PORTS: Array<u64> = Array::with_max_entries(1024, 0);
/// Addresses that count as the DNS Service; the value is not used.
#[map]
pub static ADDRESSES: HashMap<Watched, u32> = HashMap::with_max_entries(16384, 0);
/// Inodes of the network namespaces in scope; the value is not used.
#[map]
pub static NETNS: HashMap<u32, u8> = HashMap::with_max_entries(4096, 0);
/// What each client socket asked for, by socket cookie.
#[map]
pub static ASKED: LruHashMap<u64, Asked> = LruHashMap::with_max_entries(65536, 0);

/// Filled by user space before loading, so that the verifier sees constants.
#[unsafe(no_mangle)]
pub static CONFIG: Config = Config {
    offsets: Offsets {
        skb_head: 0,
        skb_data: 0,
        skb_tail: 0,
        skb_network_header: 0,
        skb_protocol: 0,
        skb_dev: 0,
        skb_sk: 0,
        skb_nfct: 0,
        dev_ifindex: 0,
        dev_name: 0,
        dev_net: 0,
        net_inum: 0,
        sk_net: 0,
        sk_family: 0,
        sk_num: 0,
        sk_dport: 0,
        sk_rcv_saddr: 0,
        sk_daddr: 0,
        sk_v6_rcv_saddr: 0,
        sk_v6_daddr: 0,
        sk_err: 0,
        sk_protocol: 0,
        task_tgid: 0,
        task_comm: 0,
        nf_conn_status: 0,
        pad: 0,
    },
    socket_slots: 0,
    hop_slots: 0,
    drop_slots: 0,
    netns_scope: 0,
    vxlan_ports: [0; 4],
    scratch_reasons: [0; slicetrace_common::SCRATCH_REASONS],
    has_reason: 0,
    has_rx_sk: 0,
};

/// Reads a member of [`CONFIG`].
macro_rules! config {
    ($($member:tt)+) => {
        $crate::maps::constant(&$crate::maps::CONFIG.$($member)+)
    };
}
pub(crate) use config;

/// Reads what only the loader knows: volatile, so that the zero in this file is not taken for the value.
#[inline(always)]
pub fn constant<T: Copy>(value: &'static T) -> T {
    // SAFETY: a reference is valid.
    unsafe { core::ptr::read_volatile(value) }
}

/// Adds one to a counter of this CPU; atomically, because cgroup programs can interrupt each other.
#[inline(always)]
pub fn count(index: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(index) {
        // SAFETY: the map hands out a valid, aligned u64.
        unsafe { fetch_add(counter) };
    }
}
