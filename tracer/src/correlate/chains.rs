//! From attempts to queries: retransmissions (same socket, port and txid), then retries (the same client asks the same again on
//! a new port or with a new txid, as soon as an attempt has failed).

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::event::Question;
use crate::model::flight::Owner;

use super::join::Attempt;

const MILLISECOND: i64 = 1_000_000;

/// glibc and c-ares keep the txid and take a new port: such a retry may come late.
const SAME_TXID_NS: i64 = 5_000 * MILLISECOND;

/// Go takes a new txid as well, but asks at once. A later question is a new one.
const NEW_TXID_NS: i64 = 50 * MILLISECOND;

/// A socket that is silent for longer asks anew (no resolver waits that long).
const SAME_SOCKET_NS: i64 = 31_000 * MILLISECOND;

/// Attempts of one question, by time.
pub(super) type Chain = Vec<Attempt>;

type SocketKey = (String, SocketAddr, Option<u16>, u64);
type AskerKey = (String, Owner, Option<Question>);

/// Chains attempts that are sorted by time.
pub(super) fn chain(attempts: Vec<Attempt>) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut by_socket: HashMap<SocketKey, usize> = HashMap::new();
    for attempt in attempts {
        let key = (
            attempt.node.clone(),
            attempt.client,
            attempt.txid,
            attempt.origin.cookie,
        );
        let open = by_socket.get(&key).copied().filter(|index| {
            attempt.txid.is_some()
                && chains[*index].last().is_some_and(|last| {
                    last.question == attempt.question
                        && !ended_before(last, attempt.sent())
                        && attempt.sent().since(last.sent()) <= SAME_SOCKET_NS
                })
        });
        match open {
            Some(index) => chains[index].push(attempt),
            None => {
                by_socket.insert(key, chains.len());
                chains.push(vec![attempt]);
            }
        }
    }
    join_retries(chains)
}

/// The client had its answer, or had closed the socket.
fn ended_before(last: &Attempt, at: Timestamp) -> bool {
    last.origin.answer.is_some_and(|it| it.at < at) || last.origin.closed.is_some_and(|it| it < at)
}

/// When a client knew that its chain had failed; `None` if it was answered.
fn failed_at(chain: &Chain) -> Option<Timestamp> {
    if chain.iter().any(Attempt::answered_in_time) {
        return None;
    }
    let last = chain.last()?;
    let told = last.refusals.iter().map(|(_, it)| it.at()).min();
    let over = last.origin.closed.unwrap_or(last.origin.completed);
    Some(told.map_or(over, |it| it.min(over)))
}

fn join_retries(chains: Vec<Chain>) -> Vec<Chain> {
    let mut merged: Vec<Option<Chain>> = Vec::new();
    let mut by_asker: HashMap<AskerKey, Vec<usize>> = HashMap::new();
    for chain in chains {
        let Some(first) = chain.first() else { continue };
        let known = first.origin.owner.pid.is_some() || first.origin.owner.pod.is_some();
        let key = (
            first.node.clone(),
            first.origin.owner.clone(),
            first.question.clone(),
        );
        let sent = first.sent();
        let earlier = by_asker.entry(key).or_default();
        // Only the latest chain can be retried: with others in between the client asks steadily.
        let latest = earlier.last().copied();
        let fits = |index: usize| {
            let before = merged[index].as_ref()?;
            let failed = failed_at(before)?;
            let same_txid = before
                .last()
                .is_some_and(|it| it.txid == first.txid && it.txid.is_some());
            let allowed = if same_txid { SAME_TXID_NS } else { NEW_TXID_NS };
            // c-ares asks on a new port while it still listens on the old one.
            let early = if same_txid {
                SAME_SOCKET_NS
            } else {
                MILLISECOND
            };
            (-early..=allowed)
                .contains(&sent.since(failed))
                .then_some(index)
        };
        let same = (known && first.question.is_some())
            .then(|| {
                let by_txid = earlier.iter().rev().copied().find(|index| {
                    (merged[*index].as_ref())
                        .and_then(|it| it.last())
                        .is_some_and(|it| it.txid == first.txid && it.txid.is_some())
                });
                by_txid.or(latest).and_then(fits)
            })
            .flatten();
        match same.and_then(|index| merged[index].as_mut()) {
            Some(before) => before.extend(chain),
            None => {
                earlier.push(merged.len());
                merged.push(Some(chain));
            }
        }
    }
    let mut chains: Vec<Chain> = merged.into_iter().flatten().collect();
    for chain in &mut chains {
        chain.sort_by_key(Attempt::sent);
    }
    chains
}
