//! Doing one [`Step`].

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{BPF_CORE, BPF_CORE_PACKAGES, BPF_TOOLCHAIN, Step};
use crate::{process, workspace};

impl Step {
    pub(super) fn says(&self) -> String {
        match self {
            Self::Packages(packages) => format!("apt-get install {}", packages.join(" ")),
            Self::DebianCore { .. } => format!(
                "apt-get install {} (a Rust with core for BPF)",
                BPF_CORE_PACKAGES.join(" ")
            ),
            Self::Link => format!("rustup toolchain link {BPF_TOOLCHAIN} /usr"),
            Self::Nightly => {
                "rustup toolchain install nightly, with rust-src (core for BPF is compiled from it)"
                    .to_owned()
            }
            Self::Program((name, version)) => {
                format!("cargo install {name}@{version} (a minute or two)")
            }
            Self::Components(components) => {
                format!("rustup component add {}", components.join(" "))
            }
            Self::ByHand(what) => what.clone(),
        }
    }

    pub(super) fn take(&self) -> Result<()> {
        match self {
            Self::Packages(packages) => apt_install(packages),
            Self::DebianCore { else_nightly } => match apt_install(&BPF_CORE_PACKAGES) {
                Ok(()) if Path::new(BPF_CORE).is_dir() => Ok(()),
                outcome if *else_nightly => {
                    if let Err(error) = outcome {
                        eprintln!("setup: {error:#}; trying a nightly instead");
                    }
                    Self::Nightly.take()
                }
                outcome => outcome,
            },
            // After a fall-back to nightly there is nothing to link.
            Self::Link if !Path::new(BPF_CORE).is_dir() => Ok(()),
            Self::Link => process::check(Command::new("rustup").args([
                "toolchain",
                "link",
                BPF_TOOLCHAIN,
                "/usr",
            ])),
            Self::Nightly => process::check(Command::new("rustup").args([
                "toolchain",
                "install",
                "nightly",
                "--profile",
                "minimal",
                "--component",
                "rust-src",
            ])),
            Self::Program((name, version)) => process::check(
                workspace::cargo()
                    // Outside of the workspace: its .cargo/config.toml is meant for its own crates.
                    .current_dir("/")
                    .args(["install", "--quiet", "--locked"])
                    .arg(format!("{name}@{version}")),
            ),
            Self::Components(components) => process::check(
                Command::new("rustup")
                    .args(["component", "add"])
                    .args(components),
            ),
            Self::ByHand(what) => bail!("cannot be done from here: {what}"),
        }
    }
}

/// Installs packages, after fetching apt's lists where there are none, or where they were too old.
fn apt_install(packages: &[&str]) -> Result<()> {
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-qq", "-o", "Dpkg::Use-Pty=0"])
            .args(words);
        process::check_quietly(&mut command)
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(packages);
    if apt_has_lists() {
        if apt(&install).is_ok() {
            return Ok(());
        }
        eprintln!("setup: trying again with fresh package lists");
    }
    apt(&["update"])?;
    apt(&install)
}

fn apt_has_lists() -> bool {
    fs::read_dir("/var/lib/apt/lists").is_ok_and(|entries| {
        entries
            .filter_map(Result::ok)
            .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
    })
}
