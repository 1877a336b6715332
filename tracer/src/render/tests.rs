//! Golden texts: `UPDATE_GOLDEN=1 cargo test -p slicetrace render` rewrites them; read the difference before committing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod fixture;

use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

use super::text::{Clock, Style};
use super::{Shown, json, missing, schema, text};
use crate::model::Timestamp;
use crate::model::timeline::*;
use fixture::Timeline;

const fn style(width: usize) -> Style {
    Style {
        width,
        colour: false,
        ascii: false,
        clock: Clock::Utc,
        all: false,
        remark: None,
        now: None,
    }
}

fn shown(timeline: &Timeline) -> Shown<'_> {
    Shown {
        header: &timeline.header,
        lines: &timeline.lines,
        summaries: &timeline.summaries,
    }
}

fn text_of(timeline: &Timeline, style: &Style) -> String {
    let mut out = Vec::new();
    text::write(&mut out, shown(timeline), style).unwrap();
    String::from_utf8(out).unwrap()
}

fn folder(of: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

fn checked_in(path: &std::path::Path, found: &str, how: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs; {how}. Found:\n{found}",
        path.display()
    );
}

#[test]
fn golden() {
    let cases: [(&str, Timeline); 6] = [
        ("late-rules", fixture::late_rules()),
        ("graceful", fixture::graceful()),
        ("incident", fixture::incident()),
        ("blind", fixture::blind()),
        ("nothing", fixture::nothing()),
        ("hostile", fixture::hostile()),
    ];
    for (name, timeline) in cases {
        for width in [80, 160] {
            let found = text_of(&timeline, &style(width));
            for line in found.lines() {
                assert!(line.width() <= width, "{name} at {width}: {line}");
                assert_eq!(line, line.trim_end(), "{name} at {width}");
                assert!(!line.chars().any(char::is_control), "{name}: {line:?}");
            }
            let path = folder("src/render/golden").join(format!("{name}.{width}.txt"));
            checked_in(&path, &found, "read it and run with UPDATE_GOLDEN=1");
        }
    }
}

#[test]
fn no_address_or_name_is_parted_at_80_columns() {
    let found = text_of(&fixture::late_rules(), &style(80));
    let words: Vec<&str> = found.split_whitespace().collect();
    for whole in [
        "kubernetes.default.svc.cluster.local.",
        "10.43.0.10",
        "default/probe-7xk",
        "(programming-lag)",
        "neigh_invalidate",
    ] {
        assert!(
            words.iter().any(|word| word.contains(whole)),
            "{whole} is parted in\n{found}"
        );
    }
}

#[test]
fn ascii_is_ascii_and_colour_adds_nothing_else() {
    let timeline = fixture::incident();
    let plain = text_of(&timeline, &style(100));
    let ascii = Style {
        ascii: true,
        ..style(100)
    };
    assert!(text_of(&timeline, &ascii).is_ascii());
    let colour = Style {
        colour: true,
        ..style(100)
    };
    let coloured = text_of(&timeline, &colour);
    assert!(coloured.contains("\u{1b}[31m"));
    let mut stripped = String::new();
    for (position, part) in coloured.split('\u{1b}').enumerate() {
        stripped.push_str(if position == 0 {
            part
        } else {
            part.split_once('m').unwrap().1
        });
    }
    assert_eq!(stripped, plain);
}

#[test]
fn all_shows_each_failure() {
    let timeline = fixture::incident();
    let each = Style {
        all: true,
        ..style(100)
    };
    let found = text_of(&timeline, &each);
    let entries = found
        .lines()
        .filter(|line| line.get(12..).is_some_and(|rest| rest.starts_with("  ✗")));
    assert_eq!(entries.count(), fixture::ALIKE * 2, "{found}");
    let one = text_of(&timeline, &style(100));
    assert!(one.contains("40 queries on 2 nodes,"), "{one}");
}

