//! The one place that knows what has to be installed, looks whether it is there, and installs what is not.
//!
//! What is there is looked at first ([`Found`]), what to do follows from that alone ([`plan`]), and only then is it
//! done: a machine that has everything is told so in a fraction of a second and changed in nothing.

mod install;
mod look;

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, bail};

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// To compile everything, the eBPF programs included.
    Build,
    /// To raise the lab and run clients in it.
    Lab,
    /// For `cargo xtask lint`.
    Lint,
}

/// A Debian package and how to see that what we want of it is there, wherever it came from.
struct Package {
    name: &'static str,
    needed: For,
    evidence: Evidence,
}

enum Evidence {
    Program(&'static str),
    File(&'static str),
}

const fn program(name: &'static str, needed: For, program: &'static str) -> Package {
    let evidence = Evidence::Program(program);
    Package {
        name,
        needed,
        evidence,
    }
}

const PACKAGES: &[Package] = &[
    // SQLite and ring are compiled from C.
    program("gcc", For::Build, "cc"),
    Package {
        name: "libc6-dev",
        needed: For::Build,
        evidence: Evidence::File("/usr/include/stdio.h"),
    },
    program("iproute2", For::Lab, "ip"),
    program("iptables", For::Lab, "iptables-restore"),
    program("nftables", For::Lab, "nft"),
    program("dnsmasq-base", For::Lab, "dnsmasq"),
    program("busybox-static", For::Lab, "busybox"),
];

/// Debian's rustc with a compiled `core` for BPF: no nightly, no rust-src (docs/decisions/0005).
const BPF_CORE_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"];
const BPF_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none/lib";
/// The name under which rustup knows it; tracer/build.rs looks for it.
const BPF_TOOLCHAIN: &str = "slicetrace-bpf";

/// Programs from crates.io, in versions that build with the Rust of this workspace.
const BPF_LINKER: (&str, &str) = ("bpf-linker", "0.10.3");
const CARGO_DENY: (&str, &str) = ("cargo-deny", "0.20.2");

/// What this machine has.
#[derive(Clone, Debug)]
struct Found {
    root: bool,
    apt: bool,
    rustup: bool,
    /// Packages of [`PACKAGES`] that show no evidence.
    missing: BTreeSet<&'static str>,
    debian_core: bool,
    linked: bool,
    nightly_source: bool,
    bpf_linker: bool,
    clippy: bool,
    rustfmt: bool,
    cargo_deny: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Install Debian packages.
    Packages(Vec<&'static str>),
    /// Install Debian's rustc with the BPF `core`; where Debian has none and rustup is there, a nightly instead.
    DebianCore { else_nightly: bool },
    /// Tell rustup of Debian's rustc.
    Link,
    /// Install a nightly with the source of `core`.
    Nightly,
    /// `cargo install` a program.
    Program((&'static str, &'static str)),
    /// Add components to the toolchain in use.
    Components(Vec<&'static str>),
    /// What only the user can do: a command or a sentence.
    ByHand(String),
}

/// Installs whatever is missing for `wanted`, with a line for each thing done.
///
/// # Errors
/// When something is missing and cannot be installed from here: the message has the commands to type.
pub(crate) fn ensure(wanted: &[For]) -> Result<()> {
    let started = Instant::now();
    let steps = plan(&Found::look(wanted), wanted);
    let by_hand: Vec<&str> = steps
        .iter()
        .filter_map(|step| match step {
            Step::ByHand(command) => Some(command.as_str()),
            _ => None,
        })
        .collect();
    if !by_hand.is_empty() {
        bail!(
            "something is missing that cannot be installed from here; please run\n  {}",
            by_hand.join("\n  ")
        );
    }
    for step in &steps {
        let started = Instant::now();
        eprintln!("setup: {} …", step.says());
        step.take()?;
        eprintln!("setup: {}: {:.0?}", step.says(), started.elapsed());
    }
    // Believe what can be seen, not what an installer said.
    let left = if steps.is_empty() {
        Vec::new()
    } else {
        plan(&Found::look(wanted), wanted)
    };
    if let Some(step) = left.first() {
        bail!("{} ended well, and yet it is still missing", step.says());
    }
    eprintln!("setup: everything is there ({:.1?})", started.elapsed());
    Ok(())
}

/// What to do on a machine where `found` was found.
fn plan(found: &Found, wanted: &[For]) -> Vec<Step> {
    let can_apt = found.apt && found.root;
    let mut steps = Vec::new();
    let packages: Vec<&str> = PACKAGES
        .iter()
        .filter(|package| wanted.contains(&package.needed) && found.missing.contains(package.name))
        .map(|package| package.name)
        .collect();
    if !packages.is_empty() {
        steps.push(if can_apt {
            Step::Packages(packages)
        } else {
            by_apt(found, &packages)
        });
    }
    if wanted.contains(&For::Build) {
        if !found.debian_core && !found.nightly_source {
            steps.push(match (can_apt, found.rustup) {
                (true, else_nightly) => Step::DebianCore { else_nightly },
                (false, true) => Step::Nightly,
                (false, false) => by_apt(found, &BPF_CORE_PACKAGES),
            });
        }
        let core = found.debian_core || matches!(steps.last(), Some(Step::DebianCore { .. }));
        if core && found.rustup && !found.linked {
            steps.push(Step::Link);
        }
        if !found.bpf_linker {
            steps.push(Step::Program(BPF_LINKER));
        }
    }
    if wanted.contains(&For::Lint) {
        let components: Vec<&str> = [("clippy", found.clippy), ("rustfmt", found.rustfmt)]
            .into_iter()
            .filter_map(|(name, there)| (!there).then_some(name))
            .collect();
        if !components.is_empty() {
            steps.push(if found.rustup {
                Step::Components(components)
            } else {
                Step::ByHand(format!(
                    "install {} for your Rust (there is no rustup here to do it with)",
                    components.join(" and ")
                ))
            });
        }
        if !found.cargo_deny {
            steps.push(Step::Program(CARGO_DENY));
        }
    }
    steps
}

fn by_apt(found: &Found, packages: &[&str]) -> Step {
    let list = packages.join(" ");
    Step::ByHand(if found.apt {
        format!("sudo apt-get update && sudo apt-get install -y --no-install-recommends {list}")
    } else {
        format!("(no apt here) your system's equivalent of Debian's packages {list}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh Debian with rustup.
    fn fresh() -> Found {
        Found {
            root: true,
            apt: true,
            rustup: true,
            missing: PACKAGES.iter().map(|package| package.name).collect(),
            debian_core: false,
            linked: false,
            nightly_source: false,
            bpf_linker: false,
            clippy: false,
            rustfmt: false,
            cargo_deny: false,
        }
    }

    fn complete() -> Found {
        Found {
            missing: BTreeSet::new(),
            debian_core: true,
            linked: true,
            bpf_linker: true,
            clippy: true,
            rustfmt: true,
            cargo_deny: true,
            ..fresh()
        }
    }

    const ALL: [For; 3] = [For::Build, For::Lab, For::Lint];

    #[test]
    fn a_complete_machine_is_left_alone() {
        assert_eq!(plan(&complete(), &ALL), []);
        let not_root = Found {
            root: false,
            apt: false,
            rustup: false,
            ..complete()
        };
        assert_eq!(plan(&not_root, &ALL), []);
    }

    #[test]
    fn a_fresh_machine_gets_everything_in_order() {
        let steps = plan(&fresh(), &ALL);
        assert_eq!(
            steps[1..],
            [
                Step::DebianCore { else_nightly: true },
                Step::Link,
                Step::Program(BPF_LINKER),
                Step::Components(vec!["clippy", "rustfmt"]),
                Step::Program(CARGO_DENY),
            ]
        );
        let Step::Packages(packages) = &steps[0] else {
            panic!("{steps:?}");
        };
        assert_eq!(packages.len(), PACKAGES.len());
    }

    #[test]
    fn only_what_is_wanted_is_installed() {
        assert_eq!(
            plan(&fresh(), &[For::Lint]),
            [
                Step::Components(vec!["clippy", "rustfmt"]),
                Step::Program(CARGO_DENY)
            ]
        );
        let steps = plan(&fresh(), &[For::Build]);
        assert_eq!(steps[0], Step::Packages(vec!["gcc", "libc6-dev"]));
        assert!(!steps.contains(&Step::Program(CARGO_DENY)));
    }

    #[test]
    fn without_root_a_nightly_does_and_the_rest_is_told() {
        let steps = plan(
            &Found {
                root: false,
                ..fresh()
            },
            &[For::Build, For::Lab],
        );
        let Step::ByHand(command) = &steps[0] else {
            panic!("{steps:?}");
        };
        assert!(command.starts_with("sudo apt-get update"), "{command}");
        assert!(command.contains("dnsmasq-base"), "{command}");
        assert_eq!(steps[1..], [Step::Nightly, Step::Program(BPF_LINKER)]);
    }

    #[test]
    fn without_apt_and_rustup_everything_is_told() {
        let found = Found {
            apt: false,
            rustup: false,
            ..fresh()
        };
        let by_hand = plan(&found, &ALL)
            .into_iter()
            .filter(|step| matches!(step, Step::ByHand(_)))
            .count();
        assert_eq!(by_hand, 3, "packages, core for BPF, components");
    }

    #[test]
    fn a_nightly_with_source_is_enough() {
        let found = Found {
            debian_core: false,
            linked: false,
            nightly_source: true,
            ..complete()
        };
        assert_eq!(plan(&found, &ALL), []);
    }

    #[test]
    fn debians_own_cargo_needs_no_link() {
        let found = Found {
            rustup: false,
            linked: false,
            ..complete()
        };
        assert_eq!(plan(&found, &ALL), []);
    }

    #[test]
    fn a_core_that_rustup_does_not_know_is_linked() {
        let found = Found {
            linked: false,
            ..complete()
        };
        assert_eq!(plan(&found, &ALL), [Step::Link]);
    }
}
