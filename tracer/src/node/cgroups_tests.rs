#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

const UID: &str = "0f7ac6d2-8a3b-4c55-9d0e-6a1b2c3d4e5f";
const ID: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn parsed(path: &str) -> (Option<String>, Option<String>) {
    let cgroup = Cgroup::from_path(path);
    (cgroup.pod_uid, cgroup.container_id)
}

#[test]
fn every_form_of_path_is_understood() {
    let both = (Some(UID.to_owned()), Some(ID.to_owned()));
    let systemd = UID.replace('-', "_");
    for path in [
        format!("kubepods/burstable/pod{UID}/{ID}"),
        format!("kubepods/besteffort/pod{UID}/{ID}"),
        format!("kubepods/pod{UID}/{ID}"),
        format!("node2/kubepods/burstable/pod{UID}/{ID}/init.scope"),
        format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice/cri-containerd-{ID}.scope"
        ),
        format!("kubepods.slice/kubepods-pod{systemd}.slice/crio-{ID}.scope/container"),
        format!(
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-pod{systemd}.slice/docker-{ID}.scope"
        ),
    ] {
        assert_eq!(parsed(&path), both, "{path}");
    }
    let fixed = "b5d4c3a29f8e7d6c5b4a39281706f5e4";
    assert_eq!(
        parsed(&format!("kubepods/burstable/pod{fixed}")),
        (Some(fixed.to_owned()), None)
    );
}

#[test]
fn nothing_else_is_a_pod() {
    for path in [
        "",
        "system.slice/containerd.service",
        "user.slice/user-0.slice/session-3.scope",
        "machine.slice/podman-1234.scope",
        "kubepods/burstable",
        "kubepods/podcast/x",
        "system.slice/k8s-pods.slice",
    ] {
        assert_eq!(parsed(path), (None, None), "{path}");
    }
}

#[test]
fn the_mount_is_found_in_pure_and_in_hybrid_systems() {
    let hybrid = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory";
    let whole = |_: &Path| true;
    let found = |mounts: &str, is_root: fn(&Path) -> bool| mount_in(mounts, is_root);
    assert_eq!(
        mount_in(hybrid, whole).unwrap(),
        Path::new("/sys/fs/cgroup/unified")
    );
    // In a container: its own cgroup in the usual place, the host's hierarchy elsewhere.
    let container = "\
30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw
90 23 0:26 /../../.. /host/sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let host = found(container, |path| path.starts_with("/host"));
    assert_eq!(host.unwrap(), Path::new("/host/sys/fs/cgroup"));
    let own = found(container, |_| false);
    assert_eq!(own.unwrap(), Path::new("/sys/fs/cgroup"));
    let odd = "91 23 0:26 / /run/my\\040cgroups\\134 rw - cgroup2 cgroup2 rw";
    assert_eq!(
        mount_in(odd, whole).unwrap(),
        Path::new("/run/my cgroups\\")
    );
    assert_eq!(
        mount_in("30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw", whole),
        None
    );
    assert!(
        CgroupError::NotMounted
            .to_string()
            .contains("mount -t cgroup2")
    );
}

fn ino(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn new_cgroups_are_found_and_vanished_ones_remembered() {
    let root = tempfile::tempdir().unwrap();
    let pod = root.path().join(format!("kubepods/pod{UID}"));
    fs::create_dir_all(&pod).unwrap();
    let cgroups = Cgroups::with(
        root.path().to_owned(),
        Duration::ZERO,
        Duration::from_millis(200),
    )
    .unwrap();
    assert_eq!(cgroups.resolve(ino(root.path())).unwrap().path, "");
    assert_eq!(cgroups.resolve(u64::MAX), None);

    let container = pod.join(ID);
    fs::create_dir(&container).unwrap();
    let id = ino(&container);
    let found = cgroups.resolve(id).unwrap();
    assert_eq!(found.pod_uid.as_deref(), Some(UID));
    assert_eq!(found.path, format!("kubepods/pod{UID}/{ID}"));

    fs::remove_dir(&container).unwrap();
    cgroups.refresh().unwrap();
    assert_eq!(cgroups.resolve(id), Some(found));
    std::thread::sleep(Duration::from_millis(250));
    cgroups.refresh().unwrap();
    assert_eq!(cgroups.resolve(id), None);
}

#[test]
fn misses_do_not_walk_again_and_again() {
    let root = tempfile::tempdir().unwrap();
    let cgroups = Cgroups::with(
        root.path().to_owned(),
        Duration::from_secs(60),
        Duration::MAX,
    )
    .unwrap();
    let new = root.path().join("new");
    fs::create_dir(&new).unwrap();
    assert_eq!(cgroups.resolve(ino(&new)), None);
    cgroups.refresh().unwrap();
    assert_eq!(cgroups.resolve(ino(&new)).unwrap().path, "new");
}

#[test]
fn a_root_that_is_not_there_is_named() {
    let error = Cgroups::new(PathBuf::from("/nonexistent/cgroup")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/cgroup"));
    assert!(error.to_string().contains("--cgroup"));
}

/// Against the kernel: the id that BPF sees is also what a file handle of the directory holds (fs/kernfs/mount.c).
#[test]
fn an_id_is_an_inode_number() {
    let Ok(root) = mount() else {
        eprintln!("SKIPPED: no cgroup2 hierarchy is mounted");
        return;
    };
    let own = root.join(format!("st-test-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&own) {
        eprintln!("SKIPPED: cannot make a cgroup: {error}");
        return;
    }
    let by_walk = Cgroups::new(root).map(|cgroups| cgroups.resolve(ino(&own)));
    let handle = handle_of(&own);
    fs::remove_dir(&own).unwrap();
    assert_eq!(
        by_walk.unwrap().unwrap().path,
        own.file_name().unwrap().to_str().unwrap()
    );
    match handle {
        Some((handle, inode)) => assert_eq!(handle, inode),
        None => eprintln!("SKIPPED: no file handles of cgroups here"),
    }
}

fn handle_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    #[repr(C)]
    struct Handle {
        bytes: libc::c_uint,
        kind: libc::c_int,
        id: u64,
    }
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle {
        bytes: 8,
        kind: 0,
        id: 0,
    };
    let mut mount_id = 0;
    // SAFETY: `name` is NUL-terminated; `handle` has the layout of struct file_handle with room for the eight bytes it
    // announces; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount_id as *mut libc::c_int,
            0,
        )
    };
    (result == 0).then(|| (handle.id, ino(path)))
}
