//! The lab's cgroups: one subtree of cgroup2, `slicetrace-lab-<pid>`, made at the start and removed whatever happens.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

const PREFIX: &str = "slicetrace-lab-";

/// Where cgroup2 is mounted: `/sys/fs/cgroup`, or below it where version 1 is there as well.
pub(crate) fn mount_point() -> Result<PathBuf> {
    let mounts =
        std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    find_mount(&mounts).context("no cgroup2 is mounted: `mount -t cgroup2 none DIR` makes one")
}

/// Fields of a line (proc_pid_mountinfo(5)): id parent device root point options… `-` type source options.
fn find_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next()? == "cgroup2")
            .then(|| before.split(' ').nth(4).map(PathBuf::from))
            .flatten()
    })
}

/// The subtree of the lab whose outer process is `pid`.
pub(crate) fn subtree(pid: u32) -> Result<PathBuf> {
    Ok(mount_point()?.join(format!("{PREFIX}{pid}")))
}

/// Makes a cgroup, with those above it.
pub(crate) fn make(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path)
        .with_context(|| format!("cannot make the cgroup {}", path.display()))
}

/// Labs whose subtree exists: the outer process's pid, and whether it still runs.
pub(crate) fn labs() -> Result<Vec<(PathBuf, u32, bool)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(mount_point()?)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(pid) = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|pid| pid.parse().ok())
        {
            // A pid may have been given to another program since.
            let alive = std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.trim_end() == "lab");
            found.push((entry.path(), pid, alive));
        }
    }
    Ok(found)
}

/// Removes what labs left whose janitor was killed too.
pub(crate) fn remove_stale() -> Result<()> {
    for (path, _, alive) in labs()? {
        if !alive {
            remove(&path, Duration::from_secs(5))?;
        }
    }
    Ok(())
}

/// Kills what still runs in a subtree and removes it, deepest first; processes and sockets need a moment to go.
pub(crate) fn remove(path: &Path, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        // cgroup.kill is there from Linux 5.14; without it the end of the PID namespace has done the same.
        let _ = std::fs::write(path.join("cgroup.kill"), "1");
        match remove_tree(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                bail!("cannot remove the cgroup {}: {error}", path.display())
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// `rmdir` of a cgroup and those below; the files in it are the kernel's.
fn remove_tree(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_version_2_is_found_beside_version_1() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            find_mount(hybrid).as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified"))
        );
    }

    #[test]
    fn no_version_2_is_no_mount() {
        let old = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\nnonsense\n";
        assert_eq!(find_mount(old), None);
    }
}