#[test]
fn blindness_is_never_silent() {
    let blind = fixture::blind();
    let sentences = missing::missing(shown(&blind));
    for words in [
        "worker1 is missing",
        "worker2 is blind",
        "without kfree_skb",
        "lost 13 records",
    ] {
        assert!(
            sentences.iter().any(|sentence| sentence.contains(words)),
            "{words}: {sentences:?}"
        );
    }
    assert!(!missing::nothing_recorded(&blind.header, &blind.summaries));
    assert!(missing::nothing_recorded(&fixture::nothing().header, &[]));
    let mut purged = fixture::graceful();
    purged.lines.push(Line::Gap(Gap {
        from: purged.header.from,
        to: purged.header.to,
        node: "worker1".into(),
        what: GapKind::RecordsLost,
        count: 9,
    }));
    let sentences = missing::missing(shown(&purged));
    assert!(sentences[0].contains("deleted records"), "{sentences:?}");
    let healthy = fixture::graceful();
    assert_eq!(missing::missing(shown(&healthy)), Vec::<String>::new());
}

#[test]
fn a_time_in_which_no_node_heard_the_api_is_not_called_quiet() {
    let mut timeline = fixture::graceful();
    let (from, to) = (timeline.header.from, timeline.header.to);
    let nodes = timeline.header.nodes.clone();
    let broken = |node: &str, from, to| {
        Line::Gap(Gap {
            from,
            to,
            node: node.to_owned(),
            what: GapKind::WatchBroken,
            count: 0,
        })
    };
    // One after the other: somebody always listened.
    let middle = from + to.since(from) / 2;
    timeline.lines.push(broken(&nodes[0].name, from, middle));
    for node in &nodes[1..] {
        timeline.lines.push(broken(&node.name, middle, to));
    }
    assert_eq!(missing::missing(shown(&timeline)), Vec::<String>::new());
    timeline.lines.push(broken(&nodes[0].name, middle, to));
    let sentences = missing::missing(shown(&timeline));
    assert!(sentences[0].contains("unseen"), "{sentences:?}");
}

#[test]
fn local_time_says_its_offset() {
    let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(2));
    let local = Style {
        clock: Clock::Zone(zone),
        ..style(160)
    };
    let found = text_of(&fixture::late_rules(), &local);
    assert!(
        found.starts_with("2026-09-07 +02:00 · 23:04:00.000"),
        "{found}"
    );
}

fn json_of(timeline: &Timeline) -> Vec<Value> {
    let mut out = Vec::new();
    json::write(&mut out, shown(timeline)).unwrap();
    String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn json_is_header_lines_summaries_and_reads_back() {
    let timeline = fixture::late_rules();
    let lines = json_of(&timeline);
    let kinds: Vec<_> = lines
        .iter()
        .map(|line| line["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.first(), Some(&"header"));
    assert_eq!(kinds.last(), Some(&"summary"));
    assert_eq!(kinds.len(), timeline.lines.len() + 2);
    let read: Line = serde_json::from_value(lines[0].clone()).unwrap();
    assert_eq!(read, Line::Header(timeline.header));
    for (line, expected) in lines[1..].iter().zip(&timeline.lines) {
        assert_eq!(
            &serde_json::from_value::<Line>(line.clone()).unwrap(),
            expected
        );
    }
}

/// Names of all fields, with where they are: `query.attempts.verdict.lagNs`.
fn names(value: &Value, place: &str, into: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let place = format!("{place}.{name}");
                names(value, &place, into);
                into.insert(place);
            }
        }
        Value::Array(array) => array.iter().for_each(|value| names(value, place, into)),
        _ => {}
    }
}

