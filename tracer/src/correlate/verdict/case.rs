//! One attempt as the table of rules sees it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::model::Timestamp;
use crate::model::timeline::Flow;

use super::super::answers::Answers;
use super::super::gaps::Gaps;
use super::super::join::Attempt;
use super::super::path;
use super::super::rules::Programs;
use super::super::slices::{History, Key, State};
use super::signs::Signs;

/// A watched Service.
#[derive(Debug, Default)]
pub(in super::super) struct Service {
    pub(in super::super) name: String,
    pub(in super::super) frontends: Vec<SocketAddr>,
    pub(in super::super) history: History,
    pub(in super::super) programs: Programs,
}

/// How far a node's records reach.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct NodeFacts {
    /// The agent has written everything up to here.
    pub(in super::super) until: Timestamp,
}

/// Everything that is known, apart from the attempt.
#[derive(Debug)]
pub(in super::super) struct World<'a> {
    pub(in super::super) gaps: &'a Gaps,
    pub(in super::super) answers: &'a Answers,
    /// The recorded nodes.
    pub(in super::super) nodes: &'a BTreeMap<String, NodeFacts>,
    /// Nodes that watched the API.
    pub(in super::super) watchers: &'a [String],
    /// End of the records.
    pub(in super::super) end: Timestamp,
}

/// A failed attempt, judged by what the API said in one step of its Service's history.
#[derive(Clone, Debug)]
pub(in super::super) struct Case<'a> {
    pub(in super::super) world: &'a World<'a>,
    pub(in super::super) service: &'a Service,
    pub(in super::super) attempt: &'a Attempt,
    /// When it was sent.
    pub(in super::super) at: Timestamp,
    /// The step of the history that it is judged by; `None`: nothing was known yet.
    pub(in super::super) step: Option<usize>,
    pub(in super::super) backend: Option<SocketAddr>,
    pub(in super::super) flow: Option<Flow>,
    pub(super) signs: Signs<'a>,
    /// It left the client's node with the Service's address: no rule translated it.
    pub(super) untranslated: bool,
}

impl<'a> Case<'a> {
    pub(in super::super) fn new(
        world: &'a World<'a>,
        service: &'a Service,
        attempt: &'a Attempt,
        backend: Option<SocketAddr>,
        flow: Option<Flow>,
    ) -> Self {
        let at = attempt.sent();
        let frontend = |it| service.frontends.contains(&it);
        let step = service.history.step_at(at);
        let backend_node =
            backend.and_then(|it| service.history.node_of(step.unwrap_or(0), it.ip()));
        Self {
            world,
            service,
            attempt,
            at,
            step,
            backend,
            flow,
            signs: Signs::new(attempt, frontend, backend_node),
            untranslated: backend.is_none() && path::left_untranslated(attempt, frontend),
        }
    }

    pub(super) const fn history(&self) -> &'a History {
        &self.service.history
    }

    /// It has no answer in time, or one that is an error.
    pub(super) fn failed(&self) -> bool {
        !self.attempt.answered_in_time() || self.error_rcode().is_some()
    }

    /// SERVFAIL or REFUSED.
    pub(super) fn error_rcode(&self) -> Option<u8> {
        const SERVFAIL: u8 = 2;
        const REFUSED: u8 = 5;
        let answer = self.attempt.origin.answer?;
        matches!(answer.rcode, SERVFAIL | REFUSED).then_some(answer.rcode)
    }

    /// The same attempt, judged as if transitions that were seen just after it had been made just before.
    pub(super) fn alternatives(&self) -> Vec<Self> {
        let next = self.step.map_or(0, |it| it + 1);
        let steps = self.history().steps.iter().enumerate().skip(next);
        steps
            .take_while(|(_, step)| step.earliest < self.at)
            .map(|(index, _)| Self {
                step: Some(index),
                ..self.clone()
            })
            .collect()
    }

    /// What the API said of the chosen backend.
    pub(super) fn state(&self) -> Option<(&'a Key, &'a State)> {
        self.history().state(self.step?, self.backend?.ip())
    }

    /// The address family's representative: the backend's address, else the one asked for.
    pub(super) fn like(&self) -> IpAddr {
        let asked = self
            .attempt
            .origin
            .asked
            .or(self.attempt.origin.destination);
        self.backend.or(asked).unwrap_or(self.attempt.client).ip()
    }

    /// Usable endpoints of the family then.
    pub(super) fn usable(&self) -> usize {
        self.step
            .map_or(0, |step| self.history().usable(step, self.like()))
    }

    /// Ready endpoints of the family then.
    pub(super) fn ready(&self) -> u32 {
        self.step
            .map_or(0, |step| self.history().ready(step, self.like()))
    }

    /// The change that withdrew the chosen backend, if it was withdrawn.
    pub(super) fn withdrawal(&self) -> Option<usize> {
        let (step, backend) = (self.step?, self.backend?.ip());
        if self.history().steps.get(step)?.usable.contains(&backend) {
            return None;
        }
        self.history().last_change(step, backend, false)
    }

    /// Node of the chosen backend: where it was delivered, else what the API says.
    pub(super) fn backend_node(&self) -> Option<&'a str> {
        if let Some((node, _)) = &self.attempt.delivery {
            return Some(node);
        }
        let last = self.step.unwrap_or(0);
        self.history().node_of(last, self.backend?.ip())
    }

    /// When the client stopped waiting.
    pub(super) fn over(&self) -> Timestamp {
        let origin = &self.attempt.origin;
        self.attempt
            .repeated
            .or(origin.closed)
            .unwrap_or(origin.completed)
    }

    /// Whether a node's records are there and reach past the end of the attempt.
    pub(super) fn recorded(&self, node: &str) -> bool {
        self.world
            .nodes
            .get(node)
            .is_some_and(|it| it.until >= self.over())
    }
}
