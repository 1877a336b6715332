//! The stream of a watch: one JSON object a line, each an event.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Api;
use super::select::Selector;
use super::store::{Event, Kind};

/// How often a quiet watch is told the newest version.
const BOOKMARK_EVERY: Duration = Duration::from_secs(5);

/// What a watch asks for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) selector: Selector,
    /// Changes after this version; `None`: first all objects as they are, as `ADDED`.
    pub(crate) from: Option<u64>,
    /// `allowWatchBookmarks`
    pub(crate) bookmarks: bool,
    /// `sendInitialEvents`: mark the end of the first objects by a bookmark.
    pub(crate) mark_initial: bool,
    /// `timeoutSeconds`
    pub(crate) timeout: Duration,
}

/// The body of the answer.
pub(crate) fn stream(
    api: Api,
    request: Request,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let watch = Watch {
        version: api.shared.version.subscribe(),
        breaks: api.shared.breaks.subscribe(),
        ends: Instant::now() + request.timeout,
        seen: request.from,
        over: false,
        api,
        request,
    };
    futures::stream::unfold(watch, |mut watch| async move {
        let lines = watch.next().await?;
        Some((Ok(Bytes::from(lines)), watch))
    })
}

struct Watch {
    api: Api,
    request: Request,
    version: tokio::sync::watch::Receiver<u64>,
    breaks: tokio::sync::watch::Receiver<u64>,
    ends: Instant,
    /// All changes up to this version were sent; `None`: nothing yet.
    seen: Option<u64>,
    over: bool,
}

impl Watch {
    /// The next lines; `None`: the watch is over.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.over {
                return None;
            }
            self.version.borrow_and_update();
            let lines = self.ready();
            if !lines.is_empty() {
                return Some(lines);
            }
            tokio::select! {
                changed = self.version.changed() => changed.ok()?,
                _ = self.breaks.changed() => return None,
                () = tokio::time::sleep_until(self.ends) => return None,
                () = tokio::time::sleep(BOOKMARK_EVERY), if self.request.bookmarks => {
                    return Some(line("BOOKMARK", &self.bookmark(false)));
                }
            }
        }
    }

    /// What can be sent now.
    fn ready(&mut self) -> String {
        let store = self.api.store();
        let (kind, selector) = (self.request.kind, &self.request.selector);
        let Some(seen) = self.seen else {
            let mut lines: String = store
                .objects(kind)
                .filter(|object| selector.matches(object))
                .map(|object| line("ADDED", object))
                .collect();
            self.seen = Some(store.version());
            drop(store);
            if self.request.mark_initial {
                lines += &line("BOOKMARK", &self.bookmark(true));
            }
            return lines;
        };
        if seen < store.forgotten() {
            self.over = true;
            let message = format!(
                "too old resource version: {seen} ({})",
                store.forgotten() + 1
            );
            return line("ERROR", &super::http::status(410, "Expired", &message));
        }
        let lines = store
            .since(seen)
            .filter(|event| event.kind == kind)
            .filter_map(|event| visible(event, selector))
            .collect();
        self.seen = Some(store.version().max(seen));
        lines
    }

    fn bookmark(&self, initial: bool) -> Value {
        let mut metadata = json!({"resourceVersion": self.seen.unwrap_or(0).to_string()});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let kind = self.request.kind;
        // The kinds of EndpointSlice and Service have fields without a default.
        let mut object = json!({
            "apiVersion": kind.api_version(), "kind": kind.singular(), "metadata": metadata,
        });
        if kind == Kind::EndpointSlices {
            object["addressType"] = json!("");
            object["endpoints"] = Value::Null;
        }
        object
    }
}

/// How a change looks through a selector: an object that comes into view is `ADDED`, one that goes out of it `DELETED`.
fn visible(event: &Event, selector: &Selector) -> Option<String> {
    let before = event
        .before
        .as_ref()
        .is_some_and(|object| selector.matches(object));
    let after = !event.deleted && selector.matches(&event.object);
    let kind = match (before, after) {
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
        (false, false) => return None,
    };
    Some(line(kind, &event.object))
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}
