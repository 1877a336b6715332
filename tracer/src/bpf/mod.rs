//! The only place that knows aya: loads the eBPF programs, fills their maps, reads their logs.
