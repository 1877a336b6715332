//! Three nodes on one kernel, and the promise that nothing of them is left behind.

pub(crate) mod cgroup;
pub(crate) mod exec;
pub(crate) mod nodes;
pub(crate) mod outer;
pub(crate) mod pods;
pub(crate) mod rules;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use slicetrace::model::Timestamp;

use nodes::Node;

/// A raised lab.
#[derive(Debug)]
pub(crate) struct Lab {
    /// The three nodes.
    pub(crate) nodes: Vec<Node>,
}

impl Lab {
    /// Raises it; `subtree` is its cgroup. Only pid 1 of the lab may: namespaces are named below its own `/run`.
    pub(crate) async fn raise(subtree: &Path) -> Result<Self> {
        Ok(Self {
            nodes: nodes::raise(subtree).await?,
        })
    }

    /// A node by its name.
    pub(crate) fn node(&self, name: &str) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.name == name)
            .with_context(|| format!("the lab has no node {name}"))
    }
}

/// The wall clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
