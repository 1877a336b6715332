//! The process outside: it starts the lab as pid 1 of a PID and mount namespace of its own, waits, and cleans up.
//!
//! ```text
//! lab demo ──┬── lab janitor      outside; removes the cgroups once the others are gone, however they went
//!            └── lab inner        pid 1 of the lab: every namespace, mount and process of the lab hangs on it
//! ```
//! When pid 1 ends the kernel kills the rest of its namespace (pid_namespaces(7)), and with it go the mounts, the named
//! network namespaces and the eBPF programs, which are held by nothing else. `PR_SET_PDEATHSIG` ends pid 1 with us. Only
//! cgroups outlive their processes: the janitor sees the end of a pipe that all others held and removes them.
//!
//! `--keep` puts this whole process into the background: see [`keep`].

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, setsid};

use super::{cgroup, exec};

/// How long the lab may take to drain after a signal.
const DRAIN: Duration = Duration::from_secs(4);

/// What the standard input of the lab's first process is: a socket whose other end is held by whoever started the lab.
pub(crate) enum Starter {
    /// Us. End of file says that we are gone.
    This,
    /// The process that started us, through our own standard input.
    Parent,
}

/// Runs `lab inner ARGUMENTS` as pid 1 of a fresh lab to its end.
///
/// Must be called on the main thread of a process without others: the death signal hangs on the thread, and a process
/// with a pending PID namespace cannot have new threads.
pub(crate) fn run(arguments: &[String], starter: Starter) -> Result<ExitCode> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "the lab makes network namespaces and needs root: try `sudo`"
    );
    cgroup::remove_stale()?;
    let signals = watched_signals()?;
    let subtree = cgroup::subtree(std::process::id())?;
    // The janitor first: from here on somebody cleans up, even if we are killed on the next line.
    let (mut janitor, pipe) = janitor(&subtree)?;
    cgroup::make(&subtree)?;
    let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
    let stdin = match starter {
        Starter::This => Stdio::from(OwnedFd::from(theirs)),
        Starter::Parent => Stdio::inherit(),
    };
    let status = inner(arguments, &subtree, stdin).and_then(|mut child| wait(&mut child, &signals));
    drop(ours);
    drop(pipe);
    let cleaned = janitor.wait().context("the janitor is gone")?;
    anyhow::ensure!(
        cleaned.success(),
        "the lab's cgroup {} could not be removed",
        subtree.display()
    );
    status.map(ExitCode::from)
}

/// SIGINT, SIGTERM, SIGHUP and SIGCHLD, blocked and readable as a descriptor.
fn watched_signals() -> Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        set.add(signal);
    }
    set.thread_block().context("cannot block signals")?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("cannot make a signalfd")
}

/// Starts the janitor; it works when the returned pipe end is closed, by us or by our death.
fn janitor(subtree: &Path) -> Result<(Child, impl Sized + use<>)> {
    let mut command = this_program()?;
    command
        .arg("janitor")
        .arg(subtree)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    // SAFETY: only setsid is called between fork and exec. Its own session keeps a terminal's Ctrl-C away from it.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start the janitor")?;
    let pipe = child.stdin.take();
    Ok((child, pipe))
}

/// What `lab janitor DIR` does.
pub(crate) fn clean_up(subtree: &Path) -> Result<()> {
    let mut ignored = SigSet::empty();
    ignored.add(Signal::SIGINT);
    ignored.add(Signal::SIGTERM);
    ignored.add(Signal::SIGHUP);
    ignored.thread_block()?;
    // Nobody writes: this returns when the last holder of the other end has gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    cgroup::remove(subtree, Duration::from_secs(20))
}

fn this_program() -> Result<Command> {
    let path = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(Command::new(path))
}

/// Starts pid 1 of the lab: new PID and mount namespace, private propagation, own `/proc` and `/run`.
fn inner(arguments: &[String], subtree: &Path, stdin: Stdio) -> Result<Child> {
    let home = subtree.join("lab");
    cgroup::make(&home)?;
    let members = std::fs::OpenOptions::new()
        .write(true)
        .open(home.join("cgroup.procs"))
        .context("cannot open the lab's cgroup")?;
    let mut command = this_program()?;
    command
        .arg("inner")
        .arg("--subtree")
        .arg(subtree)
        .args(arguments);
    command.stdin(stdin);
    unshare(CloneFlags::CLONE_NEWPID).context("cannot make a PID namespace")?;
    // SAFETY: between fork and exec only system calls are made, with arguments that exist already.
    unsafe {
        command.pre_exec(move || {
            // A parent that died before this line shows as end of file on standard input, after exec.
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            setsid()?;
            SigSet::all().thread_unblock()?;
            nix::unistd::write(&members, b"0")?;
            unshare(CloneFlags::CLONE_NEWNS)?;
            let nothing = None::<&str>;
            mount(
                nothing,
                "/",
                nothing,
                MsFlags::MS_REC | MsFlags::MS_PRIVATE,
                nothing,
            )?;
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(
                Some("proc"),
                "/proc",
                Some("proc"),
                flags | MsFlags::MS_NOEXEC,
                nothing,
            )?;
            mount(
                Some("tmpfs"),
                "/run",
                Some("tmpfs"),
                flags,
                Some("mode=0755"),
            )?;
            Ok(())
        });
    }
    command
        .spawn()
        .context("cannot start the lab's first process (it needs mount and PID namespaces)")
}

