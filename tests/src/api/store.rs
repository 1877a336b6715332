//! The objects, their versions, and the last changes.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::lab::now;

/// The resources that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Services.
    Services,
    /// `v1` Pods.
    Pods,
    /// `v1` Nodes.
    Nodes,
    /// `discovery.k8s.io/v1` EndpointSlices.
    EndpointSlices,
}

impl Kind {
    /// As in paths.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::EndpointSlices => "endpointslices",
        }
    }

    /// `kind` of an object.
    pub const fn singular(self) -> &'static str {
        match self {
            Self::Services => "Service",
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::EndpointSlices => "EndpointSlice",
        }
    }

    /// `apiVersion` of an object.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::EndpointSlices => "discovery.k8s.io/v1",
            _ => "v1",
        }
    }

    /// The resource of that name in an API group version.
    pub(crate) fn find(api_version: &str, plural: &str) -> Option<Self> {
        [
            Self::Services,
            Self::Pods,
            Self::Nodes,
            Self::EndpointSlices,
        ]
        .into_iter()
        .find(|kind| kind.api_version() == api_version && kind.plural() == plural)
    }
}

/// Kind, namespace (empty: none), name.
type Key = (Kind, String, String);

/// One change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Version after it.
    pub(crate) version: u64,
    /// Kind of the object.
    pub(crate) kind: Kind,
    /// The object before; `None`: created.
    pub(crate) before: Option<Value>,
    /// The object after (of a deletion: as it was last, with the deletion's version).
    pub(crate) object: Value,
    /// It was a deletion.
    pub(crate) deleted: bool,
}

/// Everything that the API knows.
#[derive(Debug)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Value>,
    events: VecDeque<Event>,
    version: u64,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    history: usize,
}

impl Store {
    pub(crate) fn new(history: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            events: VecDeque::new(),
            version: 1,
            forgotten: 1,
            history,
        }
    }

    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Changes up to this version cannot be told any more.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Objects of a kind, by namespace and name.
    pub(crate) fn objects(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects
            .iter()
            .filter(move |((of, ..), _)| *of == kind)
            .map(|(_, object)| object)
    }

    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        self.objects
            .get(&(kind, namespace.to_owned(), name.to_owned()))
    }

    /// Changes after a version, oldest first.
    pub(crate) fn since(&self, version: u64) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .filter(move |event| event.version > version)
    }

    pub(crate) fn apply(&mut self, kind: Kind, mut object: Value) -> Result<u64> {
        let metadata = object["metadata"]
            .as_object_mut()
            .context("the object has no metadata")?;
        let name = metadata
            .get("name")
            .and_then(Value::as_str)
            .context("the object has no name")?
            .to_owned();
        let namespace = metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let key = (kind, namespace, name);
        let before = self.objects.get(&key).cloned();
        let version = self.version + 1;
        for field in ["uid", "creationTimestamp"] {
            if let Some(value) = before
                .as_ref()
                .and_then(|before| before["metadata"].get(field))
            {
                metadata.entry(field).or_insert_with(|| value.clone());
            }
        }
        metadata
            .entry("uid")
            .or_insert_with(|| json!(format!("00000000-0000-4000-8000-{version:012x}")));
        metadata
            .entry("creationTimestamp")
            .or_insert_with(|| json!(now().second().to_string().replace(".000000000", "")));
        metadata.insert("resourceVersion".to_owned(), json!(version.to_string()));
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.singular());
        self.objects.insert(key, object.clone());
        self.record(Event {
            version,
            kind,
            before,
            object,
            deleted: false,
        });
        Ok(version)
    }

    pub(crate) fn delete(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<u64> {
        let key = (
            kind,
            namespace.unwrap_or_default().to_owned(),
            name.to_owned(),
        );
        let before = self
            .objects
            .remove(&key)
            .with_context(|| format!("there is no {} {name} to delete", kind.singular()))?;
        let version = self.version + 1;
        let mut object = before.clone();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.record(Event {
            version,
            kind,
            before: Some(before),
            object,
            deleted: true,
        });
        Ok(version)
    }

    pub(crate) fn clear(&mut self) {
        let keys: Vec<Key> = self.objects.keys().cloned().collect();
        for (kind, namespace, name) in keys {
            // It is there: we hold the only reference.
            let _ = self.delete(kind, Some(&namespace), &name);
        }
    }

    pub(crate) fn forget(&mut self) {
        self.events.clear();
        self.forgotten = self.version;
    }

    fn record(&mut self, event: Event) {
        self.version = event.version;
        self.events.push_back(event);
        while self.events.len() > self.history {
            if let Some(event) = self.events.pop_front() {
                self.forgotten = event.version;
            }
        }
    }
}
