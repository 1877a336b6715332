//! Who owns a socket: from its cgroup, or else its address, to pod and container.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::cgroups::Cgroups;
use crate::model::flight::{Owner, PodName};
use crate::model::pod::PodSeen;

/// This node's pods, with those of the last minutes. Shared freely.
#[derive(Debug)]
pub struct Owners {
    cgroups: Arc<Cgroups>,
    keep: Duration,
    pods: RwLock<Pods>,
}

impl crate::correlate::attempts::Owners for Owners {
    fn owner(&self, cgroup: u64, pid: u32, comm: &str, address: IpAddr) -> Owner {
        Self::owner(self, cgroup, pid, comm, address)
    }
}

#[derive(Debug, Default)]
struct Pods {
    /// By `metadata.uid`.
    by_uid: HashMap<String, Entry>,
    /// Uids by which the kubelet names cgroups of static pods.
    by_config_hash: HashMap<String, String>,
    /// Counts what was heard, so that "most recent" is exact.
    heard: u64,
}

#[derive(Debug)]
struct Entry {
    pod: PodSeen,
    /// When it was heard of first, in the order of events.
    since: u64,
    gone: Option<Instant>,
}

impl Owners {
    /// An empty table. Pods that are gone are remembered for ten minutes, longer than any conntrack time-out.
    pub fn new(cgroups: Arc<Cgroups>) -> Self {
        Self::with(cgroups, Duration::from_secs(600))
    }

    fn with(cgroups: Arc<Cgroups>, keep: Duration) -> Self {
        Self {
            cgroups,
            keep,
            pods: RwLock::default(),
        }
    }

    /// A pod of this node is there, new or changed.
    pub fn seen(&self, pod: PodSeen) {
        let mut pods = self.write();
        pods.heard += 1;
        let heard = pods.heard;
        if let Some(hash) = &pod.config_hash {
            pods.by_config_hash.insert(hash.clone(), pod.uid.clone());
        }
        match pods.by_uid.get_mut(&pod.uid) {
            Some(entry) => {
                let before = std::mem::replace(&mut entry.pod, pod);
                // A finished pod may lose its addresses and containers before it is deleted: they were its own.
                if entry.pod.ips.is_empty() {
                    entry.pod.ips = before.ips;
                }
                for container in before.containers {
                    if !entry.pod.containers.contains(&container) {
                        entry.pod.containers.push(container);
                    }
                }
                entry.gone = None;
            }
            None => {
                let entry = Entry {
                    pod,
                    since: heard,
                    gone: None,
                };
                pods.by_uid.insert(entry.pod.uid.clone(), entry);
            }
        }
        pods.forget(self.keep);
    }

    /// A pod was deleted.
    pub fn gone(&self, uid: &str) {
        let mut pods = self.write();
        if let Some(entry) = pods.by_uid.get_mut(uid) {
            entry.gone = Some(Instant::now());
        }
        pods.forget(self.keep);
    }

    /// Who owns a socket in `cgroup`, bound to `address`, of a process (`pid` 0 and an empty `comm`: unknown).
    ///
    /// The cgroup decides where it is a pod's. Otherwise the address does: a socket's cgroup may be that of whoever
    /// created it. Two pods that had the address one after the other: the one that is there, else the later one.
    pub fn owner(&self, cgroup: u64, pid: u32, comm: &str, address: IpAddr) -> Owner {
        let found = self.cgroups.resolve(cgroup);
        let mut owner = Owner {
            pod: None,
            container: None,
            process: (!comm.is_empty()).then(|| comm.to_owned()),
            pid: (pid != 0).then_some(pid),
        };
        let pods = self.read();
        let by_cgroup = found
            .as_ref()
            .and_then(|cgroup| cgroup.pod_uid.as_deref())
            .and_then(|uid| pods.by_cgroup_uid(uid));
        if let Some(entry) = by_cgroup.or_else(|| pods.by_address(address)) {
            owner.pod = Some(PodName {
                namespace: entry.pod.namespace.clone(),
                name: entry.pod.name.clone(),
            });
            let container = found.and_then(|cgroup| cgroup.container_id);
            owner.container = container.and_then(|wanted| {
                let mut containers = entry.pod.containers.iter();
                let (name, _) = containers.find(|(_, id)| *id == wanted)?;
                Some(name.clone())
            });
        }
        owner
    }

