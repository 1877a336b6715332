//! Label and field selectors (the API concepts page, "Field selectors"; labels.Parse of apimachinery).

use serde_json::Value;

/// Which objects a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    namespace: Option<String>,
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Is(String, String),
    IsNot(String, String),
    Exists(String),
    DoesNotExist(String),
}

impl Selector {
    /// Reads the selectors of a request; the error is a message for its sender.
    pub(crate) fn parse(
        namespace: Option<String>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, String> {
        let labels = requirements(labels)?;
        let fields = requirements(fields)?;
        for field in &fields {
            match field {
                Requirement::Is(name, _) | Requirement::IsNot(name, _) if supported(name) => {}
                _ => return Err("field label not supported".to_owned()),
            }
        }
        Ok(Self {
            namespace,
            labels,
            fields,
        })
    }

    /// Whether an object is meant.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.namespace
            .as_deref()
            .is_none_or(|namespace| metadata["namespace"] == namespace)
            && self
                .labels
                .iter()
                .all(|requirement| requirement.holds(|key| metadata["labels"][key].as_str()))
            && self
                .fields
                .iter()
                .all(|requirement| requirement.holds(|path| Some(field(object, path))))
    }
}

/// The fields that these four kinds can be selected by.
fn supported(path: &str) -> bool {
    matches!(
        path,
        "metadata.name" | "metadata.namespace" | "spec.nodeName" | "status.phase" | "status.podIP"
    )
}

/// A field that is not there counts as empty.
fn field<'a>(object: &'a Value, path: &str) -> &'a str {
    path.split('.')
        .fold(object, |value, key| &value[key])
        .as_str()
        .unwrap_or_default()
}

impl Requirement {
    fn holds<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Is(key, wanted) => value(key) == Some(wanted),
            Self::IsNot(key, unwanted) => value(key) != Some(unwanted),
            Self::Exists(key) => value(key).is_some(),
            Self::DoesNotExist(key) => value(key).is_none(),
        }
    }
}

/// `a=b`, `a==b`, `a!=b`, `a`, `!a`, joined by commas. Set-based requirements (`a in (b,c)`) are refused.
fn requirements(text: &str) -> Result<Vec<Requirement>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|term| !term.is_empty())
        .map(|term| {
            if term.contains(['(', ')', ' ']) {
                return Err(format!("this stand-in does not know the selector `{term}`"));
            }
            Ok(if let Some((key, value)) = term.split_once("!=") {
                Requirement::IsNot(key.to_owned(), value.to_owned())
            } else if let Some((key, value)) = term.split_once("==").or(term.split_once('=')) {
                Requirement::Is(key.to_owned(), value.to_owned())
            } else if let Some(key) = term.strip_prefix('!') {
                Requirement::DoesNotExist(key.to_owned())
            } else {
                Requirement::Exists(term.to_owned())
            })
        })
        .collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test's panic names the line")]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(labels: &str, fields: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "a", "namespace": "default", "labels": {"k8s-app": "kube-dns"}},
            "spec": {"nodeName": "worker1"},
        });
        Selector::parse(None, labels, fields).unwrap().matches(&pod)
    }

    #[test]
    fn every_requirement_must_hold() {
        assert!(matches("", ""));
        assert!(matches("k8s-app=kube-dns,k8s-app", "spec.nodeName=worker1"));
        assert!(matches("!other,k8s-app!=x", "metadata.name!=b"));
        assert!(!matches("k8s-app=kube-dns", "spec.nodeName=worker2"));
        assert!(!matches("k8s-app==x", ""));
        assert!(!matches("other", ""));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert!(Selector::parse(None, "a in (b)", "").is_err());
        assert!(Selector::parse(None, "", "spec.colour=red").is_err());
    }

    #[test]
    fn a_namespace_narrows() {
        let selector = Selector::parse(Some("kube-system".to_owned()), "", "").unwrap();
        assert!(!selector.matches(&json!({"metadata": {"namespace": "default"}})));
        assert!(selector.matches(&json!({"metadata": {"namespace": "kube-system"}})));
    }
}
