//! Which addresses count as the DNS Service right now, and for how long removed ones still do.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use crate::model::Timestamp;
use crate::model::record::{ServiceSeen, SliceSeen};
use crate::store::{AddressRole, KnownAddress};

/// How long the address of a removed endpoint or frontend stays watched: queries may still go there for as long as a
/// conntrack entry pins them. Conntrack's longest UDP time-out is 120 s after the *last* packet, so a busy port can be
/// pinned for ever; ten minutes see through a rollout and cost nothing.
const TOMBSTONE_NS: i64 = 600_000_000_000;

/// The watched addresses, by why they are watched.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Service that the addresses of the command line count for.
    first_service: String,
    /// `--frontend`s: watched whatever the API says.
    fixed: BTreeSet<SocketAddr>,
    services: BTreeMap<String, BTreeSet<SocketAddr>>,
    slices: BTreeMap<(String, String), BTreeSet<SocketAddr>>,
    /// Addresses no longer named by the API → their Service and when they went.
    tombstones: BTreeMap<SocketAddr, (String, Timestamp)>,
    revision: u64,
}

impl Addresses {
    /// Starts with `--frontend`s, which count for `service`.
    pub(super) fn new(service: &str, fixed: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            first_service: service.to_owned(),
            fixed: fixed.into_iter().collect(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            revision: 1,
        }
    }

    /// Adds addresses known from an earlier run: the API may be away, or have forgotten them by now.
    pub(super) fn remember(&mut self, known: Vec<KnownAddress>, now: Timestamp) {
        for known in known {
            self.tombstones
                .entry(known.address)
                .or_insert((known.service, now));
        }
        self.revision += 1;
    }

    /// Takes over what the API says of a Service.
    pub(super) fn service(&mut self, seen: &ServiceSeen) {
        let new = seen.frontends.iter().copied().collect();
        let old = self
            .services
            .insert(seen.service.clone(), new)
            .unwrap_or_default();
        self.retire(&seen.service, old, seen.at);
    }

    /// Takes over what the API says of a slice.
    pub(super) fn slice(&mut self, seen: &SliceSeen) {
        let key = (seen.service.clone(), seen.slice.clone());
        let new: BTreeSet<_> = seen
            .endpoints
            .iter()
            .flat_map(|endpoint| {
                endpoint
                    .ports
                    .iter()
                    .map(|&port| SocketAddr::new(endpoint.address, port))
            })
            .collect();
        let old = if seen.deleted {
            self.slices.remove(&key)
        } else {
            self.slices.insert(key, new)
        };
        self.retire(&seen.service, old.unwrap_or_default(), seen.at);
    }

    fn retire(&mut self, service: &str, old: BTreeSet<SocketAddr>, at: Timestamp) {
        let current = self.current();
        for address in old {
            if !current.contains(&address) {
                self.tombstones.insert(address, (service.to_owned(), at));
            }
        }
        self.tombstones
            .retain(|address, _| !current.contains(address));
        self.revision += 1;
    }

    fn current(&self) -> BTreeSet<SocketAddr> {
        self.fixed
            .iter()
            .copied()
            .chain(self.named().map(|(_, address, _)| address))
            .collect()
    }

    /// Forgets tombstones that are too old. Call it now and then.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let before = self.tombstones.len();
        self.tombstones
            .retain(|_, (_, went)| now.since(*went) < TOMBSTONE_NS);
        if self.tombstones.len() != before {
            self.revision += 1;
        }
    }

    /// All addresses to watch: current ones and tombstones.
    pub(super) fn watched(&self) -> BTreeSet<SocketAddr> {
        let mut all = self.current();
        all.extend(self.tombstones.keys());
        all
    }

    /// Which Service each watched address belongs to.
    pub(super) fn services(&self) -> HashMap<SocketAddr, String> {
        let tombstones = self
            .tombstones
            .iter()
            .map(|(address, (service, _))| (*address, service));
        let fixed = self
            .fixed
            .iter()
            .map(|address| (*address, &self.first_service));
        let all = tombstones
            .chain(fixed)
            .chain(self.named().map(|(service, address, _)| (address, service)));
        all.map(|(address, service)| (address, service.clone()))
            .collect()
    }

    /// What is to be remembered for a start without the API.
    pub(super) fn known(&self, now: Timestamp) -> Vec<KnownAddress> {
        self.named()
            .map(|(service, address, role)| KnownAddress {
                service: service.clone(),
                address,
                role,
                last_seen: now,
            })
            .collect()
    }

    /// Addresses that the API names now.
    fn named(&self) -> impl Iterator<Item = (&String, SocketAddr, AddressRole)> {
        let frontends = self.services.iter().flat_map(|(service, addresses)| {
            addresses
                .iter()
                .map(move |address| (service, *address, AddressRole::Frontend))
        });
        let endpoints = self.slices.iter().flat_map(|((service, _), addresses)| {
            addresses
                .iter()
                .map(move |address| (service, *address, AddressRole::Endpoint))
        });
        frontends.chain(endpoints)
    }

    /// Grows with every change, so that the caller can tell whether [`Self::watched`] is worth a look.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::record::{Conditions, EndpointSeen};

    fn slice(at: i64, addresses: &[&str]) -> SliceSeen {
        SliceSeen {
            at: Timestamp(at),
            service: "kube-system/kube-dns".into(),
            slice: "kube-dns-a".into(),
            resource_version: "1".into(),
            deleted: addresses.is_empty(),
            listed: false,
            trigger: None,
            endpoints: addresses
                .iter()
                .map(|address| EndpointSeen {
                    address: address.parse().unwrap(),
                    ports: vec![53],
                    conditions: Conditions {
                        ready: true,
                        serving: true,
                        terminating: false,
                    },
                    node: None,
                    pod: None,
                    uid: None,
                })
                .collect(),
        }
    }

    #[test]
    fn a_removed_endpoint_stays_watched_as_a_tombstone_and_then_goes() {
        let mut addresses = Addresses::new("kube-system/kube-dns", []);
        addresses.slice(&slice(0, &["10.42.0.1", "10.42.1.1"]));
        addresses.slice(&slice(1, &["10.42.1.1"]));
        let gone: SocketAddr = "10.42.0.1:53".parse().unwrap();
        assert!(addresses.watched().contains(&gone));
        addresses.expire(Timestamp(TOMBSTONE_NS));
        assert!(addresses.watched().contains(&gone), "not before its time");
        addresses.expire(Timestamp(TOMBSTONE_NS + 2));
        assert!(!addresses.watched().contains(&gone));
    }

    #[test]
    fn an_endpoint_that_comes_back_is_no_tombstone() {
        let mut addresses = Addresses::new("kube-system/kube-dns", []);
        addresses.slice(&slice(0, &["10.42.0.1"]));
        addresses.slice(&slice(1, &[]));
        addresses.slice(&slice(2, &["10.42.0.1"]));
        addresses.expire(Timestamp(3 * TOMBSTONE_NS));
        assert_eq!(addresses.watched().len(), 1);
    }

    #[test]
    fn an_address_in_two_slices_is_not_retired_by_one() {
        let mut addresses = Addresses::new("kube-system/kube-dns", []);
        addresses.slice(&slice(0, &["10.42.0.1"]));
        let mut other = slice(1, &["10.42.0.1"]);
        other.slice = "kube-dns-b".into();
        addresses.slice(&other);
        addresses.slice(&slice(2, &[]));
        assert!(addresses.tombstones.is_empty());
    }
}
