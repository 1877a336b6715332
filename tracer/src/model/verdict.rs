//! Why an attempt failed, as it is shown: part of schema `slicetrace/1`. docs/verdicts.md says what each code means.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The cause.
    pub code: Code,
    /// What it rests on.
    pub confidence: Confidence,
    /// With `ambiguous`: the other codes that fit as well.
    pub alternatives: Vec<Code>,
    /// Id of the transition that explains it.
    pub transition: Option<String>,
    /// Time from that transition to the attempt; negative: the attempt came first.
    pub lag_ns: Option<i64>,
    /// Whether this node's rules followed that transition in the usual time.
    pub convergence: Option<Convergence>,
    /// Further codes that were true at the same time and would have mattered.
    pub contributing: Vec<Code>,
    /// What is known, apart from any conclusion.
    pub facts: Facts,
    /// One sentence for people.
    pub text: String,
    /// What would have prevented it; `null` where the evidence supports nothing.
    pub remedy: Option<String>,
}

/// The causes: docs/verdicts.md has one section for each.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[expect(
    missing_docs,
    reason = "docs/verdicts.md describes each code by its name"
)]
pub enum Code {
    NoEndpoints,
    PolicyDrop,
    StaleConntrack,
    ProgrammingLag,
    TerminatingBackend,
    BackendDiedFirst,
    BackendNotReady,
    KernelDrop,
    BackendClosed,
    BackendSilent,
    BackendSlow,
    ErrorRcode,
    CaptureGap,
    Unexplained,
}

impl Code {
    /// The name used in JSON, on the command line and in the docs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoEndpoints => "no-endpoints",
            Self::PolicyDrop => "policy-drop",
            Self::StaleConntrack => "stale-conntrack",
            Self::ProgrammingLag => "programming-lag",
            Self::TerminatingBackend => "terminating-backend",
            Self::BackendDiedFirst => "backend-died-first",
            Self::BackendNotReady => "backend-not-ready",
            Self::KernelDrop => "kernel-drop",
            Self::BackendClosed => "backend-closed",
            Self::BackendSilent => "backend-silent",
            Self::BackendSlow => "backend-slow",
            Self::ErrorRcode => "error-rcode",
            Self::CaptureGap => "capture-gap",
            Self::Unexplained => "unexplained",
        }
    }
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// A drop, a refusal or an answer was seen.
    Observed,
    /// From what was absent.
    Inferred,
    /// More than one code fits.
    Ambiguous,
}

/// Three things that are known of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Facts {
    /// What the slices said of the chosen backend.
    pub api: ApiFact,
    /// Whether this node's rules had taken over the transition.
    pub rules: RulesFact,
    /// Whether the backend's process lived.
    pub process: ProcessFact,
}

/// What the slices said of the chosen backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApiFact {
    /// Ready.
    Ready,
    /// Terminating, still serving.
    TerminatingServing,
    /// Terminating, not serving.
    Terminating,
    /// Not ready, not terminating.
    NotReady,
    /// In no slice.
    Gone,
    /// No backend was chosen; none was usable.
    NoEndpoints,
    /// No backend was chosen; a usable one existed.
    EndpointsExist,
    /// Not known.
    Unknown,
}

/// Whether this node's rules had taken over the transition at the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RulesFact {
    /// Not yet.
    BeforeChange,
    /// They had.
    AfterChange,
    /// Not known.
    Unknown,
}

/// Whether the backend's process lived at the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessFact {
    /// It answered something later.
    Alive,
    /// It answered nothing after, though it was asked.
    Stopped,
    /// Not known.
    Unknown,
}

/// Whether rules followed a transition in the usual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Convergence {
    /// Within one second.
    Normal,
    /// Later.
    Late,
}
