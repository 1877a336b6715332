//! Development tasks: `cargo xtask demo`, `cargo xtask test`, `cargo xtask lint`.

fn main() {}
