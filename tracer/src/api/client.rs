//! Asking an agent. Every error says which agent, what happened and what to do.

use std::time::Duration;

use futures::StreamExt as _;
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;

use super::{End, FORMAT, FORMAT_HEADER, Health};
use crate::model::Timestamp;
use crate::model::record::NodeRecord;
use crate::store::Reading;

/// A line longer than this is no record.
const LONGEST_LINE: usize = 16 << 20;

/// Why an agent gave no (whole) answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not an agent's URL.
    #[error("`{url}` is not an agent's URL ({reason}); write http://HOST:PORT")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing listens there.
    #[error(
        "agent {agent}: connection refused or no route ({reason}); check that the agent runs and the port is right"
    )]
    Unreachable {
        /// Its URL.
        agent: String,
        /// What the system said.
        reason: String,
    },
    /// No answer in time.
    #[error("agent {agent}: no whole answer within {} s; ask for a shorter time, or check the node", deadline.as_secs())]
    Timeout {
        /// Its URL.
        agent: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// Wrong token, or none.
    #[error(
        "agent {agent}: wants a bearer token, or another one; give --token-file FILE with the agent's token"
    )]
    Unauthorized {
        /// Its URL.
        agent: String,
    },
    /// It answered with a failure.
    #[error("agent {agent}: answered {status}: {message}")]
    Failed {
        /// Its URL.
        agent: String,
        /// HTTP status.
        status: StatusCode,
        /// The agent's words.
        message: String,
    },
    /// What answers there speaks another format.
    #[error(
        "agent {agent}: speaks record format {found}, this slicetrace {FORMAT}; use the same version on both sides"
    )]
    Version {
        /// Its URL.
        agent: String,
        /// Its format, or `none`.
        found: String,
    },
    /// A line is not a record.
    #[error(
        "agent {agent}: line {line} of its answer is not a record ({reason}); is it an agent of this version?"
    )]
    Malformed {
        /// Its URL.
        agent: String,
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The answer ended early.
    #[error("agent {agent}: its answer was cut off after {got} records ({reason}); try again")]
    Truncated {
        /// Its URL.
        agent: String,
        /// Records until then.
        got: u64,
        /// What is known of it.
        reason: String,
    },
}

/// One agent.
#[derive(Clone, Debug)]
pub struct Client {
    base: Url,
    agent: String,
    token: Option<String>,
    deadline: Duration,
    http: reqwest::Client,
}

