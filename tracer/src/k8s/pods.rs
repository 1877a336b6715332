//! Pod → [`PodSeen`].

use k8s_openapi::api::core::v1::Pod;

use crate::model::pod::PodSeen;

/// The kubelet's uid of a static pod, by which its cgroups are named (pkg/kubelet/types: `ConfigHashAnnotationKey`).
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Reads a pod; addresses that cannot be read are returned beside it. `None` if it has no uid.
pub fn read(pod: Pod) -> Option<(PodSeen, Vec<String>)> {
    let mut malformed = Vec::new();
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let ips = match status.pod_ips {
        Some(ips) => ips.into_iter().map(|ip| ip.ip).collect(),
        None => status.pod_ip.into_iter().collect::<Vec<_>>(),
    };
    let ips = ips
        .into_iter()
        .filter(|ip| !ip.is_empty())
        .filter_map(|ip| {
            let parsed = ip.parse().ok();
            if parsed.is_none() {
                malformed.push(format!("podIP `{ip}`"));
            }
            parsed
        })
        .collect();
    let containers = [
        status.container_statuses,
        status.init_container_statuses,
        status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .filter_map(|container| {
        let id = container.container_id?;
        let id = id.split_once("://").map_or(id.as_str(), |(_, id)| id);
        (!id.is_empty()).then(|| (container.name, id.to_owned()))
    })
    .collect();
    let seen = PodSeen {
        uid: pod.metadata.uid?,
        config_hash: pod
            .metadata
            .annotations
            .and_then(|mut annotations| annotations.remove(CONFIG_HASH)),
        namespace: pod.metadata.namespace.unwrap_or_default(),
        name: pod.metadata.name.unwrap_or_default(),
        node: spec.node_name.unwrap_or_default(),
        ips,
        host_network: spec.host_network.unwrap_or(false),
        containers,
    };
    Some((seen, malformed))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_trimmed_to_who_it_is() {
        let pod = json!({
            "metadata": {"uid": "u", "namespace": "ns", "name": "p", "annotations": {CONFIG_HASH: "abc"}},
            "spec": {"nodeName": "n", "hostNetwork": true, "containers": []},
            "status": {
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "x"}],
                "containerStatuses": [
                    {"name": "a", "containerID": "containerd://1234", "image": "", "imageID": "", "ready": true, "restartCount": 0},
                    {"name": "waiting", "image": "", "imageID": "", "ready": false, "restartCount": 0}
                ]
            }
        });
        let (seen, malformed) = read(serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(malformed, ["podIP `x`"]);
        assert_eq!(seen.ips.len(), 2);
        assert!(seen.host_network);
        assert_eq!(seen.config_hash.as_deref(), Some("abc"));
        assert_eq!(seen.containers, [("a".to_owned(), "1234".to_owned())]);
        assert_eq!(read(Pod::default()), None);
    }
}
