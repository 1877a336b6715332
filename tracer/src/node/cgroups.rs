//! From a cgroup2 id to the pod and container it belongs to.
//!
//! On 64-bit kernels the id that BPF programs see is the inode number of the cgroup's directory (fs/kernfs: `kernfs_id`),
//! and ids are not used again soon. So the hierarchy is walked, and what was found is kept for a while after it is gone,
//! because a pod's last queries are asked about when the pod no longer exists.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The cgroup2 hierarchy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Not mounted.
    #[error(
        "no cgroup2 hierarchy is mounted (/proc/self/mountinfo has none); mount one with \
         `mount -t cgroup2 none /sys/fs/cgroup/unified`, or mount the host's /sys/fs/cgroup into the agent's pod"
    )]
    NotMounted,
    /// Not readable.
    #[error(
        "cannot read {path}: {source}; give a directory of the cgroup2 hierarchy with --cgroup"
    )]
    Read {
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where the cgroup2 hierarchy is mounted: `/sys/fs/cgroup`, or below it where v1 is mounted beside it.
///
/// # Errors
/// When it is mounted nowhere, or the mounts cannot be read.
pub fn mount() -> Result<PathBuf, CgroupError> {
    let path = Path::new("/proc/self/mountinfo");
    let mounts = fs::read_to_string(path).map_err(|source| CgroupError::Read {
        path: path.to_owned(),
        source,
    })?;
    // kernfs gives the root of a hierarchy the inode number 1.
    let is_root = |path: &Path| fs::metadata(path).is_ok_and(|root| root.ino() == 1);
    mount_in(&mounts, is_root).ok_or(CgroupError::NotMounted)
}

/// proc_pid_mountinfo(5): `36 35 98:0 /root /mount/point options… - type source options`. Of several mounts the one
/// that shows the whole hierarchy counts, in the shortest place. The `root` field cannot tell which: in a cgroup
/// namespace, which containers have, a container's own cgroup is called `/` and the host's root `/../../..`.
fn mount_in(mounts: &str, is_root: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut found: Vec<(bool, PathBuf)> = mounts
        .lines()
        .filter_map(|line| {
            let (mount, file_system) = line.split_once(" - ")?;
            if file_system.split(' ').next() != Some("cgroup2") {
                return None;
            }
            let path = PathBuf::from(unescape(mount.split(' ').nth(4)?));
            Some((!is_root(&path), path))
        })
        .collect();
    found.sort_by_key(|(partial, path)| (*partial, path.as_os_str().len()));
    found.into_iter().next().map(|(_, path)| path)
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                rest = &rest[at + 4..];
            }
            _ => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain + rest
}

/// What a cgroup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Path below the agent's cgroup root, without a slash in front; empty for the root itself.
    pub path: String,
    /// Uid of its pod, as the kubelet knows it.
    pub pod_uid: Option<String>,
    /// Id of its container.
    pub container_id: Option<String>,
}

impl Cgroup {
    /// Understands the kubelet's names of cgroups, below any prefix (k3s, kind, the lab):
    /// `kubepods/burstable/pod<uid>/<container>` with the cgroupfs driver,
    /// `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, dashes as _>.slice/cri-containerd-<container>.scope`
    /// with systemd's (pkg/kubelet/cm/cgroup_manager_linux.go).
    pub fn from_path(path: &str) -> Self {
        let mut components = path.split('/');
        let pod_uid = components.find_map(pod_uid);
        let container_id = pod_uid
            .as_ref()
            .and_then(|_| components.next())
            .and_then(container_id);
        Self {
            path: path.to_owned(),
            pod_uid,
            container_id,
        }
    }
}

fn pod_uid(component: &str) -> Option<String> {
    let uid = match component.strip_suffix(".slice") {
        Some(slice) => &slice[slice.rfind("-pod")? + "-pod".len()..],
        None => component.strip_prefix("pod")?,
    };
    // A UUID, or the 32 hexadecimal digits of a static pod: nothing else may look like a pod.
    let fits = (32..=36).contains(&uid.len())
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    fits.then(|| uid.replace('_', "-"))
}

