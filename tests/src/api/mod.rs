//! A stand-in for the Kubernetes API: the read side (get, list, watch) of the resources that slicetrace looks at, in
//! memory, over plain HTTP. Objects are changed by the methods of [`Api`], not over HTTP.
//!
//! The protocol is that of the API concepts page ("Efficient detection of changes") and of apiserver's watch cache:
//! resource versions, chunked watches, bookmarks, streaming lists, label and field selectors, 410 Gone for versions that
//! are forgotten, `Status` objects as errors. `limit` is accepted and all is returned in one page, as servers may.

mod http;
mod select;
mod store;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;
use slicetrace::model::Timestamp;
use tokio::net::TcpListener;

use crate::lab::now;
pub use store::Kind;
use store::Store;

/// The stand-in: what it holds, and whom it tells.
#[derive(Clone, Debug)]
pub struct Api {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    /// The newest version; watches wait for it to grow.
    version: tokio::sync::watch::Sender<u64>,
    /// Grows when all watches are to be broken.
    breaks: tokio::sync::watch::Sender<u64>,
}

/// When a change was made visible: at some moment between the two times.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Before.
    pub start: Timestamp,
    /// After.
    pub end: Timestamp,
    /// The object's new resource version.
    pub resource_version: u64,
}

impl Default for Api {
    fn default() -> Self {
        Self::new(1000)
    }
}

impl Api {
    /// An empty one that remembers so many changes.
    pub fn new(history: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                store: Mutex::new(Store::new(history)),
                version: tokio::sync::watch::Sender::new(0),
                breaks: tokio::sync::watch::Sender::new(0),
            }),
        }
    }

    /// Serves on a listener until the returned future is dropped.
    ///
    /// # Errors
    /// If accepting connections fails.
    pub async fn serve(&self, listener: TcpListener) -> Result<()> {
        axum::serve(listener, http::router(self.clone()))
            .await
            .context("the stand-in API server failed")
    }

    /// Creates or replaces an object, given as JSON of its kind; uid and creation time are added if it has none.
    ///
    /// # Errors
    /// If it is not an object of that kind or has no name.
    pub fn apply(&self, kind: Kind, object: Value) -> Result<Change> {
        let object = typed(kind, object)?;
        self.change(|store| store.apply(kind, object))
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// If there is none.
    pub fn delete(&self, kind: Kind, namespace: Option<&str>, name: &str) -> Result<Change> {
        self.change(|store| store.delete(kind, namespace, name))
    }

    /// Deletes all objects.
    pub fn clear(&self) {
        let version = {
            let mut store = self.store();
            store.clear();
            store.version()
        };
        self.shared.version.send_replace(version);
    }

    /// Forgets all changes so far: a watch from an old version is answered with 410 Gone.
    pub fn forget_history(&self) {
        self.store().forget();
    }

    /// Ends all watches, as a restarting server would.
    pub fn break_watches(&self) {
        self.shared.breaks.send_modify(|breaks| *breaks += 1);
    }

    fn change(&self, work: impl FnOnce(&mut Store) -> Result<u64>) -> Result<Change> {
        let start = now();
        let resource_version = work(&mut self.store())?;
        self.shared.version.send_replace(resource_version);
        Ok(Change {
            start,
            end: now(),
            resource_version,
        })
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // Each change of the store is complete or was not begun: a panic elsewhere leaves nothing half done.
        self.shared
            .store
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads an object as its type and writes it again, so that no misspelt field gets through as data.
fn typed(kind: Kind, object: Value) -> Result<Value> {
    fn pass<T: serde::Serialize + serde::de::DeserializeOwned>(object: Value) -> Result<Value> {
        Ok(serde_json::to_value(serde_json::from_value::<T>(object)?)?)
    }
    match kind {
        Kind::Services => pass::<Service>(object),
        Kind::Pods => pass::<Pod>(object),
        Kind::Nodes => pass::<Node>(object),
        Kind::EndpointSlices => pass::<EndpointSlice>(object),
    }
    .with_context(|| format!("not an object of {}", kind.plural()))
}
