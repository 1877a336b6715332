//! The versions of a Service's slices, put together from what each node saw of them.

use std::collections::BTreeMap;

use crate::model::Timestamp;
use crate::model::record::{EndpointSeen, SliceSeen};

const MILLISECOND: i64 = 1_000_000;

/// One version of one slice.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) slice: String,
    pub(super) resource_version: String,
    pub(super) deleted: bool,
    pub(super) endpoints: Vec<EndpointSeen>,
    pub(super) watched: BTreeMap<String, Timestamp>,
    pub(super) listed: BTreeMap<String, Timestamp>,
    pub(super) at: Timestamp,
}

impl Version {
    /// Twice the spread between nodes is a careful guess at how long before the first of them a change was made; one node
    /// alone has no spread.
    pub(super) fn watch_delay_ns(&self) -> i64 {
        let first = self.watched.values().min();
        let last = self.watched.values().max();
        match (first, last) {
            (Some(first), Some(last)) if self.watched.len() > 1 => {
                (2 * last.since(*first)).clamp(25 * MILLISECOND, 1_000 * MILLISECOND)
            }
            _ => 100 * MILLISECOND,
        }
    }
}

/// The versions of all slices in the order in which they were written, each with the time by which it was.
pub(super) fn versions(seen: &[(&str, &SliceSeen)]) -> Vec<Version> {
    // resourceVersions are compared as numbers only if all of them are.
    let numbers: Option<Vec<u128>> = (seen.iter())
        .map(|(_, it)| it.resource_version.parse().ok())
        .collect();
    let mut found: BTreeMap<(u128, bool, String, String), Version> = BTreeMap::new();
    for (index, (node, it)) in seen.iter().enumerate() {
        let number = numbers.as_ref().map_or(0, |all| all[index]);
        let key = (
            number,
            it.deleted,
            it.slice.clone(),
            it.resource_version.clone(),
        );
        let version = found.entry(key).or_insert_with(|| Version {
            slice: it.slice.clone(),
            resource_version: it.resource_version.clone(),
            deleted: it.deleted,
            endpoints: it.endpoints.clone(),
            watched: BTreeMap::new(),
            listed: BTreeMap::new(),
            at: it.at,
        });
        let by = if it.listed {
            &mut version.listed
        } else {
            &mut version.watched
        };
        let first = by.entry((*node).to_owned()).or_insert(it.at);
        *first = (*first).min(it.at);
    }
    let mut versions: Vec<Version> = found.into_values().collect();
    for version in &mut versions {
        let first = version
            .watched
            .values()
            .min()
            .or(version.listed.values().min());
        version.at = first.copied().unwrap_or(version.at);
    }
    if numbers.is_none() {
        versions.sort_by(|a, b| (a.at, &a.slice).cmp(&(b.at, &b.slice)));
    }
    // A change was made by the time a later one was seen.
    for index in (1..versions.len()).rev() {
        versions[index - 1].at = versions[index - 1].at.min(versions[index].at);
    }
    versions
}
