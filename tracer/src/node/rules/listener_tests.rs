//! Against the kernel: every test has a network namespace of its own, which ends with the test's thread.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dataplane::Dataplane;
use super::*;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(i64::try_from(since.as_nanos()).unwrap())
}

/// Runs `test` in a network namespace of its own; says why not, where that is not allowed.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: no network namespace of our own: {error}");
            return;
        }
        test();
    });
    thread.join().unwrap();
}

fn run(program: &str, arguments: &[&str], input: &str) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    assert!(
        child.wait().unwrap().success(),
        "{program} failed on {input}"
    );
}

fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

struct Ear {
    listener: RuleListener,
    events: mpsc::Receiver<RuleEvent>,
}

fn listen(watched: &[&str]) -> Ear {
    let (sender, events) = mpsc::channel();
    let listener = RuleListener::start(now, move |event| sender.send(event).unwrap()).unwrap();
    assert!(listener.watch(addresses(watched)).is_empty());
    Ear { listener, events }
}

fn addresses(texts: &[&str]) -> HashSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl Ear {
    /// Each commit so far, as (added, removed) of `address`.
    fn changes(&self, address: &str) -> Vec<(u32, u32)> {
        let address: IpAddr = address.parse().unwrap();
        let mut found = Vec::new();
        while let Ok(event) = self.events.recv_timeout(Duration::from_millis(300)) {
            let RuleEvent::Commit(commit) = event else {
                panic!("unexpected {event:?}");
            };
            assert!(now().since(commit.at) < 5_000_000_000);
            found.extend(
                commit
                    .changes
                    .iter()
                    .filter(|change| change.address == address)
                    .map(|change| (change.added, change.removed)),
            );
        }
        found
    }
}

/// The rules kube-proxy writes for kube-dns in iptables mode, for these endpoints.
fn iptables(endpoints: &[&str]) -> String {
    let mut text = String::from(
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SVC-TCOU7JCQXEZGVUNU - [0:0]\n",
    );
    for at in 0..3 {
        text.push_str(&format!(":KUBE-SEP-{at} - [0:0]\n"));
    }
    text.push_str(
        "-A KUBE-SERVICES -d 10.43.0.10/32 -p udp -m comment --comment \"kube-system/kube-dns:dns cluster IP\" \
         -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU\n",
    );
    for (at, endpoint) in endpoints.iter().enumerate() {
        text.push_str(&format!(
            "-A KUBE-SVC-TCOU7JCQXEZGVUNU -m comment --comment \"kube-system/kube-dns:dns -> {endpoint}:53\" \
             -m statistic --mode random --probability 0.5 -j KUBE-SEP-{at}\n\
             -A KUBE-SEP-{at} -s {endpoint}/32 -j KUBE-MARK-MASQ\n\
             -A KUBE-SEP-{at} -p udp -m udp -j DNAT --to-destination {endpoint}:53\n"
        ));
    }
    text.push_str("COMMIT\n");
    text
}

#[test]
fn iptables_nft_commits_are_heard_with_their_addresses() {
    in_namespace(|| {
        if !installed("iptables-nft-restore") {
            return;
        }
        let restore = |rules: &str| run("iptables-nft-restore", &["--noflush"], rules);
        let ear = listen(&["10.42.0.149", "10.43.0.10"]);
        restore(&iptables(&["10.42.0.149", "10.42.1.76"]));
        assert_eq!(ear.changes("10.42.0.149"), [(2, 0)]);

        // The full sync that kube-proxy repeats: flushed and added again.
        restore(&iptables(&["10.42.0.149", "10.42.1.76"]));
        assert_eq!(ear.changes("10.42.0.149"), [(2, 2)]);

        restore(&iptables(&["10.42.1.76"]));
        assert_eq!(ear.changes("10.42.0.149"), [(0, 2)]);

        // Neither of these concerns a watched address.
        restore("*filter\n-A FORWARD -s 10.9.9.9/32 -j ACCEPT\nCOMMIT\n");
        restore(
            "*nat\n:OTHER - [0:0]\n-A OTHER -p udp -j DNAT --to-destination 10.42.7.7:53\nCOMMIT\n",
        );
        assert!(ear.changes("10.42.0.149").is_empty());

        let dataplane = Dataplane::detect().unwrap();
        assert_eq!(dataplane.name().as_deref(), Some("kube-proxy-iptables"));
    });
}

#[test]
fn what_changes_unannounced_is_noticed() {
    in_namespace(|| {
        assert_eq!(Dataplane::detect().unwrap(), Dataplane::default());
        if installed("ip") {
            run("ip", &["link", "add", "cilium_host", "type", "bridge"], "");
            run("ip", &["link", "add", "kube-ipvs0", "type", "bridge"], "");
            let found = Dataplane::detect().unwrap();
            assert_eq!(found.name().as_deref(), Some("cilium+kube-proxy-ipvs"));
            assert!(!found.announces_all());
        }
        let legacy = Command::new("iptables-legacy")
            .args(["-w", "-t", "nat", "-S"])
            .output();
        if legacy.is_ok_and(|output| output.status.success()) {
            assert!(Dataplane::detect().unwrap().legacy_nat);
        } else {
            eprintln!("SKIPPED: iptables-legacy does not work here");
        }
    });
}

