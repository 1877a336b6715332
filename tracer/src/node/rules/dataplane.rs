//! Who translates Service addresses on this node: a guess from what is there, never from a process name.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::RulesError;
use super::attributes::{find, messages, name};
use super::batch::{MSG_GETCHAIN, MSG_GETTABLE, MSG_NEWCHAIN, MSG_NEWTABLE, SUBSYSTEM};

/// What was found, in the network namespace of the calling thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataplane {
    /// Table `kube-proxy` of family ip, ip6 or inet: kube-proxy in nftables mode (KEP-3866).
    pub kube_proxy_nftables: bool,
    /// Chain `KUBE-SERVICES` in a `nat` table that nftables knows: kube-proxy in iptables mode, by iptables-nft.
    pub kube_proxy_iptables: bool,
    /// Device `kube-ipvs0`: kube-proxy in IPVS mode.
    pub kube_proxy_ipvs: bool,
    /// A `nat` table of iptables-legacy exists, whose changes nobody announces.
    pub legacy_nat: bool,
    /// Device `cilium_host`.
    pub cilium: bool,
}

impl Dataplane {
    /// Looks at this node.
    ///
    /// # Errors
    /// When netfilter cannot be asked.
    pub fn detect() -> Result<Self, RulesError> {
        let tables = dump(MSG_GETTABLE, MSG_NEWTABLE, TABLE_NAME, TABLE_NAME)?;
        let chains = dump(MSG_GETCHAIN, MSG_NEWCHAIN, CHAIN_TABLE, CHAIN_NAME)?;
        Ok(Self {
            kube_proxy_nftables: tables.iter().any(|(table, _)| table == "kube-proxy"),
            kube_proxy_iptables: chains
                .iter()
                .any(|(table, chain)| table == "nat" && chain == "KUBE-SERVICES"),
            kube_proxy_ipvs: device_exists("kube-ipvs0"),
            legacy_nat: ["ip_tables_names", "ip6_tables_names"]
                .iter()
                .filter_map(|file| {
                    fs::read_to_string(Path::new("/proc/thread-self/net").join(file)).ok()
                })
                .any(|names| names.lines().any(|name| name == "nat")),
            cilium: device_exists("cilium_host"),
        })
    }

    /// Name for people and for [`crate::model::record::NodeInfo::dataplane`], such as `cilium+kube-proxy-iptables`;
    /// `None`: nothing known was found.
    pub fn name(&self) -> Option<String> {
        let parts: Vec<_> = [
            (self.cilium, "cilium"),
            (self.kube_proxy_ipvs, "kube-proxy-ipvs"),
            (self.kube_proxy_nftables, "kube-proxy-nftables"),
            (self.kube_proxy_iptables, "kube-proxy-iptables"),
            (self.legacy_nat, "iptables-legacy"),
        ]
        .into_iter()
        .filter_map(|(found, name)| found.then_some(name))
        .collect();
        (!parts.is_empty()).then(|| parts.join("+"))
    }

    /// Whether silence of [`super::RuleListener`] means "no rule changed": nothing here translates addresses by rules
    /// that change unannounced.
    pub const fn announces_all(&self) -> bool {
        !self.kube_proxy_ipvs && !self.legacy_nat && !self.cilium
    }
}

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;

/// Devices of this thread's namespace; /sys/class/net shows those of the namespace that mounted it.
fn device_exists(device: &str) -> bool {
    nix::net::if_::if_nametoindex(device).is_ok()
}

/// Two names of every object of one kind.
fn dump(
    request: u16,
    answer: u16,
    first: u16,
    second: u16,
) -> Result<Vec<(String, String)>, RulesError> {
    let failed = |step| move |error| RulesError::Socket { step, error };
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )
    .map_err(failed("socket"))?;
    // A dump is answered at once; no answer must not stop the agent's start.
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(2))
        .map_err(failed("SO_RCVTIMEO"))?;
    let mut message = Vec::new();
    message.extend_from_slice(&20_u32.to_ne_bytes());
    message.extend_from_slice(&(SUBSYSTEM << 8 | request).to_ne_bytes());
    message.extend_from_slice(&FLAGS.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    // struct nfgenmsg: every family, version 0.
    message.extend_from_slice(&[0; 4]);
    sendto(
        socket.as_raw_fd(),
        &message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )
    .map_err(failed("asking for the rules"))?;

    let mut names = Vec::new();
    let mut buffer = vec![0; super::DATAGRAM];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())
            .map_err(failed("reading the rules"))?;
        for message in messages(&buffer[..length.min(buffer.len())]) {
            let Ok(message) = message else {
                return Err(failed("reading the rules")(Errno::EBADMSG));
            };
            match i32::from(message.kind) {
                libc::NLMSG_DONE => return Ok(names),
                libc::NLMSG_ERROR => {
                    let errno = message
                        .payload
                        .first_chunk()
                        .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    return Err(failed("asking for the rules")(Errno::from_raw(-errno)));
                }
                _ => {}
            }
            if message.kind == SUBSYSTEM << 8 | answer
                && let Some(body) = message.payload.get(4..)
                && let (Ok(Some(one)), Ok(Some(two))) = (find(body, first), find(body, second))
            {
                names.push((name(one), name(two)));
            }
        }
    }
}

/// `NLM_F_REQUEST | NLM_F_DUMP`.
const FLAGS: u16 = 0x301;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_announced_rules_make_silence_meaningful() {
        let mut found = Dataplane {
            kube_proxy_iptables: true,
            ..Dataplane::default()
        };
        assert_eq!(found.name().as_deref(), Some("kube-proxy-iptables"));
        assert!(found.announces_all());
        found.cilium = true;
        assert_eq!(found.name().as_deref(), Some("cilium+kube-proxy-iptables"));
        assert!(!found.announces_all());
        assert_eq!(Dataplane::default().name(), None);
    }
}
