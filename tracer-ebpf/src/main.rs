//! slicetrace's hooks in the kernel. Each is a name, a place, and a call; what they do is in the modules.
//!
//! Nothing here ever changes, delays or refuses a packet or a call: cgroup programs always return 1, and where another
//! program refused a call, that stands.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(
    internal_features,
    reason = "fetching atomics exist on the BPF target only as intrinsics"
)]

mod atomic;
mod drops;
mod hops;
mod kernel;
mod log;
mod maps;
mod parse;
mod scope;
mod sockets;

use aya_ebpf::{
    macros::{btf_tracepoint, cgroup_skb, cgroup_sock, cgroup_sock_addr},
    programs::{BtfTracePointContext, SkBuffContext, SockAddrContext, SockContext},
};
use slicetrace_common::{counter, point};

use kernel::{Skb, Sock};
use maps::config;

/// Let the packet or the call go on.
const GO_ON: i32 = 1;

#[cgroup_skb(egress)]
fn cgroup_egress(context: SkBuffContext) -> i32 {
    sockets::packet(&context, point::SOCKET_OUT, counter::CGROUP_EGRESS);
    GO_ON
}

#[cgroup_skb(ingress)]
fn cgroup_ingress(context: SkBuffContext) -> i32 {
    sockets::packet(&context, point::SOCKET_IN, counter::CGROUP_INGRESS);
    GO_ON
}

#[cgroup_sock_addr(connect4)]
fn asked_connect4(context: SockAddrContext) -> i32 {
    sockets::asked(&context, false);
    GO_ON
}

#[cgroup_sock_addr(connect6)]
fn asked_connect6(context: SockAddrContext) -> i32 {
    sockets::asked(&context, true);
    GO_ON
}

#[cgroup_sock_addr(sendmsg4)]
fn asked_sendmsg4(context: SockAddrContext) -> i32 {
    sockets::asked(&context, false);
    GO_ON
}

#[cgroup_sock_addr(sendmsg6)]
fn asked_sendmsg6(context: SockAddrContext) -> i32 {
    sockets::asked(&context, true);
    GO_ON
}

#[cgroup_sock_addr(connect4)]
fn decided_connect4(context: SockAddrContext) -> i32 {
    sockets::decided(&context, false);
    GO_ON
}

#[cgroup_sock_addr(connect6)]
fn decided_connect6(context: SockAddrContext) -> i32 {
    sockets::decided(&context, true);
    GO_ON
}

#[cgroup_sock_addr(sendmsg4)]
fn decided_sendmsg4(context: SockAddrContext) -> i32 {
    sockets::decided(&context, false);
    GO_ON
}

#[cgroup_sock_addr(sendmsg6)]
fn decided_sendmsg6(context: SockAddrContext) -> i32 {
    sockets::decided(&context, true);
    GO_ON
}

#[cgroup_sock(sock_release)]
fn sock_release(context: SockContext) -> i32 {
    sockets::released(&context);
    GO_ON
}

#[btf_tracepoint(function = "net_dev_queue")]
fn net_dev_queue(context: BtfTracePointContext) -> i32 {
    hops::sent(Skb(context.arg(0)));
    0
}

#[btf_tracepoint(function = "netif_receive_skb")]
fn netif_receive_skb(context: BtfTracePointContext) -> i32 {
    hops::received(Skb(context.arg(0)));
    0
}

#[btf_tracepoint(function = "kfree_skb")]
fn kfree_skb(context: BtfTracePointContext) -> i32 {
    let reason = if config!(has_reason) == 1 {
        context.arg(2)
    } else {
        0
    };
    let receiver = if config!(has_rx_sk) == 1 {
        Sock::nullable(context.arg(3))
    } else {
        None
    };
    let recorded = drops::dropped(Skb(context.arg(0)), context.arg(1), reason, receiver);
    // A line for who works on these programs: thousands of instructions, so it is not even compiled otherwise.
    #[cfg(feature = "ebpf-log")]
    if recorded.is_some() {
        aya_log_ebpf::info!(
            &context,
            "a packet of the Service was dropped, reason {}",
            reason
        );
    }
    #[cfg(not(feature = "ebpf-log"))]
    let _ = recorded;
    0
}

#[btf_tracepoint(function = "inet_sk_error_report")]
fn sk_error(context: BtfTracePointContext) -> i32 {
    drops::socket_error(Sock(context.arg(0)));
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers that read kernel memory are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
