//! Loads the object and attaches its programs.

use std::collections::BTreeMap;
use std::fs::File;

use aya::programs::{
    BtfTracePoint, CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock, CgroupSockAddr,
    ProgramError,
};
use aya::{Btf, Ebpf, EbpfLoader};
use slicetrace_common::Config;

use super::error::{Error, chain};
use super::offsets;
use super::types::Types;
use super::{Options, Sizes};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/slicetrace-ebpf"));

/// Programs attached to each first-level child of the cgroup root.
pub(super) const ON_CHILDREN: [&str; 4] = [
    "asked_connect4",
    "asked_connect6",
    "asked_sendmsg4",
    "asked_sendmsg6",
];
/// Programs attached to the root itself, after all others.
const ON_ROOT: [&str; 4] = [
    "decided_connect4",
    "decided_connect6",
    "decided_sendmsg4",
    "decided_sendmsg6",
];
/// BTF tracepoints: program, which is the hook's name, and tracepoint.
const TRACEPOINTS: [(&str, &str); 4] = [
    ("net_dev_queue", "net_dev_queue"),
    ("netif_receive_skb", "netif_receive_skb"),
    ("kfree_skb", "kfree_skb"),
    ("sk_error", "inet_sk_error_report"),
];

/// How the lines begin that end a verifier's log and say nothing of what was wrong.
const STATISTICS: [&str; 3] = ["processed ", "stack depth ", "verification time "];

/// [`Config`] as aya wants it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Global(Config);

// SAFETY: `repr(C)`, integers only, explicit padding.
unsafe impl aya::Pod for Global {}

/// Slots of each log for one CPU: powers of two.
pub(super) fn rounded(sizes: Sizes) -> Result<Sizes, Error> {
    let round = |name: &str, slots: u32| {
        slots
            .max(1)
            .checked_next_power_of_two()
            .filter(|&slots| slots <= 1 << 24)
            .ok_or_else(|| {
                Error::Options(format!(
                    "{slots} {name} for each CPU are too many; 16777216 is the most"
                ))
            })
    };
    Ok(Sizes {
        sockets: round("socket slots", sizes.sockets)?,
        hops: round("hop slots", sizes.hops)?,
        drops: round("drop slots", sizes.drops)?,
    })
}

/// Creates the maps; no program runs yet.
pub(super) fn object(
    options: &Options,
    sizes: Sizes,
    cpus: usize,
    types: &Types<'_>,
) -> Result<Ebpf, Error> {
    let mut vxlan_ports = [0; 4];
    if options.vxlan_ports.len() > vxlan_ports.len() {
        return Err(Error::Options(format!(
            "{} VXLAN ports were given; at most {} can be watched",
            options.vxlan_ports.len(),
            vxlan_ports.len()
        )));
    }
    vxlan_ports[..options.vxlan_ports.len()].copy_from_slice(&options.vxlan_ports);
    // skb, location; then the reason; then the socket that was to receive it.
    let drop_parameters = types.tracepoint_parameters("kfree_skb").unwrap_or(0);
    let config = Global(Config {
        offsets: offsets::resolve(types)?,
        socket_slots: sizes.sockets,
        hop_slots: sizes.hops,
        drop_slots: sizes.drops,
        netns_scope: u32::from(options.netns_scope),
        vxlan_ports,
        scratch_reasons: offsets::scratch_reasons(types),
        has_reason: u32::from(drop_parameters >= 3),
        has_rx_sk: u32::from(drop_parameters >= 4),
    });
    let entries = |slots: u32, log: &str| {
        u32::try_from(cpus)
            .ok()
            .and_then(|cpus| cpus.checked_mul(slots))
            .ok_or_else(|| {
                Error::Options(format!(
                    "{slots} slots in {log} for each of {cpus} CPUs are too many"
                ))
            })
    };
    EbpfLoader::new()
        .override_global("CONFIG", &config, true)
        .map_max_entries("SOCKETS", entries(sizes.sockets, "SOCKETS")?)
        .map_max_entries("HOPS", entries(sizes.hops, "HOPS")?)
        .map_max_entries("DROPS", entries(sizes.drops, "DROPS")?)
        .map_max_entries(
            "POSITIONS",
            entries(slicetrace_common::log::COUNT, "POSITIONS")?,
        )
        .load(OBJECT)
        .map_err(|error| Error::Load(chain(&error)))
}

