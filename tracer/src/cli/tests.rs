#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use super::values::*;
use super::*;
use crate::model::Timestamp;

fn arguments(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn agent(line: &str) -> Result<crate::agent::Config, Failure> {
    match parse(&arguments(&format!("slicetrace agent --node n {line}"))) {
        Ok(Cli {
            command: Command::Agent(agent),
        }) => agent.resolve(),
        other => panic!("{other:?}"),
    }
}

fn wrong(line: &str) -> String {
    match agent(line) {
        Err(Failure::Usage(message)) => message,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn an_agent_is_not_left_open_by_mistake() {
    assert!(wrong("").contains("--token-file"));
    assert!(wrong("--insecure-no-token --listen 0.0.0.0:9754").contains("--allow-remote"));
    assert!(
        wrong("--insecure-no-token --listen [::]:9754 --allow-remote").contains("only on loopback")
    );
    let config = agent("--insecure-no-token").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:9754");
    assert_eq!(config.services, ["kube-system/kube-dns"]);
    assert_eq!(config.keep_bytes, 256 << 20);
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let flags = format!(
        "--token-file {} --listen 10.0.0.1:1 --allow-remote",
        token.display()
    );
    assert!(wrong(&flags).contains("cannot be read"));
    std::fs::write(&token, " \n").unwrap();
    assert!(wrong(&flags).contains("is empty"));
    std::fs::write(&token, "geheim\n").unwrap();
    let access = agent(&flags).unwrap().access;
    assert!(matches!(access, crate::api::server::Access::Token(token) if &*token == "geheim"));
}

#[test]
fn scopes_and_bounds_are_checked_at_the_edge() {
    assert!(wrong("--insecure-no-token --netns run/x").contains("absolute"));
    assert!(wrong("--insecure-no-token --cgroup /nowhere").contains("cgroup2"));
    assert!(wrong("--insecure-no-token --keep-bytes 1KiB").contains("16MiB"));
    assert!(wrong("--insecure-no-token --keep-for 0s").contains("7d"));
}

#[test]
fn clap_refuses_what_is_no_value() {
    for line in [
        "agent --node n --service kube-dns",
        "agent --node n --frontend 10.0.0.1",
        "agent --node n --keep-for soon",
        "agent --node n --token-file a --insecure-no-token",
        "timeline",
        "timeline a --since 1h --from 2h",
        "timeline a --verdict bad-luck",
        "timeline a --fail-on failed",
        "timeline a --output xml",
        "completions cmd",
    ] {
        let error = parse(&arguments(&format!("slicetrace {line}"))).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn durations_sizes_and_times() {
    assert_eq!(duration("1h30m").unwrap().as_secs(), 5400);
    assert_eq!(duration("7d").unwrap().as_secs(), 604_800);
    assert_eq!(duration("250ms").unwrap().as_millis(), 250);
    for text in [
        "",
        "5",
        "m",
        "5y",
        "-5m",
        "1h 5",
        "99999999999999999999s",
        "400000w",
        "5µs",
    ] {
        assert!(duration(text).is_err(), "{text}");
    }
    assert_eq!(bytes("256MiB"), Ok(256 << 20));
    assert_eq!(bytes("500MB"), Ok(500_000_000));
    for text in [
        "",
        "MiB",
        "1TiBs",
        "99999999999999999999",
        "18446744073709551615KiB",
    ] {
        assert!(bytes(text).is_err(), "{text}");
    }
    let now = Timestamp(100_000_000_000);
    assert_eq!(when("10s").unwrap().resolve(now), Timestamp(90_000_000_000));
    assert_eq!(
        when("1970-01-01T00:00:05+00:00").unwrap().resolve(now),
        Timestamp(5_000_000_000)
    );
    assert!(when("yesterday").is_err());
    assert!(service("kube-system/kube-dns").is_ok());
    for text in ["kube-dns", "/a", "a/", "a/b/c", "A/b", "a/b.c"] {
        assert!(service(text).is_err(), "{text}");
    }
}

#[test]
fn ascii_follows_the_locale() {
    let locale = |all: &'static str, ctype: &'static str, lang: &'static str| {
        terminal::ascii(move |name| {
            Some(match name {
                "LC_ALL" => all.to_owned(),
                "LC_CTYPE" => ctype.to_owned(),
                _ => lang.to_owned(),
            })
        })
    };
    assert!(locale("", "", ""));
    assert!(locale("C", "", "de_DE.UTF-8"));
    assert!(!locale("", "C.utf8", "C"));
    assert!(!locale("", "", "de_DE.UTF-8"));
}

mod fail_on {
    use std::collections::BTreeMap;

    use super::super::fail_on::FailOn;
    use crate::model::timeline::Summary;

    fn summary() -> Summary {
        Summary {
            service: "kube-system/kube-dns".into(),
            queries: 100,
            answered: 97,
            late: 1,
            refused: 1,
            unanswered: 1,
            failed: 3,
            recovered: 2,
            attempts: 105,
            retransmissions: 5,
            verdicts: BTreeMap::from([("programming-lag".into(), 3)]),
            events: 5,
            minimum_ready: None,
            zero_ready_events: 1,
            zero_ready_ns: 2_000_000_000,
            zero_ready_windows: Vec::new(),
            lost_records: 0,
            missing_nodes: vec!["worker1".into()],
        }
    }

    #[test]
    fn conditions() {
        let cases = [
            ("failed>0", 1),
            ("failed > 3", 0),
            ("failed>=3", 1),
            ("failed!=3", 0),
            ("failed==3", 1),
            ("failed<3", 0),
            ("failed<=3", 1),
            ("programming-lag>=3", 1),
            ("no-endpoints>0", 0),
            ("zeroReadyNs>1s", 1),
            ("zeroReadyNs>3s", 0),
            ("missingNodes=1", 1),
            ("failed>9, recovered>1,late>0", 2),
            // Unknown is not zero.
            ("minimumReady<1", 0),
        ];
        for (text, met) in cases {
            let condition: FailOn = text.parse().unwrap();
            assert_eq!(condition.met(&[summary()]).len(), met, "{text}");
        }
        for text in [
            "",
            "failed",
            "failed>",
            "failed>many",
            "misfortune>0",
            "failed>1s",
            "failed>0,",
        ] {
            let error = text.parse::<FailOn>().unwrap_err();
            assert!(error.contains("failed>0"), "{error}");
        }
    }
}
