//! The agent's HTTP API and its client.
