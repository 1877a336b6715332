//! Runs a child so that it never outlives us: signals are passed on, it is given time to clean up, then it is killed;
//! and if we are killed, the kernel tells it.

mod descriptors;

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::descriptors::{Signals, exit_of, wait};
use crate::workspace;

/// How long a child may take to clean up once it was told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// How long to wait for the end of a dead child's output, which a grandchild may hold open.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// How long a package manager may take.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Who is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// The child alone: it cleans up after its own children, also when it is killed itself.
    Child,
    /// The child and all of its process group, for programs that do not pass signals on (cargo).
    Group,
}

impl Tell {
    /// What to send when we get `signal`: rustc, told SIGINT, reports every function it did not finish as an error.
    const fn signal(self, signal: i32) -> i32 {
        match self {
            Self::Child => signal,
            Self::Group => libc::SIGTERM,
        }
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Its status.
    pub(crate) status: ExitStatus,
    /// The signal that we were told to stop with, if any.
    pub(crate) interrupted: Option<i32>,
    /// It took longer than it was given.
    pub(crate) overdue: bool,
}

impl Ended {
    /// It ended well, by itself.
    pub(crate) fn success(self) -> bool {
        self.status.success() && self.interrupted.is_none() && !self.overdue
    }

    /// Gives up if we were told to.
    ///
    /// # Errors
    /// When we were interrupted while it ran.
    pub(crate) fn stop_if_interrupted(self) -> Result<()> {
        match self.interrupted {
            Some(signal) => bail!("interrupted by signal {signal}"),
            None => Ok(()),
        }
    }

    /// The status to pass on: the child's own; 128 + signal where a signal ended it.
    pub(crate) fn exit_code(self) -> ExitCode {
        use std::os::unix::process::ExitStatusExt;
        let code = match (self.status.code(), self.status.signal(), self.interrupted) {
            (Some(0), _, Some(signal)) | (None, Some(signal), _) | (None, None, Some(signal)) => {
                128 + signal
            }
            (Some(code), _, _) => code,
            (None, None, None) => 1,
        };
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    }
}

/// Runs `command` to its end, its output going where ours goes.
///
/// # Errors
/// When it cannot be started or waited for.
pub(crate) fn run(command: &mut Command, tell: Tell) -> Result<Ended> {
    supervise(command, tell, None, None)
}

/// Runs `command` for at most `limit`, showing each line of its standard output for which `line` returns true.
///
/// # Errors
/// When it cannot be started or waited for.
pub(crate) fn read(
    command: &mut Command,
    tell: Tell,
    limit: Duration,
    line: &mut dyn FnMut(&str) -> bool,
) -> Result<Ended> {
    command.stdout(Stdio::piped());
    supervise(command, tell, Some(limit), Some(line))
}

/// Runs `command` and fails unless it succeeds.
///
/// # Errors
/// When it cannot be started, fails, or we were interrupted meanwhile.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let ended = run(command, Tell::Group)?;
    ended.stop_if_interrupted()?;
    if !ended.success() {
        bail!("{} failed: {}", shown(command), ended.status);
    }
    Ok(())
}

/// The same, showing what it printed only if it fails.
///
/// # Errors
/// When it cannot be started, fails, takes longer than [`PATIENCE`], or we were interrupted meanwhile.
pub(crate) fn check_quietly(command: &mut Command) -> Result<()> {
    let mut printed = Vec::new();
    let ended = read(command, Tell::Group, PATIENCE, &mut |line| {
        printed.push(line.to_owned());
        false
    })?;
    ended.stop_if_interrupted()?;
    if !ended.success() {
        eprintln!("{}", printed.join("\n"));
        bail!("{} failed: {}", shown(command), ended.status);
    }
    Ok(())
}

/// A command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = command.get_program();
    let name = std::path::Path::new(program)
        .file_name()
        .unwrap_or(program)
        .to_string_lossy()
        .into_owned();
    let mut words = vec![name];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

