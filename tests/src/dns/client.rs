//! `lab client`: asks at a steady rate, from a port of its own for each query or always from the same, and logs each
//! query's end. SIGTERM (or end of file on standard input) ends the asking; queries under way are waited for.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, MissedTickBehavior, timeout_at};

use super::log::{ClientLine, ClientResult, Log};
use crate::lab::now;

/// The first of the ports that are cycled through: above those of servers.
const FIRST_PORT: u16 = 20_000;
/// One after the last.
const END_PORT: u16 = 60_000;

/// Arguments of `lab client`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Whom to ask.
    #[arg(long, default_value = "10.43.0.10:53")]
    server: SocketAddr,
    /// Queries a second.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// How long to wait for each answer, in all.
    #[arg(long, default_value_t = 1000, value_name = "MILLISECONDS")]
    timeout: u64,
    /// Send the same packet again after this time, as often as it fits into the timeout.
    #[arg(long, value_name = "MILLISECONDS")]
    resend: Option<u64>,
    /// Ask from this port each time, instead of a fresh one.
    #[arg(long)]
    port: Option<u16>,
    /// Stop after so many queries.
    #[arg(long)]
    count: Option<u32>,
    /// Names asked for are q1.SUFFIX, q2.SUFFIX, …
    #[arg(long, default_value = "demo.test.")]
    suffix: String,
    /// Where to write what became of each query.
    #[arg(long)]
    log: PathBuf,
}

/// Asks until told to stop.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    LocalSet::new().run_until(ask_all(Rc::new(arguments))).await
}

async fn ask_all(arguments: Rc<Arguments>) -> Result<()> {
    let log = Rc::new(Log::create(&arguments.log)?);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / arguments.rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    println!("ready");
    let mut running = JoinSet::new();
    let mut number = 0u32;
    while arguments.count.is_none_or(|count| number < count) {
        tokio::select! {
            _ = terminate.recv() => break,
            // Two sockets cannot share a port and know whose answer is whose: one after the other then.
            _ = ticks.tick(), if arguments.port.is_none() || running.is_empty() => {}
            Some(ended) = running.join_next() => {
                ended.context("a query panicked")??;
                continue;
            }
        }
        number += 1;
        let (arguments, log) = (arguments.clone(), log.clone());
        running.spawn_local(async move { log.write(&ask(&arguments, number).await?) });
    }
    while let Some(ended) = running.join_next().await {
        ended.context("a query panicked")??;
    }
    Ok(())
}

/// One query, from its first packet to its end.
async fn ask(arguments: &Arguments, number: u32) -> Result<ClientLine> {
    let name = format!("q{number}.{}", arguments.suffix);
    // A multiplier that is odd visits every id before one comes again, and neighbours differ much.
    let txid = (number.wrapping_mul(40_503) & 0xffff) as u16;
    let mut message = Message::new(txid, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(&name)?, RecordType::A));
    let packet = message.to_vec()?;

    let socket = bind(arguments, number).await?;
    socket
        .connect(arguments.server)
        .await
        .with_context(|| format!("cannot connect to {}", arguments.server))?;
    let mut line = ClientLine {
        name,
        source: socket.local_addr()?,
        txid,
        sent: Vec::new(),
        sent_by: now(),
        ended: now(),
        result: ClientResult::TimedOut,
        errno: None,
        rcode: None,
    };
    let deadline = Instant::now() + Duration::from_millis(arguments.timeout);
    let mut buffer = vec![0; 4096];
    loop {
        line.sent.push(now());
        let sent = socket.send(&packet).await;
        line.sent_by = now();
        if let Err(error) = sent {
            line.result = ClientResult::SendFailed;
            line.errno = error.raw_os_error();
            break;
        }
        let resend = arguments
            .resend
            .map(|after| Instant::now() + Duration::from_millis(after));
        let until = resend.map_or(deadline, |resend| resend.min(deadline));
        match timeout_at(until, receive(&socket, &mut buffer, txid)).await {
            Ok(Ok(rcode)) => {
                line.result = ClientResult::Answered;
                line.rcode = Some(rcode);
                break;
            }
            Ok(Err(error)) => {
                line.result = ClientResult::Refused;
                line.errno = error.raw_os_error();
                break;
            }
            Err(_) if until < deadline => {}
            Err(_) => break,
        }
    }
    line.ended = now();
    Ok(line)
}

/// Waits for the answer of this id; others, and what is no DNS, are not it.
async fn receive(socket: &UdpSocket, buffer: &mut [u8], txid: u16) -> std::io::Result<u16> {
    loop {
        let length = socket.recv(buffer).await?;
        if let Ok(reply) = Message::from_vec(&buffer[..length])
            && reply.metadata.id == txid
            && reply.metadata.message_type == MessageType::Response
        {
            return Ok(u16::from(reply.metadata.response_code));
        }
    }
}

/// A socket on the port that is next, or on the one that was asked for.
async fn bind(arguments: &Arguments, number: u32) -> Result<UdpSocket> {
    let ports = u32::from(END_PORT - FIRST_PORT);
    let port = match arguments.port {
        Some(port) => port,
        None => FIRST_PORT + u16::try_from(number % ports).unwrap_or_default(),
    };
    let address = (Ipv4Addr::UNSPECIFIED, port);
    UdpSocket::bind(address)
        .await
        .with_context(|| format!("cannot bind port {port}"))
}
