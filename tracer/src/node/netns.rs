//! `--netns`: named network namespaces, by glob, as the inode numbers the kernel side compares.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::statfs::{FsType, fstatfs};

/// A `--netns` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// No pattern.
    #[error(
        "--netns `{glob}` is not a file pattern: {source}; give a path such as '/run/netns/pod-*'"
    )]
    Pattern {
        /// What was given.
        glob: String,
        /// Why.
        source: glob::PatternError,
    },
    /// Relative to nothing.
    #[error("--netns `{0}` is not an absolute path; give one such as '/run/netns/pod-*'")]
    Relative(String),
    /// A namespace is known by an inode number that the kernel side has no room for.
    #[error("{file}: inode {inode} is no network namespace's: these have 32 bits; check --netns")]
    Inode {
        /// File.
        file: PathBuf,
        /// Its inode.
        inode: u64,
    },
}

/// The namespaces an agent is limited to. Without any glob there is no such limit, and nothing to scan.
#[derive(Clone, Debug, Default)]
pub struct NetnsSet {
    globs: Vec<String>,
    found: BTreeMap<u32, PathBuf>,
}

/// What a scan found new and missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetnsChange {
    /// Inodes that are new.
    pub added: Vec<u32>,
    /// Inodes whose file is gone.
    pub removed: Vec<u32>,
}

impl NetnsSet {
    /// Checks the globs; scans nothing yet.
    ///
    /// # Errors
    /// When one is no absolute file pattern.
    pub fn new(globs: Vec<String>) -> Result<Self, NetnsError> {
        for glob in &globs {
            glob::Pattern::new(glob).map_err(|source| NetnsError::Pattern {
                glob: glob.clone(),
                source,
            })?;
            if !glob.starts_with('/') {
                return Err(NetnsError::Relative(glob.clone()));
            }
        }
        Ok(Self {
            globs,
            found: BTreeMap::new(),
        })
    }

    /// Whether the agent is limited at all.
    pub const fn is_limited(&self) -> bool {
        !self.globs.is_empty()
    }

    /// Inode number and file of each namespace found by the last scan.
    pub const fn found(&self) -> &BTreeMap<u32, PathBuf> {
        &self.found
    }

    /// Looks for namespaces anew. Files that are none (yet) are passed over: `ip netns add` creates the file first and
    /// mounts the namespace on it afterwards.
    ///
    /// # Errors
    /// When a namespace's inode number does not fit.
    pub fn scan(&mut self) -> Result<NetnsChange, NetnsError> {
        let mut found = BTreeMap::new();
        for pattern in &self.globs {
            let paths = glob::glob(pattern).map_err(|source| NetnsError::Pattern {
                glob: pattern.clone(),
                source,
            })?;
            // A directory that cannot be read holds nothing for us.
            for path in paths.flatten() {
                let Some(inode) = namespace_inode(&path) else {
                    continue;
                };
                let inode = u32::try_from(inode).map_err(|_| NetnsError::Inode {
                    file: path.clone(),
                    inode,
                })?;
                found.insert(inode, path);
            }
        }
        let missing = |from: &BTreeMap<u32, PathBuf>, of: &BTreeMap<u32, PathBuf>| {
            of.keys()
                .filter(|inode| !from.contains_key(*inode))
                .copied()
                .collect()
        };
        let change = NetnsChange {
            added: missing(&self.found, &found),
            removed: missing(&found, &self.found),
        };
        self.found = found;
        Ok(change)
    }
}

/// `NSFS_MAGIC` (include/uapi/linux/magic.h).
const NSFS: FsType = FsType(0x6e73_6673);

/// Inode of a namespace file; `None` if it is something else, or gone.
fn namespace_inode(path: &PathBuf) -> Option<u64> {
    let file = File::open(path).ok()?;
    if fstatfs(&file).ok()?.filesystem_type() != NSFS {
        return None;
    }
    Some(file.metadata().ok()?.ino())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn bad_globs_are_named() {
        for glob in ["/run/netns/[", "/run/netns/***", "pods-*"] {
            let error = NetnsSet::new(vec![glob.to_owned()])
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(glob) && error.contains("/run/netns/"),
                "{error}"
            );
        }
    }

    #[test]
    fn without_a_glob_nothing_is_limited() {
        let mut none = NetnsSet::new(vec![]).unwrap();
        assert!(!none.is_limited());
        assert_eq!(none.scan().unwrap(), NetnsChange::default());
    }

    #[test]
    fn namespaces_come_and_go_and_other_files_do_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("pod-file"), "").unwrap();
        let glob = path("pod-*").to_str().unwrap().to_owned();
        let mut set = NetnsSet::new(vec![glob]).unwrap();
        assert_eq!(set.scan().unwrap(), NetnsChange::default());

        // Opening the link leads to the same nsfs inode as a bind mount does.
        std::os::unix::fs::symlink("/proc/self/ns/net", path("pod-own")).unwrap();
        let own = u32::try_from(std::fs::metadata("/proc/self/ns/net").unwrap().ino()).unwrap();
        assert_eq!(set.scan().unwrap().added, [own]);
        assert_eq!(set.found()[&own], path("pod-own"));
        assert_eq!(set.scan().unwrap(), NetnsChange::default());

        std::fs::remove_file(path("pod-own")).unwrap();
        assert_eq!(set.scan().unwrap().removed, [own]);
    }
}