impl Client {
    /// An agent by its URL, such as `http://127.0.0.1:9754`; `deadline` bounds a whole answer.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn new(url: &str, token: Option<String>, deadline: Duration) -> Result<Self, Error> {
        let fail = |reason: String| Error::Url {
            url: url.to_owned(),
            reason,
        };
        let base = Url::parse(url).map_err(|error| fail(error.to_string()))?;
        if base.scheme() != "http" {
            return Err(fail(format!("scheme `{}`, not `http`", base.scheme())));
        }
        if base.host_str().is_none_or(str::is_empty) {
            return Err(fail("it has no host".to_owned()));
        }
        if base.path() != "/" || base.query().is_some() || base.fragment().is_some() {
            return Err(fail("it has a path".to_owned()));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(fail("it has a password in it; use --token-file".to_owned()));
        }
        // Proxies of the environment are for the way out, not for a node's loopback.
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(deadline)
            .connect_timeout(deadline.min(Duration::from_secs(5)))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| fail(error.to_string()))?;
        Ok(Self {
            agent: url.trim_end_matches('/').to_owned(),
            base,
            token,
            deadline,
            http,
        })
    }

    /// Its URL, as given.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// How it is.
    ///
    /// # Errors
    /// When it does not answer, or not as an agent.
    pub async fn health(&self) -> Result<Health, Error> {
        let response = self.get("/v1/health", &[]).await?;
        let body = response
            .bytes()
            .await
            .map_err(|error| self.broken(&error, 0))?;
        serde_json::from_slice(&body).map_err(|error| Error::Malformed {
            agent: self.agent.clone(),
            line: 1,
            reason: error.to_string(),
        })
    }

    /// The records that it needs to judge everything between two times: all of them, or an error.
    ///
    /// # Errors
    /// When it does not answer, not as an agent of this version, or not wholly.
    pub async fn records(&self, from: Timestamp, to: Timestamp) -> Result<Reading, Error> {
        let range = [("from", from.to_string()), ("to", to.to_string())];
        let response = self.get("/v1/records", &range).await?;
        let format = response
            .headers()
            .get(FORMAT_HEADER)
            .map_or("none".into(), |value| {
                String::from_utf8_lossy(value.as_bytes()).into_owned()
            });
        if format != FORMAT {
            return Err(Error::Version {
                agent: self.agent.clone(),
                found: format,
            });
        }
        self.lines(response).await
    }

    async fn lines(&self, response: Response) -> Result<Reading, Error> {
        let mut reading = Reading::default();
        let mut rest = Vec::new();
        let mut end: Option<End> = None;
        let mut stream = response.bytes_stream();
        while let Some(chunk) = stream.next().await {
            let got = reading.records.len() as u64;
            rest.extend_from_slice(&chunk.map_err(|error| self.broken(&error, got))?);
            let mut start = 0;
            while let Some(length) = rest[start..].iter().position(|byte| *byte == b'\n') {
                let line = &rest[start..start + length];
                start += length + 1;
                if end.is_some() {
                    return Err(self.malformed(&reading, "lines follow the end line"));
                }
                match self.line(line, &reading)? {
                    Parsed::Record(record) => reading.records.push(record),
                    Parsed::End(found) => end = Some(found),
                }
            }
            rest.drain(..start);
            if rest.len() > LONGEST_LINE {
                return Err(self.malformed(&reading, "it is endless"));
            }
        }
        let got = reading.records.len() as u64;
        match end {
            Some(end) if end.count == got && rest.is_empty() => {
                reading.corrupt = end.corrupt;
                Ok(reading)
            }
            Some(end) => Err(Error::Truncated {
                agent: self.agent.clone(),
                got,
                reason: format!("it counted {}", end.count),
            }),
            None => Err(Error::Truncated {
                agent: self.agent.clone(),
                got,
                reason: "no end line".to_owned(),
            }),
        }
    }

    fn line(&self, line: &[u8], before: &Reading) -> Result<Parsed, Error> {
        match serde_json::from_slice::<NodeRecord>(line) {
            Ok(record) => Ok(Parsed::Record(record)),
            Err(error) => match serde_json::from_slice::<Value>(line) {
                Ok(value) if value.get("end") == Some(&Value::Bool(true)) => {
                    serde_json::from_value(value)
                        .map(Parsed::End)
                        .map_err(|error| self.malformed(before, &error.to_string()))
                }
                _ => Err(self.malformed(before, &error.to_string())),
            },
        }
    }

    fn malformed(&self, before: &Reading, reason: &str) -> Error {
        Error::Malformed {
            agent: self.agent.clone(),
            line: before.records.len() as u64 + 1,
            reason: reason.to_owned(),
        }
    }

    async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Error> {
        let mut url = self.base.clone();
        url.set_path(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(|error| self.unsent(&error))?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            return Err(Error::Unauthorized {
                agent: self.agent.clone(),
            });
        }
        if !status.is_success() {
            let message = response.text().await.unwrap_or_default();
            let message: String = message.trim().chars().take(300).collect();
            return Err(Error::Failed {
                agent: self.agent.clone(),
                status,
                message,
            });
        }
        Ok(response)
    }

    fn unsent(&self, error: &reqwest::Error) -> Error {
        if error.is_timeout() {
            return Error::Timeout {
                agent: self.agent.clone(),
                deadline: self.deadline,
            };
        }
        Error::Unreachable {
            agent: self.agent.clone(),
            reason: innermost(error),
        }
    }

    fn broken(&self, error: &reqwest::Error, got: u64) -> Error {
        if error.is_timeout() {
            return self.unsent(error);
        }
        Error::Truncated {
            agent: self.agent.clone(),
            got,
            reason: innermost(error),
        }
    }
}

enum Parsed {
    Record(NodeRecord),
    End(End),
}

/// The cause at the bottom: reqwest's own words repeat the URL and hide the reason.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
