//! The node agent: start, run, drain.
