//! A client for the API server from flags, the pod's service account or a kubeconfig.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// How the API is reached: `--kubeconfig`, `--context`, `--server`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiOptions {
    /// A kubeconfig file; default: in-cluster, then `$KUBECONFIG`, then `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; default: its `current-context`.
    pub context: Option<String>,
    /// URL of the API server, in place of the one configured. With no configuration at all it is used without
    /// credentials.
    pub server: Option<String>,
}

/// The API cannot be talked to as asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A kubeconfig cannot be used.
    #[error(
        "cannot use the kubeconfig {file}: {source}; check the file, or name another with --kubeconfig and --context"
    )]
    Kubeconfig {
        /// File, or value of `$KUBECONFIG`.
        file: String,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// The pod's service account cannot be used.
    #[error(
        "cannot use the pod's service account: {0}; is automountServiceAccountToken off? Otherwise use --kubeconfig"
    )]
    InCluster(#[source] Box<InClusterError>),
    /// Nothing says where the API is.
    #[error(
        "no Kubernetes API configured: not in a pod, $KUBECONFIG is not set and {0} does not exist; \
         use --kubeconfig FILE or --server URL"
    )]
    Nowhere(String),
    /// `--server` is no URL.
    #[error(
        "--server `{server}` is not an http or https URL such as https://10.0.0.1:6443{because}"
    )]
    Server {
        /// What was given.
        server: String,
        /// Why, with a leading colon; may be empty.
        because: String,
    },
    /// TLS or credentials cannot be set up.
    #[error(
        "cannot set up the connection to {url}: {source}; check certificates and credentials in {origin}"
    )]
    Setup {
        /// API server.
        url: String,
        /// Where the configuration came from.
        origin: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes a client. Does not talk to the API yet, so an API that is away is no error here.
///
/// Connecting and writing time out; reading does not, as a watch may be silent for minutes: [`super::watch`] bounds its
/// own waits.
///
/// # Errors
/// When the configuration cannot be read or used.
pub async fn connect(options: &ApiOptions) -> Result<Client, ClientError> {
    let (mut config, origin) = configuration(options).await?;
    if let Some(server) = &options.server {
        config.cluster_url = server_url(server)?;
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    // A hidden retry would hide an outage; the watches have their own back-off.
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    Client::try_from(config).map_err(|source| ClientError::Setup {
        url,
        origin,
        source: Box::new(source),
    })
}

fn server_url(server: &str) -> Result<http::Uri, ClientError> {
    let refused = |because: String| ClientError::Server {
        server: server.to_owned(),
        because,
    };
    let url: http::Uri = server
        .parse()
        .map_err(|error| refused(format!(": {error}")))?;
    match url.scheme_str() {
        Some("http" | "https") if url.host().is_some() => Ok(url),
        _ => Err(refused(String::new())),
    }
}

/// The configuration and a name for where it is from.
async fn configuration(options: &ApiOptions) -> Result<(Config, String), ClientError> {
    if let Some(file) = &options.kubeconfig {
        let origin = file.display().to_string();
        let read = Kubeconfig::read_from(file);
        return Ok((from_kubeconfig(read, &origin, options).await?, origin));
    }
    // A context can only mean a kubeconfig.
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && options.context.is_none() {
        let config =
            Config::incluster().map_err(|error| ClientError::InCluster(Box::new(error)))?;
        return Ok((config, "the pod's service account".to_owned()));
    }
    if let Some(files) = std::env::var_os("KUBECONFIG").filter(|files| !files.is_empty()) {
        let origin = format!("$KUBECONFIG ({})", files.display());
        let read = Kubeconfig::read();
        return Ok((from_kubeconfig(read, &origin, options).await?, origin));
    }
    let file = std::env::home_dir()
        .unwrap_or_default()
        .join(".kube/config");
    let origin = file.display().to_string();
    if file.exists() {
        let read = Kubeconfig::read_from(&file);
        return Ok((from_kubeconfig(read, &origin, options).await?, origin));
    }
    match &options.server {
        Some(server) => Ok((Config::new(server_url(server)?), "--server".to_owned())),
        None => Err(ClientError::Nowhere(origin)),
    }
}

async fn from_kubeconfig(
    read: Result<Kubeconfig, KubeconfigError>,
    file: &str,
    options: &ApiOptions,
) -> Result<Config, ClientError> {
    let failed = |source| ClientError::Kubeconfig {
        file: file.to_owned(),
        source: Box::new(source),
    };
    let selection = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    Config::from_custom_kubeconfig(read.map_err(failed)?, &selection)
        .await
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:6443'}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: one, context: {cluster: c, user: u}}]
";

    fn options(file: &std::path::Path) -> ApiOptions {
        ApiOptions {
            kubeconfig: Some(file.to_owned()),
            ..ApiOptions::default()
        }
    }

    #[tokio::test]
    async fn errors_name_the_file_and_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("missing");
        let error = connect(&options(&file)).await.err().unwrap().to_string();
        assert!(
            error.contains("missing") && error.contains("--kubeconfig"),
            "{error}"
        );

        let file = directory.path().join("config");
        std::fs::write(&file, KUBECONFIG).unwrap();
        assert!(connect(&options(&file)).await.is_ok());
        let mut wrong = options(&file);
        wrong.context = Some("two".to_owned());
        let error = connect(&wrong).await.err().unwrap().to_string();
        assert!(
            error.contains("two") && error.contains("--context"),
            "{error}"
        );

        std::fs::write(&file, "clusters: 7").unwrap();
        let error = connect(&options(&file)).await.err().unwrap().to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_server_must_be_a_url() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        std::fs::write(&file, KUBECONFIG).unwrap();
        for (server, fits) in [
            ("http://127.0.0.1:1", true),
            ("https://[::1]:6443", true),
            ("10.0.0.1:6443", false),
            ("ftp://x", false),
            ("", false),
        ] {
            let mut options = options(&file);
            options.server = Some(server.to_owned());
            assert_eq!(connect(&options).await.is_ok(), fits, "{server}");
        }
    }
}
