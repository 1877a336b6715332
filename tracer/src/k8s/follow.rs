//! Follows one kind of object: list, watch, and an honest account of when neither worked.
//!
//! `kube::runtime::watcher` does the same dance, but keeps to itself what matters most here: that a stream ended and was
//! resumed, that it was silent for minutes, that a bookmark came. Each of them can hide or delay a transition, and a
//! delayed one would look like a fast change of the rules. So the loop is ours, over kube's list and watch calls.
//!
//! What is relied on (kubernetes.io/docs/reference/using-api/api-concepts):
//! - a watch from a resourceVersion brings every change after it, or fails with 410 Gone, upon which we list anew;
//! - the server ends a watch after `timeoutSeconds`: a stream that lives longer is dead;
//! - bookmarks are not promised, but a server that has sent one sends one a minute (apiserver's cacher,
//!   `defaultBookmarkFrequency`): from then on 90 s of silence is a dead stream.
//!
//! What remains unseen: a network that only delays the stream by less than that. The changes then come late, unmarked.

use std::collections::HashMap;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::event::{ApiEvent, Now};
use super::kinds::{Heard, Kind};
use super::pace::{Backoff, Limits};
use crate::model::Timestamp;

/// Which objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    labels: Option<String>,
    fields: Option<String>,
}

impl Selection {
    pub(super) fn labels(selector: String) -> Self {
        Self {
            labels: Some(selector),
            ..Self::default()
        }
    }

    pub(super) fn fields(selector: String) -> Self {
        Self {
            fields: Some(selector),
            ..Self::default()
        }
    }
}

/// Nobody receives the events any more.
struct Closed;

/// What to do next.
enum Next {
    List,
    /// Watch from this resourceVersion.
    Watch(String),
}

/// Why a stream ended.
enum End {
    /// The server ended it, or the connection did: everything sent before was heard.
    Ended,
    /// Nothing was heard for too long, or a failure: from the last thing heard on, nothing is certain.
    Failed(String),
    /// A change was lost: only a list helps.
    Lost(String),
}

struct Outage {
    from: Timestamp,
}

/// One watch.
pub(super) struct Follow {
    api: Api<DynamicObject>,
    selection: Selection,
    kind: Box<dyn Kind>,
    limits: Limits,
    now: Now,
    sender: mpsc::Sender<ApiEvent>,
    /// Name and resourceVersion of what exists.
    known: HashMap<String, String>,
    listed_once: bool,
    /// The last moment at which the API certainly had told us everything.
    certain_until: Timestamp,
    outage: Option<Outage>,
    /// The server sends bookmarks.
    bookmarks: bool,
    /// Starts of the watch that the API refused in a row.
    refusals: u32,
    /// Until then changes may be late.
    late_until: Option<Instant>,
    backoff: Backoff,
}

impl Follow {
    pub(super) fn new(
        api: Api<DynamicObject>,
        selection: Selection,
        kind: Box<dyn Kind>,
        limits: Limits,
        now: Now,
        sender: mpsc::Sender<ApiEvent>,
    ) -> Self {
        Self {
            api,
            selection,
            kind,
            limits,
            certain_until: now(),
            now,
            sender,
            known: HashMap::new(),
            listed_once: false,
            outage: None,
            bookmarks: false,
            refusals: 0,
            late_until: None,
            backoff: Backoff::new(limits.backoff),
        }
    }

    /// Objects that there were in an earlier run: if the first list lacks them, they are told as gone.
    pub(super) fn expecting(mut self, names: impl IntoIterator<Item = String>) -> Self {
        // No version is empty, so what is still there is told as well.
        let names = names.into_iter().map(|name| (name, String::new()));
        self.known.extend(names);
        self
    }

    /// Runs until the receiver is gone.
    pub(super) async fn run(mut self) {
        let mut next = Next::List;
        // An error here means that nobody listens any more: there is nobody to tell.
        while let Ok(then) = match next {
            Next::List => self.list().await,
            Next::Watch(version) => self.watch(version).await,
        } {
            next = then;
        }
    }

    async fn send(&self, event: ApiEvent) -> Result<(), Closed> {
        self.sender.send(event).await.map_err(|_| Closed)
    }

    async fn send_all(&self, events: Vec<ApiEvent>) -> Result<(), Closed> {
        for event in events {
            self.send(event).await?;
        }
        Ok(())
    }

