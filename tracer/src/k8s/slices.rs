//! EndpointSlice → [`SliceSeen`].

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::model::Timestamp;
use crate::model::record::{Conditions, EndpointSeen, SliceSeen};

/// When the controller last saw the pods or the Service change (a hint: it is removed where no Ready time changed).
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// A slice in our terms, and what in it could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSlice {
    /// What could be read.
    pub seen: SliceSeen,
    /// What could not, such as ``address `nonsense` ``.
    pub malformed: Vec<String>,
}

/// Reads a slice of `service` (`namespace/name`). All its UDP ports count, whatever they are called: a Service with UDP
/// ports that are not DNS is not one to watch.
pub fn read(service: &str, slice: EndpointSlice, at: Timestamp, listed: bool) -> ReadSlice {
    let mut malformed = Vec::new();
    let mut ports = Vec::new();
    for port in slice.ports.unwrap_or_default() {
        // discovery/v1 types.go: the default protocol is TCP; a missing port means "all ports", which no DNS client can use.
        if port.protocol.as_deref() != Some("UDP") {
            continue;
        }
        match port.port.map(u16::try_from) {
            Some(Ok(port)) if port > 0 => ports.push(port),
            other => malformed.push(format!("port `{other:?}`")),
        }
    }
    ports.sort_unstable();
    ports.dedup();
    let endpoints = slice
        .endpoints
        .into_iter()
        .flat_map(|endpoint| endpoints(endpoint, &ports, &mut malformed))
        .collect();
    let trigger = slice
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(TRIGGER))
        .and_then(|time| time.parse().ok());
    ReadSlice {
        seen: SliceSeen {
            at,
            service: service.to_owned(),
            slice: slice.metadata.name.unwrap_or_default(),
            resource_version: slice.metadata.resource_version.unwrap_or_default(),
            deleted: false,
            listed,
            trigger,
            endpoints,
        },
        malformed,
    }
}

/// The API's consumers use the first address of an endpoint only, but nothing forbids more.
fn endpoints(endpoint: Endpoint, ports: &[u16], malformed: &mut Vec<String>) -> Vec<EndpointSeen> {
    let conditions = endpoint.conditions.unwrap_or_default();
    let ready = conditions.ready.unwrap_or(true);
    let conditions = Conditions {
        ready,
        serving: conditions.serving.unwrap_or(ready),
        terminating: conditions.terminating.unwrap_or(false),
    };
    // A target that is no pod has a name too, but not one that people would look for among pods.
    let pod = endpoint
        .target_ref
        .filter(|target| target.kind.as_deref().is_none_or(|kind| kind == "Pod"));
    let (pod, uid) = pod.map_or((None, None), |target| (target.name, target.uid));
    let mut seen = Vec::new();
    for address in endpoint.addresses {
        match address.parse() {
            Ok(address) => seen.push(EndpointSeen {
                address,
                ports: ports.to_vec(),
                conditions,
                node: endpoint.node_name.clone(),
                pod: pod.clone(),
                uid: uid.clone(),
            }),
            Err(_) => malformed.push(format!("address `{address}`")),
        }
    }
    seen
}

/// The record of a slice that is gone.
pub fn deleted(
    service: &str,
    slice: &str,
    resource_version: &str,
    at: Timestamp,
    listed: bool,
) -> SliceSeen {
    SliceSeen {
        at,
        service: service.to_owned(),
        slice: slice.to_owned(),
        resource_version: resource_version.to_owned(),
        deleted: true,
        listed,
        trigger: None,
        endpoints: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn read_json(slice: serde_json::Value) -> ReadSlice {
        read(
            "ns/dns",
            serde_json::from_value(slice).unwrap(),
            Timestamp(7),
            false,
        )
    }

    #[test]
    fn defaults_of_the_api_are_filled_in() {
        let read = read_json(json!({
            "metadata": {"name": "dns-a", "resourceVersion": "5", "annotations": {TRIGGER: "2026-09-07T21:04:07Z"}},
            "addressType": "IPv4",
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                {"port": 9153}, {"name": "other", "port": 1053, "protocol": "UDP"}
            ],
            "endpoints": [
                {"addresses": ["10.0.0.1"]},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["2001:db8::1"], "conditions": {"ready": false, "serving": true, "terminating": true},
                 "nodeName": "n", "targetRef": {"kind": "Pod", "name": "p", "uid": "u"}}
            ]
        }));
        assert!(read.malformed.is_empty());
        assert_eq!(
            read.seen.trigger,
            Some("2026-09-07T21:04:07Z".parse().unwrap())
        );
        let conditions: Vec<_> = read
            .seen
            .endpoints
            .iter()
            .map(|endpoint| endpoint.conditions)
            .map(|conditions| (conditions.ready, conditions.serving, conditions.terminating))
            .collect();
        assert_eq!(
            conditions,
            [
                (true, true, false),
                (false, false, false),
                (false, true, true)
            ]
        );
        assert_eq!(read.seen.endpoints[0].ports, [53, 1053]);
        assert_eq!(read.seen.endpoints[0].pod, None);
        assert_eq!(read.seen.endpoints[2].pod.as_deref(), Some("p"));
    }

    #[test]
    fn unreadable_parts_are_told_and_the_rest_is_kept() {
        let read = read_json(json!({
            "metadata": {"name": "dns-a", "annotations": {TRIGGER: "yesterday"}},
            "addressType": "IPv4",
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 70000, "protocol": "UDP"}, {"protocol": "UDP"}],
            "endpoints": [{"addresses": ["example.com"]}, {"addresses": []}, {"addresses": ["10.0.0.1"]}]
        }));
        assert_eq!(read.malformed.len(), 3, "{:?}", read.malformed);
        assert_eq!(read.seen.trigger, None);
        assert_eq!(read.seen.endpoints.len(), 1);
        assert_eq!(read.seen.endpoints[0].ports, [53]);
    }

    #[test]
    fn a_slice_without_endpoints_is_a_slice() {
        let read =
            read_json(json!({"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": null}));
        assert!(read.seen.endpoints.is_empty() && read.malformed.is_empty());
    }
}
