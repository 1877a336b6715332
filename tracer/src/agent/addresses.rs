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

/// An address that the API names no longer, or not yet.
#[derive(Clone, Debug)]
struct Tombstone {
    service: String,
    role: AddressRole,
    /// When the API ceased to name it; `None`: known from an earlier run, and the API has not been heard since.
    went: Option<Timestamp>,
    last_seen: Timestamp,
}

/// The watched addresses, by why they are watched.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Service that the addresses of the command line count for.
    first_service: String,
    /// `--frontend`s: watched whatever the API says.
    fixed: BTreeSet<SocketAddr>,
    services: BTreeMap<String, BTreeSet<SocketAddr>>,
    slices: BTreeMap<(String, String), BTreeSet<SocketAddr>>,
    /// Addresses no longer named by the API.
    tombstones: BTreeMap<SocketAddr, Tombstone>,
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

    /// Adds addresses known from an earlier run, which count until [`Self::heard`] says that the API has been: it may be
    /// away for hours. Those that had long gone when that run ended are left out: somebody else may have them by now.
    pub(super) fn remember(&mut self, known: Vec<KnownAddress>) {
        let mut newest: HashMap<String, Timestamp> = HashMap::new();
        for known in &known {
            let newest = newest.entry(known.service.clone()).or_default();
            *newest = (*newest).max(known.last_seen);
        }
        for known in known {
            let newest = newest.get(&known.service).copied().unwrap_or_default();
            if newest.since(known.last_seen) < TOMBSTONE_NS {
                self.tombstones.entry(known.address).or_insert(Tombstone {
                    service: known.service,
                    role: known.role,
                    went: None,
                    last_seen: known.last_seen,
                });
            }
        }
        self.revision += 1;
    }

    /// The API has told everything about a Service: what it did not name of what was remembered has gone.
    pub(super) fn heard(&mut self, service: &str, now: Timestamp) {
        for tombstone in self.tombstones.values_mut() {
            if tombstone.service == service {
                tombstone.went.get_or_insert(now);
            }
        }
    }

    /// Takes over what the API says of a Service.
    pub(super) fn service(&mut self, seen: &ServiceSeen) {
        let new = seen.frontends.iter().copied().collect();
        let old = self
            .services
            .insert(seen.service.clone(), new)
            .unwrap_or_default();
        self.retire(&seen.service, AddressRole::Frontend, old, seen.at);
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
        let old = old.unwrap_or_default();
        self.retire(&seen.service, AddressRole::Endpoint, old, seen.at);
    }

    fn retire(
        &mut self,
        service: &str,
        role: AddressRole,
        old: BTreeSet<SocketAddr>,
        at: Timestamp,
    ) {
        let current = self.current();
        for address in old {
            if !current.contains(&address) {
                let tombstone = Tombstone {
                    service: service.to_owned(),
                    role,
                    went: Some(at),
                    last_seen: at,
                };
                self.tombstones.insert(address, tombstone);
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
            .retain(|_, it| it.went.is_none_or(|went| now.since(went) < TOMBSTONE_NS));
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
            .map(|(address, it)| (*address, &it.service));
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
        let named = self.named().map(|(service, address, role)| KnownAddress {
            service: service.clone(),
            address,
            role,
            last_seen: now,
        });
        let gone = self.tombstones.iter().map(|(address, it)| KnownAddress {
            service: it.service.clone(),
            address: *address,
            role: it.role,
            last_seen: it.last_seen,
        });
        named.chain(gone).collect()
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

    fn known(address: &str, last_seen: i64) -> KnownAddress {
        KnownAddress {
            service: "kube-system/kube-dns".into(),
            address: address.parse().unwrap(),
            role: AddressRole::Endpoint,
            last_seen: Timestamp(last_seen),
        }
    }

    #[test]
    fn remembered_addresses_count_for_as_long_as_the_api_is_away() {
        let mut addresses = Addresses::new("kube-system/kube-dns", []);
        addresses.remember(vec![known("10.42.0.1:53", 5)]);
        addresses.expire(Timestamp(100 * TOMBSTONE_NS));
        assert_eq!(addresses.watched().len(), 1, "the API has said nothing yet");
        let now = Timestamp(200 * TOMBSTONE_NS);
        addresses.heard("kube-system/kube-dns", now);
        addresses.expire(now);
        assert_eq!(
            addresses.watched().len(),
            1,
            "an old flow may still go there"
        );
        addresses.expire(now + TOMBSTONE_NS);
        assert!(addresses.watched().is_empty());
    }

    #[test]
    fn what_had_long_gone_when_the_last_run_ended_is_not_remembered() {
        let mut addresses = Addresses::new("kube-system/kube-dns", []);
        let end = 100 * TOMBSTONE_NS;
        addresses.remember(vec![
            known("10.42.0.1:53", end),
            known("10.42.0.2:53", end - TOMBSTONE_NS / 2),
            known("10.42.0.3:53", end - TOMBSTONE_NS),
        ]);
        let watched = addresses.watched();
        assert_eq!(watched.len(), 2, "{watched:?}");
        // Started and ended again without the API: the times stay those at which the API last named them.
        let kept = addresses.known(Timestamp(2 * end));
        assert_eq!(kept.iter().map(|it| it.last_seen.0).max(), Some(end));
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
