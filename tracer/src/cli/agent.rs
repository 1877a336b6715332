//! `slicetrace agent`: checks what it is told before anything is attached.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{Ending, Failure, block_on, values};
use crate::agent::Config;
use crate::agent::config::RecordWhat;
use crate::api::server::Access;
use crate::k8s::ApiOptions;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// This node's name in the API
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// A Service to watch; repeatable (UDP ports only)
    #[arg(long = "service", value_name = "NS/NAME", default_value = "kube-system/kube-dns", value_parser = values::service)]
    services: Vec<String>,
    /// A further address that counts as this DNS Service (a node-local cache's); repeatable
    #[arg(long = "frontend", value_name = "ADDR:PORT")]
    frontends: Vec<SocketAddr>,
    /// How to reach the API [default: in-cluster, then $KUBECONFIG, then ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// API server to use instead of the kubeconfig's
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The node's store
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/slicetrace/node.db"
    )]
    db: PathBuf,
    /// Keep records so long
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = values::duration)]
    keep_for: Duration,
    /// Keep the store no larger than this
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = values::bytes)]
    keep_bytes: u64,
    /// Where the API answers
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9754")]
    listen: SocketAddr,
    /// Let --listen be an address that others can reach
    #[arg(long)]
    allow_remote: bool,
    /// File with the bearer token of the API
    #[arg(long, value_name = "FILE", conflicts_with = "insecure_no_token")]
    token_file: Option<PathBuf>,
    /// Let every process of this machine ask the API (for a lab; loopback only)
    #[arg(long)]
    insecure_no_token: bool,
    /// Written once every program is attached and the first list of the API is in
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Only packets in these network namespaces (files such as /run/netns/a-*); repeatable
    #[arg(long, value_name = "GLOB")]
    netns: Vec<String>,
    /// Only sockets under this cgroup2 directory, which counts as the cgroup root
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// What is kept in full: the rest is kept as counts
    #[arg(long, value_enum, default_value_t)]
    record: RecordWhat,
}

/// A smaller store would hold nothing but its own tables and log.
const SMALLEST_STORE: u64 = 16 << 20;

impl Arguments {
    /// Checks everything and resolves it.
    pub(super) fn resolve(self) -> Result<Config, Failure> {
        if self.node.is_empty() {
            return Err(Failure::usage(
                "--node (or NODE_NAME) is empty; give this node's name in the API",
            ));
        }
        self.check_listen()?;
        if self.keep_bytes < SMALLEST_STORE {
            return Err(Failure::usage(format!(
                "--keep-bytes {} is too small to keep anything; give 16MiB or more",
                self.keep_bytes
            )));
        }
        if self.keep_for.is_zero() {
            return Err(Failure::usage(
                "--keep-for 0 keeps nothing; give a duration such as 7d",
            ));
        }
        if let Some(glob) = self.netns.iter().find(|glob| !glob.starts_with('/')) {
            return Err(Failure::usage(format!(
                "--netns `{glob}`: not an absolute path; write files such as /run/netns/node1*"
            )));
        }
        if let Some(cgroup) = &self.cgroup {
            check_cgroup(cgroup)?;
        }
        let token = self.token_file.as_deref().map(values::token).transpose()?;
        Ok(Config {
            node: self.node,
            services: self.services,
            extra_frontends: self.frontends,
            api: ApiOptions {
                kubeconfig: self.kubeconfig,
                context: self.context,
                server: self.server,
            },
            db: self.db,
            keep_for: self.keep_for,
            keep_bytes: self.keep_bytes,
            listen: self.listen,
            access: token.map_or(Access::Anybody, |token| Access::Token(token.into())),
            ready_file: self.ready_file,
            netns: self.netns,
            cgroup: self.cgroup,
            record: self.record,
        })
    }

    fn check_listen(&self) -> Result<(), Failure> {
        let loopback = self.listen.ip().to_canonical().is_loopback();
        if !loopback && !self.allow_remote {
            return Err(Failure::usage(format!(
                "--listen {}: others can reach that address; give --allow-remote if that is meant, or a loopback address",
                self.listen
            )));
        }
        if !loopback && self.insecure_no_token {
            return Err(Failure::usage(format!(
                "--listen {}: without a token only on loopback; give --token-file",
                self.listen
            )));
        }
        if self.token_file.is_none() && !self.insecure_no_token {
            return Err(Failure::usage(
                "the API needs a token: give --token-file FILE, or in a lab --insecure-no-token (every process of this \
                 machine can read the records then)",
            ));
        }
        Ok(())
    }
}

fn check_cgroup(path: &Path) -> Result<(), Failure> {
    // Every cgroup2 directory has this file, the root too (Documentation/admin-guide/cgroup-v2.rst); v1 has not.
    if path.join("cgroup.controllers").is_file() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--cgroup {}: not a cgroup2 directory; give one under the cgroup2 mount (`findmnt -t cgroup2`)",
        path.display()
    )))
}

pub(super) fn run(arguments: Arguments) -> Result<Ending, Failure> {
    let config = arguments.resolve()?;
    block_on(crate::agent::run(config))?
        .map(|()| Ending::Done)
        .map_err(|error| Failure::Failed(error.to_string()))
}
