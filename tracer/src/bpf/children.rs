//! The programs on the first-level children of the cgroup root: those of a descendant run before those of its
//! ancestors, so that they see a call before a load balancer on the root rewrites it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::cgroup_sock_addr::CgroupSockAddrLink;
use aya::programs::{CgroupAttachMode, CgroupSockAddr};

use super::error::Error;
use super::load::{ON_CHILDREN, program, reason};

/// Which children carry our programs. Dropping the links detaches them.
#[derive(Debug, Default)]
pub(super) struct Children {
    root: PathBuf,
    /// By inode: a directory made anew under an old name is another cgroup.
    attached: BTreeMap<u64, Vec<CgroupSockAddrLink>>,
}

impl Children {
    pub(super) fn of(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            attached: BTreeMap::new(),
        }
    }

    /// Attaches to new children and forgets those that are gone. Returns programs that a child refused, and why.
    pub(super) fn refresh(&mut self, ebpf: &mut Ebpf) -> Result<BTreeMap<String, String>, Error> {
        let failed = |source| Error::Cgroup {
            path: self.root.clone(),
            source,
        };
        let mut there = BTreeSet::new();
        let mut refused = BTreeMap::new();
        for entry in std::fs::read_dir(&self.root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            there.insert(entry.ino());
            if self.attached.contains_key(&entry.ino()) {
                continue;
            }
            match open(&entry.path()) {
                Ok((child, inode)) => {
                    let links = attach(ebpf, &child, &mut refused);
                    there.insert(inode);
                    self.attached.insert(inode, links);
                }
                // It went while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    return Err(Error::Cgroup {
                        path: entry.path(),
                        source,
                    });
                }
            }
        }
        self.attached.retain(|inode, _| there.contains(inode));
        Ok(refused)
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let child = File::open(path)?;
    let inode = child.metadata()?.ino();
    Ok((child, inode))
}

fn attach(
    ebpf: &mut Ebpf,
    child: &File,
    refused: &mut BTreeMap<String, String>,
) -> Vec<CgroupSockAddrLink> {
    let mut links = Vec::new();
    for name in ON_CHILDREN {
        let link = program::<CgroupSockAddr>(ebpf, name).and_then(|program| {
            let id = program
                .attach(child, CgroupAttachMode::Single)
                .map_err(|e| reason(&e))?;
            program.take_link(id).map_err(|e| reason(&e))
        });
        match link {
            Ok(link) => links.push(link),
            Err(why) => {
                refused.insert(name.to_owned(), why);
            }
        }
    }
    links
}
