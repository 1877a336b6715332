//! `lab dns-server`: answers A records over UDP and misbehaves on command, one command a line on standard input:
//! `answer` (healthy again), `silence`, `delay MILLISECONDS`, `rcode NAME`, `exit`.
//!
//! A graceful shutdown with lameduck is the absence of a command: it goes on answering until it is told to `exit`.
//! End of file on standard input changes nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType, rdata::A};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UdpSocket;

use super::log::{Log, ServerEvent, ServerLine};
use crate::lab::now;

/// The address that every name has.
const ANSWER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);

/// Arguments of `lab dns-server`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "0.0.0.0:53")]
    listen: SocketAddr,
    /// Where to write what was asked and answered.
    #[arg(long)]
    log: PathBuf,
}

/// How it treats queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Answer,
    Silence,
    Delay(Duration),
    Rcode(ResponseCode),
}

/// `None`: exit.
fn parse(command: &str) -> Result<Option<Mood>> {
    let mut words = command.split_ascii_whitespace();
    Ok(Some(match (words.next(), words.next()) {
        (Some("answer"), None) => Mood::Answer,
        (Some("silence"), None) => Mood::Silence,
        (Some("delay"), Some(milliseconds)) => {
            Mood::Delay(Duration::from_millis(milliseconds.parse()?))
        }
        (Some("rcode"), Some("SERVFAIL")) => Mood::Rcode(ResponseCode::ServFail),
        (Some("rcode"), Some("REFUSED")) => Mood::Rcode(ResponseCode::Refused),
        (Some("rcode"), Some("NXDOMAIN")) => Mood::Rcode(ResponseCode::NXDomain),
        (Some("exit"), None) => return Ok(None),
        _ => bail!("not a command of the DNS server: `{command}`"),
    }))
}

/// Serves until told to exit. Prints `ready` once the socket is bound.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let log = Arc::new(Log::create(&arguments.log)?);
    let socket = UdpSocket::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let socket = Arc::new(socket);
    println!("ready");
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let mut commands_open = true;
    let mut mood = Mood::Answer;
    let mut buffer = vec![0; 4096];
    loop {
        tokio::select! {
            line = commands.next_line(), if commands_open => match line? {
                None => commands_open = false,
                Some(line) => match parse(&line) {
                    Ok(Some(next)) => mood = next,
                    Ok(None) => return Ok(()),
                    Err(error) => eprintln!("lab dns-server: {error:#}"),
                },
            },
            received = socket.recv_from(&mut buffer) => {
                // A client that is gone shows as an error on the server's next receive: not the server's trouble.
                let Ok((length, client)) = received else { continue };
                let Ok(query) = Message::from_vec(&buffer[..length]) else { continue };
                let (socket, log) = (socket.clone(), log.clone());
                tokio::spawn(async move {
                    if let Err(error) = serve(&socket, &log, query, client, mood).await {
                        eprintln!("lab dns-server: {error:#}");
                    }
                });
            }
        }
    }
}

async fn serve(
    socket: &UdpSocket,
    log: &Log,
    query: Message,
    client: SocketAddr,
    mood: Mood,
) -> Result<()> {
    let Some(question) = query.queries.first() else {
        return Ok(());
    };
    let line = |event| ServerLine {
        at: now(),
        event,
        client,
        txid: query.metadata.id,
        name: question.name().to_ascii(),
    };
    log.write(&line(ServerEvent::Received))?;
    match mood {
        Mood::Silence => return Ok(()),
        Mood::Delay(delay) => tokio::time::sleep(delay).await,
        Mood::Answer | Mood::Rcode(_) => {}
    }
    let reply = answer(&query, mood)
        .to_vec()
        .context("cannot encode an answer")?;
    socket.send_to(&reply, client).await?;
    log.write(&line(ServerEvent::Answered))
}

/// NOERROR with one A record; without records for other types; or the error that was ordered.
fn answer(query: &Message, mood: Mood) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.message_type = MessageType::Response;
    reply.metadata.authoritative = true;
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.add_queries(query.queries.iter().cloned());
    if let Mood::Rcode(code) = mood {
        reply.metadata.response_code = code;
        return reply;
    }
    for question in &query.queries {
        if question.query_type() == RecordType::A {
            let data = RData::A(A(ANSWER));
            reply.add_answer(Record::from_rdata(question.name().clone(), 5, data));
        }
    }
    reply
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test's panic names the line")]
mod tests {
    use hickory_proto::op::{OpCode, Query};
    use hickory_proto::rr::Name;

    use super::*;

    fn query(kind: RecordType) -> Message {
        let mut query = Message::new(4711, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(
            Name::from_ascii("q1.demo.test.").unwrap(),
            kind,
        ));
        query
    }

    #[test]
    fn an_answer_repeats_id_and_question_and_has_the_record() {
        let reply = answer(&query(RecordType::A), Mood::Answer);
        let reply = Message::from_vec(&reply.to_vec().unwrap()).unwrap();
        assert_eq!(reply.metadata.id, 4711);
        assert_eq!(reply.metadata.message_type, MessageType::Response);
        assert_eq!(reply.queries.len(), 1);
        assert_eq!(reply.answers.len(), 1);
        assert!(
            answer(&query(RecordType::AAAA), Mood::Answer)
                .answers
                .is_empty()
        );
    }

    #[test]
    fn an_ordered_error_is_answered() {
        let mood = parse("rcode SERVFAIL").unwrap().unwrap();
        let reply = answer(&query(RecordType::A), mood);
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert!(reply.answers.is_empty());
    }

    #[test]
    fn commands_are_understood_or_refused() {
        assert_eq!(
            parse("delay 20").unwrap(),
            Some(Mood::Delay(Duration::from_millis(20)))
        );
        assert_eq!(parse("exit").unwrap(), None);
        assert!(parse("dance").is_err());
        assert!(parse("delay soon").is_err());
    }
}
