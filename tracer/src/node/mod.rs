//! What the agent asks of its own node: cgroups, conntrack time-outs, rule commits, clocks.

pub mod rules;
