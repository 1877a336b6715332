//! The stand-in API server, asked over HTTP and by kube's own watcher.

#![expect(clippy::unwrap_used, reason = "a test's panic names the line")]

use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event, InitialListStrategy};
use serde_json::{Value, json};
use slicetrace_tests::api::{Api, Kind};
use tokio::time::timeout;

/// A server with an Api of its own, and its address.
async fn serve(history: usize) -> (Api, String) {
    let api = Api::new(history);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = api.clone();
    tokio::spawn(async move { server.serve(listener).await });
    (api, url)
}

fn slice(service: &str, name: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address]}))
        .collect();
    json!({
        "metadata": {
            "name": name, "namespace": "kube-system", "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4", "endpoints": endpoints,
    })
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
    })
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

async fn get(url: &str) -> (u16, Value) {
    let response = reqwest::get(url).await.unwrap();
    let status = response.status().as_u16();
    (
        status,
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap(),
    )
}

/// The events of a watch, as they come.
async fn watch(url: &str) -> impl Stream<Item = Value> + Unpin + use<> {
    let response = reqwest::get(url).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut rest = Vec::new();
    Box::pin(
        response
            .bytes_stream()
            .map_err(|error| panic!("{error}"))
            .map(move |chunk: Result<bytes::Bytes, ()>| {
                rest.extend_from_slice(&chunk.unwrap());
                let whole = rest
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |end| end + 1);
                let lines: Vec<u8> = rest.drain(..whole).collect();
                let events: Vec<Value> = lines
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty())
                    .map(|line| serde_json::from_slice(line).unwrap())
                    .collect();
                futures::stream::iter(events)
            })
            .flatten(),
    )
}

async fn next(events: &mut (impl Stream<Item = Value> + Unpin)) -> (String, Value) {
    let event = timeout(Duration::from_secs(10), events.next())
        .await
        .unwrap()
        .unwrap();
    (
        event["type"].as_str().unwrap().to_owned(),
        event["object"].clone(),
    )
}

#[tokio::test]
async fn a_list_selects_and_carries_the_version_to_watch_from() {
    let (api, url) = serve(100).await;
    api.apply(Kind::EndpointSlices, slice("kube-dns", "a", &["10.42.0.5"]))
        .unwrap();
    api.apply(Kind::EndpointSlices, slice("other", "b", &[]))
        .unwrap();
    let newest = api
        .apply(Kind::Pods, pod("p", "worker1"))
        .unwrap()
        .resource_version;

    let (status, list) = get(&format!(
        "{url}{SLICES}?labelSelector=kubernetes.io%2Fservice-name%3Dkube-dns&limit=1"
    ))
    .await;
    assert_eq!(status, 200);
    assert_eq!(list["kind"], "EndpointSliceList");
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert_eq!(list["metadata"]["resourceVersion"], newest.to_string());

    let (_, pods) = get(&format!(
        "{url}/api/v1/pods?fieldSelector=spec.nodeName%3Dworker2"
    ))
    .await;
    assert!(pods["items"].as_array().unwrap().is_empty());
    let (_, pods) = get(&format!("{url}/api/v1/namespaces/default/pods")).await;
    assert_eq!(pods["items"][0]["spec"]["nodeName"], "worker1");
    let (_, pod) = get(&format!("{url}/api/v1/namespaces/default/pods/p")).await;
    assert_eq!(pod["kind"], "Pod");
}

