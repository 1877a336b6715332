//! Where this kernel keeps what the programs read.

use std::path::Path;

use slicetrace_common::{Offsets, SCRATCH_REASONS};

use super::types::{Error, Types};

/// Type information of the conntrack module, where it is one.
const CONNTRACK: &str = "/sys/kernel/btf/nf_conntrack";

/// Reasons after which `skb->dev` may have been overwritten by `udp_set_dev_scratch` (net/ipv4/udp.c): the datagram was
/// charged to a socket before it was dropped.
const SCRATCH: [&str; SCRATCH_REASONS] = [
    "SKB_DROP_REASON_SOCKET_RCVBUFF",
    "SKB_DROP_REASON_PROTO_MEM",
    "SKB_DROP_REASON_UDP_CSUM",
    "SKB_DROP_REASON_SKB_UCOPY_FAULT",
];

/// Resolves every member; the first that this kernel lacks is the error.
pub(super) fn resolve(types: &Types<'_>) -> Result<Offsets, Error> {
    let at = |structure: &str, path: &str| {
        types
            .member(structure, path)
            .ok_or_else(|| Error::Missing(format!("{structure}.{path}")))
    };
    Ok(Offsets {
        skb_head: at("sk_buff", "head")?,
        skb_data: at("sk_buff", "data")?,
        skb_tail: at("sk_buff", "tail")?,
        skb_network_header: at("sk_buff", "network_header")?,
        skb_protocol: at("sk_buff", "protocol")?,
        skb_dev: at("sk_buff", "dev")?,
        skb_sk: at("sk_buff", "sk")?,
        skb_nfct: at("sk_buff", "_nfct")?,
        dev_ifindex: at("net_device", "ifindex")?,
        dev_name: at("net_device", "name")?,
        dev_net: at("net_device", "nd_net.net")?,
        net_inum: at("net", "ns.inum")?,
        sk_net: at("sock", "__sk_common.skc_net.net")?,
        sk_family: at("sock", "__sk_common.skc_family")?,
        sk_num: at("sock", "__sk_common.skc_num")?,
        sk_dport: at("sock", "__sk_common.skc_dport")?,
        sk_rcv_saddr: at("sock", "__sk_common.skc_rcv_saddr")?,
        sk_daddr: at("sock", "__sk_common.skc_daddr")?,
        sk_v6_rcv_saddr: at("sock", "__sk_common.skc_v6_rcv_saddr")?,
        sk_v6_daddr: at("sock", "__sk_common.skc_v6_daddr")?,
        sk_err: at("sock", "sk_err")?,
        sk_protocol: at("sock", "sk_protocol")?,
        task_tgid: at("task_struct", "tgid")?,
        task_comm: at("task_struct", "comm")?,
        nf_conn_status: conntrack_status(types),
        pad: 0,
    })
}

/// `nf_conn.status` of the kernel or of the module; `u32::MAX` if neither has it, which costs the conntrack bits only.
fn conntrack_status(types: &Types<'_>) -> u32 {
    types
        .member("nf_conn", "status")
        .or_else(|| {
            Types::read(Path::new(CONNTRACK), Some(types))
                .ok()?
                .member("nf_conn", "status")
        })
        .unwrap_or(u32::MAX)
}

/// Numbers in this kernel of the [`SCRATCH`] reasons; `u32::MAX` for one that it lacks.
pub(super) fn scratch_reasons(types: &Types<'_>) -> [u32; SCRATCH_REASONS] {
    let values = types.values("skb_drop_reason");
    SCRATCH.map(|wanted| {
        values
            .iter()
            .find(|(name, _)| name == wanted)
            .and_then(|&(_, value)| u32::try_from(value).ok())
            .unwrap_or(u32::MAX)
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::super::types::KERNEL;
    use super::*;

    #[test]
    fn the_running_kernel_has_every_member() {
        if !Path::new(KERNEL).exists() {
            println!("SKIPPED: {KERNEL} is not there");
            return;
        }
        let types = Types::read(Path::new(KERNEL), None).unwrap();
        let offsets = resolve(&types).unwrap();
        // Layout that cannot change: next and prev come before dev, head before data.
        assert_eq!(offsets.skb_dev, 16);
        assert_eq!(offsets.skb_data, offsets.skb_head + 8);
        assert_eq!(offsets.sk_dport % 2, 0);
        assert!(
            types
                .values("skb_drop_reason")
                .iter()
                .any(|(name, _)| name == "SKB_DROP_REASON_NO_SOCKET")
        );
        assert!(types.tracepoint_parameters("kfree_skb").unwrap() >= 2);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Types::read(Path::new("/nonexistent/vmlinux"), None).unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/vmlinux"),
            "{error}"
        );
    }
}
