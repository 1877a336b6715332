//! Hears when this node's packet rules change: netlink multicast group `NFNLGRP_NFTABLES`, which announces commits of
//! nft and of iptables-nft alike. iptables-legacy, IPVS and Cilium's maps announce nothing ([`dataplane`] tells).
//!
//! Only the effect of each commit is told (added and removed), so the rules that were there before need no dump. The
//! price: elements of an anonymous set that is older than the agent are not counted when they go.

mod attributes;
mod batch;
pub mod dataplane;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};

use crate::model::Timestamp;
use crate::model::record::{RuleChange, RuleCommit};
use batch::{Batch, Commit, Taken};

/// Rule commits cannot be heard.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The socket.
    #[error(
        "cannot listen to netfilter rule commits: {step}: {error}; the agent needs CAP_NET_ADMIN and the host's network \
         namespace (hostNetwork), and the kernel nf_tables"
    )]
    Socket {
        /// What failed.
        step: &'static str,
        /// Why.
        error: Errno,
    },
    /// The listening thread.
    #[error("cannot start the thread that listens to netfilter rule commits: {0}")]
    Thread(#[source] io::Error),
}

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleEvent {
    /// A commit that touched watched addresses.
    Commit(RuleCommit),
    /// Announcements were lost: commits in this time may be missing.
    Lost {
        /// Last moment before which everything was heard.
        from: Timestamp,
        /// When the loss was noticed.
        to: Timestamp,
        /// Announcements that were heard but could not be read; 0: the kernel could not tell us how many were lost.
        count: u64,
    },
    /// The socket failed for good: from now on commits are not heard.
    Deaf {
        /// Since when.
        at: Timestamp,
        /// Why.
        reason: String,
    },
}

/// `NFNLGRP_NFTABLES` (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 7;
/// A full sync of a large kube-proxy announces some ten thousand rules at once.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Larger than any datagram of announcements: the kernel sends them page by page, single objects up to 64 KiB.
const DATAGRAM: usize = 256 << 10;
/// Commits are remembered this long for addresses that become watched afterwards: rules and slice race each other.
const REMEMBERED_NS: i64 = 30_000_000_000;
const REMEMBERED_ADDRESSES: usize = 200_000;

/// A running listener. Dropping it stops the thread.
#[derive(Debug)]
pub struct RuleListener {
    memory: Arc<Mutex<Memory>>,
    /// Closing it wakes the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl RuleListener {
    /// Opens the socket in the calling thread's network namespace and starts listening. `sink` is called from a thread
    /// of its own, with each event; `now` is the wall clock.
    ///
    /// # Errors
    /// When the socket cannot be had.
    pub fn start(
        now: impl Fn() -> Timestamp + Send + 'static,
        sink: impl FnMut(RuleEvent) + Send + 'static,
    ) -> Result<Self, RulesError> {
        Self::start_with(RECEIVE_BUFFER, now, sink)
    }

    fn start_with(
        receive_buffer: usize,
        now: impl Fn() -> Timestamp + Send + 'static,
        sink: impl FnMut(RuleEvent) + Send + 'static,
    ) -> Result<Self, RulesError> {
        let socket = open(receive_buffer)?;
        let (stop, stopped) = UnixStream::pair().map_err(RulesError::Thread)?;
        let memory = Arc::new(Mutex::new(Memory::default()));
        let listening = Listening {
            socket,
            stopped,
            memory: Arc::clone(&memory),
            heard_until: now(),
            hearing: Hearing::Whole,
            now,
            sink,
        };
        let thread = std::thread::Builder::new()
            .name("rules".to_owned())
            .spawn(move || listening.run())
            .map_err(RulesError::Thread)?;
        Ok(Self {
            memory,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Replaces the watched addresses. Returns commits of the last 30 s that touched the *new* ones, for them alone:
    /// rules may change before our watch of the API tells us of an endpoint.
    pub fn watch(&self, addresses: HashSet<IpAddr>) -> Vec<RuleCommit> {
        lock(&self.memory).watch(addresses)
    }
}

impl Drop for RuleListener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It reports its own failures; a panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn lock(memory: &Mutex<Memory>) -> std::sync::MutexGuard<'_, Memory> {
    // A commit is remembered by one push: a panic elsewhere leaves nothing half done.
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(receive_buffer: usize) -> Result<OwnedFd, RulesError> {
    let failed = |step| move |error| RulesError::Socket { step, error };
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkNetFilter,
    )
    .map_err(failed("socket"))?;
    // Needs CAP_NET_ADMIN in the first user namespace; less is a smaller buffer, and losses are noticed.
    if setsockopt(&socket, sockopt::RcvBufForce, &receive_buffer).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &receive_buffer).map_err(failed("SO_RCVBUF"))?;
    }
    // Groups 1 to 32 can be joined while binding, as a bit mask (netlink(7)).
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1 << (GROUP - 1))).map_err(failed("bind"))?;
    Ok(socket)
}

/// The watched addresses and the commits of the last seconds.
#[derive(Debug, Default)]
struct Memory {
    watched: HashSet<IpAddr>,
    commits: VecDeque<(Timestamp, Commit)>,
    /// Addresses in `commits`.
    size: usize,
}

