//! Stand-in API.