/// Waits for the lab, passing signals on; returns its exit status, 130 after a signal.
fn wait(child: &mut Child, signals: &SignalFd) -> Result<u8> {
    let mut deadline = None::<Instant>;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match (deadline, status.code()) {
                (Some(_), _) => 130,
                (None, Some(code)) => u8::try_from(code).unwrap_or(1),
                (None, None) => {
                    let signal = status.signal().unwrap_or(0);
                    let _ = writeln!(std::io::stderr(), "lab: ended by signal {signal}");
                    1
                }
            });
        }
        let mut descriptors = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut descriptors, PollTimeout::from(200u8));
        while let Ok(Some(signal)) = signals.read_signal() {
            if signal.ssi_signo == Signal::SIGCHLD as u32 {
                continue;
            }
            let first = deadline.is_none();
            deadline.get_or_insert_with(|| Instant::now() + DRAIN);
            let pid = Pid::from_raw(child.id().cast_signed());
            if first {
                // Whoever read our messages may have gone.
                let _ = writeln!(std::io::stderr(), "lab: stopping");
            }
            let _ = kill(
                pid,
                if first {
                    Signal::SIGTERM
                } else {
                    Signal::SIGKILL
                },
            );
        }
        if let Some(deadline) = deadline {
            if Instant::now() > deadline {
                let _ = child.kill();
            }
            // Again and again: pid 1 loses a signal that comes before it listens (pid_namespaces(7)).
            let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
        }
    }
}

/// Runs the lab in a process of the background, which stays; returns when its experiments are over.
///
/// Until then the lab ends with this process, by the socket that is its standard input; afterwards `lab down` ends it.
/// What it prints goes through us, so that nobody who reads our output waits for the end of the lab.
pub(crate) fn keep(arguments: &[String]) -> Result<ExitCode> {
    let signals = watched_signals()?;
    let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
    let mut command = this_program()?;
    command
        .arg("keeper")
        .arg("--")
        .args(arguments)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: only setsid and the signal mask are called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            SigSet::all().thread_unblock()?;
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start the keeper")?;
    // The command holds the other end; without it the end of the lab shows as end of file.
    drop(command);
    let mut output = child.stdout.take().context("no standard output")?;
    let mut messages = child.stderr.take().context("no standard error")?;
    let pid = Pid::from_raw(child.id().cast_signed());
    loop {
        let mut descriptors = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(ours.as_fd(), PollFlags::POLLIN),
            PollFd::new(output.as_fd(), PollFlags::POLLIN),
            PollFd::new(messages.as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut descriptors, PollTimeout::NONE);
        let [_, over, printed, said] =
            descriptors.map(|descriptor| descriptor.any().unwrap_or(false));
        while let Ok(Some(signal)) = signals.read_signal() {
            if signal.ssi_signo != Signal::SIGCHLD as u32 {
                let _ = kill(pid, Signal::SIGTERM);
            }
        }
        let mut passed = 0;
        if printed {
            passed += pass_on(&mut output, std::io::stdout())?;
        }
        if said {
            passed += pass_on(&mut messages, std::io::stderr())?;
        }
        // Only once nothing is left to pass on: it was printed before the lab said that it is over.
        if over && passed == 0 {
            let mut status = [0];
            return Ok(match (&ours).read(&mut status)? {
                0 => ExitCode::from(1),
                _ => ExitCode::from(status[0]),
            });
        }
    }
}

/// Copies what can be read without waiting; returns how much that was.
fn pass_on(from: &mut impl std::io::Read, mut to: impl std::io::Write) -> Result<usize> {
    let mut buffer = [0; 65536];
    let length = from.read(&mut buffer)?;
    to.write_all(&buffer[..length])?;
    to.flush()?;
    Ok(length)
}

/// Whether this process is the outer one of a lab that was kept.
fn is_keeper(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|arguments| arguments.split(|byte| *byte == 0).nth(1) == Some(b"keeper"))
}

/// Becomes a command in the kept lab, with this program's folder on the PATH; returns only if that fails.
pub(crate) fn enter(node: Option<&str>, command: &[String]) -> Result<ExitCode> {
    let keeper = cgroup::labs()?
        .into_iter()
        .find(|(_, pid, alive)| *alive && is_keeper(*pid))
        .map(|(_, pid, _)| pid)
        .context("no lab is kept: `lab demo --keep` leaves one")?;
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
    // The janitor is a child as well; the lab's first process has PID 1 in its own namespace.
    let first = children
        .split_ascii_whitespace()
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| {
                status.lines().any(|line| {
                    line.starts_with("NSpid:")
                        && line.split_ascii_whitespace().next_back() == Some("1")
                })
            })
        })
        .context("the kept lab is just ending")?;
    let mut path = std::env::current_exe()?
        .parent()
        .map(Path::as_os_str)
        .unwrap_or_default()
        .to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let netns = exec::netns_path(node.unwrap_or(super::nodes::FABRIC));
    let mut entering = Command::new("nsenter");
    // Twice: the namespace's name is only there once the mounts are the lab's.
    entering
        .args(["--target", first, "--mount", "--pid", "--", "nsenter"])
        .arg(format!("--net={}", netns.display()))
        .arg("--")
        .env("PATH", path);
    if command.is_empty() {
        entering.arg(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    } else {
        entering.args(command);
    }
    Err(entering.exec()).context("cannot run `nsenter`")
}

/// Ends the labs that were kept.
pub(crate) fn down() -> Result<()> {
    for (path, pid, alive) in cgroup::labs()? {
        if !alive {
            cgroup::remove(&path, Duration::from_secs(10))?;
            continue;
        }
        if !is_keeper(pid) {
            eprintln!("lab: process {pid} runs a lab of its own: left alone");
            continue;
        }
        eprintln!("lab: ending the lab of process {pid}");
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)
            .with_context(|| format!("cannot signal process {pid}"))?;
        let deadline = Instant::now() + Duration::from_secs(15);
        while path.exists() {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the lab of process {pid} does not end; its cgroup is {}",
                path.display()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    cgroup::remove_stale()
}
