//! What has to be so before anything is loaded, checked first for the sake of clear messages.

use std::fs::File;
use std::path::Path;

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

use super::error::Error;

/// Numbers of the capabilities (include/uapi/linux/capability.h).
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const SYS_ADMIN: u32 = 21;
const PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const BPF: (u32, &str) = (39, "CAP_BPF");

/// Checks this process's effective capabilities.
pub(super) fn privilege() -> Result<(), Error> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing(&status);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::Privilege { missing })
    }
}

fn missing(status: &str) -> String {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0);
    let has = |number: u32| effective >> number & 1 == 1;
    let mut names = Vec::new();
    for (number, name) in [BPF, PERFMON, NET_ADMIN] {
        // CAP_SYS_ADMIN contains the two that were split off from it.
        if !has(number) && (number == NET_ADMIN.0 || !has(SYS_ADMIN)) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// Opens the cgroup root, which has to be a cgroup2 directory.
pub(super) fn cgroup(path: &Path) -> Result<File, Error> {
    let failed = |source| Error::Cgroup {
        path: path.to_owned(),
        source,
    };
    let directory = File::open(path).map_err(failed)?;
    let system = fstatfs(&directory).map_err(|errno| failed(errno.into()))?;
    if system.filesystem_type() != CGROUP2_SUPER_MAGIC || !path.is_dir() {
        return Err(Error::NotCgroup2(path.to_owned()));
    }
    Ok(directory)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing("Name:\tx\nCapEff:\t000001ffffffffff\n"), "");
        assert_eq!(missing("CapEff:\t0000000000201000\n"), "");
        assert_eq!(
            missing("CapEff:\t0000000000000000\n"),
            "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"
        );
        assert_eq!(missing("CapEff:\t0000008000001000\n"), "CAP_PERFMON");
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_refused_by_name() {
        let error = cgroup(Path::new("/proc")).unwrap_err();
        assert!(matches!(error, Error::NotCgroup2(_)), "{error}");
        assert!(error.to_string().contains("/proc"));
        let error = cgroup(Path::new("/nonexistent/cgroup")).unwrap_err();
        assert!(matches!(error, Error::Cgroup { .. }), "{error}");
    }
}
