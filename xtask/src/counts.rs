//! What test runs say of themselves, counted.

use std::fmt;
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

/// Counts the lines of `cargo test`, as they come.
#[derive(Debug, Default)]
pub(crate) struct CargoTest {
    /// Sum over all test programs so far.
    pub(crate) counts: Counts,
    /// Names (and reasons) of tests that were ignored.
    pub(crate) ignored: Vec<String>,
}

impl CargoTest {
    /// Takes one line in.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(counts) = cargo_result(line) {
            self.counts += counts;
        } else if let Some((name, reason)) = ignored(line) {
            let reason = reason.unwrap_or("marked #[ignore] without a reason");
            self.ignored.push(format!("{name}: {reason}"));
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
            run.line(line);
        }
        assert_eq!(run.counts, Counts::new(13, 2, 2));
        assert_eq!(
            run.ignored,
            [
                "a::slow: takes a minute",
                "a::bare: marked #[ignore] without a reason"
            ]
        );
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
        assert!(run.ignored.is_empty());
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
