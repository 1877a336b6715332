//! What the tests of capturing share.

#![expect(clippy::unwrap_used, reason = "a test stops where something is wrong")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses its part"
)]

use std::fs;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slicetrace::bpf::{Capture, Error, Options, Sizes};
use slicetrace::model::event::{Event, SocketPacket};
use slicetrace::node::cgroups;

/// Transaction id of [`query`].
pub(crate) const TXID: u16 = 0x1267;

/// A cgroup to stand for the root, with one child that this process sits in; both go with the value.
pub(crate) struct Cgroup {
    /// What stands for the cgroup root.
    pub(crate) root: PathBuf,
    before: PathBuf,
}

impl Cgroup {
    /// `None`, with the reason printed, where there can be none.
    pub(crate) fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED: loading eBPF programs needs root");
            return None;
        }
        let mount = match cgroups::mount() {
            Ok(mount) => mount,
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let before = mount.join(own);
        let root = mount.join(format!("slicetrace-test-{}", std::process::id()));
        if let Err(error) = fs::create_dir_all(root.join("pod")) {
            println!("SKIPPED: cannot make a cgroup: {error}");
            return None;
        }
        let cgroup = Self { root, before };
        enter(&cgroup.root.join("pod"));
        Some(cgroup)
    }

    /// cgroup id of the child.
    pub(crate) fn id(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(self.root.join("pod")).unwrap().ino()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        enter(&self.before);
        for directory in [self.root.join("pod"), self.root.clone()] {
            if let Err(error) = fs::remove_dir(&directory) {
                eprintln!("{} is left behind: {error}", directory.display());
            }
        }
    }
}

fn enter(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
}

/// Wall clock − CLOCK_MONOTONIC.
pub(crate) fn clock_offset_ns() -> i64 {
    let mono = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(wall.as_nanos()).unwrap() - (mono.tv_sec() * 1_000_000_000 + mono.tv_nsec())
}

/// Inode of this process's network namespace.
pub(crate) fn own_netns() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    u32::try_from(fs::metadata("/proc/self/ns/net").unwrap().ino()).unwrap()
}

/// Cookie of a socket.
pub(crate) fn cookie(socket: &UdpSocket) -> u64 {
    let mut value = 0_u64;
    let mut length = 8;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    value
}

/// `www.example. A`, with an OPT record behind the question as most resolvers send it.
pub(crate) fn query() -> Vec<u8> {
    let mut bytes = TXID.to_be_bytes().to_vec();
    bytes.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 1]);
    bytes.extend(b"\x03www\x07example\x00\x00\x01\x00\x01");
    bytes.extend(b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00");
    bytes
}

/// Starts capturing under `cgroup`; `None`, with the reason printed, where this machine cannot.
pub(crate) fn start(cgroup: &Cgroup) -> Option<Capture> {
    start_with(cgroup, Sizes::default())
}

/// The same with logs of another size.
pub(crate) fn start_with(cgroup: &Cgroup, sizes: Sizes) -> Option<Capture> {
    let options = Options {
        cgroup_root: cgroup.root.clone(),
        netns_scope: false,
        vxlan_ports: vec![8472],
        sizes,
    };
    let began = Instant::now();
    match Capture::start(&options) {
        Ok(capture) => {
            println!("attached in {:?}", began.elapsed());
            assert_eq!(capture.missing_hooks(), &Default::default());
            Some(capture)
        }
        Err(error @ (Error::Privilege { .. } | Error::Types(_))) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads until `done` says that everything is there, for two seconds at most.
pub(crate) fn read_until(
    capture: &mut Capture,
    events: &mut Vec<Event>,
    done: impl Fn(&[Event]) -> bool,
) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !done(events) {
        assert!(Instant::now() < deadline, "not all of it came: {events:#?}");
        let stats = capture.read(clock_offset_ns(), events);
        assert_eq!((stats.overwritten, stats.malformed), (0, 0));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Those events that are packets at sockets.
pub(crate) fn packets(events: &[Event]) -> impl Iterator<Item = &SocketPacket> {
    events.iter().filter_map(|event| match event {
        Event::Socket(socket) => Some(socket),
        _ => None,
    })
}
