//! The node agent: start, run, drain.

pub mod config;

pub use config::Config;

/// PLACEHOLDER until the agent's branch is merged.
///
/// # Errors
/// Always.
pub fn run(_config: Config) -> Result<(), String> {
    Err("this build has no agent".to_owned())
}
