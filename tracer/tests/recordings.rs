//! The recordings that the repository ships, read by the program itself as anybody would.
//!
//! Golden texts: `UPDATE_GOLDEN=1 cargo test -p slicetrace --test recordings` rewrites them; read the difference.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

/// What each was made to show: its causes, the fewest ready endpoints, and the changes that left none.
const SHIPPED: &[(&str, &[&str], u64, u64)] = &[
    ("test-a-graceful", &[], 0, 2),
    ("test-b-convergence", &["programming-lag"], 1, 0),
    ("test-b-died-first", &["backend-died-first"], 1, 0),
    ("test-b-lag", &["programming-lag"], 1, 0),
    ("test-b-terminating", &["terminating-backend"], 1, 0),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn recording(name: &str) -> PathBuf {
    root().join(format!("docs/recordings/{name}.slicetrace"))
}

/// Standard output of `slicetrace timeline NAME …`, which must end well.
fn timeline(name: &str, columns: usize, options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_slicetrace"))
        .arg("timeline")
        .arg(recording(name))
        .args(options)
        .env("COLUMNS", columns.to_string())
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    assert_eq!(stderr, "", "{name}");
    String::from_utf8(output.stdout).unwrap()
}

fn lines(name: &str) -> Vec<Value> {
    let text = timeline(name, 80, &["--output", "json"]);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn names_in(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn every_line_of_every_recording_is_as_the_schema_says() {
    let schema = std::fs::read_to_string(root().join("docs/slicetrace-1.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    for (name, ..) in SHIPPED {
        let lines = lines(name);
        for line in &lines {
            let errors: Vec<String> = schema.iter_errors(line).map(|it| it.to_string()).collect();
            assert!(errors.is_empty(), "{name}: {errors:?} in {line}");
        }
        let kinds: Vec<&str> = lines.iter().filter_map(|it| it["kind"].as_str()).collect();
        assert_eq!(
            (kinds.len(), kinds.first(), kinds.last()),
            (lines.len(), Some(&"header"), Some(&"summary")),
            "{name}"
        );
    }
    // The schema does say something.
    let mut wrong = lines("test-b-lag")[0].clone();
    wrong["from"] = Value::from(1);
    assert!(!schema.is_valid(&wrong));
}

#[test]
fn each_recording_shows_what_it_was_made_to_show_and_nothing_else() {
    for (name, causes, minimum_ready, zero_ready) in SHIPPED {
        let lines = lines(name);
        let summary = lines.last().unwrap();
        let verdicts: BTreeMap<String, u64> =
            serde_json::from_value(summary["verdicts"].clone()).unwrap();
        assert_eq!(verdicts.keys().collect::<Vec<_>>(), *causes, "{name}");
        assert_eq!(summary["minimumReady"], *minimum_ready, "{name}");
        assert_eq!(summary["zeroReadyEvents"], *zero_ready, "{name}");
        assert_eq!(summary["lostRecords"], 0, "{name}");
        assert!(summary["queries"].as_u64().unwrap() > 500, "{name}");
    }
}

#[test]
fn the_two_kinds_of_late_rules_are_told_apart() {
    for (name, expected) in [("test-b-lag", "late"), ("test-b-convergence", "normal")] {
        let lines = lines(name);
        let judged = lines.iter().filter(|line| line["kind"] == "query");
        let found: Vec<&Value> = judged
            .flat_map(|query| query["attempts"].as_array().unwrap())
            .filter(|attempt| !attempt["verdict"].is_null())
            .map(|attempt| &attempt["verdict"]["convergence"])
            .collect();
        assert!(!found.is_empty(), "{name}");
        assert!(found.iter().all(|it| **it == expected), "{name}: {found:?}");
    }
}

#[test]
fn golden_text_of_a_real_recording() {
    for width in [80, 160] {
        let found = timeline("test-b-lag", width, &[]);
        for line in found.lines() {
            assert!(line.width() <= width, "at {width}: {line}");
            assert_eq!(line, line.trim_end(), "at {width}");
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/golden/test-b-lag.{width}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "{} differs:\n{found}", path.display());
    }
}

#[test]
fn all_that_is_shipped_is_tested_and_reading_leaves_nothing_beside_it() {
    let folder = root().join("docs/recordings");
    let before = names_in(&folder);
    for (name, ..) in SHIPPED {
        timeline(name, 100, &[]);
    }
    assert_eq!(names_in(&folder), before);
    let mut expected: Vec<std::ffi::OsString> = (SHIPPED.iter())
        .map(|(name, ..)| format!("{name}.slicetrace").into())
        .chain(["README.md".into()])
        .collect();
    expected.sort();
    assert_eq!(before, expected);
}
