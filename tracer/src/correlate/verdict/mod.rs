//! Why an attempt failed: an ordered table of rules over one [`Case`], and what goes with its conclusion.

mod case;
mod facts;
mod remedies;
mod rules;
mod signs;
mod text;

pub(super) use case::{Case, NodeFacts, Service, World};

use crate::model::Timestamp;
use crate::model::timeline::{Code, Confidence, Convergence, Verdict};

/// What a rule of the table concludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conclusion {
    code: Code,
    confidence: Confidence,
    alternatives: Vec<Code>,
    /// Index of the transition that explains it.
    transition: Option<usize>,
    /// Index of the change of usable endpoints that the node's rules had to follow.
    change: Option<usize>,
    convergence: Option<Convergence>,
    contributing: Vec<Code>,
    /// It would be another if the API had said something else.
    needs_api: bool,
}

impl Conclusion {
    fn new(code: Code, confidence: Confidence) -> Self {
        Self {
            code,
            confidence,
            alternatives: Vec::new(),
            transition: None,
            change: None,
            convergence: None,
            contributing: Vec::new(),
            needs_api: true,
        }
    }
}

/// The verdict on a failed attempt, and whether it is final; `None` for a healthy one.
pub(super) fn verdict(case: &Case<'_>) -> Option<(Verdict, bool)> {
    if !case.failed() {
        return None;
    }
    let mut conclusion = rules::conclude(case);
    // What would be said had a transition, which our watches saw a moment later, already been made?
    for other in case.alternatives() {
        let alternative = rules::conclude(&other);
        if alternative.code == conclusion.code {
            continue;
        }
        if rules::is_weak(&conclusion) && !rules::is_weak(&alternative) {
            conclusion = alternative;
        } else if !rules::is_weak(&alternative) {
            conclusion.confidence = Confidence::Ambiguous;
            if !conclusion.alternatives.contains(&alternative.code) {
                conclusion.alternatives.push(alternative.code);
            }
        }
    }
    let conclusion = rules::unless_hidden(case, conclusion);
    let facts = facts::facts(case, &conclusion);
    let transition = conclusion
        .transition
        .and_then(|it| case.history().transitions.get(it));
    let text = text::sentence(case, &conclusion, facts);
    let remedy = remedies::sentence(case, &conclusion);
    let is_final = is_final(case);
    let verdict = Verdict {
        code: conclusion.code,
        confidence: conclusion.confidence,
        alternatives: conclusion.alternatives,
        transition: transition.map(|it| it.id.clone()),
        lag_ns: transition.map(|it| case.at.since(it.at)),
        convergence: conclusion.convergence,
        contributing: conclusion.contributing,
        facts,
        text,
        remedy,
    };
    Some((verdict, is_final))
}

/// A minute later, or after a transition of that backend, nothing can change a verdict any more.
fn is_final(case: &Case<'_>) -> bool {
    const MINUTE: i64 = 60_000_000_000;
    let later = |at: Timestamp| at > case.at;
    let transitions = &case.history().transitions;
    let moved = transitions.iter().any(|it| {
        later(it.at)
            && case
                .backend
                .is_none_or(|backend| backend.ip() == it.endpoint.address)
    });
    moved || case.world.end >= case.at + MINUTE
}
