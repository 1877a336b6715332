//! Doing things inside a network namespace: running programs there, running a closure there, `ip` in batches.
//!
//! A program joins its namespace and its cgroup between fork and exec, so that even its first socket is counted as its
//! own: the kernel remembers the cgroup a socket was *made* in.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Where named namespaces are; `ip netns` uses the same folder.
pub(crate) const NETNS_DIR: &str = "/run/netns";

/// The file of a named network namespace.
pub(crate) fn netns_path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Makes a named network namespace with its loopback up.
pub(crate) async fn add_netns(name: &str) -> Result<()> {
    let path = netns_path(name);
    std::fs::create_dir_all(NETNS_DIR).with_context(|| format!("cannot make {NETNS_DIR}"))?;
    File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
    // A thread of its own: it stays in the new namespace and ends there.
    std::thread::scope(|scope| {
        scope
            .spawn(|| -> Result<()> {
                unshare(CloneFlags::CLONE_NEWNET)
                    .with_context(|| format!("cannot make the network namespace {name}"))?;
                mount(
                    Some("/proc/thread-self/ns/net"),
                    &path,
                    None::<&str>,
                    MsFlags::MS_BIND,
                    None::<&str>,
                )
                .with_context(|| format!("cannot name the network namespace {name}"))
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    ip(Some(name), "link set lo up\n").await
}

/// Takes away the name of a network namespace; it ends with the last process in it.
pub(crate) fn delete_netns(name: &str) -> Result<()> {
    let path = netns_path(name);
    umount2(&path, MntFlags::MNT_DETACH)
        .with_context(|| format!("cannot unmount {}", path.display()))?;
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
}

/// Runs `work` on a thread inside a namespace: for sockets that are made there, and for `/proc/sys/net`.
pub(crate) fn in_netns<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let path = netns_path(name);
    let namespace = File::open(&path)
        .with_context(|| format!("cannot open the namespace {}", path.display()))?;
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)
                    .with_context(|| format!("cannot enter the network namespace {name}"))?;
                work()
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Writes sysctls, such as `("net/ipv4/ip_forward", "1")`, of a namespace.
pub(crate) fn sysctl(netns: &str, values: &[(&str, &str)]) -> Result<()> {
    in_netns(netns, || {
        for (key, value) in values {
            let path = Path::new("/proc/sys").join(key);
            std::fs::write(&path, value)
                .with_context(|| format!("cannot set {} to {value} in {netns}", path.display()))?;
        }
        Ok(())
    })
}

/// A program that will run in a namespace and in a cgroup (both optional), killed when its handle is dropped.
pub(crate) fn command(
    program: impl AsRef<std::ffi::OsStr>,
    netns: Option<&str>,
    cgroup: Option<&Path>,
) -> Result<Command> {
    let namespace = netns
        .map(|name| {
            let path = netns_path(name);
            File::open(&path)
                .with_context(|| format!("cannot open the namespace {}", path.display()))
        })
        .transpose()?;
    let members = cgroup
        .map(|directory| {
            let path = directory.join("cgroup.procs");
            OpenOptions::new()
                .write(true)
                .open(&path)
                .with_context(|| format!("cannot open {}", path.display()))
        })
        .transpose()?;
    let mut command = Command::new(program);
    command.kill_on_drop(true);
    // SAFETY: between fork and exec only the system calls write and setns are made, on descriptors opened before.
    unsafe {
        command.pre_exec(move || {
            if let Some(members) = &members {
                nix::unistd::write(members, b"0")?;
            }
            if let Some(namespace) = &namespace {
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
            }
            Ok(())
        });
    }
    Ok(command)
}

/// Runs `ip -batch` in a namespace; an error names the line.
pub(crate) async fn ip(netns: Option<&str>, batch: &str) -> Result<()> {
    feed(command("ip", netns, None)?.args(["-batch", "-"]), batch).await
}

/// Runs `bridge -batch` in a namespace.
pub(crate) async fn bridge(netns: &str, batch: &str) -> Result<()> {
    feed(
        command("bridge", Some(netns), None)?.args(["-batch", "-"]),
        batch,
    )
    .await
}

/// Waits until a bridge's port forwards: the kernel enables it only after it has heard of the carrier, and until then
/// drops what comes (br_port_carrier_check, net/bridge/br_if.c), the first ARP request for example.
pub(crate) async fn forwarding(netns: &str, port: &str) -> Result<()> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let output = command("bridge", Some(netns), None)?
            .args(["link", "show", "dev", port])
            .stdin(Stdio::null())
            .output()
            .await
            .context("cannot run `bridge`: is iproute2 installed?")?;
        if String::from_utf8_lossy(&output.stdout).contains("state forwarding") {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < deadline,
            "port {port} of {netns} does not forward"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a program to its end with `input` on its standard input; its standard error becomes the error's text.
pub(crate) async fn feed(command: &mut Command, input: &str) -> Result<()> {
    let name = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{name}`: is it installed?"))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    ensure!(
        output.status.success(),
        "`{name}` failed ({}): {}\ngiven:\n{input}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Whether an executable of that name is on the PATH.
pub(crate) fn installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// Sends a signal to a child of ours that is still running.
pub(crate) fn signal(
    child: &tokio::process::Child,
    signal: nix::sys::signal::Signal,
) -> Result<()> {
    let Some(pid) = child.id() else {
        bail!("it has already ended");
    };
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into()?), signal)?;
    Ok(())
}

/// Random bytes as lower-case hexadecimal.
pub(crate) fn random_hex(bytes: usize) -> Result<String> {
    use std::io::Read as _;
    let mut buffer = vec![0; bytes];
    File::open("/dev/urandom")?.read_exact(&mut buffer)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}
