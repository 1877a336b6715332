//! The agent's life: start in order, turn, drain.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::Error;
use super::addresses::Addresses;
use super::apiwatch::ApiWatch;
use super::config::{Config, RecordWhat};
use super::pump::Pump;
use super::ready;
use super::view::View;
use super::writer::{self, Bounds, Writer};
use crate::api::server;
use crate::bpf::{self, Capture, Sizes};
use crate::correlate::attempts::{Assembler, Limits};
use crate::k8s::{self, WatchConfig};
use crate::model::Timestamp;
use crate::model::record::{GapKind, GapSeen, NodeInfo, Record};
use crate::node::cgroups::{self, Cgroups};
use crate::node::clock::Clock;
use crate::node::netns::{NetnsChange, NetnsSet};
use crate::node::owners::Owners;
use crate::node::rules::dataplane::Dataplane;
use crate::node::rules::{RuleEvent, RuleListener};
use crate::node::{clock, conntrack};
use crate::store::{Lock, Store};

/// How often the kernel's logs are read. A log must not be overwritten within it: 4,096 packets at sockets a CPU are
/// 200,000 a second.
const TURN: Duration = Duration::from_millis(20);
/// How often the node itself is looked at: clock, namespaces, new cgroups, counters.
const LOOK: Duration = Duration::from_secs(1);
/// Every how many looks the data plane is asked for again: it may be replaced under us.
const DATAPLANE_LOOKS: u32 = 60;
/// How long running answers of the agent's API may take when it stops.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long the last write may take: Kubernetes kills a pod half a minute after it told it to stop.
const LAST_WRITE: Duration = Duration::from_secs(15);
/// VXLAN's port as assigned by IANA (RFC 7348), and as used by Linux, flannel and Cilium.
const VXLAN_PORTS: [u16; 2] = [8472, 4789];

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start: what failed and what to do.
pub async fn run(config: Config) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut agent = Agent::start(config).await?;
    let mut turn = interval(TURN);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = turn.tick() => agent.turn(),
            _ = look.tick() => agent.look(),
            Some(event) = agent.api.recv() => agent.heard(event),
            Some(event) = agent.rules.recv() => agent.rule(event),
            Some(done) = agent.flushes.recv() => {
                agent.pump.count_losses();
                agent.turn();
                let rows = agent.pump.traffic(agent.clock.now());
                agent.writer.write(rows);
                agent.view.unreplied(agent.pump.unreplied());
                // What is still open is in the answer too, as it stands.
                agent.write_info(agent.clock.now());
                // Nobody waits any more: fine.
                let _ = done.send(());
            }
        }
    }
    info!("stopping: writing what is left");
    agent.stop().await;
    Ok(())
}

struct Agent {
    config: Config,
    clock: Arc<Clock>,
    pump: Pump,
    addresses: Addresses,
    addresses_revision: u64,
    netns: NetnsSet,
    cgroups: Arc<Cgroups>,
    owners: Owners,
    api_watch: ApiWatch,
    api: mpsc::Receiver<k8s::ApiEvent>,
    rules: mpsc::UnboundedReceiver<RuleEvent>,
    listener: Option<RuleListener>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    view: Arc<View>,
    writer: Writer,
    writer_thread: writer::WriterThread,
    info: NodeInfo,
    is_ready: bool,
    looks: u32,
    /// Packets of some addresses have not been recorded since then.
    unwatched_since: Option<Timestamp>,
    /// The last look for the data plane failed, and that was said.
    dataplane_unknown: bool,
    stop_server: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
    connector: tokio::task::JoinHandle<()>,
    /// Nobody else writes to the store for as long as this lives.
    _lock: Lock,
}

