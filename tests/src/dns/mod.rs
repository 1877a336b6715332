//! A DNS server that can be told to misbehave, and a client that logs what it saw; both run as processes in pods.

pub(crate) mod client;
pub(crate) mod log;
pub(crate) mod noise;
pub(crate) mod server;
