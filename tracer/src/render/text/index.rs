//! What is looked up while a timeline is told: transitions by id and endpoint, rule changes by transition.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::words;
use crate::model::Timestamp;
use crate::model::timeline::{Conditions, Header, Line, Programming, Query, Transition};
use crate::render::Shown;

/// Look-ups over one timeline.
pub(super) struct Index<'a> {
    pub(super) header: &'a Header,
    pub(super) queries: Vec<&'a Query>,
    transitions: BTreeMap<&'a str, &'a Transition>,
    by_endpoint: BTreeMap<(&'a str, IpAddr), Vec<&'a Transition>>,
    programming: BTreeMap<&'a str, Vec<&'a Programming>>,
}

impl<'a> Index<'a> {
    pub(super) fn new(shown: Shown<'a>) -> Self {
        let mut index = Self {
            header: shown.header,
            queries: Vec::new(),
            transitions: BTreeMap::new(),
            by_endpoint: BTreeMap::new(),
            programming: BTreeMap::new(),
        };
        for line in shown.lines {
            match line {
                Line::Transition(transition) => {
                    index.transitions.insert(&transition.id, transition);
                    index
                        .by_endpoint
                        .entry((&transition.service, transition.endpoint.address))
                        .or_default()
                        .push(transition);
                }
                Line::Programming(programming) => index
                    .programming
                    .entry(&programming.transition)
                    .or_default()
                    .push(programming),
                Line::Query(query) => index.queries.push(query),
                Line::Header(_) | Line::Gap(_) | Line::Summary(_) => {}
            }
        }
        for transitions in index.by_endpoint.values_mut() {
            transitions.sort_by_key(|transition| transition.at);
        }
        index
    }

    pub(super) fn transition(&self, id: &str) -> Option<&'a Transition> {
        self.transitions.get(id).copied()
    }

    pub(super) fn programming(&self, transition: &str) -> &[&'a Programming] {
        self.programming.get(transition).map_or(&[], Vec::as_slice)
    }

    /// How long a backend had been in its state at a time, and how long ago it stopped being ready, if it went away.
    pub(super) fn state_for(
        &self,
        service: &str,
        backend: IpAddr,
        at: Timestamp,
        state: Option<Conditions>,
    ) -> (Option<i64>, Option<i64>) {
        let Some(transitions) = self.by_endpoint.get(&(service, backend)) else {
            return (None, None);
        };
        let before = transitions
            .iter()
            .rev()
            .skip_while(|transition| transition.at > at);
        let mut since = None;
        let mut withdrawn = None;
        for (position, transition) in before.enumerate() {
            if position == 0 && transition.after == state {
                since = Some(at.since(transition.at));
            }
            let ready = |conditions: Option<Conditions>| conditions.is_some_and(|c| c.ready);
            if ready(transition.before) && !ready(transition.after) {
                withdrawn = Some(at.since(transition.at));
                break;
            }
            if ready(transition.after) {
                break;
            }
        }
        (since, withdrawn.filter(|_| withdrawn != since))
    }

    /// Names of the endpoints that were terminating but serving at some time in a window.
    pub(super) fn terminating_at(
        &self,
        service: &str,
        from: Timestamp,
        to: Option<Timestamp>,
    ) -> Vec<String> {
        let serves =
            |conditions: Option<Conditions>| conditions.is_some_and(|c| c.terminating && c.serving);
        let mut names = Vec::new();
        for ((of, _), transitions) in &self.by_endpoint {
            if *of != service {
                continue;
            }
            let before = transitions
                .iter()
                .rev()
                .find(|transition| transition.at <= from)
                .is_some_and(|transition| serves(transition.after));
            let within = transitions.iter().any(|transition| {
                transition.at > from
                    && to.is_none_or(|to| transition.at <= to)
                    && (serves(transition.before) || serves(transition.after))
            });
            if before || within {
                names.extend(transitions.first().map(|first| endpoint(first)));
            }
        }
        names
    }
}

/// The pod's name, or the address where there is none.
pub(super) fn endpoint(transition: &Transition) -> String {
    transition
        .endpoint
        .pod
        .clone()
        .unwrap_or_else(|| words::ip(transition.endpoint.address))
}
