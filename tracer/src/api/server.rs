//! The server: records and health, behind a bearer token.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;

use super::{End, FORMAT, FORMAT_HEADER, Health};
use crate::model::Timestamp;
use crate::model::record::NodeRecord;
use crate::store::{Reading, Store};

/// What the agent hands to the API.
pub trait Source: Send + Sync + 'static {
    /// Waits until everything observed so far can be read.
    fn flush(&self) -> BoxFuture<'_, ()>;

    /// The records needed to judge everything between two times ([`Store::read`]). May block.
    ///
    /// # Errors
    /// A message for the person who asked.
    fn records(&self, from: Timestamp, to: Timestamp) -> Result<Reading, String>;

    /// How the agent is. Must not block.
    fn health(&self) -> Health;
}

/// A store read by path, for a [`Source`] whose agent writes through another connection.
///
/// # Errors
/// What the store said.
pub fn read_store(
    path: &std::path::Path,
    from: Timestamp,
    to: Timestamp,
) -> Result<Reading, String> {
    Store::read_only(path)
        .and_then(|store| store.read(from, to))
        .map_err(|error| error.to_string())
}

/// Who may ask.
#[derive(Clone)]
pub enum Access {
    /// Whoever has this bearer token.
    Token(Arc<str>),
    /// Anybody who can connect: for a lab on loopback only.
    Anybody,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token(…)",
            Self::Anybody => "Anybody",
        })
    }
}

impl Access {
    /// Compares in a time that does not depend on where the tokens differ (their length is no secret).
    fn allows(&self, request: &Request) -> bool {
        let Self::Token(token) = self else {
            return true;
        };
        request
            .headers()
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .and_then(|value| value.split_at_checked(7))
            .is_some_and(|(scheme, given)| {
                scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(token.as_bytes()))
            })
    }
}

/// Answers until `stop` resolves, then lets running answers end.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    source: Arc<dyn Source>,
    access: Access,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(source, access))
        .with_graceful_shutdown(stop)
        .await
}

/// The routes.
pub fn router(source: Arc<dyn Source>, access: Access) -> Router {
    Router::new()
        .route("/v1/records", get(records))
        .route("/v1/health", get(health))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such path; see /v1/health\n") })
        .with_state(source)
        .layer(middleware::from_fn_with_state(access, authorize))
}

async fn authorize(State(access): State<Access>, request: Request, next: Next) -> Response {
    if access.allows(&request) {
        return next.run(request).await;
    }
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        "a bearer token is wanted\n",
    )
        .into_response()
}

async fn health(State(source): State<Arc<dyn Source>>) -> Response {
    axum::Json(source.health()).into_response()
}

/// The time asked for.
#[derive(Debug, Deserialize)]
struct Range {
    from: Timestamp,
    to: Timestamp,
}

async fn records(
    State(source): State<Arc<dyn Source>>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Query(range) = match range {
        Ok(range) => range,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    if range.from > range.to {
        return (StatusCode::BAD_REQUEST, "`from` is after `to`\n").into_response();
    }
    source.flush().await;
    let reading = tokio::task::spawn_blocking(move || source.records(range.from, range.to)).await;
    match reading {
        Ok(Ok(reading)) => (
            [
                (
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("application/x-ndjson"),
                ),
                (
                    header::HeaderName::from_static(FORMAT_HEADER),
                    HeaderValue::from_static(FORMAT),
                ),
            ],
            Body::from_stream(futures::stream::iter(lines(reading))),
        )
            .into_response(),
        Ok(Err(message)) => {
            tracing::warn!(%message, "records could not be read");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{message}\n")).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "reading records ended badly");
            (StatusCode::INTERNAL_SERVER_ERROR, "reading failed\n").into_response()
        }
    }
}

/// Records a chunk holds: large enough to be cheap, small enough for another task to run in between.
const CHUNK: usize = 256;

/// The lines in chunks, the end line last. An error cuts the answer off, which its reader notices.
fn lines(reading: Reading) -> impl Iterator<Item = Result<Bytes, serde_json::Error>> {
    let end = End {
        end: true,
        count: reading.records.len() as u64,
        corrupt: reading.corrupt,
    };
    let mut records = reading.records.into_iter();
    let chunks = std::iter::from_fn(move || {
        let chunk: Vec<NodeRecord> = records.by_ref().take(CHUNK).collect();
        (!chunk.is_empty()).then(|| {
            let mut bytes = Vec::new();
            for record in &chunk {
                serde_json::to_writer(&mut bytes, record)?;
                bytes.push(b'\n');
            }
            Ok(Bytes::from(bytes))
        })
    });
    chunks.chain(std::iter::once_with(move || {
        let mut bytes = serde_json::to_vec(&end)?;
        bytes.push(b'\n');
        Ok(Bytes::from(bytes))
    }))
}
