//! What test runs say of themselves, counted.

use std::fmt;
use std::mem;
use std::ops::AddAssign;

/// Results of a tier, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Passed.
    pub(crate) passed: u64,
    /// Failed.
    pub(crate) failed: u64,
    /// Not run, each for a reason that was printed.
    pub(crate) skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Counts {
    /// One that passed.
    pub(crate) const PASSED: Self = Self::new(1, 0, 0);
    /// One that failed.
    pub(crate) const FAILED: Self = Self::new(0, 1, 0);
    /// One that was skipped.
    pub(crate) const SKIPPED: Self = Self::new(0, 0, 1);

    const fn new(passed: u64, failed: u64, skipped: u64) -> Self {
        Self {
            passed,
            failed,
            skipped,
        }
    }

    /// The counts of a run that ended with `success`: one that failed without counting a failure (it did not compile,
    /// it was killed) counts as one.
    pub(crate) const fn judged(mut self, success: bool) -> Self {
        if !success && self.failed == 0 {
            self.failed = 1;
        }
        self
    }
}

/// Counts the lines of `cargo test -- --show-output`, as they come.
///
/// A test that lacks something at run time cannot tell its harness: it prints a line that begins with `SKIPPED` and
/// returns, and is counted as skipped here although the harness calls it passed.
#[derive(Debug, Default)]
pub(crate) struct CargoTest {
    /// Sum over all test programs so far.
    pub(crate) counts: Counts,
    /// Names of tests that did not run, and why.
    pub(crate) skipped: Vec<String>,
    /// Within the output of tests that passed.
    in_successes: bool,
    /// The test whose output this is, until it is known to be skipped.
    showing: Option<String>,
    /// Tests of this program that skipped themselves: its result will count them as passed.
    skipped_themselves: u64,
}

impl CargoTest {
    /// Takes one line in; returns whether it is worth showing: what a passed test printed is not.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(mut counts) = cargo_result(line) {
            let moved = mem::take(&mut self.skipped_themselves).min(counts.passed);
            counts.passed -= moved;
            counts.skipped += moved;
            self.counts += counts;
            self.in_successes = false;
        } else if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" {
            self.in_successes = false;
        } else if self.in_successes {
            self.success_line(line);
        } else if let Some((name, reason)) = ignored(line) {
            let reason = reason.unwrap_or("marked #[ignore] without a reason");
            self.skipped.push(format!("{name}: {reason}"));
        }
        !self.in_successes
    }

    fn success_line(&mut self, line: &str) {
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.showing = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("SKIPPED")
            && let Some(name) = self.showing.take()
        {
            let reason = rest.trim_start_matches([':', ' ']);
            self.skipped.push(format!("{name}: {reason}"));
            self.skipped_themselves += 1;
        }
    }
}

/// `test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; …`
fn cargo_result(line: &str) -> Option<Counts> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split("; ") {
        let (number, what) = part.split_once(' ')?;
        match what {
            "passed" => counts.passed = number.parse().ok()?,
            "failed" => counts.failed = number.parse().ok()?,
            "ignored" => {
                counts.skipped = number.parse().ok()?;
                return Some(counts);
            }
            _ => {}
        }
    }
    None
}

/// `test agent::drains ... ignored, needs a VM`: name and reason.
fn ignored(line: &str) -> Option<(&str, Option<&str>)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let rest = outcome.strip_prefix("ignored")?;
    match rest.strip_prefix(", ") {
        Some(reason) => Some((name, Some(reason))),
        None => rest.is_empty().then_some((name, None)),
    }
}

/// `12 passed, 0 failed, 3 skipped`, alone on a line: how our own test programs close.
pub(crate) fn closing_line(line: &str) -> Option<Counts> {
    let mut parts = line.trim_end().split(", ");
    let mut next = |what: &str| -> Option<u64> {
        let (number, found) = parts.next()?.split_once(' ')?;
        (found == what).then(|| number.parse().ok())?
    };
    let counts = Counts::new(next("passed")?, next("failed")?, next("skipped")?);
    parts.next().is_none().then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_results_of_several_test_programs() {
        let mut run = CargoTest::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test a::slow ... ignored, takes a minute",
            "test a::bare ... ignored",
            "test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.20s",
        ] {
            assert!(run.line(line));
        }
        assert_eq!(run.counts, Counts::new(13, 2, 2));
        assert_eq!(
            run.skipped,
            [
                "a::slow: takes a minute",
                "a::bare: marked #[ignore] without a reason"
            ]
        );
    }

    #[test]
    fn a_test_that_skipped_itself_is_no_passed_one() {
        // As libtest of Rust 1.95 prints it.
        let output = "
running 3 tests
test rules::hears ... ok
test rules::quiet ... ok
test rules::wrong ... FAILED

successes:

---- rules::hears stdout ----
SKIPPED: no network namespace of our own: EPERM
SKIPPED: said twice

---- rules::quiet stdout ----
not SKIPPED


successes:
    rules::hears
    rules::quiet

failures:

---- rules::wrong stdout ----
SKIPPED: and yet it failed

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let mut run = CargoTest::default();
        let shown: Vec<&str> = output.lines().filter(|line| run.line(line)).collect();
        assert_eq!(run.counts, Counts::new(1, 1, 1));
        assert_eq!(
            run.skipped,
            ["rules::hears: no network namespace of our own: EPERM"]
        );
        assert!(shown.contains(&"---- rules::wrong stdout ----"));
        assert!(!shown.contains(&"not SKIPPED"));
    }

    #[test]
    fn other_lines_are_not_results() {
        let mut run = CargoTest::default();
        for line in [
            "",
            "test result: ok",
            "test result: ok. many passed; 0 failed; 0 ignored",
            "test a ... ok",
            "test a ... ignoredly",
            "warning: test result: ok. 1 passed; 0 failed; 0 ignored;",
        ] {
            run.line(line);
        }
        assert_eq!(run.counts, Counts::default());
        assert!(run.skipped.is_empty());
    }

    #[test]
    fn closing_line_must_stand_alone() {
        assert_eq!(
            closing_line("5 passed, 1 failed, 2 skipped\n"),
            Some(Counts::new(5, 1, 2))
        );
        assert_eq!(
            closing_line(&Counts::new(7, 0, 3).to_string()),
            Some(Counts::new(7, 0, 3))
        );
        for line in [
            "",
            "5 passed",
            "5 passed, 1 failed",
            "5 passed, 1 failed, 2 skipped, 1 more",
            "lab: 5 passed, 1 failed, 2 skipped",
            "x passed, 1 failed, 2 skipped",
            "5 failed, 1 passed, 2 skipped",
        ] {
            assert_eq!(closing_line(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_failed_run_without_a_count_is_one_failure() {
        assert_eq!(Counts::default().judged(false), Counts::FAILED);
        assert_eq!(Counts::new(3, 0, 1).judged(false), Counts::new(3, 1, 1));
        assert_eq!(Counts::new(3, 2, 1).judged(false), Counts::new(3, 2, 1));
        assert_eq!(Counts::PASSED.judged(true), Counts::PASSED);
    }
}
