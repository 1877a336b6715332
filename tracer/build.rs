//! Compiles the eBPF programs (package `slicetrace-ebpf`) and leaves the object in `OUT_DIR`, where `bpf::load` embeds it.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};
use aya_build::{Package, Toolchain};

/// Overrides the rustup toolchain that compiles the eBPF programs.
const TOOLCHAIN: &str = "SLICETRACE_BPF_TOOLCHAIN";
/// The toolchain that `cargo xtask setup` links: one with a `core` for the BPF target.
const LINKED: &str = "slicetrace-bpf";
const FALLBACK: &str = "nightly";

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed={TOOLCHAIN}");
    for path in ["../tracer-common/src", "../.cargo/config.toml"] {
        println!("cargo:rerun-if-changed={path}");
    }
    build().context(
        "cannot compile slicetrace's eBPF programs. `cargo xtask setup` installs what that needs \
         (bpf-linker, and a Rust toolchain with `core` for bpfel-unknown-none)",
    )
}

fn build() -> Result<()> {
    let manifest = env::var("CARGO_MANIFEST_DIR").context("not run by cargo")?;
    let root = Path::new(&manifest).join("../tracer-ebpf");
    let root = root
        .to_str()
        .ok_or_else(|| anyhow!("{} is not UTF-8", root.display()))?;
    if !runs("bpf-linker", &["--version"]) {
        bail!("bpf-linker is not installed, or not on the PATH");
    }
    prepare()?;
    let toolchain = toolchain();
    let features: &[&str] = if env::var_os("CARGO_FEATURE_EBPF_LOG").is_some() {
        &["ebpf-log"]
    } else {
        &[]
    };
    aya_build::build_ebpf(
        [Package {
            name: "slicetrace-ebpf",
            root_dir: root,
            features,
            ..Package::default()
        }],
        Toolchain::Custom(&toolchain),
    )
}

fn toolchain() -> String {
    if let Ok(chosen) = env::var(TOOLCHAIN) {
        return chosen;
    }
    if runs("rustup", &["run", LINKED, "rustc", "--version"]) {
        LINKED.to_owned()
    } else {
        FALLBACK.to_owned()
    }
}

/// Sets the inner cargo's environment. bpf-linker loads the LLVM of a Rust toolchain at run time and looks for it on the
/// library path.
fn prepare() -> Result<()> {
    let rustc = env::var("RUSTC").context("not run by cargo")?;
    let output = Command::new(&rustc)
        .args(["--print", "sysroot"])
        .output()
        .with_context(|| format!("cannot run {rustc}"))?;
    let sysroot = String::from_utf8(output.stdout).context("the sysroot's path is not UTF-8")?;
    let mut path = format!("{}/lib", sysroot.trim());
    if let Ok(before) = env::var("LD_LIBRARY_PATH") {
        path = format!("{path}:{before}");
    }
    // SAFETY: this program has one thread.
    unsafe {
        env::set_var("LD_LIBRARY_PATH", path);
        // aya-build shows every line of the inner cargo as a warning: progress is none.
        env::set_var("CARGO_TERM_QUIET", "true");
    }
    Ok(())
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
