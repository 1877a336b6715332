//! Tells bpf-linker, which generates the code, that it may use 32-bit arithmetic. LLVM ties the atomics that fetch to it
//! (both are of BPF's instruction set v3, Linux 5.12); rustc itself already passes `--cpu`, and only one is accepted.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=--cpu-features=+alu32");
}
