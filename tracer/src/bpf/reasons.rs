//! Names of drop reasons: their numbers differ between kernels, their names hardly.

use std::collections::BTreeMap;

use super::types::Types;

const PREFIX: &str = "SKB_DROP_REASON_";

/// Names of the running kernel's `enum skb_drop_reason`.
#[derive(Debug, Default)]
pub(super) struct Reasons(BTreeMap<u64, String>);

impl Reasons {
    /// Reads them; empty before Linux 5.17.
    pub(super) fn read(types: &Types<'_>) -> Self {
        Self(
            types
                .values("skb_drop_reason")
                .into_iter()
                .map(|(name, value)| {
                    let name = name.strip_prefix(PREFIX).map(str::to_owned).unwrap_or(name);
                    (value, name)
                })
                .collect(),
        )
    }

    /// The name without its prefix. Reasons of subsystems (the upper 16 bits) are not in the enumeration: those are
    /// given as their number, `REASON_65537`. `None` if this kernel has no reasons.
    pub(super) fn name(&self, reason: u64) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.0.get(&reason) {
            Some(name) => name.clone(),
            None => format!("REASON_{reason}"),
        })
    }
}