/// Loads and attaches everything but the programs for the children, which are loaded only. Returns the hooks that could
/// not be used, and why.
pub(super) fn attach(ebpf: &mut Ebpf, root: &File) -> Result<BTreeMap<String, String>, Error> {
    let mut missing = BTreeMap::new();
    let mut attached = 0;
    let mut note = |hook: &str, result: Result<(), String>| match result {
        Ok(()) => attached += 1,
        Err(reason) => {
            missing.insert(hook.to_owned(), reason);
        }
    };
    // Where packets are seen comes first; the programs that must run after everybody else's come last.
    match Btf::from_sys_fs() {
        Ok(btf) => {
            for (name, tracepoint) in TRACEPOINTS {
                note(name, trace(ebpf, name, tracepoint, &btf));
            }
        }
        Err(error) => {
            for (name, _) in TRACEPOINTS {
                note(name, Err(error.to_string()));
            }
        }
    }
    for (name, direction) in [
        ("cgroup_egress", CgroupSkbAttachType::Egress),
        ("cgroup_ingress", CgroupSkbAttachType::Ingress),
    ] {
        note(name, packets(ebpf, name, direction, root));
    }
    note("sock_release", release(ebpf, root));
    for name in ON_CHILDREN {
        note(name, loaded(ebpf, name).map(drop));
    }
    for name in ON_ROOT {
        note(name, decided(ebpf, name, root));
    }
    if attached == 0 {
        let first = missing.into_values().next().unwrap_or_default();
        return Err(Error::Nothing(first));
    }
    Ok(missing)
}

fn trace(ebpf: &mut Ebpf, name: &str, tracepoint: &str, btf: &Btf) -> Result<(), String> {
    let program: &mut BtfTracePoint = program(ebpf, name)?;
    program.load(tracepoint, btf).map_err(|e| reason(&e))?;
    program.attach().map_err(|e| reason(&e))?;
    Ok(())
}

fn packets(
    ebpf: &mut Ebpf,
    name: &str,
    direction: CgroupSkbAttachType,
    root: &File,
) -> Result<(), String> {
    let program: &mut CgroupSkb = program(ebpf, name)?;
    program.load().map_err(|e| reason(&e))?;
    // Links on cgroups are shared with other programs whatever the mode; any other mode is refused for links.
    program
        .attach(root, direction, CgroupAttachMode::Single)
        .map_err(|e| reason(&e))?;
    Ok(())
}

fn release(ebpf: &mut Ebpf, root: &File) -> Result<(), String> {
    let program: &mut CgroupSock = program(ebpf, "sock_release")?;
    program.load().map_err(|e| reason(&e))?;
    program
        .attach(root, CgroupAttachMode::Single)
        .map_err(|e| reason(&e))?;
    Ok(())
}

fn decided(ebpf: &mut Ebpf, name: &str, root: &File) -> Result<(), String> {
    loaded(ebpf, name)?
        .attach(root, CgroupAttachMode::Single)
        .map_err(|e| reason(&e))?;
    Ok(())
}

fn loaded<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut CgroupSockAddr, String> {
    let program: &mut CgroupSockAddr = program(ebpf, name)?;
    program.load().map_err(|e| reason(&e))?;
    Ok(program)
}

/// A program of the object by name and type.
pub(super) fn program<'e, P>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut P, String>
where
    &'e mut P: TryFrom<&'e mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or_else(|| format!("the eBPF object has no program {name}; rebuild slicetrace"))?
        .try_into()
        .map_err(|error: ProgramError| error.to_string())
}

/// An error in one line: of a verifier's log, its last words.
pub(super) fn reason(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            let said = log
                .lines()
                .rev()
                .map(str::trim)
                .find(|line| !line.is_empty() && !STATISTICS.iter().any(|s| line.starts_with(s)))
                .unwrap_or("nothing");
            format!("the kernel refused the program: {io_error}; its verifier said: {said}")
        }
        other => chain(other),
    }
}

/// How often the kernel skipped a program because it would have interrupted itself. Read from the programs'
/// descriptors (`recursion_misses` in fdinfo, since Linux 5.12).
pub(super) fn missed(ebpf: &Ebpf) -> u64 {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    let of = |program: &aya::programs::Program| {
        let descriptor = program.fd().ok()?.as_fd().as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("recursion_misses:"))?
            .trim()
            .parse::<u64>()
            .ok()
    };
    ebpf.programs().filter_map(|(_, program)| of(program)).sum()
}
