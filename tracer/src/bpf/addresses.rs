//! Keeps the kernel's sets in step with ours: watched addresses and ports, namespaces in scope.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapError};
use slicetrace_common::{Watched, mapped};

use super::error::{Error, chain};

/// [`Watched`] as aya wants it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Key(Watched);

// SAFETY: `repr(C)`, integers only, explicit padding.
unsafe impl aya::Pod for Key {}

/// What the kernel's maps contain.
#[derive(Debug, Default)]
pub(super) struct Sets {
    addresses: BTreeSet<SocketAddr>,
    ports: BTreeMap<u16, u64>,
    netns: BTreeSet<u32>,
}

impl Sets {
    /// Makes `ADDRESSES` and `PORTS` contain exactly these.
    pub(super) fn watch(
        &mut self,
        ebpf: &mut Ebpf,
        addresses: &BTreeSet<SocketAddr>,
    ) -> Result<(), Error> {
        // The ports go last when they come and first when they go: a port without addresses only costs a look-up.
        let mut ports: BTreeMap<u16, u64> = self.ports.keys().map(|&word| (word, 0)).collect();
        for address in addresses {
            *ports.entry(address.port() / 64).or_default() |= 1 << (address.port() % 64);
        }
        let mut map: HashMap<_, Key, u32> = map(ebpf, "ADDRESSES")?;
        // Those that go make room, and one that finds none does not keep the others out.
        let mut refused = None;
        for old in self.addresses.clone().difference(addresses) {
            gone(map.remove(&key(old))).map_err(failed("ADDRESSES"))?;
            self.addresses.remove(old);
        }
        for new in addresses {
            if !self.addresses.contains(new) {
                match map.insert(key(new), 1, 0) {
                    Ok(()) => _ = self.addresses.insert(*new),
                    Err(error) => refused = refused.or(Some((*new, error))),
                }
            }
        }
        let mut words: Array<_, u64> = self::map(ebpf, "PORTS")?;
        for (&word, &bits) in &ports {
            words
                .set(u32::from(word), bits, 0)
                .map_err(failed("PORTS"))?;
        }
        ports.retain(|_, bits| *bits != 0);
        self.ports = ports;
        match refused {
            None => Ok(()),
            Some((address, error)) => Err(Error::Unwatched {
                address,
                of: addresses.len(),
                watched: self.addresses.len(),
                reason: chain(&error),
            }),
        }
    }

    /// Makes `NETNS` contain exactly these inodes.
    pub(super) fn scope(&mut self, ebpf: &mut Ebpf, netns: &BTreeSet<u32>) -> Result<(), Error> {
        let mut map: HashMap<_, u32, u8> = map(ebpf, "NETNS")?;
        for &new in netns.difference(&self.netns) {
            map.insert(new, 1, 0).map_err(failed("NETNS"))?;
        }
        for old in self.netns.difference(netns) {
            gone(map.remove(old)).map_err(failed("NETNS"))?;
        }
        self.netns.clone_from(netns);
        Ok(())
    }
}

/// A map of the object, typed.
pub(super) fn map<'e, M>(ebpf: &'e mut Ebpf, name: &'static str) -> Result<M, Error>
where
    M: TryFrom<&'e mut aya::maps::Map, Error = MapError>,
{
    ebpf.map_mut(name)
        .ok_or(Error::NoMap(name))?
        .try_into()
        .map_err(failed(name))
}

/// Names the map in an error.
pub(super) fn failed(map: &'static str) -> impl Fn(MapError) -> Error {
    move |error| Error::Map {
        map,
        reason: chain(&error),
    }
}

/// What is to be removed may be gone already.
fn gone(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        other => other,
    }
}

fn key(address: &SocketAddr) -> Key {
    let bytes = match address.ip() {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    };
    Key(Watched {
        address: bytes,
        port: address.port(),
        pad: [0; 6],
    })
}
