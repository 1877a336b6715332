//! Looking what this machine has.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{BPF_CORE, BPF_LINKER, BPF_TOOLCHAIN, CARGO_DENY, Evidence, For, Found, PACKAGES};
use crate::workspace;

impl Found {
    pub(super) fn look(wanted: &[For]) -> Self {
        let rustup = find("rustup").is_some();
        let build = wanted.contains(&For::Build);
        let lint = wanted.contains(&For::Lint);
        let toolchains = if rustup && build {
            says(Command::new("rustup").args(["toolchain", "list"]))
        } else {
            None
        }
        .unwrap_or_default();
        // Asked only where it matters: each of these starts a program.
        let asks = |when: bool, command: &mut Command| when && says(command).is_some();
        Self {
            // SAFETY: geteuid(2) has no preconditions.
            root: unsafe { libc::geteuid() } == 0,
            apt: find("apt-get").is_some(),
            rustup,
            missing: PACKAGES
                .iter()
                .filter(|package| match package.evidence {
                    Evidence::Program(name) => find(name).is_none(),
                    Evidence::File(path) => !Path::new(path).exists(),
                })
                .map(|package| package.name)
                .collect(),
            debian_core: Path::new(BPF_CORE).is_dir(),
            linked: lists_toolchain(&toolchains, BPF_TOOLCHAIN),
            nightly_source: lists_toolchain(&toolchains, "nightly") && nightly_has_source(),
            bpf_linker: build
                && says(Command::new("bpf-linker").arg("--version"))
                    .is_some_and(|version| same_series(&version, BPF_LINKER)),
            clippy: asks(lint, workspace::cargo().args(["clippy", "--version"])),
            rustfmt: asks(lint, workspace::cargo().args(["fmt", "--version"])),
            cargo_deny: lint && find(CARGO_DENY.0).is_some(),
        }
    }
}

fn nightly_has_source() -> bool {
    says(Command::new("rustc").args(["+nightly", "--print", "sysroot"])).is_some_and(|sysroot| {
        Path::new(sysroot.trim())
            .join("lib/rustlib/src/rust/library/core")
            .is_dir()
    })
}

/// Whether `rustup toolchain list` has a toolchain: by its whole name, or with a host behind it.
fn lists_toolchain(list: &str, name: &str) -> bool {
    list.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(|toolchain| toolchain.strip_prefix(name))
        .any(|rest| {
            rest.is_empty()
                || rest.starts_with('-') && !rest[1..].starts_with(|c: char| c.is_ascii_digit())
        })
}

/// Whether `NAME 0.10.7` is of the series that `(NAME, 0.10.3)` stands for.
fn same_series(says: &str, (name, version): (&str, &str)) -> bool {
    let series = |version: &str| -> Option<(String, String)> {
        let mut parts = version.split('.');
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    };
    says.trim()
        .strip_prefix(name)
        .is_some_and(|found| series(found.trim()) == series(version))
}

/// What a command prints; `None` if it cannot be run or fails.
fn says(command: &mut Command) -> Option<String> {
    workspace::prepare(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A program on the search path.
fn find(name: &str) -> Option<PathBuf> {
    workspace::search_path()
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchains_are_told_apart() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\nnightly-2026-01-02-x86_64-unknown-linux-gnu\nslicetrace-bpf\n";
        assert!(lists_toolchain(list, "stable"));
        assert!(lists_toolchain(list, BPF_TOOLCHAIN));
        assert!(!lists_toolchain(list, "nightly"), "a dated one is another");
        assert!(!lists_toolchain(list, "slice"));
        assert!(lists_toolchain(
            "nightly-aarch64-unknown-linux-gnu",
            "nightly"
        ));
        assert!(!lists_toolchain("", "nightly"));
    }

    #[test]
    fn versions_of_the_same_series_do() {
        let wanted = ("bpf-linker", "0.10.3");
        assert!(same_series("bpf-linker 0.10.3\n", wanted));
        assert!(same_series("bpf-linker 0.10.12", wanted));
        assert!(!same_series("bpf-linker 0.9.15", wanted));
        assert!(!same_series("bpf-linker 0.1.3", wanted));
        assert!(!same_series("lld 0.10.3", wanted));
        assert!(!same_series("", wanted));
    }
}