impl Memory {
    fn watch(&mut self, addresses: HashSet<IpAddr>) -> Vec<RuleCommit> {
        let new: HashSet<_> = addresses.difference(&self.watched).copied().collect();
        self.watched = addresses;
        self.commits
            .iter()
            .filter_map(|(at, commit)| record(*at, commit, &new))
            .collect()
    }

    fn remember(&mut self, at: Timestamp, commit: Commit) -> Option<RuleCommit> {
        let told = record(at, &commit, &self.watched);
        self.size += commit.touched.len();
        self.commits.push_back((at, commit));
        while let Some((oldest, commit)) = self.commits.front()
            && (at.since(*oldest) > REMEMBERED_NS || self.size > REMEMBERED_ADDRESSES)
        {
            self.size -= commit.touched.len();
            self.commits.pop_front();
        }
        told
    }
}

/// The part of a commit that concerns `watched`; `None` if there is none.
fn record(at: Timestamp, commit: &Commit, watched: &HashSet<IpAddr>) -> Option<RuleCommit> {
    let mut changes: Vec<_> = watched
        .iter()
        .filter_map(|address| {
            let touched = commit.touched.get(address)?;
            Some(RuleChange {
                address: *address,
                added: touched.added,
                removed: touched.removed,
            })
        })
        .collect();
    changes.sort_unstable_by_key(|change| change.address);
    (!changes.is_empty()).then(|| RuleCommit {
        at,
        committer: commit.committer.clone(),
        changes,
    })
}

/// What the thread owns.
struct Listening<N, S> {
    socket: OwnedFd,
    stopped: UnixStream,
    memory: Arc<Mutex<Memory>>,
    heard_until: Timestamp,
    hearing: Hearing,
    now: N,
    sink: S,
}

/// Whether the commits being read can be whole. The kernel reports an overrun *before* the messages that were queued
/// ahead of it, and drops everything until the queue is empty (af_netlink.c: `netlink_overrun`, `netlink_rcv_wake`): so
/// what is read until then is suspect, and so is what follows at once, which may be the end of a lost beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    Whole,
    Draining,
    DrainedAt(Instant),
}

/// The announcements of one commit follow each other faster than this.
const ONE_COMMIT: Duration = Duration::from_secs(1);

impl<N: Fn() -> Timestamp, S: FnMut(RuleEvent)> Listening<N, S> {
    fn run(mut self) {
        let mut batch = Batch::default();
        let mut buffer = vec![0; DATAGRAM];
        loop {
            match self.wait() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.deaf("poll", error),
            }
            // Received one by one until nothing is left, so that commits are stamped promptly.
            loop {
                let length = match recv(
                    self.socket.as_raw_fd(),
                    &mut buffer,
                    MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT,
                ) {
                    Ok(length) => length,
                    Err(Errno::EAGAIN) => {
                        if self.hearing == Hearing::Draining {
                            self.hearing = Hearing::DrainedAt(Instant::now());
                        }
                        break;
                    }
                    Err(Errno::EINTR) => continue,
                    Err(Errno::ENOBUFS) => {
                        self.hearing = Hearing::Draining;
                        batch.tear();
                        self.lost(0);
                        continue;
                    }
                    Err(error) => return self.deaf("recv", error),
                };
                let at = (self.now)();
                // With MSG_TRUNC the true length is returned, also where it was cut off.
                let Some(datagram) = buffer.get(..length) else {
                    batch.tear();
                    self.lost(1);
                    continue;
                };
                match self.hearing {
                    Hearing::DrainedAt(then) if then.elapsed() > ONE_COMMIT => {
                        self.hearing = Hearing::Whole;
                        batch.begin();
                    }
                    Hearing::DrainedAt(_) | Hearing::Draining => batch.tear(),
                    Hearing::Whole => {}
                }
                self.hear(at, datagram, &mut batch);
                self.heard_until = at;
            }
        }
    }

    /// True: there is something to receive. False: the listener was dropped.
    fn wait(&self) -> Result<bool, Errno> {
        let mut ready = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
        ];
        loop {
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) => return Ok(!ready[1].any().unwrap_or(true)),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn hear(&mut self, at: Timestamp, datagram: &[u8], batch: &mut Batch) {
        for message in attributes::messages(datagram) {
            let Ok(message) = message else {
                batch.malformed();
                break;
            };
            let commit = match batch.take(message) {
                Taken::Part => continue,
                Taken::Torn => {
                    self.lost(0);
                    continue;
                }
                Taken::Commit(commit) => commit,
            };
            if commit.malformed > 0 {
                self.lost(commit.malformed.into());
            }
            let told = lock(&self.memory).remember(at, commit);
            if let Some(told) = told {
                (self.sink)(RuleEvent::Commit(told));
            }
        }
    }

    fn lost(&mut self, count: u64) {
        let to = (self.now)();
        (self.sink)(RuleEvent::Lost {
            from: self.heard_until,
            to,
            count,
        });
        self.heard_until = to;
    }

    fn deaf(&mut self, step: &'static str, error: Errno) {
        let at = (self.now)();
        let reason = RulesError::Socket { step, error }.to_string();
        (self.sink)(RuleEvent::Deaf { at, reason });
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
