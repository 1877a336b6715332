//! What is told of an API that behaves, and of one that does not.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::super::client::{ApiOptions, connect};
use super::super::event::PodChange;
use super::super::fake::{Reply, Script, Server, Step};
use super::*;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(i64::try_from(since.as_nanos()).unwrap())
}

fn slice(name: &str, version: &str, ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "kube-system", "resourceVersion": version},
        "ports": [{"port": 53, "protocol": "UDP"}],
        "endpoints": [{"addresses": ["10.42.0.149"], "conditions": {"ready": ready}}]
    })
}

fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

fn modified(version: &str, ready: bool) -> Step {
    Step::Event(event("MODIFIED", slice("a", version, ready)))
}

fn bookmark(version: &str) -> Step {
    Step::Event(event(
        "BOOKMARK",
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"resourceVersion": version}}),
    ))
}

fn gone() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "message": "too old", "reason": "Expired"})
}

const LIMITS: Limits = Limits {
    request: Duration::from_secs(5),
    watch: Duration::from_secs(20),
    silence: Duration::from_millis(800),
    handover: Duration::from_secs(2),
    catch_up: Duration::from_millis(200),
    backoff: (Duration::from_millis(10), Duration::from_millis(100)),
};

struct Run {
    server: Server,
    events: mpsc::Receiver<ApiEvent>,
    _watches: Watches,
}

impl Run {
    async fn start(script: Script) -> Self {
        Self::start_knowing(script, &[]).await
    }

    async fn start_knowing(script: Script, slices: &[&str]) -> Self {
        let server = Server::start(script).await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        let config = format!(
            "{{clusters: [{{name: c, cluster: {{server: '{}'}}}}], users: [{{name: u, user: {{}}}}], \
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}",
            server.url
        );
        std::fs::write(&file, config).unwrap();
        let options = ApiOptions {
            kubeconfig: Some(file),
            ..ApiOptions::default()
        };
        let client = connect(&options).await.unwrap();
        let config = WatchConfig {
            services: vec!["kube-system/kube-dns".to_owned()],
            node: "worker1".to_owned(),
            extra_frontends: vec!["169.254.20.10:53".parse().unwrap()],
            known_slices: BTreeMap::from([(
                "kube-system/kube-dns".to_owned(),
                slices.iter().map(|name| (*name).to_owned()).collect(),
            )]),
        };
        let (sender, events) = mpsc::channel(100);
        let watches = start_with(&client, &config, LIMITS, Arc::new(now), sender).unwrap();
        Self {
            server,
            events,
            _watches: watches,
        }
    }

    /// The next event that concerns EndpointSlices.
    async fn next(&mut self) -> ApiEvent {
        loop {
            let event = tokio::time::timeout(Duration::from_secs(10), self.events.recv())
                .await
                .expect("no event came")
                .unwrap();
            let about_slices = |what: &What| matches!(what, What::Slices(_));
            let wanted = match &event {
                ApiEvent::Slice(_) => true,
                ApiEvent::Listed(what)
                | ApiEvent::Broken { what, .. }
                | ApiEvent::Restored { what, .. }
                | ApiEvent::Malformed { what, .. } => about_slices(what),
                _ => false,
            };
            if wanted {
                return event;
            }
        }
    }

    /// The next event as (slice, resourceVersion, listed, deleted).
    async fn slice(&mut self) -> (String, String, bool, bool) {
        match self.next().await {
            ApiEvent::Slice(seen) => (seen.slice, seen.resource_version, seen.listed, seen.deleted),
            other => panic!("unexpected {other:?}"),
        }
    }

    async fn expect_slice(&mut self, version: &str, listed: bool) {
        let expected = ("a".to_owned(), version.to_owned(), listed, false);
        assert_eq!(self.slice().await, expected);
    }

    async fn expect_first_list(&mut self, version: &str) {
        self.expect_slice(version, true).await;
        assert!(matches!(self.next().await, ApiEvent::Listed(_)));
    }

