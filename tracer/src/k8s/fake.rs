//! An API server for tests that speaks HTTP by hand, so that it can misbehave at any byte.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What the server does in the course of one watch.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// One event in a chunk of its own.
    Event(Value),
    /// One line that is no event.
    Line(&'static str),
    /// The first half of an event, in a whole chunk.
    Half(Value),
    /// A chunk that ends before its announced length.
    ShortChunk(Value),
    /// Nothing, for so long.
    Silence(Duration),
    /// An orderly end of the response.
    End,
    /// The connection is closed.
    Cut,
}

/// What a request is answered with.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// A list's items and resourceVersion.
    List(Vec<Value>, &'static str),
    /// A failure with this HTTP status.
    Failure(u16),
    /// A watch.
    Watch(Vec<Step>),
}

/// What the server has in store, by the last part of the path. Once it has run out, lists fail and watches are silent.
#[derive(Default)]
pub(super) struct Script {
    pub(super) lists: HashMap<&'static str, VecDeque<Reply>>,
    pub(super) watches: HashMap<&'static str, VecDeque<Reply>>,
    /// resourceVersion of each watch of EndpointSlices.
    pub(super) watched_from: Vec<String>,
    /// Target of every request.
    pub(super) queries: Vec<String>,
}

/// A running server. It lives as long as the test's runtime.
pub(super) struct Server {
    pub(super) script: Arc<Mutex<Script>>,
    pub(super) url: String,
}

impl Server {
    pub(super) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Arc::new(Mutex::new(script));
        let shared = Arc::clone(&script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { script, url }
    }
}

/// Answers requests until the connection ends; an error only means that the other side went first.
async fn serve(stream: TcpStream, script: Arc<Mutex<Script>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut request = String::new();
        if stream.read_line(&mut request).await.ok()? == 0 {
            return None;
        }
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await.ok()?;
            if header.trim().is_empty() {
                break;
            }
        }
        let reply = script.lock().unwrap().reply(&request);
        match reply {
            Reply::List(items, version) => {
                let body = json!({
                    "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items
                });
                answer(&mut stream, "200 OK", &body).await?;
            }
            Reply::Failure(code) => {
                let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "injected"});
                answer(&mut stream, &format!("{code} Injected"), &body).await?;
            }
            Reply::Watch(steps) => play(&mut stream, steps).await?,
        }
    }
}

async fn answer(stream: &mut BufReader<TcpStream>, status: &str, body: &Value) -> Option<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.ok()
}

async fn play(stream: &mut BufReader<TcpStream>, steps: Vec<Step>) -> Option<()> {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.ok()?;
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    for step in steps {
        match step {
            Step::Event(event) => stream
                .write_all(chunk(&format!("{event}\n")).as_bytes())
                .await
                .ok()?,
            Step::Line(line) => stream
                .write_all(chunk(&format!("{line}\n")).as_bytes())
                .await
                .ok()?,
            Step::Half(event) => {
                let text = event.to_string();
                let half = chunk(&text[..text.len() / 2]);
                stream.write_all(half.as_bytes()).await.ok()?;
            }
            Step::ShortChunk(event) => {
                let text = event.to_string();
                let short = format!("{:x}\r\n{}", text.len() + 1, &text[..text.len() / 2]);
                stream.write_all(short.as_bytes()).await.ok()?;
                return None;
            }
            Step::Silence(time) => tokio::time::sleep(time).await,
            Step::End => return stream.write_all(b"0\r\n\r\n").await.ok(),
            Step::Cut => return None,
        }
    }
    std::future::pending().await
}

impl Script {
    fn reply(&mut self, request: &str) -> Reply {
        let target = request.split(' ').nth(1).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let resource = path.rsplit('/').next().unwrap();
        self.queries.push(target.to_owned());
        let watch = query.contains("watch=true");
        if watch && resource == "endpointslices" {
            let version = query
                .split('&')
                .find_map(|part| part.strip_prefix("resourceVersion="));
            self.watched_from
                .push(version.unwrap_or_default().to_owned());
        }
        let stored = if watch {
            &mut self.watches
        } else {
            &mut self.lists
        };
        let next = stored.get_mut(resource).and_then(VecDeque::pop_front);
        next.unwrap_or(if watch {
            Reply::Watch(vec![])
        } else {
            Reply::Failure(503)
        })
    }
}
