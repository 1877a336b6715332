//! Node → [`NodeSeen`].

use k8s_openapi::api::core::v1::Node;

use crate::model::Timestamp;
use crate::model::record::NodeSeen;

/// Reads a Node's Ready condition.
pub fn read(node: Node, at: Timestamp) -> NodeSeen {
    let ready = node
        .status
        .and_then(|status| status.conditions)
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")
        .and_then(|condition| match condition.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        });
    NodeSeen {
        at,
        name: node.metadata.name.unwrap_or_default(),
        ready,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_and_missing_conditions_are_unknown() {
        for (status, ready) in [
            ("True", Some(true)),
            ("False", Some(false)),
            ("Unknown", None),
        ] {
            let node = json!({
                "metadata": {"name": "n"},
                "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": status}]}
            });
            let seen = read(serde_json::from_value(node).unwrap(), Timestamp(3));
            assert_eq!(
                seen,
                NodeSeen {
                    at: Timestamp(3),
                    name: "n".to_owned(),
                    ready
                }
            );
        }
        assert_eq!(read(Node::default(), Timestamp(3)).ready, None);
    }
}
