//! `lab`: raises three nodes as network namespaces, replays the experiments and checks what slicetrace says of them.

fn main() -> std::process::ExitCode {
    slicetrace_tests::cli::main()
}
