//! The agent itself, where things go wrong around it. Needs root, BTF and cgroup2; skipped otherwise.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slicetrace::model::Timestamp;
use slicetrace::model::record::{GapKind, GapSeen, Record};
use slicetrace::store::Store;

use support::Cgroup;

/// A running agent whose API (of Kubernetes) is away; it is killed with the value.
struct Agent {
    child: Child,
    api: String,
}

impl Agent {
    fn start(cgroup: &Cgroup, db: &Path, more: &[&str]) -> Self {
        let mut child = command(cgroup, db, more);
        let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let mut said = String::new();
        let mut bytes = [0; 4096];
        // `… API of the agent on 127.0.0.1:4711`
        let api = loop {
            let length = stderr.read(&mut bytes).unwrap();
            assert!(length > 0, "it ended: {said}");
            said.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
            let address = said.split("API of the agent on ").nth(1);
            if let Some((address, _)) = address.and_then(|rest| rest.split_once('\n')) {
                break address.to_owned();
            }
        };
        // stderr is closed from here on: an agent must outlive whoever reads its messages.
        Self { child, api }
    }

    fn end(&mut self, signal: Signal, within: Duration) -> ExitStatus {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < within, "still there after {within:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It has ended in every test that succeeds.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(cgroup: &Cgroup, db: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slicetrace"));
    command
        .args(["agent", "--node", "n1", "--insecure-no-token"])
        .args(["--listen", "127.0.0.1:0", "--server", "http://127.0.0.1:1"])
        .arg("--cgroup")
        .arg(&cgroup.root)
        .arg("--db")
        .arg(db)
        .args(more)
        .env("HOME", "/nonexistent")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("RUST_LOG");
    command
}

fn gaps(db: &Path, what: GapKind) -> Vec<GapSeen> {
    let store = Store::read_only(db).unwrap();
    let all = store.read(Timestamp(0), Timestamp(i64::MAX)).unwrap();
    let gaps = all.records.into_iter().filter_map(|it| match it.record {
        Record::Gap(gap) if gap.what == what => Some(gap),
        _ => None,
    });
    gaps.collect()
}

/// Asks the server as a resolver does; false: no answer in time.
fn ask(server: &UdpSocket, client: &UdpSocket, answer: bool) -> bool {
    let query = support::query();
    client
        .send_to(&query, server.local_addr().unwrap())
        .unwrap();
    let mut bytes = [0; 512];
    let (length, from) = server.recv_from(&mut bytes).unwrap();
    if answer {
        bytes[2] |= 0x80;
        server.send_to(&bytes[..length], from).unwrap();
    }
    client.recv(&mut bytes).is_ok()
}

fn sockets() -> (UdpSocket, UdpSocket) {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let wait = Some(Duration::from_millis(200));
    client.set_read_timeout(wait).unwrap();
    server.set_read_timeout(wait).unwrap();
    (server, client)
}

/// One test, since each needs a cgroup that this process sits in.
#[test]
fn an_agent_is_honest_when_what_is_around_it_fails() {
    let Some(cgroup) = Cgroup::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("node.db");
    let ready = folder.path().join("ready");
    std::fs::write(&ready, "of an earlier run").unwrap();
    let (server, client) = sockets();
    let frontend = server.local_addr().unwrap().to_string();
    let flags = ["--frontend", &frontend, "--record", "all", "--ready-file"];
    let flags: Vec<&str> = flags.into_iter().chain(ready.to_str()).collect();

    // The API is away: the stale ready file goes, queries are recorded, and what is unknown is on record.
    let mut agent = Agent::start(&cgroup, &db, &flags);
    assert!(!ready.exists(), "nothing is ready");
    for _ in 0..50 {
        assert!(ask(&server, &client, true));
    }
    // A second one neither starts nor touches the store of the first.
    let second = command(&cgroup, &db, &[]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another agent is writing"), "{said}");
    // Somebody asks for everything and reads nothing.
    let mut stuck = TcpStream::connect(&agent.api).unwrap();
    stuck
        .write_all(b"GET /v1/records?from=2000-01-01T00:00:00Z&to=2100-01-01T00:00:00Z HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let status = agent.end(Signal::SIGTERM, Duration::from_secs(8));
    assert!(status.success(), "{status}");
    let unwatched = gaps(&db, GapKind::WatchBroken);
    assert!(!unwatched.is_empty());
    assert!(gaps(&db, GapKind::AgentDown).is_empty());
    assert!(!folder.path().join("node.db-wal").exists());

    // Killed with a query in flight: it is in the gap that the next one writes.
    let mut agent = Agent::start(&cgroup, &db, &flags);
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(!ask(&server, &client, false));
    let asked = slicetrace::node::clock::Clock::new().unwrap().now() - 200_000_000;
    std::thread::sleep(Duration::from_millis(1_500));
    agent.end(Signal::SIGKILL, Duration::from_secs(8));
    let mut agent = Agent::start(&cgroup, &db, &flags);
    agent.end(Signal::SIGINT, Duration::from_secs(8));
    let down = gaps(&db, GapKind::AgentDown);
    assert_eq!(down.len(), 2, "{down:?}");
    assert!(down[1].from <= asked, "{down:?} {asked}");
}