    async fn pause(&mut self) -> Result<(), Closed> {
        let pause = self.backoff.pause();
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = self.sender.closed() => Err(Closed),
        }
    }

    async fn broken(&mut self, reason: String) -> Result<(), Closed> {
        tracing::debug!(what = %self.kind.what(), reason, "watch broken");
        if self.outage.is_some() {
            return Ok(());
        }
        let from = self.certain_until;
        self.outage = Some(Outage { from });
        let what = self.kind.what();
        self.send(ApiEvent::Broken { what, from, reason }).await
    }

    async fn restored(&mut self, to: Timestamp, relisted: bool) -> Result<(), Closed> {
        self.certain_until = to;
        let Some(Outage { from }) = self.outage.take() else {
            return Ok(());
        };
        let what = self.kind.what();
        self.send(ApiEvent::Restored {
            what,
            from,
            to,
            relisted,
        })
        .await
    }

    /// Lists everything and tells the difference to what was known.
    async fn list(&mut self) -> Result<Next, Closed> {
        let (objects, version) = match self.pages().await {
            Ok(listed) => listed,
            Err(reason) => {
                self.broken(reason).await?;
                self.pause().await?;
                return Ok(Next::List);
            }
        };
        let heard = Heard {
            at: (self.now)(),
            listed: true,
        };
        let mut gone = std::mem::take(&mut self.known);
        let none = objects.is_empty();
        for object in objects {
            let (name, object_version) = self.identity(&object);
            let unchanged = gone.remove(&name) == Some(object_version.clone());
            self.known.insert(name, object_version);
            if !unchanged {
                self.tell(object, heard).await?;
            }
        }
        for name in gone.into_keys() {
            let events = self.kind.gone(&name, &version, heard);
            self.send_all(events).await?;
        }
        if none && !self.listed_once {
            let events = self.kind.none(&version, heard);
            self.send_all(events).await?;
        }
        self.restored(heard.at, true).await?;
        if !std::mem::replace(&mut self.listed_once, true) {
            self.send(ApiEvent::Listed(self.kind.what())).await?;
        }
        Ok(Next::Watch(version))
    }

    /// All pages of a list, with its resourceVersion.
    async fn pages(&self) -> Result<(Vec<DynamicObject>, String), String> {
        // No resourceVersion: the most recent state, not what some cache had.
        let mut parameters = ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(500),
            ..ListParams::default()
        };
        let mut objects = Vec::new();
        loop {
            let page = timeout(self.limits.request, self.api.list(&parameters))
                .await
                .map_err(|_| "the list timed out".to_owned())?
                .map_err(|error| format!("cannot list: {}", chain(&error)))?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => {
                    let version = page.metadata.resource_version.unwrap_or_default();
                    if version.is_empty() {
                        return Err("cannot watch: the list has no resourceVersion".to_owned());
                    }
                    return Ok((objects, version));
                }
            }
        }
    }

    /// Watches from a resourceVersion until the stream ends.
    async fn watch(&mut self, mut version: String) -> Result<Next, Closed> {
        let parameters = WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: u32::try_from(self.limits.watch.as_secs()).ok(),
            bookmarks: true,
            send_initial_events: false,
        };
        // Cloned, so that the stream does not borrow what it tells its events to.
        let api = self.api.clone();
        let starting = timeout(self.limits.request, api.watch(&parameters, &version));
        let stream = match starting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let next = if self.needs_list(&error) {
                    Next::List
                } else {
                    Next::Watch(version)
                };
                self.broken(format!("cannot watch: {}", chain(&error)))
                    .await?;
                self.pause().await?;
                return Ok(next);
            }
            Err(_) => {
                self.broken("the start of the watch timed out".to_owned())
                    .await?;
                self.pause().await?;
                return Ok(Next::Watch(version));
            }
        };
        self.refusals = 0;
        let started = Instant::now();
        let now = (self.now)();
        let away = u128::try_from(now.since(self.certain_until)).unwrap_or(0);
        if self.outage.is_none() && away > self.limits.handover.as_nanos() {
            self.broken("the watch was slow to start again".to_owned())
                .await?;
        }
        if self.outage.is_some() {
            self.late_until = Some(started + self.limits.catch_up);
        }
        self.restored(now, false).await?;
        let end = self.stream(stream, &mut version, started).await?;
        let fruitful = started.elapsed() > self.limits.backoff.1;
        if fruitful {
            self.backoff.reset();
        }
        match end {
            End::Ended => {
                self.certain_until = (self.now)();
                // A server that ends every stream at once must not be asked in a tight loop.
                if started.elapsed() < self.limits.handover {
                    self.pause().await?;
                }
                Ok(Next::Watch(version))
            }
            End::Failed(reason) => {
                self.broken(reason).await?;
                self.pause().await?;
                Ok(Next::Watch(version))
            }
            End::Lost(reason) => {
                self.broken(reason).await?;
                self.pause().await?;
                Ok(Next::List)
            }
        }
    }

    /// Whether a watch that was not started must be preceded by a list. 410: the resourceVersion is too old; 400: it is
    /// none. An etcd that was restored from a backup makes it one of the future, which is 504 for ever ("Too large
    /// resource version"). An API that does not answer at all proves nothing: going on where we were loses no change.
    fn needs_list(&mut self, error: &kube::Error) -> bool {
        let kube::Error::Api(status) = error else {
            return false;
        };
        if matches!(status.code, 400..=428 | 430..=499 | 504) {
            self.refusals += 1;
        }
        matches!(status.code, 400 | 410) || self.refusals >= 3
    }

    async fn stream(
        &mut self,
        stream: impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>>,
        version: &mut String,
        started: Instant,
    ) -> Result<End, Closed> {
        let mut stream = std::pin::pin!(stream.into_stream());
        // The server's own time-out, and a little for its last words to arrive.
        let deadline = started + self.limits.watch + Duration::from_secs(5);
        loop {
            let silence = Instant::now() + self.limits.silence;
            let until = if self.bookmarks {
                silence.min(deadline)
            } else {
                deadline
            };
            let event = tokio::select! {
                event = stream.next() => event,
                () = tokio::time::sleep_until(until) => {
                    return Ok(End::Failed("nothing was heard for too long".to_owned()));
                }
                () = self.sender.closed() => return Err(Closed),
            };
            let heard = Heard {
                at: (self.now)(),
                listed: self.late_until.is_some_and(|until| Instant::now() < until),
            };
            match event {
                None => return Ok(End::Ended),
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    let (name, object_version) = self.identity(&object);
                    version.clone_from(&object_version);
                    self.known.insert(name, object_version);
                    self.tell(object, heard).await?;
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    let (name, object_version) = self.identity(&object);
                    self.known.remove(&name);
                    let events = self.kind.gone(&name, &object_version, heard);
                    *version = object_version;
                    self.send_all(events).await?;
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    self.bookmarks = true;
                    *version = bookmark.metadata.resource_version;
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    let reason = format!("the API ended the watch: {}", status.message);
                    return Ok(if status.code == 410 {
                        End::Lost(reason)
                    } else {
                        End::Failed(reason)
                    });
                }
                // An answer in place of an event, as a proxy in between may give. kube also takes any other JSON object
                // for one, with nothing in it.
                Some(Err(kube::Error::Api(status))) if status.code != 0 => {
                    return Ok(End::Failed(format!("the watch failed: {}", status.message)));
                }
                Some(Err(error @ (kube::Error::SerdeError(_) | kube::Error::Api(_)))) => {
                    let reason = match error {
                        kube::Error::SerdeError(error) => {
                            format!("a watch event cannot be read: {error}")
                        }
                        _ => "a watch event cannot be read: it holds no object".to_owned(),
                    };
                    self.send(ApiEvent::Malformed {
                        what: self.kind.what(),
                        at: heard.at,
                        object: String::new(),
                        reason: reason.clone(),
                    })
                    .await?;
                    return Ok(End::Lost(reason));
                }
                Some(Err(error)) => {
                    return Ok(End::Failed(format!("the watch failed: {}", chain(&error))));
                }
            }
            if version.is_empty() {
                return Ok(End::Lost("an event has no resourceVersion".to_owned()));
            }
            self.certain_until = heard.at;
        }
    }

    /// Name and resourceVersion.
    fn identity(&self, object: &DynamicObject) -> (String, String) {
        let version = object.metadata.resource_version.clone();
        (
            self.kind.name(&object.metadata),
            version.unwrap_or_default(),
        )
    }

    async fn tell(&mut self, object: DynamicObject, heard: Heard) -> Result<(), Closed> {
        let (name, _) = self.identity(&object);
        let events = self.kind.seen(object, heard).unwrap_or_else(|reason| {
            vec![ApiEvent::Malformed {
                what: self.kind.what(),
                at: heard.at,
                object: name,
                reason,
            }]
        });
        self.send_all(events).await
    }
}

/// An error with all its causes: kube's own text stops at "service error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}
