//! The program `slicetrace`.

fn main() {}