fn supervise(
    command: &mut Command,
    tell: Tell,
    limit: Option<Duration>,
    mut line: Option<&mut dyn FnMut(&str) -> bool>,
) -> Result<Ended> {
    let name = shown(command);
    // Blocked before the child starts, so that none is lost.
    let signals = Signals::block()?;
    signals.release_in(command);
    workspace::prepare(command);
    // A group of its own: Ctrl-C in a terminal then reaches us alone, and the child is told exactly once.
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let id = child.id().cast_signed();
    let target = match tell {
        Tell::Child => id,
        Tell::Group => -id,
    };
    let exit = exit_of(id).with_context(|| format!("watching {name}"))?;
    let mut output = child.stdout.take().map(BufReader::new);

    let mut told: Option<i32> = None;
    let mut overdue = false;
    let mut deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let fd = output.as_ref().map(|output| output.get_ref().as_fd());
        let ready = wait([Some(signals.fd.as_fd()), Some(exit.as_fd()), fd], deadline)
            .with_context(|| format!("waiting for {name}"))?;
        let [signal, exited, readable] = ready;
        if readable && !show_some(&mut output, &mut line) {
            output = None;
        }
        if exited {
            break;
        }
        if let Some(signal) = signal.then(|| signals.take()).flatten()
            && told.is_none()
        {
            eprintln!("xtask: stopping {name}, which may take up to {GRACE:?}");
            send(target, tell.signal(signal));
            told = Some(signal);
            deadline = Some(Instant::now() + GRACE);
        }
        if deadline.is_some_and(|end| end <= Instant::now()) {
            if told.is_some() || overdue {
                eprintln!("xtask: {name} did not stop within {GRACE:?}: killing it");
                send(target, libc::SIGKILL);
                deadline = None;
            } else {
                eprintln!("xtask: {name} takes too long: stopping it");
                send(target, libc::SIGTERM);
                overdue = true;
                deadline = Some(Instant::now() + GRACE);
            }
        }
    }
    if tell == Tell::Group && (told.is_some() || overdue) {
        // Whatever of the group is still there had its time.
        send(target, libc::SIGKILL);
    }
    let status = child
        .wait()
        .with_context(|| format!("waiting for {name}"))?;
    let end = Some(Instant::now() + OUTPUT_GRACE);
    while let Some(rest) = &output {
        let ready = wait([Some(rest.get_ref().as_fd()), None, None], end)
            .with_context(|| format!("reading what {name} printed"))?;
        if !ready[0] || !show_some(&mut output, &mut line) {
            output = None;
        }
    }
    Ok(Ended {
        status,
        interrupted: told,
        overdue,
    })
}

/// Reads what there is, a line at least, and shows it; false at the end of the output.
fn show_some(
    output: &mut Option<BufReader<ChildStdout>>,
    line: &mut Option<&mut dyn FnMut(&str) -> bool>,
) -> bool {
    let (Some(output), Some(line)) = (output, line) else {
        return false;
    };
    loop {
        // Bytes, not `read_line`: a test may print what is not UTF-8.
        let mut bytes = Vec::new();
        if !output.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            return false;
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches('\n');
        if line(text) {
            // A reader that went away (a closed pipe) is no reason to leave children behind.
            let _ = writeln!(io::stdout(), "{text}");
        }
        if !output.buffer().contains(&b'\n') {
            return true;
        }
    }
}

/// Sends a signal to a process, or to a group (negative). That it is gone already is fine.
fn send(id: i32, signal: i32) {
    // SAFETY: kill(2) takes two integers; the id is that of a child not yet reaped, or of its group.
    unsafe { libc::kill(id, signal) };
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test panics where it fails")]
mod tests {
    use std::mem::MaybeUninit;
    use std::ptr;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn every_line_is_read_and_the_status_passed_on() {
        let mut lines = Vec::new();
        let ended = read(
            &mut shell("echo one; echo two; printf three; exit 7"),
            Tell::Group,
            Duration::from_secs(60),
            &mut |line| {
                lines.push(line.to_owned());
                false
            },
        )
        .unwrap();
        assert_eq!(lines, ["one", "two", "three"]);
        assert_eq!(ended.status.code(), Some(7));
        assert!(!ended.success());
    }

    #[test]
    fn a_child_that_takes_too_long_is_stopped_with_its_children() {
        let started = Instant::now();
        let mut pid = String::new();
        let ended = read(
            &mut shell("sleep 300 & echo $!; wait"),
            Tell::Group,
            Duration::from_millis(300),
            &mut |line| {
                line.clone_into(&mut pid);
                false
            },
        )
        .unwrap();
        assert!(ended.overdue && !ended.success());
        assert!(started.elapsed() < GRACE);
        let grandchild: i32 = pid.parse().unwrap();
        // Reaped by init, in its own time.
        let gone = || {
            std::fs::read_to_string(format!("/proc/{grandchild}/stat"))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        let end = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < end, "the grandchild is still running");
            std::thread::yield_now();
        }
    }

    #[test]
    fn signals_are_blocked_only_while_a_child_runs() {
        run(&mut shell("true"), Tell::Child).unwrap();
        let mut mask = MaybeUninit::uninit();
        // SAFETY: a null set changes nothing; `mask` is written.
        let blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), libc::SIGTERM)
        };
        assert_eq!(blocked, 0);
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = check(&mut Command::new("slicetrace-no-such-program")).unwrap_err();
        assert!(format!("{error:#}").contains("slicetrace-no-such-program"));
    }
}