/// The example lines of the documented format: every field of theirs must be a field of ours.
#[test]
fn every_documented_field_is_written_by_that_name() {
    let documented = std::fs::read_to_string(folder("../docs/formats.md")).unwrap();
    let mut wanted = std::collections::BTreeSet::new();
    let validator = jsonschema::validator_for(&schema::line()).unwrap();
    for line in documented
        .lines()
        .filter(|line| line.starts_with("{\"kind\":"))
    {
        let value: Value = serde_json::from_str(line).unwrap();
        let kind = value["kind"].as_str().unwrap().to_owned();
        assert!(validator.is_valid(&value), "{line}");
        names(&value, &kind, &mut wanted);
    }
    let mut written = std::collections::BTreeSet::new();
    for timeline in [fixture::late_rules(), fixture::graceful(), fixture::blind()] {
        for line in json_of(&timeline) {
            names(&line, line["kind"].as_str().unwrap(), &mut written);
        }
    }
    assert!(wanted.len() > 100, "{wanted:?}");
    let absent: Vec<_> = wanted
        .iter()
        .filter(|name| !written.contains(*name))
        // A map's keys are data.
        .filter(|name| {
            ![
                "header.nodes.hooks.",
                "transition.seenBy.",
                "summary.verdicts.",
            ]
            .iter()
            .any(|map| name.starts_with(map))
        })
        .collect();
    assert_eq!(absent, Vec::<&String>::new());
}

#[test]
fn the_checked_in_schema_is_current() {
    checked_in(
        &folder("../docs/slicetrace-1.schema.json"),
        &schema::text().unwrap(),
        "run `slicetrace schema > docs/slicetrace-1.schema.json`",
    );
}

#[test]
fn what_we_write_validates_and_a_wrong_type_does_not() {
    let validator = jsonschema::validator_for(&schema::line()).unwrap();
    for timeline in [
        fixture::late_rules(),
        fixture::graceful(),
        fixture::incident(),
        fixture::blind(),
        fixture::nothing(),
        fixture::hostile(),
    ] {
        for line in json_of(&timeline) {
            let errors: Vec<_> = validator
                .iter_errors(&line)
                .map(|error| error.to_string())
                .collect();
            assert_eq!(errors, Vec::<String>::new(), "{line}");
        }
    }
    let lines = json_of(&fixture::late_rules());
    let query = lines.iter().find(|line| line["kind"] == "query").unwrap();
    let wrong = [
        ("/at", Value::from(5)),
        ("/final", Value::from("yes")),
        ("/outcome", Value::from("lost")),
        ("/latencyNs", Value::from("412")),
        ("/attempts/0/txid", Value::from(70_000)),
        ("/attempts/0/verdict/confidence", Value::from("certain")),
        ("/attempts/0/trail/0/point", Value::Null),
    ];
    for (place, value) in wrong {
        let mut line = query.clone();
        *line.pointer_mut(place).unwrap() = value;
        assert!(!validator.is_valid(&line), "{place}");
    }
    let mut extra = query.clone();
    extra["later"] = Value::from(1);
    assert!(validator.is_valid(&extra));
    assert!(validator.is_valid(&serde_json::json!({"kind": "counters", "at": "…"})));
    assert!(!validator.is_valid(&serde_json::json!({"kind": "header"})));
    assert!(!validator.is_valid(&serde_json::json!({"no": "kind"})));
}

#[test]
fn nothing_recorded_says_so_at_any_width() {
    for width in [1, 40, 80, 200] {
        let found = text_of(&fixture::nothing(), &style(width));
        let joined = found.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            joined.contains("nothing recorded, so nothing can be said"),
            "{found}"
        );
        assert!(!joined.contains("0 failed"), "{found}");
    }
}

#[test]
fn a_packet_that_was_no_query_is_not_called_unsent() {
    let mut timeline = fixture::late_rules();
    for line in &mut timeline.lines {
        if let Line::Query(query) = line {
            query.question = None;
        }
    }
    let text = text_of(&timeline, &style(160));
    assert!(text.contains("no readable question"), "{text}");
    assert!(!text.contains("no packet was sent"), "{text}");
}
