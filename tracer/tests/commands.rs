//! The program itself, against a real server of the agent's API and real files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use futures::future::BoxFuture;
use slicetrace::api::Health;
use slicetrace::api::server::{Access, Source, read_store, serve};
use slicetrace::model::Timestamp;
use slicetrace::model::record::{
    Conditions, EndpointSeen, Lost, NodeInfo, NodeRecord, Record, ServiceSeen, SliceSeen,
};
use slicetrace::store::{Reading, Store};

/// A store behind the API, as an agent has it.
struct Agent {
    store: PathBuf,
    ready: bool,
}

impl Source for Agent {
    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn records(&self, from: Timestamp, to: Timestamp) -> Result<Reading, String> {
        read_store(&self.store, from, to)
    }

    fn health(&self) -> Health {
        Health {
            ready: self.ready,
            node: "worker1".to_owned(),
            tool_version: "0.1.0".to_owned(),
            since: None,
        }
    }
}

/// Serves until the process ends; answers its URL.
fn start(store: &Path, ready: bool) -> String {
    let (send, receive) = std::sync::mpsc::channel();
    let agent = Arc::new(Agent {
        store: store.to_owned(),
        ready,
    });
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            let access = Access::Token("geheim".into());
            serve(listener, agent, access, std::future::pending()).await
        })
    });
    format!("http://{}", receive.recv().unwrap())
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    Timestamp(i64::try_from(since.as_nanos()).unwrap())
}

/// What a node of a quiet cluster recorded in the last minute.
fn records(node: &str, seen: u64) -> Vec<NodeRecord> {
    let now = now();
    let begin = now - 60_000_000_000;
    let hooks = [
        "cgroup_egress",
        "cgroup_ingress",
        "net_dev_queue",
        "netif_receive_skb",
    ];
    let records = [
        Record::Node(NodeInfo {
            started: begin,
            last_record_at: now,
            kernel: "6.18.0".into(),
            boot_id: node.into(),
            tool_version: "0.1.0".into(),
            dataplane: None,
            hooks: hooks.map(|hook| (hook.to_owned(), seen)).into(),
            missing_hooks: BTreeMap::new(),
            lost: Lost::default(),
            hears_rules: true,
            records_all: false,
        }),
        Record::Service(ServiceSeen {
            at: begin,
            service: "kube-system/kube-dns".into(),
            frontends: vec!["10.43.0.10:53".parse().unwrap()],
            resource_version: "1".into(),
        }),
        Record::Slice(SliceSeen {
            at: begin,
            service: "kube-system/kube-dns".into(),
            slice: "kube-dns-abcde".into(),
            resource_version: "2".into(),
            deleted: false,
            listed: true,
            trigger: None,
            endpoints: vec![EndpointSeen {
                address: "10.42.0.149".parse().unwrap(),
                ports: vec![53],
                conditions: Conditions {
                    ready: true,
                    serving: true,
                    terminating: false,
                },
                node: Some(node.to_owned()),
                pod: Some("coredns-x2k".into()),
                uid: None,
            }],
        }),
    ];
    records
        .map(|record| NodeRecord {
            node: node.to_owned(),
            record,
        })
        .into()
}

/// A folder with a token in it, where the program is run.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "geheim\n").unwrap();
        Self { folder }
    }

    fn store(&self, name: &str, records: &[NodeRecord]) -> PathBuf {
        let path = self.folder.path().join(name);
        Store::open(&path).unwrap().write(records).unwrap();
        path
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slicetrace"));
        command
            .args(line.split_whitespace())
            .current_dir(self.folder.path())
            .env("LC_ALL", "C.UTF-8")
            .env("COLUMNS", "100")
            // Nobody's proxy may come between the program and a node's loopback.
            .env("http_proxy", "http://127.0.0.1:1")
            .env_remove("RUST_LOG");
        command
    }

    /// Status, stdout and stderr.
    fn run(&self, line: &str) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(line).output().unwrap();
        (
            status.code().unwrap(),
            String::from_utf8(stdout).unwrap(),
            String::from_utf8(stderr).unwrap(),
        )
    }
}

#[test]
fn a_recording_is_made_of_agents_and_read_back_without_them() {
    let place = Place::new();
    let url = start(&place.store("w1.db", &records("worker1", 9)), true);
    let line = format!("record a.slicetrace --agent {url} --token-file token");
    let (status, out, talk) = place.run(&line);
    assert_eq!((status, out.as_str()), (0, ""), "{talk}");
    assert!(talk.contains("a.slicetrace: 3 records"), "{talk}");

    let (status, _, talk) = place.run(&line);
    assert_eq!(status, 2);
    assert!(talk.contains("--force"), "{talk}");
    assert_eq!(place.run(&format!("{line} --force")).0, 0);

    let (_, out, _) = place.run("timeline a.slicetrace --output json");
    let header: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(header["kind"], "header");
    assert_eq!(header["nodes"][0]["name"], "worker1");
    assert_eq!(header["nodes"][0]["recorded"], true);
    let names: Vec<_> = std::fs::read_dir(place.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.to_string_lossy().starts_with("a.slicetrace"))
        .collect();
    assert_eq!(names, ["a.slicetrace"]);
}