impl Agent {
    /// In this order, so that nothing is missed: the store (what was known), the programs, the rules, the API. Before
    /// them whatever only one agent can have: a second one must not touch what the first is using.
    async fn start(config: Config) -> Result<Self, Error> {
        let clock = Arc::new(Clock::new()?);
        let listen = |source| Error::Listen {
            address: config.listen,
            source,
        };
        let tcp = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = tcp.local_addr().map_err(listen)?;
        if let Some(file) = &config.ready_file {
            ready::clear(file).map_err(|source| Error::ReadyFile {
                path: file.clone(),
                source,
            })?;
        }
        let cgroup_root: PathBuf = match &config.cgroup {
            Some(directory) => directory.clone(),
            None => cgroups::mount()?,
        };
        let cgroups = Arc::new(Cgroups::new(cgroup_root.clone())?);
        let lock = Lock::take(&config.db)?;
        let store = Store::open(&config.db)?;
        let known = store.known_addresses()?;
        let known_slices = store.known_slices(&config.node)?;
        let last = store.recorded_until(&config.node)?;

        let mut addresses = Addresses::new(
            config.services.first().map_or("", String::as_str),
            config.extra_frontends.iter().copied(),
        );
        addresses.remember(known);

        let mut capture = Capture::start(&bpf::Options {
            cgroup_root: cgroup_root.clone(),
            netns_scope: !config.netns.is_empty(),
            vxlan_ports: VXLAN_PORTS.to_vec(),
            sizes: Sizes::default(),
        })?;
        capture.watch(&addresses.watched())?;
        let mut netns = NetnsSet::new(config.netns.clone())?;
        netns.scan()?;
        capture.scope(&inodes(&netns))?;
        if !config.netns.is_empty() && netns.found().is_empty() {
            warn!(
                "no network namespace is called {} yet: nothing is recorded on devices until one is",
                config.netns.join(" or ")
            );
        }
        for (hook, reason) in capture.missing_hooks() {
            warn!("the hook {hook} is not attached, what it would show stays unknown: {reason}");
        }
        let started = clock.now();

        let (rule_sender, rules) = mpsc::unbounded_channel();
        let rule_clock = Arc::clone(&clock);
        let listener = RuleListener::start(
            move || rule_clock.now(),
            // The receiver is gone only when the agent stops.
            move |event| drop(rule_sender.send(event)),
        )
        .inspect_err(|error| warn!("{error}; rule changes will be told from new flows instead"))
        .ok();
        let limits = Limits {
            record_all: config.record == RecordWhat::All,
            ..Limits::default()
        };
        let assembler = Assembler::new(started, conntrack::timeouts(), limits);
        let mut pump = Pump::new(capture, assembler, started);
        pump.services(addresses.services());
        let info = NodeInfo {
            started,
            last_record_at: started,
            kernel: clock::kernel_release(),
            boot_id: clock::boot_id(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            dataplane: None,
            hooks: BTreeMap::new(),
            missing_hooks: pump.capture().missing_hooks().clone(),
            lost: Default::default(),
            hears_rules: false,
            records_all: config.record == RecordWhat::All,
        };

        let bounds = Bounds {
            keep_for: config.keep_for,
            keep_bytes: config.keep_bytes,
        };
        let (writer, writer_thread) =
            writer::start(config.node.clone(), store, bounds, Arc::clone(&clock))
                .map_err(Error::Thread)?;
        if let Some(last) = last {
            if last > started {
                warn!(
                    "{} has records up to {last}, after now: was the clock set back? Times in between are ambiguous",
                    config.db.display()
                );
            }
            let gap = GapSeen {
                from: last.min(started),
                to: started,
                what: GapKind::AgentDown,
                count: 0,
            };
            writer.write(vec![Record::Gap(gap)]);
        }

        let watch = WatchConfig {
            services: config.services.clone(),
            node: config.node.clone(),
            extra_frontends: config.extra_frontends.clone(),
            known_slices,
        };
        let api_watch = ApiWatch::new(watch.all(), started);
        let (api_sender, api) = mpsc::channel(1024);
        let connector = tokio::spawn(connect(
            config.api.clone(),
            watch,
            Arc::clone(&clock),
            api_sender,
        ));

        let (flush_sender, flushes) = mpsc::channel(8);
        let view = Arc::new(View::new(
            config.node.clone(),
            config.db.clone(),
            Arc::clone(&clock),
            writer.clone(),
            flush_sender,
        ));
        view.attached(started);
        let (stop_server, stopped) = oneshot::channel();
        let source: Arc<dyn server::Source> = Arc::<View>::clone(&view);
        let server = tokio::spawn(server::serve(tcp, source, config.access.clone(), async {
            // A dropped sender means stop as well.
            let _ = stopped.await;
        }));
        info!(
            "recording on {}: {} under {}, API of the agent on {}",
            config.node,
            config.services.join(", "),
            cgroup_root.display(),
            address
        );
        let mut agent = Self {
            owners: Owners::new(Arc::clone(&cgroups)),
            cgroups,
            config,
            clock,
            pump,
            addresses_revision: 0,
            addresses,
            netns,
            api_watch,
            api,
            rules,
            listener,
            flushes,
            view,
            writer,
            writer_thread,
            info,
            is_ready: false,
            looks: 0,
            unwatched_since: None,
            dataplane_unknown: false,
            stop_server,
            server,
            connector,
            _lock: lock,
        };
        agent.view.broken_since(agent.api_watch.broken_since());
        agent.detect_dataplane();
        agent.watch_addresses();
        agent.write_info(started);
        Ok(agent)
    }

    fn turn(&mut self) {
        let records = self
            .pump
            .turn(self.clock.now(), self.clock.wall(0).0, &self.owners);
        self.writer.write(records);
    }

    fn look(&mut self) {
        match self.clock.resample() {
            Ok(None) => {}
            Ok(Some(step)) => {
                let milliseconds = (step.new_offset_ns - step.old_offset_ns) / 1_000_000;
                warn!(
                    "this node's wall clock was set by {milliseconds} ms; what was in flight is given up"
                );
                self.stepped(step.at - (step.new_offset_ns - step.old_offset_ns), step.at);
            }
            Err(error) => warn!("{error}"),
        }
        match self.netns.scan() {
            Ok(change) if change == NetnsChange::default() => {}
            Ok(_) => {
                if let Err(error) = self.pump.capture().scope(&inodes(&self.netns)) {
                    warn!("new network namespaces are not recorded: {error}");
                }
            }
            Err(error) => warn!("{error}"),
        }
        if let Err(error) = self.cgroups.refresh() {
            warn!("{error}");
        }
        if let Err(error) = self.pump.capture().refresh_children() {
            warn!("{error}");
        }
        self.looks += 1;
        if self.info.dataplane.is_none() || self.looks.is_multiple_of(DATAPLANE_LOOKS) {
            self.detect_dataplane();
        }
        self.addresses.expire(self.clock.now());
        self.watch_addresses();
        let now = self.clock.now();
        let outage = self.api_watch.outage(now);
        self.writer.write(outage.into_iter().collect());
        if let Some(from) = &mut self.unwatched_since {
            let gap = GapSeen {
                from: std::mem::replace(from, now),
                to: now,
                what: GapKind::RecordsLost,
                count: 0,
            };
            self.writer.write(vec![Record::Gap(gap)]);
        }
        self.write_info(self.pump.complete_until());
    }

    /// The wall clock jumped: times before and after cannot be compared, so whatever spans the jump is unknown.
    fn stepped(&mut self, before: Timestamp, after: Timestamp) {
        let records = self.pump.restart(before, after);
        self.writer.write(records);
        if self.info.started > after {
            // A run does not end before it began.
            self.info.started = after;
        }
    }

    /// Finds out who translates Service addresses here, and so whether silence on netlink means that no rule changed.
    fn detect_dataplane(&mut self) {
        match Dataplane::detect() {
            Ok(found) => {
                self.info.hears_rules = self.listener.is_some() && found.announces_all();
                self.info.dataplane = found.name();
                self.dataplane_unknown = false;
            }
            Err(error) => {
                // It is asked for again each second.
                if !std::mem::replace(&mut self.dataplane_unknown, true) {
                    warn!("who translates Service addresses here is unknown: {error}");
                }
                self.info.hears_rules = false;
            }
        }
    }

    fn heard(&mut self, event: k8s::ApiEvent) {
        let now = self.clock.now();
        let record = self
            .api_watch
            .take(event, now, &mut self.addresses, &self.owners);
        self.view.broken_since(self.api_watch.broken_since());
        self.watch_addresses();
        if let Some(record) = record {
            self.writer.write(vec![record]);
        }
        if !self.is_ready && self.api_watch.complete() {
            self.is_ready = true;
            self.view.ready();
            info!("ready: attached, and the first lists of the API are in");
            if let Some(file) = &self.config.ready_file
                && let Err(error) = ready::tell(file)
            {
                warn!(
                    "the ready file {} cannot be written: {error}; whoever waits for it waits for ever",
                    file.display()
                );
            }
        }
    }

    fn rule(&mut self, event: RuleEvent) {
        let record = match event {
            RuleEvent::Commit(commit) => Record::Rules(commit),
            RuleEvent::Lost { from, to, count } => Record::Gap(GapSeen {
                from,
                to,
                what: GapKind::RecordsLost,
                count,
            }),
            RuleEvent::Deaf { reason, .. } => {
                warn!("rule changes are not heard any more: {reason}");
                self.listener = None;
                self.info.hears_rules = false;
                return;
            }
        };
        self.writer.write(vec![record]);
    }

    /// Hands changed addresses to everybody who filters by them.
    fn watch_addresses(&mut self) {
        if self.addresses.revision() == self.addresses_revision {
            return;
        }
        let watched = self.addresses.watched();
        match self.pump.capture().watch(&watched) {
            Ok(()) => {
                self.addresses_revision = self.addresses.revision();
                self.unwatched_since = None;
            }
            // Tried again at each look, which leaves a gap.
            Err(error) if self.unwatched_since.is_none() => {
                warn!("{error}");
                self.unwatched_since = Some(self.clock.now());
            }
            Err(_) => {}
        }
        self.pump.services(self.addresses.services());
        if let Some(listener) = &self.listener {
            let ips: HashSet<_> = watched.iter().map(|address| address.ip()).collect();
            let earlier = listener.watch(ips);
            self.writer
                .write(earlier.into_iter().map(Record::Rules).collect());
        }
        self.writer.remember(self.addresses.known(self.clock.now()));
    }

    /// Facts and counters. `until`: everything that happened before it has been handed to the writer.
    fn write_info(&mut self, until: Timestamp) {
        self.info.last_record_at = until.max(self.info.started);
        self.info.hooks = self.pump.capture().hooks();
        self.info.lost = self.pump.capture().lost();
        self.writer.write(vec![Record::Node(self.info.clone())]);
    }

    /// Nothing that was observed is left behind: what waits in a queue is taken in, what is open is handed out, and only
    /// then the store is closed.
    async fn stop(mut self) {
        if let Some(file) = &self.config.ready_file
            && let Err(error) = ready::clear(file)
        {
            warn!(
                "the ready file {} cannot be removed: {error}; remove it",
                file.display()
            );
        }
        self.connector.abort();
        while let Ok(event) = self.api.try_recv() {
            self.heard(event);
        }
        while let Ok(event) = self.rules.try_recv() {
            self.rule(event);
        }
        self.turn();
        let now = self.clock.now();
        self.write_info(now);
        let outage = self.api_watch.outage_until(now);
        self.writer.write(outage.into_iter().collect());
        let records = self.pump.drain(now, self.clock.wall(0).0, &self.owners);
        self.writer.write(records);
        // An error means that the server has ended by itself.
        let _ = self.stop_server.send(());
        self.flushes.close();
        let mut server = self.server;
        if tokio::time::timeout(GOODBYE, &mut server).await.is_err() {
            warn!("an answer of the agent's API was cut off");
            server.abort();
        }
        drop(self.listener);
        self.writer.stop();
        let thread = self.writer_thread;
        if tokio::time::timeout(LAST_WRITE, thread.join())
            .await
            .is_err()
        {
            warn!(
                "{} could not be written within {} s; the last records are lost",
                self.config.db.display(),
                LAST_WRITE.as_secs()
            );
        }
    }
}

fn inodes(netns: &NetnsSet) -> BTreeSet<u32> {
    netns.found().keys().copied().collect()
}

/// Connects to the API, however long it takes, and keeps its watches running.
async fn connect(
    options: k8s::ApiOptions,
    watch: WatchConfig,
    clock: Arc<Clock>,
    sender: mpsc::Sender<k8s::ApiEvent>,
) {
    let mut wait = Duration::from_secs(1);
    let client = loop {
        match k8s::connect(&options).await {
            Ok(client) => break client,
            Err(error) => {
                warn!(
                    "{error}; trying again in {} s, recording what is known meanwhile",
                    wait.as_secs()
                );
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(30));
            }
        }
    };
    let now: Box<dyn Fn() -> Timestamp + Send + Sync> = Box::new(move || clock.now());
    match k8s::start(&client, &watch, now, sender) {
        Ok(mut watches) => watches.ended().await,
        Err(error) => warn!("nothing is watched: {error}"),
    }
}