fn container_id(component: &str) -> Option<String> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    // `cri-containerd-`, `crio-`, `docker-`; the id itself has no dash.
    let id = name.rsplit('-').next().unwrap_or(name);
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| id.to_owned())
}

/// Finds cgroups by id.
#[derive(Debug)]
pub struct Cgroups {
    root: PathBuf,
    /// Pause between walks that a missing id may cause.
    pause: Duration,
    /// How long a vanished cgroup is remembered.
    keep: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<u64, Known>,
    walked: Option<Instant>,
}

#[derive(Debug)]
struct Known {
    cgroup: Cgroup,
    last_there: Instant,
}

impl Cgroups {
    /// Cgroups below `root`, walked once now.
    ///
    /// # Errors
    /// When `root` cannot be read.
    pub fn new(root: PathBuf) -> Result<Self, CgroupError> {
        Self::with(root, Duration::from_millis(500), Duration::from_secs(600))
    }

    fn with(root: PathBuf, pause: Duration, keep: Duration) -> Result<Self, CgroupError> {
        let cgroups = Self {
            root,
            pause,
            keep,
            state: Mutex::default(),
        };
        cgroups.refresh()?;
        Ok(cgroups)
    }

    /// Walks the hierarchy. To be called every second or two: a pod that is gone before anybody asked about it would
    /// not be known otherwise.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub fn refresh(&self) -> Result<(), CgroupError> {
        self.walk(&mut self.lock(), Instant::now())
    }

    /// The cgroup of an id; walks the hierarchy if it is not known and the last walk is not too recent. `None` if
    /// there is no such cgroup below the root.
    pub fn resolve(&self, id: u64) -> Option<Cgroup> {
        // The kernel side's "unknown": not worth a walk.
        if id == 0 {
            return None;
        }
        let mut state = self.lock();
        if let Some(known) = state.known.get(&id) {
            return Some(known.cgroup.clone());
        }
        let now = Instant::now();
        if state
            .walked
            .is_some_and(|walked| now.duration_since(walked) < self.pause)
        {
            return None;
        }
        if let Err(error) = self.walk(&mut state, now) {
            tracing::warn!(%error, "cgroups are not known");
        }
        state.known.get(&id).map(|known| known.cgroup.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every entry is complete once inserted: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk(&self, state: &mut State, now: Instant) -> Result<(), CgroupError> {
        state.walked = Some(now);
        let failed = |source| CgroupError::Read {
            path: self.root.clone(),
            source,
        };
        let root = fs::metadata(&self.root).map_err(failed)?;
        let mut found = vec![(root.ino(), String::new())];
        let mut pending = vec![String::new()];
        while let Some(parent) = pending.pop() {
            let entries = match fs::read_dir(self.root.join(&parent)) {
                Ok(entries) => entries,
                Err(error) if parent.is_empty() => return Err(failed(error)),
                // It has gone in the meantime.
                Err(_) => continue,
            };
            for entry in entries.flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let path = if parent.is_empty() {
                    name.into_owned()
                } else {
                    format!("{parent}/{name}")
                };
                found.push((entry.ino(), path.clone()));
                pending.push(path);
            }
        }
        for (id, path) in found {
            match state.known.get_mut(&id) {
                Some(known) if known.cgroup.path == path => known.last_there = now,
                _ => {
                    let cgroup = Cgroup::from_path(&path);
                    let known = Known {
                        cgroup,
                        last_there: now,
                    };
                    state.known.insert(id, known);
                }
            }
        }
        state
            .known
            .retain(|_, known| now.duration_since(known.last_there) <= self.keep);
        Ok(())
    }
}

#[cfg(test)]
#[path = "cgroups_tests.rs"]
mod tests;
