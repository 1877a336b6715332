//! Paths, parameters and errors.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::select::Selector;
use super::store::Kind;
use super::{Api, watch};

type Parameters = Query<HashMap<String, String>>;

/// Everything that is served.
pub(crate) fn router(api: Api) -> Router {
    let mut router = Router::new()
        .route("/version", get(version))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(|| async { "ok" }))
        .fallback(|| async {
            failure(
                404,
                "NotFound",
                "the server could not find the requested resource",
            )
        });
    for (prefix, group) in [
        ("/api/v1", "v1"),
        ("/apis/discovery.k8s.io/v1", "discovery.k8s.io/v1"),
    ] {
        router = router
            .route(
                &format!("{prefix}/{{plural}}"),
                get(
                    move |State(api): State<Api>, Path(plural): Path<String>, query: Parameters| async move {
                        collection(api, group, &plural, None, query)
                    },
                ),
            )
            .route(
                &format!("{prefix}/{{plural}}/{{name}}"),
                get(
                    move |State(api): State<Api>, Path((plural, name)): Path<(String, String)>| async move {
                        single(&api, group, &plural, "", &name)
                    },
                ),
            )
            .route(
                &format!("{prefix}/namespaces/{{namespace}}/{{plural}}"),
                get(
                    move |State(api): State<Api>,
                          Path((namespace, plural)): Path<(String, String)>,
                          query: Parameters| async move {
                        collection(api, group, &plural, Some(namespace), query)
                    },
                ),
            )
            .route(
                &format!("{prefix}/namespaces/{{namespace}}/{{plural}}/{{name}}"),
                get(
                    move |State(api): State<Api>,
                          Path((namespace, plural, name)): Path<(String, String, String)>| async move {
                        single(&api, group, &plural, &namespace, &name)
                    },
                ),
            );
    }
    router.with_state(api)
}

async fn version() -> Json<Value> {
    Json(json!({
        "major": "1", "minor": "34", "gitVersion": "v1.34.0+slicetrace-lab", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "linux/amd64",
    }))
}

/// A `Status` object.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn failure(code: u16, reason: &str, message: &str) -> Response {
    let http = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (http, Json(status(code, reason, message))).into_response()
}

fn single(api: &Api, group: &str, plural: &str, namespace: &str, name: &str) -> Response {
    let Some(kind) = Kind::find(group, plural) else {
        return failure(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
    };
    match api.store().get(kind, namespace, name) {
        Some(object) => Json(object.clone()).into_response(),
        None => failure(404, "NotFound", &format!("{plural} \"{name}\" not found")),
    }
}

/// A list or a watch.
fn collection(
    api: Api,
    group: &str,
    plural: &str,
    namespace: Option<String>,
    Query(query): Parameters,
) -> Response {
    let Some(kind) = Kind::find(group, plural) else {
        return failure(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
    };
    let parameter = |name: &str| query.get(name).map_or("", String::as_str);
    let flag = |name: &str| matches!(parameter(name), "true" | "1");
    let selector = Selector::parse(
        namespace,
        parameter("labelSelector"),
        parameter("fieldSelector"),
    );
    let selector = match selector {
        Ok(selector) => selector,
        Err(message) => return failure(400, "BadRequest", &message),
    };
    let from = match parameter("resourceVersion") {
        "" => None,
        text => match text.parse::<u64>() {
            Ok(version) => Some(version),
            Err(_) => {
                let message = format!("Invalid value: \"{text}\": resourceVersion is no number");
                return failure(400, "BadRequest", &message);
            }
        },
    };
    if flag("watch") {
        let mark_initial = flag("sendInitialEvents");
        if mark_initial && parameter("resourceVersionMatch") != "NotOlderThan" {
            let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return failure(422, "Invalid", message);
        }
        let timeout = parameter("timeoutSeconds").parse().unwrap_or(1800);
        let request = watch::Request {
            kind,
            selector,
            from: from.filter(|version| *version != 0 && !mark_initial),
            bookmarks: flag("allowWatchBookmarks"),
            mark_initial,
            timeout: Duration::from_secs(timeout),
        };
        let body = Body::from_stream(watch::stream(api, request));
        return ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    }
    list(
        &api,
        kind,
        &selector,
        from,
        parameter("resourceVersionMatch"),
    )
}

fn list(api: &Api, kind: Kind, selector: &Selector, from: Option<u64>, wanted: &str) -> Response {
    let store = api.store();
    let newest = store.version();
    if let Some(version) = from
        && version > newest
    {
        let message = format!("Too large resource version: {version}, current: {newest}");
        return failure(504, "Timeout", &message);
    }
    // Only the newest state is kept: an exact older one is as good as compacted.
    if wanted == "Exact" && from != Some(newest) {
        return failure(410, "Expired", "The provided resource version is too old.");
    }
    let items: Vec<&Value> = store
        .objects(kind)
        .filter(|object| selector.matches(object))
        .collect();
    Json(json!({
        "apiVersion": kind.api_version(),
        "kind": format!("{}List", kind.singular()),
        "metadata": {"resourceVersion": newest.to_string()},
        "items": items,
    }))
    .into_response()
}