    // A pod is inserted or replaced whole: a panic elsewhere leaves nothing half done.
    fn read(&self) -> RwLockReadGuard<'_, Pods> {
        self.pods.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Pods> {
        self.pods.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pods {
    fn by_cgroup_uid(&self, uid: &str) -> Option<&Entry> {
        self.by_uid
            .get(uid)
            .or_else(|| self.by_uid.get(self.by_config_hash.get(uid)?))
    }

    fn by_address(&self, address: IpAddr) -> Option<&Entry> {
        self.by_uid
            .values()
            .filter(|entry| !entry.pod.host_network && entry.pod.ips.contains(&address))
            .max_by_key(|entry| (entry.gone.is_none(), entry.since))
    }

    fn forget(&mut self, keep: Duration) {
        self.by_uid
            .retain(|_, entry| entry.gone.is_none_or(|gone| gone.elapsed() <= keep));
        let by_uid = &self.by_uid;
        self.by_config_hash
            .retain(|_, uid| by_uid.contains_key(uid));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    const UID: &str = "0f7ac6d2-8a3b-4c55-9d0e-6a1b2c3d4e5f";

    fn pod(uid: &str, name: &str, ip: &str) -> PodSeen {
        PodSeen {
            uid: uid.to_owned(),
            config_hash: None,
            namespace: "default".to_owned(),
            name: name.to_owned(),
            node: "n".to_owned(),
            ips: vec![ip.parse().unwrap()],
            host_network: false,
            containers: vec![("main".to_owned(), "abc123".to_owned())],
        }
    }

    struct Node {
        root: tempfile::TempDir,
        owners: Owners,
    }

    impl Node {
        fn new(keep: Duration) -> Self {
            let root = tempfile::tempdir().unwrap();
            let cgroups = Arc::new(Cgroups::new(root.path().to_owned()).unwrap());
            let owners = Owners::with(cgroups, keep);
            Self { root, owners }
        }

        fn cgroup(&self, path: &str) -> u64 {
            let path = self.root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            self.owners.cgroups.refresh().unwrap();
            std::fs::metadata(path).unwrap().ino()
        }

        fn pod_at(&self, cgroup: u64, address: &str) -> Option<String> {
            let owner = self
                .owners
                .owner(cgroup, 7, "dig", address.parse().unwrap());
            owner.pod.map(|pod| pod.name)
        }
    }

    #[test]
    fn the_cgroup_names_pod_and_container_before_the_address() {
        let node = Node::new(Duration::MAX);
        node.owners.seen(pod(UID, "by-cgroup", "10.0.0.1"));
        node.owners.seen(pod("other", "by-address", "10.0.0.2"));
        let cgroup = node.cgroup(&format!("kubepods/pod{UID}/abc123"));
        let owner = node
            .owners
            .owner(cgroup, 7, "dig", "10.0.0.2".parse().unwrap());
        assert_eq!(owner.pod.unwrap().name, "by-cgroup");
        assert_eq!(owner.container.as_deref(), Some("main"));
        assert_eq!(
            (owner.process.as_deref(), owner.pid),
            (Some("dig"), Some(7))
        );

        let host = node.cgroup("system.slice/resolved.service");
        assert_eq!(node.pod_at(host, "10.0.0.2").as_deref(), Some("by-address"));
        assert_eq!(node.pod_at(host, "192.0.2.1"), None);
        let unknown = node.owners.owner(0, 0, "", "192.0.2.1".parse().unwrap());
        assert_eq!(unknown, Owner::default());
    }

    #[test]
    fn host_network_pods_are_known_by_cgroup_only() {
        let node = Node::new(Duration::MAX);
        let mut host = pod("api", "agent", "192.0.2.1");
        host.host_network = true;
        host.config_hash = Some("b5d4c3a29f8e7d6c5b4a39281706f5e4".to_owned());
        node.owners.seen(host);
        assert_eq!(node.pod_at(0, "192.0.2.1"), None);
        let fixed = node.cgroup("kubepods/podb5d4c3a29f8e7d6c5b4a39281706f5e4");
        assert_eq!(node.pod_at(fixed, "192.0.2.1").as_deref(), Some("agent"));
    }

    #[test]
    fn an_address_belongs_to_the_pod_that_is_there_else_to_the_later_one() {
        let node = Node::new(Duration::MAX);
        node.owners.seen(pod("1", "first", "10.0.0.1"));
        node.owners.gone("1");
        assert_eq!(node.pod_at(0, "10.0.0.1").as_deref(), Some("first"));
        node.owners.seen(pod("2", "second", "10.0.0.1"));
        assert_eq!(node.pod_at(0, "10.0.0.1").as_deref(), Some("second"));
        node.owners.gone("2");
        assert_eq!(node.pod_at(0, "10.0.0.1").as_deref(), Some("second"));
    }

    #[test]
    fn what_a_finished_pod_had_stays_known_and_is_forgotten_in_time() {
        let node = Node::new(Duration::from_millis(50));
        node.owners.seen(pod(UID, "p", "10.0.0.1"));
        let mut finished = pod(UID, "p", "10.0.0.1");
        finished.ips.clear();
        finished.containers.clear();
        node.owners.seen(finished);
        let cgroup = node.cgroup(&format!("kubepods/pod{UID}/abc123"));
        let owner = node
            .owners
            .owner(cgroup, 1, "x", "10.0.0.9".parse().unwrap());
        assert_eq!(owner.container.as_deref(), Some("main"));
        assert!(node.pod_at(0, "10.0.0.1").is_some());
        node.owners.gone(UID);
        std::thread::sleep(Duration::from_millis(80));
        node.owners.gone("somebody else");
        assert_eq!(node.pod_at(0, "10.0.0.1"), None);
    }
}
