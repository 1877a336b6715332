//! The Kubernetes objects of an experiment, as JSON.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use slicetrace::model::Timestamp;

use crate::lab::nodes::Node;
use crate::lab::pods::Pod;
use crate::lab::rules::CLUSTER_IP;
use crate::truth::Endpoint;

/// Namespace of the Service.
pub(crate) const NAMESPACE: &str = "kube-system";
/// Name of the first EndpointSlice.
pub(crate) const SLICE: &str = "kube-dns-x7k2p";

/// `kube-system/kube-dns`, as k3s makes it.
pub(crate) fn service() -> Value {
    json!({
        "metadata": {
            "name": "kube-dns", "namespace": NAMESPACE,
            "labels": {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": CLUSTER_IP, "clusterIPs": [CLUSTER_IP],
            "selector": {"k8s-app": "kube-dns"}, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                {"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": 9153},
            ],
        },
    })
}

/// A node that is ready.
pub(crate) fn node(node: &Node) -> Value {
    json!({
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
        "spec": {"podCIDR": format!("10.42.{}.0/24", node.index)},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": node.uplink}, {"type": "Hostname", "address": node.name},
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    /// Its containers are ready.
    pub(crate) ready: bool,
    /// Since when it is being deleted, and how long it may take, in seconds.
    pub(crate) deleted: Option<(Timestamp, i64)>,
}

/// A running pod.
pub(crate) fn pod(pod: &Pod, life: Life) -> Value {
    let dns = pod.namespace == NAMESPACE;
    let status = if life.ready { "True" } else { "False" };
    let mut object = json!({
        "metadata": {
            "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
            "labels": {"k8s-app": if dns { "kube-dns" } else { "probe" }},
        },
        "spec": {
            "nodeName": pod.node,
            "containers": [{"name": pod.container, "image": "localhost/slicetrace-lab:none"}],
        },
        "status": {
            "phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}],
            "conditions": [{"type": "Ready", "status": status}],
            "containerStatuses": [{
                "name": pod.container, "ready": life.ready, "restartCount": 0,
                "image": "localhost/slicetrace-lab:none", "imageID": "",
                "containerID": format!("containerd://{}", pod.container_id),
                "state": {"running": {}},
            }],
        },
    });
    if let Some((since, grace)) = life.deleted {
        // The API's times have whole seconds.
        let at = (since + grace * 1_000_000_000).second().to_string();
        object["metadata"]["deletionTimestamp"] = json!(at.replace(".000000000", ""));
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    }
    object
}

/// A slice of the Service; an endpoint whose pod has no uid gets no targetRef.
pub(crate) fn slice(
    name: &str,
    endpoints: &[Endpoint],
    uid: impl Fn(Ipv4Addr) -> Option<String>,
) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|endpoint| {
            let mut object = json!({
                "addresses": [endpoint.address],
                "conditions": {
                    "ready": endpoint.ready, "serving": endpoint.serving, "terminating": endpoint.terminating,
                },
                "nodeName": endpoint.node,
            });
            if let Some(uid) = uid(endpoint.address) {
                object["targetRef"] = json!({
                    "kind": "Pod", "namespace": NAMESPACE, "name": endpoint.pod, "uid": uid,
                });
            }
            object
        })
        .collect();
    json!({
        "metadata": {
            "name": name, "namespace": NAMESPACE, "generateName": "kube-dns-",
            "labels": {
                "kubernetes.io/service-name": "kube-dns", "k8s-app": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            {"name": "metrics", "port": 9153, "protocol": "TCP"},
        ],
    })
}
