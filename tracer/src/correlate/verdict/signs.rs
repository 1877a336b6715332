//! What drops and refusals of an attempt are signs of.

use std::net::SocketAddr;

use crate::model::event::Direction;
use crate::model::flight::{Drop, Refusal};

use super::super::join::Attempt;

/// The signs of an attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Signs<'a> {
    /// A drop whose reason is a cause of its own.
    pub(super) rival: Option<&'a (String, Drop)>,
    /// The client's node rejected it before a backend was chosen.
    pub(super) rejected: bool,
    /// The node of the backend is alive, but nothing listens.
    pub(super) closed: bool,
    /// Nobody has the backend's address.
    pub(super) gone: bool,
    /// Another pod got a flooded copy: by itself it proves nothing, but with a withdrawn backend it fits.
    pub(super) flooded: bool,
    /// A drop without a reason.
    pub(super) unnamed: Option<&'a (String, Drop)>,
    /// The send itself failed.
    pub(super) at_send: bool,
}

/// What one drop is a sign of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Nothing,
    Closed,
    Gone,
    Flooded,
    Netfilter,
    /// A queue was thrown away with its owner.
    Purged,
    /// A bridge or tunnel had nobody to give it to.
    NoTarget,
    Unnamed,
    Rival,
}

fn sign(reason: Option<&str>) -> Sign {
    match reason {
        None | Some("NOT_SPECIFIED") => Sign::Unnamed,
        Some("CONSUMED" | "NOT_DROPPED_YET") => Sign::Nothing,
        Some("NO_SOCKET") => Sign::Closed,
        Some("QUEUE_PURGE") => Sign::Purged,
        Some("NO_TX_TARGET") => Sign::NoTarget,
        Some("NEIGH_FAILED" | "NEIGH_QUEUEFULL" | "NEIGH_DEAD") => Sign::Gone,
        Some("OTHERHOST") => Sign::Flooded,
        Some("NETFILTER_DROP") => Sign::Netfilter,
        Some(_) => Sign::Rival,
    }
}

impl<'a> Signs<'a> {
    /// `backend_node`: where the API says that the chosen backend runs, or ran.
    pub(super) fn new(
        attempt: &'a Attempt,
        frontend: impl Fn(SocketAddr) -> bool,
        backend_node: Option<&str>,
    ) -> Self {
        let mut signs = Self::default();
        for found in &attempt.drops {
            let (node, drop) = found;
            match drop.direction {
                Direction::Query => signs.query_drop(attempt, found, &frontend, backend_node),
                Direction::Reply => match sign(drop.reason.as_deref()) {
                    Sign::Nothing | Sign::Flooded => {}
                    // The client had closed its socket, or asked from another: the answer came too late.
                    Sign::Closed | Sign::Purged
                        if client_was_over(attempt, drop) && *node == attempt.node => {}
                    Sign::Unnamed => signs.unnamed = signs.unnamed.or(Some(found)),
                    _ => signs.rival = signs.rival.or(Some(found)),
                },
            }
        }
        for (_, refusal) in &attempt.refusals {
            match refusal {
                Refusal::Socket { at_send, .. } => signs.at_send |= at_send,
                Refusal::Icmp {
                    icmp_type,
                    icmp_code,
                    quoted_destination,
                    ..
                } => signs.icmp(
                    (*icmp_type, *icmp_code),
                    quoted_destination.is_ipv4(),
                    frontend(*quoted_destination),
                ),
            }
        }
        signs
    }

    fn query_drop(
        &mut self,
        attempt: &Attempt,
        found: &'a (String, Drop),
        frontend: &impl Fn(SocketAddr) -> bool,
        backend_node: Option<&str>,
    ) {
        let (node, drop) = found;
        let delivered = attempt.delivery.as_ref();
        // Once delivered, only a drop at or after the socket can have lost it; others were copies.
        if delivered.is_some_and(|(at, it)| at != node || drop.at < it.at) {
            return;
        }
        match sign(drop.reason.as_deref()) {
            Sign::Nothing => {}
            Sign::Closed => self.closed = true,
            Sign::Gone => self.gone = true,
            Sign::Flooded => self.flooded = true,
            // A server that dies takes its socket's queue along; without a socket it was a neighbour's queue.
            Sign::Purged if delivered.is_some() => self.closed = true,
            Sign::Purged => self.gone = true,
            // On the backend's own node: no other pod is left on its bridge to get a flooded copy.
            Sign::NoTarget if backend_node == Some(node) => self.gone = true,
            Sign::Netfilter if *node == attempt.node && frontend(drop.destination) => {
                self.rejected = true;
            }
            Sign::Unnamed => self.unnamed = self.unnamed.or(Some(found)),
            Sign::Netfilter | Sign::NoTarget | Sign::Rival => {
                self.rival = self.rival.or(Some(found))
            }
        }
    }

    /// RFC 792 (ICMP) and RFC 4443 (ICMPv6) destination unreachable.
    fn icmp(&mut self, kind: (u8, u8), ipv4: bool, frontend: bool) {
        let (port, host) = match (ipv4, kind) {
            (true, (3, 3)) | (false, (1, 4)) => (true, false),
            (true, (3, 0 | 1)) | (false, (1, 0 | 3)) => (false, true),
            _ => (false, false),
        };
        // An error that still quotes the Service's address came from the client's own node, unless NAT had turned it back
        // before we saw it: so it is only a sign next to the drop.
        self.closed |= port && !frontend;
        self.gone |= host && !frontend;
    }

    /// The backend was reached and did not take it, or was not there.
    pub(super) const fn backend_absent(&self) -> bool {
        self.closed || self.gone
    }

    /// Something was seen that made it fail.
    pub(super) const fn any(&self) -> bool {
        self.rival.is_some() || self.rejected || self.closed || self.gone || self.at_send
    }
}

fn client_was_over(attempt: &Attempt, drop: &Drop) -> bool {
    let origin = &attempt.origin;
    (origin.closed.into_iter().chain(attempt.repeated)).any(|it| it <= drop.at)
        || drop.at >= origin.completed
}
