//! Service → [`ServiceSeen`].

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;

use crate::model::Timestamp;
use crate::model::record::ServiceSeen;

/// Reads a Service: its frontends are each ClusterIP × UDP port, then `extra`. A headless Service has none of its own.
/// Also returns what could not be read.
pub fn read(
    name: &str,
    service: Service,
    extra: &[SocketAddr],
    at: Timestamp,
) -> (ServiceSeen, Vec<String>) {
    let mut malformed = Vec::new();
    let spec = service.spec.unwrap_or_default();
    let addresses = spec
        .cluster_ips
        .filter(|addresses| !addresses.is_empty())
        .unwrap_or_else(|| spec.cluster_ip.into_iter().collect());
    let addresses: Vec<IpAddr> = addresses
        .into_iter()
        .filter(|address| !matches!(address.as_str(), "None" | ""))
        .filter_map(|address| {
            let parsed = address.parse().ok();
            if parsed.is_none() {
                malformed.push(format!("ClusterIP `{address}`"));
            }
            parsed
        })
        .collect();
    let mut frontends = Vec::new();
    for port in spec.ports.unwrap_or_default() {
        if port.protocol.as_deref() != Some("UDP") {
            continue;
        }
        match u16::try_from(port.port) {
            Ok(port) if port > 0 => {
                frontends.extend(
                    addresses
                        .iter()
                        .map(|address| SocketAddr::new(*address, port)),
                );
            }
            _ => malformed.push(format!("port `{}`", port.port)),
        }
    }
    for frontend in extra {
        if !frontends.contains(frontend) {
            frontends.push(*frontend);
        }
    }
    let seen = ServiceSeen {
        at,
        service: name.to_owned(),
        frontends,
        resource_version: service.metadata.resource_version.unwrap_or_default(),
    };
    (seen, malformed)
}

/// The record of a Service that is gone, or was never there.
pub fn absent(name: &str, resource_version: &str, at: Timestamp) -> ServiceSeen {
    ServiceSeen {
        at,
        service: name.to_owned(),
        frontends: Vec::new(),
        resource_version: resource_version.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn frontends(spec: serde_json::Value, extra: &[&str]) -> (Vec<String>, usize) {
        let service = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let extra: Vec<_> = extra.iter().map(|text| text.parse().unwrap()).collect();
        let (seen, malformed) = read("ns/dns", service, &extra, Timestamp(1));
        (
            seen.frontends.iter().map(ToString::to_string).collect(),
            malformed.len(),
        )
    }

    #[test]
    fn every_cluster_ip_has_every_udp_port() {
        let spec = json!({
            "clusterIP": "10.43.0.10", "clusterIPs": ["10.43.0.10", "fd00::a"],
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 54, "protocol": "UDP"}]
        });
        assert_eq!(
            frontends(spec, &["169.254.20.10:53", "10.43.0.10:53"]).0,
            [
                "10.43.0.10:53",
                "[fd00::a]:53",
                "10.43.0.10:54",
                "[fd00::a]:54",
                "169.254.20.10:53"
            ]
        );
    }

    #[test]
    fn a_headless_service_and_an_old_api_are_understood() {
        let ports = json!([{"port": 53, "protocol": "UDP"}]);
        assert!(
            frontends(json!({"clusterIP": "None", "ports": ports}), &[])
                .0
                .is_empty()
        );
        let old = frontends(json!({"clusterIP": "10.43.0.10", "ports": ports}), &[]);
        assert_eq!(old, (vec!["10.43.0.10:53".to_owned()], 0));
        let bad = frontends(
            json!({"clusterIP": "x", "ports": [{"port": -1, "protocol": "UDP"}]}),
            &[],
        );
        assert_eq!(bad, (vec![], 2));
    }
}
