//! What [`super`] waits on: signals, a child's end and its output, all as descriptors for one poll(2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Instant;

use anyhow::{Context, Result};

/// Which of the descriptors can be read, waiting until one can or `deadline` has passed.
pub(super) fn wait<const N: usize>(
    of: [Option<BorrowedFd<'_>>; N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut polled = of.map(|fd| libc::pollfd {
        // poll(2) skips negative ones.
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = deadline.map_or(-1, |end| {
        let left = end.saturating_duration_since(Instant::now());
        // Rounded up, so that the deadline has passed when it wakes.
        i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX)
    });
    // SAFETY: the array is valid for reading and writing, the length is its own.
    let result = unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, timeout) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(polled.map(|fd| fd.revents != 0))
}

/// A descriptor that can be read once the process has ended (pidfd_open(2), Linux 5.3).
pub(super) fn exit_of(id: i32) -> io::Result<OwnedFd> {
    // SAFETY: the system call takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
    owned(fd)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to us, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Blocks the signals that end a program, until dropped; meanwhile they are read from a descriptor.
pub(super) struct Signals {
    pub(super) fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    pub(super) fn block() -> Result<Self> {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises `set`, pthread_sigmask `before`; both are valid for writing.
        let (result, set, before) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            // Under nohup it stays ignored.
            if !ignored(libc::SIGHUP) {
                libc::sigaddset(set.as_mut_ptr(), libc::SIGHUP);
            }
            let result = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            (result, set.assume_init(), before.assume_init())
        };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result)).context("blocking signals");
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, flags) };
        let fd = owned(fd.into()).context("opening a descriptor for signals")?;
        Ok(Self { fd, before })
    }

    /// The child gets the mask we had before, and SIGTERM if we die without telling it.
    pub(super) fn release_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: getpid(2) has no preconditions.
        let parent = unsafe { libc::getpid() };
        let prepare = move || {
            // SAFETY: only async-signal-safe system calls between fork and exec; `before` is a copy in the closure.
            unsafe {
                // A shell starts background jobs with SIGINT ignored; we pass it on all the same, so it must arrive.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the line above.
                if libc::getppid() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            Ok(())
        };
        // SAFETY: see the closure: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(prepare) };
    }

    /// A signal that has come, if one has.
    pub(super) fn take(&self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` is valid for writing `size` bytes; it is read only if the kernel filled all of it.
        unsafe {
            let read = libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size);
            (usize::try_from(read) == Ok(size)).then(|| info.assume_init().ssi_signo.cast_signed())
        }
    }
}

fn ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null action changes nothing; `action` is read only if it was written.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `before` was filled by pthread_sigmask.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}
