//! Where things are: the workspace, its build output, the cargo that started us.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The workspace's root folder.
pub(crate) fn root() -> &'static Path {
    // CARGO_MANIFEST_DIR is <root>/xtask: it always has a parent.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// A program of this workspace, built with the dev profile: beside this very program.
///
/// # Errors
/// When the path of this program cannot be found.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("finding the path of xtask itself")?;
    Ok(own.with_file_name(name))
}

/// Cargo, as the one that started us, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Where programs are searched: also where cargo installs its own, and where Debian keeps those of root.
pub(crate) fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let more = cargo_home
        .map(|home| home.join("bin"))
        .into_iter()
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    for folder in more {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Prepares a child's environment: the search path as above, and without what `cargo run` put into ours for this
/// program only. Left in, it would make build scripts that look at it (ring's) run again whenever cargo is started now
/// from here and now by hand, and lead bpf-linker to another LLVM than that of its rustc.
pub(crate) fn prepare(command: &mut Command) {
    // Joining fails only for a folder with a colon in its name, which splitting cannot have produced.
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    if let Some(path) = env::var_os("LD_LIBRARY_PATH") {
        match without_cargo(&path) {
            Some(rest) => command.env("LD_LIBRARY_PATH", rest),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
}

/// Whether cargo set a variable to describe this package to this program.
fn is_ours(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// A library path without the folders that cargo and rustup prepend; `None` if nothing is left.
fn without_cargo(path: &OsStr) -> Option<OsString> {
    let foreign = |folder: &PathBuf| {
        let names = |wanted: &str| folder.iter().any(|name| name == wanted);
        !(folder.as_os_str().is_empty()
            || names("rustlib")
            || names(".rustup")
            || names("toolchains")
            || folder.starts_with(root().join("target")))
    };
    let kept: Vec<PathBuf> = env::split_paths(path).filter(foreign).collect();
    if kept.is_empty() {
        return None;
    }
    env::join_paths(kept).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_path_keeps_only_what_the_user_gave() {
        let target = root().join("target/debug/deps");
        let path = format!(
            "{}:/root/.rustup/toolchains/stable/lib::/opt/llvm/lib",
            target.display()
        );
        assert_eq!(without_cargo(path.as_ref()), Some("/opt/llvm/lib".into()));
        assert_eq!(without_cargo(target.as_os_str()), None);
    }
}
