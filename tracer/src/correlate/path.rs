//! What became of an attempt's addresses: the backend chosen, who chose it, and whether its flow was new.

use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::event::{Direction, Point};
use crate::model::flight::Refusal;
use crate::model::timeline::{Flow, Translation};

use super::join::Attempt;

/// The backend chosen: the last destination of the query that is not the Service's own address.
pub(super) fn backend(
    attempt: &Attempt,
    frontend: impl Fn(SocketAddr) -> bool,
) -> Option<SocketAddr> {
    if let Some((_, delivery)) = &attempt.delivery {
        return Some(delivery.backend);
    }
    let hops = (attempt.trail.iter())
        .filter(|(_, it)| it.direction == Direction::Query)
        .map(|(_, it)| (it.at, it.destination));
    let drops = (attempt.drops.iter())
        .filter(|(_, it)| it.direction == Direction::Query)
        .map(|(_, it)| (it.at, it.destination));
    let quotes = attempt.refusals.iter().filter_map(|(_, it)| match it {
        Refusal::Icmp {
            at,
            quoted_destination,
            ..
        } => Some((*at, *quoted_destination)),
        Refusal::Socket { .. } => None,
    });
    let replies = (attempt.trail.iter())
        .filter(|(_, it)| it.direction == Direction::Reply)
        .map(|(_, it)| (it.at, it.source));
    let sent = attempt.origin.destination.map(|it| (attempt.sent(), it));
    let towards: Option<(Timestamp, SocketAddr)> = (sent.into_iter())
        .chain(hops)
        .chain(drops)
        .chain(quotes)
        .filter(|(_, address)| !frontend(*address))
        .max();
    towards
        .or_else(|| replies.filter(|(_, address)| !frontend(*address)).max())
        .map(|(_, address)| address)
}

/// The client's node sent the query on, out of a namespace that is not the client's, and its destination was still the
/// Service's: netfilter had no rule for it at that moment. (A load balancer on a device has rewritten it by then.)
pub(super) fn left_untranslated(attempt: &Attempt, frontend: impl Fn(SocketAddr) -> bool) -> bool {
    let mut here = (attempt.trail.iter())
        .filter(|(node, it)| {
            *node == attempt.node && it.direction == Direction::Query && !it.encapsulated
        })
        .map(|(_, it)| it);
    let Some(first) = here.next() else {
        return false;
    };
    here.next_back().is_some_and(|last| {
        last.point == Point::Tx && last.netns != first.netns && frontend(last.destination)
    })
}

/// Who turned the Service's address into the backend's.
pub(super) fn translation(attempt: &Attempt, backend: Option<SocketAddr>) -> Option<Translation> {
    let asked = attempt.origin.asked.or(attempt.origin.destination)?;
    let Some(backend) = backend else {
        let destination = attempt.origin.destination?;
        return (destination == asked).then_some(Translation::None);
    };
    if asked == backend {
        return Some(Translation::None);
    }
    let nat = attempt
        .trail
        .iter()
        .any(|(_, it)| it.conntrack.destination_nat())
        || attempt
            .drops
            .iter()
            .any(|(_, it)| it.conntrack.destination_nat());
    if nat {
        return Some(Translation::Netfilter);
    }
    let at_socket = attempt.origin.destination?;
    if at_socket != asked && attempt.origin.owner.pod.is_some() {
        // A pod's socket is seen before any device: only a connect-time load balancer was there first.
        return Some(Translation::Socket);
    }
    let mut seen = attempt.trail.iter().filter(|(_, it)| {
        it.direction == Direction::Query && it.destination == backend && !it.encapsulated
    });
    let first = seen.next()?;
    if first.1.conntrack.present() {
        Some(Translation::Netfilter)
    } else if first.0 == attempt.node && at_socket == asked {
        Some(Translation::Bpf)
    } else {
        None
    }
}

/// Whether the attempt's flow was new to the client's node; `None`: not known. `rejected_before`: the client's earlier packet on
/// this port was rejected in netfilter, and so left no conntrack entry (it is only confirmed in POSTROUTING).
pub(super) fn flow(attempt: &Attempt, rejected_before: bool) -> Option<Flow> {
    let here = |node: &String| *node == attempt.node;
    let hops = (attempt.trail.iter())
        .filter(|(node, it)| here(node) && it.direction == Direction::Query && !it.encapsulated)
        .map(|(_, it)| it.conntrack);
    let drops = (attempt.drops.iter())
        .filter(|(node, it)| here(node) && it.direction == Direction::Query)
        .map(|(_, it)| it.conntrack);
    let seen: Vec<_> = hops.chain(drops).collect();
    if seen.iter().any(|it| it.created_by_this_packet()) {
        return Some(Flow::New);
    }
    if seen.iter().any(|it| it.established()) {
        return Some(Flow::Old);
    }
    let timeouts = attempt.origin.timeouts;
    // An entry that had seen a reply would be established: if there is one that is not, it lives `unreplied_ns`.
    let unreplied = seen.iter().any(|it| it.present());
    let longest = if unreplied {
        timeouts.unreplied_ns
    } else {
        timeouts.stream_ns
    };
    match attempt.origin.previous {
        Some(previous) => {
            let since = attempt.sent().since(previous);
            if since <= timeouts.unreplied_ns {
                (!rejected_before).then_some(Flow::Old)
            } else if since > longest {
                Some(Flow::New)
            } else {
                None
            }
        }
        None if attempt.origin.destination.is_none() => None,
        None if attempt.sent().since(attempt.origin.recorded_since) > longest => Some(Flow::New),
        None => None,
    }
}