#[tokio::test]
async fn errors_are_status_objects() {
    let (api, url) = serve(100).await;
    for (path, code, reason) in [
        ("/api/v1/namespaces/default/pods/nobody", 404, "NotFound"),
        ("/api/v1/gadgets", 404, "NotFound"),
        ("/apis/apps/v1/deployments", 404, "NotFound"),
        ("/api/v1/pods?labelSelector=a%20in%20(b)", 400, "BadRequest"),
        ("/api/v1/pods?resourceVersion=soon", 400, "BadRequest"),
        ("/api/v1/pods?resourceVersion=999", 504, "Timeout"),
        (
            "/api/v1/pods?resourceVersion=1&resourceVersionMatch=Exact",
            410,
            "Expired",
        ),
    ] {
        if code == 410 {
            api.apply(Kind::Pods, pod("p", "worker1")).unwrap();
        }
        let (status, body) = get(&format!("{url}{path}")).await;
        assert_eq!((status, &body["reason"]), (code, &json!(reason)), "{path}");
        assert_eq!(
            (&body["kind"], &body["code"]),
            (&json!("Status"), &json!(code)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_watch_tells_changes_after_its_version_through_its_selector() {
    let (api, url) = serve(100).await;
    let from = api
        .apply(Kind::EndpointSlices, slice("kube-dns", "a", &[]))
        .unwrap()
        .resource_version;
    let mut events = watch(&format!(
        "{url}{SLICES}?watch=true&labelSelector=kubernetes.io%2Fservice-name%3Dkube-dns&resourceVersion={from}"
    ))
    .await;
    api.apply(Kind::EndpointSlices, slice("kube-dns", "a", &["10.42.0.5"]))
        .unwrap();
    api.apply(Kind::EndpointSlices, slice("other", "b", &[]))
        .unwrap();
    api.apply(Kind::EndpointSlices, slice("kube-dns", "b", &[]))
        .unwrap();
    // It leaves the selector's view: to this watch it is deleted.
    api.apply(Kind::EndpointSlices, slice("other", "b", &[]))
        .unwrap();
    api.delete(Kind::EndpointSlices, Some("kube-system"), "a")
        .unwrap();
    let mut told = Vec::new();
    for _ in 0..4 {
        let (kind, object) = next(&mut events).await;
        told.push(format!(
            "{kind} {}",
            object["metadata"]["name"].as_str().unwrap()
        ));
    }
    assert_eq!(told, ["MODIFIED a", "ADDED b", "DELETED b", "DELETED a"]);
}

#[tokio::test]
async fn a_version_that_is_forgotten_is_gone() {
    let (api, url) = serve(2).await;
    for node in ["a", "b", "c", "d"] {
        api.apply(Kind::Pods, pod("p", node)).unwrap();
    }
    let mut events = watch(&format!("{url}/api/v1/pods?watch=1&resourceVersion=2")).await;
    let (kind, status) = next(&mut events).await;
    assert_eq!((kind.as_str(), &status["code"]), ("ERROR", &json!(410)));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let (api, url) = serve(100).await;
    api.apply(Kind::Pods, pod("p", "a")).unwrap();
    let mut events = watch(&format!(
        "{url}/api/v1/pods?watch=1&allowWatchBookmarks=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    ))
    .await;
    assert_eq!(next(&mut events).await.0, "ADDED");
    let (kind, bookmark) = next(&mut events).await;
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(
        bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[tokio::test]
async fn a_quiet_watch_gets_bookmarks_and_ends_in_time() {
    let (api, url) = serve(100).await;
    let version = api
        .apply(Kind::Pods, pod("p", "a"))
        .unwrap()
        .resource_version;
    let mut events = watch(&format!(
        "{url}/api/v1/services?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=7"
    ))
    .await;
    let (kind, bookmark) = next(&mut events).await;
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(bookmark["metadata"]["resourceVersion"], version.to_string());
    assert!(
        timeout(Duration::from_secs(10), events.next())
            .await
            .unwrap()
            .is_none()
    );
}

/// What kube's watcher makes of it, in words.
async fn step(
    events: &mut (impl Stream<Item = watcher::Result<Event<EndpointSlice>>> + Unpin),
) -> String {
    let name = |slice: EndpointSlice| {
        format!("{} {}", slice.metadata.name.unwrap(), slice.endpoints.len())
    };
    match timeout(Duration::from_secs(10), events.next())
        .await
        .unwrap()
        .unwrap()
    {
        Ok(Event::Init) => "init".to_owned(),
        Ok(Event::InitApply(slice)) => format!("init {}", name(slice)),
        Ok(Event::InitDone) => "done".to_owned(),
        Ok(Event::Apply(slice)) => format!("apply {}", name(slice)),
        Ok(Event::Delete(slice)) => format!("delete {}", name(slice)),
        Err(error) => format!("error: {error}"),
    }
}

async fn follow(strategy: InitialListStrategy) {
    let (api, url) = serve(100).await;
    let config = kube::Config::new(url.parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let slices: kube::Api<EndpointSlice> = kube::Api::namespaced(client.clone(), "kube-system");
    let config = watcher::Config {
        initial_list_strategy: strategy,
        ..watcher::Config::default().labels("kubernetes.io/service-name=kube-dns")
    };
    api.apply(Kind::EndpointSlices, slice("kube-dns", "a", &["10.42.0.5"]))
        .unwrap();
    let mut events = Box::pin(watcher::watcher(slices, config));
    for wanted in ["init", "init a 1", "done"] {
        assert_eq!(step(&mut events).await, wanted);
    }
    api.apply(
        Kind::EndpointSlices,
        slice("kube-dns", "a", &["10.42.0.5", "10.42.1.5"]),
    )
    .unwrap();
    assert_eq!(step(&mut events).await, "apply a 2");
    // The connection breaks: nothing is lost, as the watch goes on from its last version.
    api.break_watches();
    api.apply(Kind::EndpointSlices, slice("kube-dns", "b", &[]))
        .unwrap();
    assert_eq!(step(&mut events).await, "apply b 0");
    api.delete(Kind::EndpointSlices, Some("kube-system"), "a")
        .unwrap();
    assert_eq!(step(&mut events).await, "delete a 2");
    // It breaks, and the server has forgotten: kube must list again.
    let pods: kube::Api<Pod> = kube::Api::all(client);
    api.apply(Kind::EndpointSlices, slice("kube-dns", "c", &[]))
        .unwrap();
    assert_eq!(step(&mut events).await, "apply c 0");
    api.apply(Kind::Pods, pod("p", "a")).unwrap();
    assert_eq!(
        pods.list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    api.break_watches();
    api.apply(Kind::EndpointSlices, slice("kube-dns", "b", &["10.42.1.7"]))
        .unwrap();
    api.forget_history();
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "done") {
        told.push(step(&mut events).await);
        assert!(told.len() < 8, "{told:?}");
    }
    assert!(
        told[0].contains("410") || told[0].contains("too old"),
        "{told:?}"
    );
    assert_eq!(told[1..], ["init", "init b 1", "init c 0", "done"]);
}

#[tokio::test]
async fn kubes_watcher_follows_lists_breaks_and_forgotten_versions() {
    follow(InitialListStrategy::ListWatch).await;
}

#[tokio::test]
async fn kubes_watcher_follows_streaming_lists() {
    follow(InitialListStrategy::StreamingList).await;
}
