//! The lab itself: it works, and leaves nothing behind, however it ends.
//!
//! Needs root. Where that is missing, each test says so and counts as passed: `cargo xtask test` prints the reason.

#![expect(clippy::unwrap_used, reason = "a test's panic names the line")]

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// Two labs at a time would only be slow.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn root() -> bool {
    if !geteuid().is_root() {
        println!("SKIPPED: the lab needs root");
    }
    geteuid().is_root()
}

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The lab's cgroup, if it is still there.
fn cgroup(pid: u32) -> Option<PathBuf> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .map(|root| PathBuf::from(format!("{root}/slicetrace-lab-{pid}")))
        .into_iter()
        .find(|path| path.exists())
}

/// Processes that belong to the lab of `outer` and still run: they carry its cgroup's name in their arguments, or are in it.
fn processes(outer: u32) -> Vec<String> {
    let marker = format!("slicetrace-lab-{outer}");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            path.file_name()?.to_str()?.parse::<u32>().ok()?;
            let arguments = std::fs::read_to_string(path.join("cmdline")).ok()?;
            let cgroup = std::fs::read_to_string(path.join("cgroup")).unwrap_or_default();
            // A process that has ended has no arguments; its parent has only not looked yet.
            (!arguments.is_empty() && (arguments.contains(&marker) || cgroup.contains(&marker)))
                .then(|| format!("{} {}", path.display(), arguments.replace('\0', " ")))
        })
        .collect()
}

/// Waits for what the kernel and the janitor do after the end; panics if something stays.
fn nothing_is_left(outer: u32) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (cgroup, processes) = (cgroup(outer), processes(outer));
        if cgroup.is_none() && processes.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "left behind: {cgroup:?} {processes:?}"
        );
        sleep(Duration::from_millis(50));
    }
}

fn wait(child: &mut Child, patience: Duration) -> Option<i32> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(
            Instant::now() < deadline,
            "the lab does not end within {patience:?}"
        );
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_client_reaches_every_server_from_every_node() {
    let _guard = ONE_AT_A_TIME.lock();
    if !root() {
        return;
    }
    let mut child = lab(&["smoke"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut messages)
        .unwrap();
    assert_eq!(
        wait(&mut child, Duration::from_secs(60)),
        Some(0),
        "{messages}"
    );
    // Three nodes, two kinds of server.
    assert_eq!(messages.matches("5 of 5 answered").count(), 6, "{messages}");
    nothing_is_left(child.id());
}

#[test]
fn nothing_is_left_behind_at_any_moment_it_is_ended() {
    let _guard = ONE_AT_A_TIME.lock();
    if !root() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let demo = [
        "demo",
        "--without-agents",
        "--only",
        "test-b-lag",
        "--out",
        out.path().to_str().unwrap(),
    ];
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        for moment in [2, 10, 30, 60, 100, 200, 400, 700, 1200, 3000] {
            let mut child = lab(&demo)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            sleep(Duration::from_millis(moment));
            kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
            let status = wait(&mut child, Duration::from_secs(10));
            assert!(status != Some(0), "{signal} after {moment} ms: it went on");
            nothing_is_left(child.id());
        }
    }
    // Others on this machine may mount things; none of them may be the lab's.
    for line in mounts().lines().filter(|line| !before.contains(line)) {
        assert!(!line.contains("slicetrace"), "left behind: {line}");
    }
}