/// What kube-proxy writes in nftables mode.
fn nftables(endpoints: &[&str]) -> String {
    let mut text = String::from(
        "add table ip kube-proxy\nadd chain ip kube-proxy service-dns\nflush chain ip kube-proxy service-dns\n",
    );
    for endpoint in endpoints {
        text.push_str(&format!(
            "add chain ip kube-proxy endpoint-dns__{endpoint}/53\nflush chain ip kube-proxy endpoint-dns__{endpoint}/53\n\
             add rule ip kube-proxy endpoint-dns__{endpoint}/53 ip saddr {endpoint} meta mark set 0x4000\n\
             add rule ip kube-proxy endpoint-dns__{endpoint}/53 meta l4proto udp dnat to {endpoint}:53\n"
        ));
    }
    text
}

#[test]
fn nftables_commits_are_heard_with_their_addresses() {
    in_namespace(|| {
        if !installed("nft") {
            return;
        }
        let nft = |rules: &str| run("nft", &["-f", "-"], rules);
        let ear = listen(&["10.42.0.149", "10.42.1.76"]);
        nft(&nftables(&["10.42.0.149"]));
        assert_eq!(ear.changes("10.42.0.149"), [(2, 0)]);
        nft(&nftables(&["10.42.0.149", "10.42.1.76"]));
        let Ok(RuleEvent::Commit(commit)) = ear.events.recv_timeout(Duration::from_secs(5)) else {
            panic!("not heard");
        };
        assert_eq!(commit.committer, "nft");
        let changes: Vec<_> = commit
            .changes
            .iter()
            .map(|c| (c.added, c.removed))
            .collect();
        assert_eq!(changes, [(2, 2), (2, 0)]);
        nft("flush chain ip kube-proxy endpoint-dns__10.42.0.149/53\n\
             delete chain ip kube-proxy endpoint-dns__10.42.0.149/53\n");
        assert_eq!(ear.changes("10.42.0.149"), [(0, 2)]);

        // A map inside a rule, and a named one.
        nft(
            "add rule ip kube-proxy service-dns dnat to numgen random mod 2 map { 0 : 10.42.0.149, 1 : 10.42.1.76 }\n",
        );
        assert_eq!(ear.changes("10.42.0.149"), [(1, 0)]);
        nft("flush chain ip kube-proxy service-dns\n\
             add rule ip kube-proxy service-dns dnat to numgen random mod 1 map { 0 : 10.42.1.76 }\n");
        assert_eq!(ear.changes("10.42.0.149"), [(0, 1)]);
        nft(
            "add map ip kube-proxy backends { type inet_service : ipv4_addr . inet_service ; }\n\
             add element ip kube-proxy backends { 53 : 10.42.0.149 . 53 }\n",
        );
        assert_eq!(ear.changes("10.42.0.149"), [(1, 0)]);
        nft("delete element ip kube-proxy backends { 53 : 10.42.0.149 . 53 }\n");
        assert_eq!(ear.changes("10.42.0.149"), [(0, 1)]);

        assert_eq!(
            Dataplane::detect().unwrap().name().as_deref(),
            Some("kube-proxy-nftables")
        );
        nft("delete table ip kube-proxy\n");
        assert_eq!(ear.changes("10.42.1.76"), [(0, 3)]);
    });
}

#[test]
fn an_address_watched_too_late_still_gets_its_commit() {
    in_namespace(|| {
        if !installed("nft") {
            return;
        }
        let ear = listen(&["10.43.0.10"]);
        run("nft", &["-f", "-"], &nftables(&["10.42.2.42"]));
        assert!(ear.changes("10.42.2.42").is_empty());
        let late = ear.listener.watch(addresses(&["10.43.0.10", "10.42.2.42"]));
        assert_eq!(late.len(), 1);
        assert_eq!(late[0].changes[0].added, 2);
        assert!(ear.listener.watch(addresses(&["10.42.2.42"])).is_empty());
    });
}

#[test]
fn an_overrun_is_told_and_later_commits_are_heard_again() {
    in_namespace(|| {
        if !installed("nft") {
            return;
        }
        let (sender, events) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let mut first = true;
        let listener = RuleListener::start_with(64 << 10, now, move |event| {
            // The first commit holds up the thread until the buffer has run over.
            if std::mem::take(&mut first) {
                wait.recv().unwrap();
            }
            sender.send(event).unwrap();
        })
        .unwrap();
        listener.watch(addresses(&["10.42.0.149"]));
        run("nft", &["-f", "-"], &nftables(&["10.42.0.149"]));
        let mut flood = String::from("add table ip flood\nadd chain ip flood c\n");
        for _ in 0..2_000 {
            flood.push_str(
                "add rule ip flood c ip saddr 10.9.9.9 ip daddr 10.9.9.8 counter accept\n",
            );
        }
        run("nft", &["-f", "-"], &flood);
        go.send(()).unwrap();
        let wait_for = |wanted: &dyn Fn(&RuleEvent) -> bool| {
            while !wanted(&events.recv_timeout(Duration::from_secs(20)).unwrap()) {}
        };
        wait_for(&|event| matches!(event, RuleEvent::Lost { from, to, .. } if from <= to));
        std::thread::sleep(ONE_COMMIT + Duration::from_millis(200));
        run(
            "nft",
            &[
                "flush",
                "chain",
                "ip",
                "kube-proxy",
                "endpoint-dns__10.42.0.149/53",
            ],
            "",
        );
        wait_for(
            &|event| matches!(event, RuleEvent::Commit(commit) if commit.changes[0].removed == 2),
        );
    });
}