    async fn broken(&mut self) -> (Timestamp, String) {
        match self.next().await {
            ApiEvent::Broken { from, reason, .. } => (from, reason),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Bounds and whether it was relisted.
    async fn restored(&mut self) -> (Timestamp, Timestamp, bool) {
        match self.next().await {
            ApiEvent::Restored {
                from, to, relisted, ..
            } => (from, to, relisted),
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn script(lists: Vec<Reply>, watches: Vec<Vec<Step>>) -> Script {
    let watches = watches.into_iter().map(Reply::Watch).collect();
    Script {
        lists: HashMap::from([("endpointslices", lists.into())]),
        watches: HashMap::from([("endpointslices", watches)]),
        ..Script::default()
    }
}

fn list(version: &'static str) -> Reply {
    Reply::List(vec![slice("a", version, true)], version)
}

#[tokio::test]
async fn changes_arrive_in_order_and_a_resumed_stream_is_no_gap() {
    let mut run = Run::start(script(
        vec![list("5")],
        vec![
            vec![modified("6", false), bookmark("9"), Step::End],
            // An event cut in two is sent again by the server, as its resourceVersion was never reached.
            vec![
                Step::Half(event("MODIFIED", slice("a", "10", true))),
                Step::End,
            ],
            vec![Step::ShortChunk(event("MODIFIED", slice("a", "10", true)))],
            vec![Step::Cut],
            vec![modified("10", true)],
        ],
    ))
    .await;
    run.expect_first_list("5").await;
    run.expect_slice("6", false).await;
    run.expect_slice("10", false).await;
    let script = run.server.script.lock().unwrap();
    assert_eq!(script.watched_from, ["5", "9", "9", "9", "9"]);
    let first = script
        .queries
        .iter()
        .find(|query| query.contains("endpointslices?") && query.contains("watch=true"))
        .unwrap();
    assert!(first.contains("allowWatchBookmarks=true"), "{first}");
    assert!(
        first.contains("labelSelector=kubernetes.io%2Fservice-name%3Dkube-dns"),
        "{first}"
    );
}

#[tokio::test]
async fn a_slice_that_went_while_nobody_watched_is_told_as_deleted() {
    let script = script(
        vec![Reply::List(vec![slice("a", "4", true)], "5")],
        vec![vec![Step::Silence(Duration::from_secs(5))]],
    );
    let mut run = Run::start_knowing(script, &["a", "old"]).await;
    run.expect_slice("4", true).await;
    let gone = ("old".to_owned(), "5".to_owned(), true, true);
    assert_eq!(run.slice().await, gone);
    assert!(matches!(run.next().await, ApiEvent::Listed(_)));
}

#[tokio::test]
async fn after_410_the_list_tells_what_changed_and_what_is_gone() {
    for end in [
        vec![modified("6", false), Step::Event(event("ERROR", gone()))],
        vec![modified("6", false), Step::End],
    ] {
        let by_status = matches!(end[1], Step::End);
        let mut script = script(
            vec![
                Reply::List(
                    vec![
                        slice("a", "4", true),
                        slice("b", "5", true),
                        slice("c", "3", true),
                    ],
                    "5",
                ),
                Reply::List(vec![slice("a", "20", true), slice("c", "3", true)], "21"),
            ],
            vec![end],
        );
        if by_status {
            script
                .watches
                .get_mut("endpointslices")
                .unwrap()
                .push_back(Reply::Failure(410));
        }
        let mut run = Run::start(script).await;
        for (name, version) in [("a", "4"), ("b", "5"), ("c", "3")] {
            assert_eq!(
                run.slice().await,
                (name.to_owned(), version.to_owned(), true, false)
            );
        }
        assert!(matches!(run.next().await, ApiEvent::Listed(_)));
        let before = now();
        run.expect_slice("6", false).await;
        let (from, reason) = run.broken().await;
        assert!(before.since(from) < 1_000_000_000, "{reason}");
        assert_eq!(
            run.slice().await,
            ("a".to_owned(), "20".to_owned(), true, false)
        );
        assert_eq!(
            run.slice().await,
            ("b".to_owned(), "21".to_owned(), true, true)
        );
        let (restored_from, to, relisted) = run.restored().await;
        assert_eq!(restored_from, from);
        assert!(relisted && to > from && now() >= to);
    }
}

#[tokio::test]
async fn an_api_away_at_the_start_is_told_once_and_tried_again() {
    let started = now();
    let mut run = Run::start(script(
        vec![
            Reply::Failure(503),
            Reply::Failure(500),
            Reply::Failure(403),
            list("5"),
        ],
        vec![vec![modified("6", false)]],
    ))
    .await;
    let (from, reason) = run.broken().await;
    assert!(from >= started && reason.contains("injected"), "{reason}");
    run.expect_slice("5", true).await;
    assert!(run.restored().await.2);
    assert!(matches!(run.next().await, ApiEvent::Listed(_)));
}

#[tokio::test]
async fn a_version_that_the_api_keeps_refusing_is_given_up() {
    let mut script = script(vec![list("900"), list("5")], vec![]);
    let refused = [
        Reply::Failure(504),
        Reply::Failure(504),
        Reply::Failure(504),
    ];
    script.watches.insert("endpointslices", refused.into());
    let mut run = Run::start(script).await;
    run.expect_first_list("900").await;
    run.broken().await;
    run.expect_slice("5", true).await;
    assert!(run.restored().await.2);
}

#[tokio::test]
async fn an_api_that_went_away_is_resumed_without_a_list() {
    let mut script = script(vec![list("5")], vec![vec![modified("6", false), Step::Cut]]);
    let watches = script.watches.get_mut("endpointslices").unwrap();
    watches.extend(std::iter::repeat_n(Reply::Failure(503), 6));
    watches.push_back(Reply::Watch(vec![modified("7", true)]));
    let mut run = Run::start(script).await;
    run.expect_first_list("5").await;
    run.expect_slice("6", false).await;
    run.broken().await;
    let (from, to, relisted) = run.restored().await;
    assert!(!relisted && from < to);
    run.expect_slice("7", true).await;
}

#[tokio::test]
async fn a_malformed_event_is_counted_and_what_it_hid_is_listed() {
    let mut run = Run::start(script(
        vec![list("5"), Reply::List(vec![slice("a", "7", false)], "7")],
        vec![
            vec![
                modified("6", false),
                Step::Line("{\"type\": \"MODIFIED\", \"object\": 7}"),
            ],
            vec![modified("8", true)],
        ],
    ))
    .await;
    run.expect_first_list("5").await;
    run.expect_slice("6", false).await;
    assert!(matches!(run.next().await, ApiEvent::Malformed { .. }));
    run.broken().await;
    run.expect_slice("7", true).await;
    assert!(run.restored().await.2);
    let (_, version, _, _) = run.slice().await;
    assert_eq!(version, "8");
}

#[tokio::test]
async fn a_malformed_object_stops_nothing_else() {
    let bad = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "bad", "resourceVersion": "4"}, "endpoints": "none"
    });
    let mut run = Run::start(script(
        vec![Reply::List(vec![bad.clone(), slice("a", "5", true)], "5")],
        vec![vec![
            Step::Event(event("MODIFIED", bad)),
            modified("6", false),
        ]],
    ))
    .await;
    let ApiEvent::Malformed { object, .. } = run.next().await else {
        panic!("not told");
    };
    assert_eq!(object, "bad");
    run.expect_first_list("5").await;
    assert!(matches!(run.next().await, ApiEvent::Malformed { .. }));
    run.expect_slice("6", false).await;
}

#[tokio::test]
async fn a_silent_stream_is_noticed_once_the_server_has_sent_bookmarks() {
    let mut run = Run::start(script(
        vec![list("5")],
        vec![
            // No bookmark yet: this silence proves nothing.
            vec![
                Step::Silence(Duration::from_millis(1200)),
                bookmark("6"),
                Step::Silence(Duration::from_secs(60)),
            ],
            vec![
                modified("7", false),
                Step::Silence(Duration::from_millis(400)),
                modified("8", true),
            ],
        ],
    ))
    .await;
    run.expect_first_list("5").await;
    let listed = now();
    let (from, reason) = run.broken().await;
    assert!(from.since(listed) > 1_000_000_000, "{reason}");
    let (_, to, relisted) = run.restored().await;
    assert!(!relisted);
    assert!(to.since(from) > 700_000_000);
    // Heard at once after the outage: it may be older. The next one is not.
    run.expect_slice("7", true).await;
    run.expect_slice("8", false).await;
    assert_eq!(run.server.script.lock().unwrap().watched_from, ["5", "6"]);
}

#[tokio::test]
async fn everything_is_listed_and_trimmed() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system", "resourceVersion": "2"},
        "spec": {"clusterIPs": ["10.43.0.10"], "ports": [{"port": 53, "protocol": "UDP"}]}
    });
    let pod = |uid: &str, version: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": uid, "resourceVersion": version},
            "spec": {"nodeName": "worker1", "containers": []}, "status": {"podIPs": [{"ip": "10.42.0.9"}]}
        })
    };
    let node = |ready: &str, version: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker1", "resourceVersion": version},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}
        })
    };
    let mut script = script(vec![list("5")], vec![]);
    script
        .lists
        .insert("services", [Reply::List(vec![service.clone()], "5")].into());
    script
        .lists
        .insert("pods", [Reply::List(vec![pod("u1", "2")], "5")].into());
    script
        .lists
        .insert("nodes", [Reply::List(vec![node("True", "2")], "5")].into());
    let watch = |events: Vec<Value>| Reply::Watch(events.into_iter().map(Step::Event).collect());
    script
        .watches
        .insert("services", [watch(vec![event("DELETED", service)])].into());
    script.watches.insert(
        "pods",
        [watch(vec![
            event("MODIFIED", pod("u2", "6")),
            event("DELETED", pod("u2", "7")),
        ])]
        .into(),
    );
    script.watches.insert(
        "nodes",
        [watch(vec![
            event("MODIFIED", node("True", "6")),
            event("MODIFIED", node("Unknown", "7")),
        ])]
        .into(),
    );
    let mut run = Run::start(script).await;
    let (mut listed, mut frontends, mut ready, mut pods) = (vec![], vec![], vec![], vec![]);
    while listed.len() < 4 || frontends.len() < 2 || ready.len() < 2 || pods.len() < 4 {
        let next = tokio::time::timeout(Duration::from_secs(10), run.events.recv()).await;
        match next.expect("not everything came").unwrap() {
            ApiEvent::Listed(what) => listed.push(what),
            ApiEvent::Service(seen) => frontends.push(seen.frontends),
            ApiEvent::Node(seen) => ready.push(seen.ready),
            ApiEvent::Pod(PodChange::Seen { pod, .. }) => pods.push(format!("+{}", pod.uid)),
            ApiEvent::Pod(PodChange::Gone { uid, .. }) => pods.push(format!("-{uid}")),
            ApiEvent::Slice(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    listed.sort();
    let config = WatchConfig {
        services: vec!["kube-system/kube-dns".to_owned()],
        ..WatchConfig::default()
    };
    let mut all = config.all();
    all.sort();
    assert_eq!(listed, all);
    assert_eq!(frontends[0].len(), 2);
    assert!(frontends[1].is_empty());
    assert_eq!(ready, [Some(true), None]);
    assert_eq!(pods, ["+u1", "-u1", "+u2", "-u2"]);
    let script = run.server.script.lock().unwrap();
    assert!(
        script
            .queries
            .iter()
            .any(|query| query.contains("fieldSelector=spec.nodeName%3Dworker1"))
    );
}

#[tokio::test]
async fn a_service_that_does_not_exist_is_told_as_one_without_frontends() {
    let mut script = script(vec![], vec![]);
    script
        .lists
        .insert("services", [Reply::List(vec![], "5")].into());
    let mut run = Run::start(script).await;
    loop {
        let event = tokio::time::timeout(Duration::from_secs(10), run.events.recv()).await;
        if let ApiEvent::Service(seen) = event.expect("not told").unwrap() {
            assert!(seen.frontends.is_empty());
            return;
        }
    }
}
