//! Whether this machine can record: may we load eBPF programs, is the kernel described, can a lab be raised?

use std::fs;
use std::io;
use std::mem;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// `BPF_PROG_LOAD` of bpf(2).
const PROG_LOAD: libc::c_int = 5;
/// Program types of linux/bpf.h that stand for all that we load: one for networking, one for tracing.
const PROGRAM_TYPES: [(u32, &str); 2] = [(8, "cgroup_skb"), (17, "raw_tracepoint")];
/// `r0 = 1; exit`: the shortest program that both types allow.
const PROGRAM: [u64; 2] = [0x0000_0001_0000_00b7, 0x0000_0000_0000_0095];

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD` (linux/bpf.h); the kernel takes what is left out as zero.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// Why this machine cannot load our eBPF programs; `None` if it can.
pub(crate) fn no_ebpf() -> Option<String> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some(
            "this kernel does not describe its structures (no /sys/kernel/btf/vmlinux: CONFIG_DEBUG_INFO_BTF)"
                .to_owned(),
        );
    }
    if !mounts_cgroup2(&fs::read_to_string("/proc/self/mounts").unwrap_or_default()) {
        return Some("no cgroup2 file system is mounted".to_owned());
    }
    PROGRAM_TYPES.iter().find_map(|&(number, name)| {
        let error = load(number).err()?;
        let hint = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                ": run as root (or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON), in a container that allows bpf(2)"
            }
            Some(libc::ENOSYS | libc::EINVAL) => ": this kernel lacks it",
            _ => "",
        };
        Some(format!("a trivial {name} program cannot be loaded ({error}){hint}"))
    })
}

/// Why no lab can be raised here; `None` if one can.
pub(crate) fn no_lab() -> Option<String> {
    // SAFETY: geteuid(2) has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".to_owned());
    }
    let unshare = || {
        // SAFETY: a system call that takes flags; between fork and exec it concerns the child alone.
        let result =
            unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    let mut command = Command::new("true");
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(unshare) };
    match command.status() {
        Ok(status) if status.success() => no_ebpf(),
        Ok(status) => Some(format!("new namespaces cannot be used: {status}")),
        Err(error) => Some(format!(
            "network, mount and PID namespaces cannot be made ({error})"
        )),
    }
}

/// Loads the shortest program of a type and lets it go again.
fn load(prog_type: u32) -> io::Result<()> {
    let attributes = ProgLoad {
        prog_type,
        insn_cnt: 2,
        insns: PROGRAM.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: the attributes and what they point to live until the call returns; the size is theirs.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw const attributes,
            mem::size_of::<ProgLoad>(),
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    unsafe { libc::close(descriptor as libc::c_int) };
    Ok(())
}

fn mounts_cgroup2(mounts: &str) -> bool {
    mounts
        .lines()
        .any(|line| line.split(' ').nth(2) == Some("cgroup2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_cgroup2_pure_and_hybrid() {
        assert!(mounts_cgroup2(
            "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
        ));
        assert!(mounts_cgroup2(
            "cgroup /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        ));
        assert!(!mounts_cgroup2("cgroup2 /cgroup2 cgroup rw 0 0\n"));
        assert!(!mounts_cgroup2(""));
    }

    #[test]
    fn an_unknown_program_type_is_an_error_not_a_success() {
        assert!(load(u32::MAX).is_err());
    }
}
