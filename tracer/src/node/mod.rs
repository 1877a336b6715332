//! What the agent asks of its own node: cgroups, network namespaces, conntrack time-outs, rule commits, clocks, and who
//! owns a socket.

pub mod cgroups;
pub mod clock;
pub mod conntrack;
pub mod netns;
pub mod owners;
pub mod rules;
