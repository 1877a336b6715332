//! A node's Service rules, in the shape that kube-proxy's iptables mode gives them (pkg/proxy/iptables/proxier.go):
//! `KUBE-SERVICES` → `KUBE-SVC-…` → one of the `KUBE-SEP-…` by chance → DNAT; REJECT in the filter table where there is
//! no endpoint.
//!
//! A sync is one `iptables-restore --noflush`, so that it takes hold at one moment. Like kube-proxy's partial sync it
//! names only chains that change: those of the Service, and those of the endpoints that come or go.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::Ipv4Addr;

use anyhow::Result;
use slicetrace::model::Timestamp;

use super::{exec, now};

/// The Service's address.
pub(crate) const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 43, 0, 10);

/// kube-proxy's name for the chain of `kube-system/kube-dns:dns`, UDP.
const SERVICE_CHAIN: &str = "KUBE-SVC-TCOU7JCQXEZGVUNU";

/// The rules of one node.
#[derive(Debug)]
pub(crate) struct Rules {
    node: &'static str,
    backends: BTreeSet<Ipv4Addr>,
}

/// A sync: the rules changed at some moment between the two times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit {
    /// Before `iptables-restore` was started.
    pub(crate) start: Timestamp,
    /// After it had ended.
    pub(crate) end: Timestamp,
}

impl Rules {
    /// Writes the chains that are there before any endpoint.
    pub(crate) async fn install(node: &'static str) -> Result<Self> {
        restore(node, BASE).await?;
        let mut rules = Self {
            node,
            backends: BTreeSet::new(),
        };
        rules.replace(&[]).await?;
        Ok(rules)
    }

    /// Makes these the Service's backends, in one commit.
    pub(crate) async fn replace(&mut self, backends: &[Ipv4Addr]) -> Result<Commit> {
        let wanted: BTreeSet<Ipv4Addr> = backends.iter().copied().collect();
        let batch = batch(&self.backends, &wanted);
        let start = now();
        restore(self.node, &batch).await?;
        let end = now();
        self.backends = wanted;
        Ok(Commit { start, end })
    }
}

async fn restore(node: &str, batch: &str) -> Result<()> {
    let program = if exec::installed("iptables-nft-restore") {
        "iptables-nft-restore"
    } else {
        "iptables-restore"
    };
    exec::feed(
        exec::command(program, Some(node), None)?.arg("--noflush"),
        batch,
    )
    .await
}

/// Name of an endpoint's chain: 16 characters from a hash, as kube-proxy does (its hash is another).
fn endpoint_chain(backend: Ipv4Addr) -> String {
    let mut hasher = DefaultHasher::new();
    ("kube-system/kube-dns:dns", backend).hash(&mut hasher);
    let (mut hash, mut name) = (hasher.finish(), String::from("KUBE-SEP-"));
    for _ in 0..16 {
        name.push(char::from(b'A' + u8::try_from(hash % 16).unwrap_or(0)));
        hash /= 16;
    }
    name
}

/// What `iptables-restore` is given to go from one set of backends to another.
fn batch(before: &BTreeSet<Ipv4Addr>, after: &BTreeSet<Ipv4Addr>) -> String {
    let service = format!("-d {CLUSTER_IP}/32 -p udp -m udp --dport 53 -m comment --comment");
    let mut filter = String::from("*filter\n:KUBE-SERVICES - [0:0]\n");
    let mut chains = String::from("*nat\n:KUBE-SERVICES - [0:0]\n");
    let mut rules = String::new();
    if after.is_empty() {
        filter += &format!(
            "-A KUBE-SERVICES {service} \"kube-system/kube-dns:dns has no endpoints\" \
             -j REJECT --reject-with icmp-port-unreachable\n"
        );
    } else {
        chains += &format!(":{SERVICE_CHAIN} - [0:0]\n");
        rules += &format!(
            "-A KUBE-SERVICES {service} \"kube-system/kube-dns:dns cluster IP\" -j {SERVICE_CHAIN}\n\
             -A {SERVICE_CHAIN} ! -s 10.42.0.0/16 {service} \"kube-system/kube-dns:dns cluster IP\" -j KUBE-MARK-MASQ\n"
        );
    }
    for (left, backend) in (1..=after.len()).rev().zip(after) {
        let chain = endpoint_chain(*backend);
        let chance = if left > 1 {
            format!(
                "-m statistic --mode random --probability {:.10} ",
                1.0 / left as f64
            )
        } else {
            String::new()
        };
        rules += &format!(
            "-A {SERVICE_CHAIN} -m comment --comment \"kube-system/kube-dns:dns -> {backend}:53\" {chance}-j {chain}\n"
        );
        if !before.contains(backend) {
            chains += &format!(":{chain} - [0:0]\n");
            let comment = "-m comment --comment kube-system/kube-dns:dns";
            rules += &format!(
                "-A {chain} -s {backend}/32 {comment} -j KUBE-MARK-MASQ\n\
                 -A {chain} -p udp {comment} -m udp -j DNAT --to-destination {backend}:53\n"
            );
        }
    }
    for backend in before.difference(after) {
        let chain = endpoint_chain(*backend);
        chains += &format!(":{chain} - [0:0]\n");
        let _ = writeln!(rules, "-X {chain}");
    }
    if after.is_empty() && !before.is_empty() {
        chains += &format!(":{SERVICE_CHAIN} - [0:0]\n");
        let _ = writeln!(rules, "-X {SERVICE_CHAIN}");
    }
    format!("{filter}COMMIT\n{chains}{rules}COMMIT\n")
}

/// kube-proxy's chains that do not depend on endpoints.
const BASE: &str = "\
*filter
:KUBE-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
COMMIT
";

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 42, 2, 10);
    const B: Ipv4Addr = Ipv4Addr::new(10, 42, 1, 10);

    #[test]
    fn a_removed_endpoint_takes_its_chain_along_and_leaves_the_other_alone() {
        let text = batch(&[A, B].into(), &[B].into());
        assert!(text.contains(&format!("-X {}", endpoint_chain(A))));
        assert!(!text.contains(&format!(":{}", endpoint_chain(B))));
        assert!(!text.contains("REJECT"));
        assert_eq!(text.matches("--probability").count(), 0);
    }

    #[test]
    fn the_first_of_two_is_taken_half_of_the_time() {
        let text = batch(&[].into(), &[A, B].into());
        assert_eq!(text.matches("--probability 0.5000000000").count(), 1);
        assert_eq!(text.matches("DNAT --to-destination").count(), 2);
    }

    #[test]
    fn without_endpoints_queries_are_rejected() {
        let text = batch(&[A].into(), &[].into());
        assert!(text.contains("-j REJECT --reject-with icmp-port-unreachable"));
        assert!(!text.contains("DNAT"));
        assert!(text.contains(&format!("-X {SERVICE_CHAIN}")));
    }
}