#[test]
fn an_agent_that_is_away_is_named_now_and_in_the_recording() {
    let place = Place::new();
    let url = start(&place.store("w1.db", &records("worker1", 9)), true);
    let agents = format!("--agent {url} --agent http://127.0.0.1:1 --token-file token");
    for line in [
        format!("record a.slicetrace {agents}"),
        "timeline a.slicetrace".to_owned(),
        format!("timeline {agents}"),
    ] {
        let (status, _, talk) = place.run(&line);
        assert_eq!(status, 3, "{line}: {talk}");
        assert!(
            talk.contains("http://127.0.0.1:1 is missing: connection refused"),
            "{talk}"
        );
    }
    let (_, out, _) = place.run(&format!("timeline {agents}"));
    assert!(out.contains("1 of 2 nodes"), "{out}");
}

#[test]
fn nothing_recorded_is_said_with_status_3() {
    let place = Place::new();
    place.store("w1.db", &records("worker1", 0));
    let (status, out, talk) = place.run("timeline w1.db");
    assert_eq!(status, 3);
    assert!(
        out.contains("nothing recorded, so nothing can be said"),
        "{out}"
    );
    assert!(talk.contains("worker1 is blind"), "{talk}");
    let (status, _, talk) = place.run("timeline --agent http://127.0.0.1:1");
    assert_eq!(status, 3);
    assert!(talk.contains("nothing recorded"), "{talk}");
    let (status, _, talk) = place.run("record b.slicetrace --agent http://127.0.0.1:1");
    assert_eq!(status, 1);
    assert!(talk.contains("was not written"), "{talk}");
    assert!(!place.folder.path().join("b.slicetrace").exists());
}

#[test]
fn wrong_files_and_wrong_use_have_their_statuses() {
    let place = Place::new();
    std::fs::write(place.folder.path().join("text"), "hello".repeat(300)).unwrap();
    for (line, status, words) in [
        ("timeline text", 1, "not an SQLite file"),
        ("timeline absent", 1, "no such file"),
        ("timeline .", 1, "folder"),
        ("timeline", 2, "FILE"),
        ("timeline --agent worker1:9754", 2, "http://HOST:PORT"),
        ("timeline text --client nobody", 2, "NAMESPACE/POD"),
        ("record c.slicetrace", 2, "--agent URL"),
        ("agent --node n", 2, "--token-file"),
    ] {
        let (found, out, talk) = place.run(line);
        assert_eq!((found, out.as_str()), (status, ""), "{line}: {talk}");
        assert!(talk.contains(words), "{line}: {talk}");
    }
}

#[test]
fn healthz_tells_ready_from_not_ready_from_away() {
    let place = Place::new();
    let store = place.store("w1.db", &[]);
    let (ready, starting) = (start(&store, true), start(&store, false));
    let (status, out, _) = place.run(&format!("healthz --agent {ready} --token-file token"));
    assert_eq!(status, 0);
    assert!(out.contains("\"ready\":true"), "{out}");
    for (line, words) in [
        (
            format!("healthz --agent {starting} --token-file token"),
            "not ready yet",
        ),
        (format!("healthz --agent {ready}"), "bearer token"),
        ("healthz --agent http://127.0.0.1:1".to_owned(), "refused"),
    ] {
        let (status, _, talk) = place.run(&line);
        assert_eq!(status, 1, "{talk}");
        assert!(talk.contains(words), "{talk}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let place = Place::new();
    let many: Vec<_> = (0..2000)
        .flat_map(|n| records(&format!("worker{n}"), 1))
        .collect();
    place.store("many.db", &many);
    let mut child = place
        .command("timeline many.db --output json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn as_a_plugin_of_kubectl_it_says_so() {
    let place = Place::new();
    let plugin = place.folder.path().join("kubectl-slicetrace");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_slicetrace"), &plugin).unwrap();
    let output = Command::new(&plugin)
        .args(["timeline", "--help"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(
        help.contains("Usage: kubectl slicetrace timeline"),
        "{help}"
    );
}

#[test]
fn the_schema_and_completions_are_printed() {
    let place = Place::new();
    let (status, out, _) = place.run("schema");
    assert_eq!(status, 0);
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/slicetrace-1.schema.json");
    assert_eq!(out, std::fs::read_to_string(checked_in).unwrap());
    for shell in ["bash", "zsh", "fish"] {
        let (status, out, _) = place.run(&format!("completions {shell}"));
        assert_eq!(status, 0);
        assert!(out.contains("timeline"));
    }
}
