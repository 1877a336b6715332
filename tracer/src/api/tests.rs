#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::client::{Client, Error};
use super::server::{Access, Source, serve};
use super::*;
use crate::model::record::{GapKind, GapSeen, NodeRecord, Record};
use crate::store::Reading;

/// An agent with as many records as its count says once it has been flushed.
struct Stand {
    count: i64,
    flushed: AtomicUsize,
}

impl Stand {
    fn record(at: i64) -> NodeRecord {
        NodeRecord {
            node: "worker1".to_owned(),
            record: Record::Gap(GapSeen {
                from: Timestamp(at),
                to: Timestamp(at),
                what: GapKind::RecordsLost,
                count: 1,
            }),
        }
    }
}

impl Source for Stand {
    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.flushed.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn records(&self, from: Timestamp, _to: Timestamp) -> Result<Reading, String> {
        if from == Timestamp(13) {
            return Err("the disk is on fire".to_owned());
        }
        let count = if self.flushed.load(Ordering::SeqCst) > 0 {
            self.count
        } else {
            0
        };
        Ok(Reading {
            records: (0..count).map(Self::record).collect(),
            corrupt: 2,
        })
    }

    fn health(&self) -> Health {
        Health {
            ready: true,
            node: "worker1".to_owned(),
            tool_version: "0.1.0".to_owned(),
            since: Some(Timestamp(5)),
        }
    }
}

async fn agent(access: Access) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let source = Arc::new(Stand {
        count: 1000,
        flushed: AtomicUsize::new(0),
    });
    tokio::spawn(serve(listener, source, access, std::future::pending()));
    url
}

/// Answers one connection with these bytes, whatever it asks.
async fn says(bytes: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let read = socket.read(&mut request).await.unwrap();
        assert!(read > 0);
        socket.write_all(bytes.as_bytes()).await.unwrap();
    });
    url
}

fn client(url: &str, token: Option<&str>) -> Client {
    Client::new(url, token.map(str::to_owned), Duration::from_secs(5)).unwrap()
}

#[tokio::test]
async fn records_and_health_come_back_whole_after_a_flush() {
    let url = agent(Access::Token("geheim".into())).await;
    let client = client(&url, Some("geheim"));
    let reading = client.records(Timestamp(0), Timestamp(9)).await.unwrap();
    assert_eq!(
        reading.records,
        (0..1000).map(Stand::record).collect::<Vec<_>>()
    );
    assert_eq!(reading.corrupt, 2);
    let health = client.health().await.unwrap();
    assert_eq!((health.ready, health.node.as_str()), (true, "worker1"));
}

#[tokio::test]
async fn only_the_right_token_opens() {
    let url = agent(Access::Token("geheim".into())).await;
    for token in [None, Some("geheiM"), Some(""), Some("geheimnis")] {
        let error = client(&url, token).health().await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
        assert!(error.to_string().contains("--token-file"));
    }
    let open = agent(Access::Anybody).await;
    assert!(client(&open, None).health().await.is_ok());
}

#[tokio::test]
async fn a_failure_of_the_agent_is_told_in_its_words() {
    let url = agent(Access::Anybody).await;
    let client = client(&url, None);
    let error = client.records(Timestamp(13), Timestamp(14)).await;
    assert!(error.unwrap_err().to_string().contains("on fire"));
    let error = client.records(Timestamp(9), Timestamp(1)).await;
    assert!(matches!(error, Err(Error::Failed { status, .. }) if status == 400));
}

#[tokio::test]
async fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = client(&url, None).health().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }));
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}

#[tokio::test]
async fn somebody_who_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::new(&url, None, Duration::from_millis(50)).unwrap();
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn a_cut_off_answer_is_noticed_wherever_it_is_cut() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nslicetrace-format: 1\r\nconnection: close\r\n\r\n";
    let line = serde_json::to_string(&Stand::record(1)).unwrap();
    let whole = format!("{line}\n{line}\n{}\n", r#"{"end":true,"count":2}"#);
    for length in 0..=whole.len() {
        let answer: &'static str = format!("{HEAD}{}", &whole[..length]).leak();
        let result = client(&says(answer).await, None)
            .records(Timestamp(0), Timestamp(9))
            .await;
        match result {
            Ok(reading) => assert_eq!((length, reading.records.len()), (whole.len(), 2)),
            Err(Error::Truncated { .. }) => assert!(length < whole.len()),
            Err(other) => panic!("cut after {length}: {other}"),
        }
    }
}

#[tokio::test]
async fn strangers_are_told_apart() {
    let cases = [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            "format none",
        ),
        (
            "HTTP/1.1 200 OK\r\nslicetrace-format: 2\r\ncontent-length: 0\r\n\r\n",
            "format 2",
        ),
        (
            "HTTP/1.1 200 OK\r\nslicetrace-format: 1\r\ncontent-length: 3\r\n\r\n{}\n",
            "line 1",
        ),
        (
            "HTTP/1.1 200 OK\r\nslicetrace-format: 1\r\nconnection: close\r\n\r\n{\"end\":true,\"count\":3}\n",
            "counted 3",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", "agent http://"),
    ];
    for (answer, words) in cases {
        let error = client(&says(answer).await, None)
            .records(Timestamp(0), Timestamp(9))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn urls_are_checked_before_anything_is_sent() {
    for url in [
        "worker1:9754",
        "https://a",
        "http://",
        "http://a/x",
        "http://u:p@a",
        "",
    ] {
        let error = Client::new(url, None, Duration::from_secs(1)).unwrap_err();
        assert!(
            error.to_string().contains("http://HOST:PORT"),
            "{url}: {error}"
        );
    }
}
