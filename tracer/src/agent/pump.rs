//! From the kernel's logs to records: reads, assembles, copies trails out before they are overwritten, notices losses.

use std::collections::HashMap;
use std::net::SocketAddr;

use tracing::warn;

use crate::bpf::Capture;
use crate::correlate::attempts::{Assembler, Owners};
use crate::model::Timestamp;
use crate::model::event::Event;
use crate::model::record::{GapKind, GapSeen, Lost, Record};

/// Rows of healthy attempts are taken when their second is this old: their flights have ended by then.
const TRAFFIC_DELAY_NS: i64 = 2_000_000_000;
/// How often the counters of losses are looked at.
const LOSSES_NS: i64 = 200_000_000;
/// Trails of unanswered attempts are copied out when the hop log is this close to overwriting them.
const TRAIL_MARGIN_NS: i64 = 1_000_000_000;

/// Turns what the kernel logged into records.
#[derive(Debug)]
pub(super) struct Pump {
    capture: Capture,
    assembler: Assembler,
    events: Vec<Event>,
    lost: Lost,
    /// When everything up to it had been read.
    read_until: Timestamp,
    /// When the counters of losses were last looked at.
    whole_until: Timestamp,
    /// The next turn looks at them, however short it is ago.
    count_now: bool,
}

impl Pump {
    /// Starts at `now`.
    pub(super) fn new(capture: Capture, assembler: Assembler, now: Timestamp) -> Self {
        let lost = capture.lost();
        Self {
            capture,
            assembler,
            events: Vec::new(),
            lost,
            read_until: now,
            whole_until: now,
            count_now: false,
        }
    }

    /// The attached programs.
    pub(super) const fn capture(&mut self) -> &mut Capture {
        &mut self.capture
    }

    /// Says which Service each watched address belongs to.
    pub(super) fn services(&mut self, services: HashMap<SocketAddr, String>) {
        self.assembler.services(services);
    }

    /// The next turn's records are all that somebody gets to see: they have to say what was lost until then.
    pub(super) const fn count_losses(&mut self) {
        self.count_now = true;
    }

    /// Reads the logs once; returns what became of it. Call it every few dozen milliseconds.
    pub(super) fn turn(
        &mut self,
        now: Timestamp,
        clock_offset_ns: i64,
        owners: &dyn Owners,
    ) -> Vec<Record> {
        let mut records = Vec::new();
        let stats = self.capture.read(clock_offset_ns, &mut self.events);
        if stats.malformed > 0 {
            warn!(
                "{} slots of the kernel's logs made no sense and were left out",
                stats.malformed
            );
        }
        for event in self.events.drain(..) {
            self.assembler.feed(event, owners);
        }
        self.losses(now, stats.overwritten > 0, &mut records);

        if let (Some(pending), Some(horizon)) = (
            self.assembler.pending_since(),
            self.capture.hop_horizon(clock_offset_ns),
        ) && horizon + TRAIL_MARGIN_NS > pending
        {
            self.assembler.want_pending();
        }
        let (wanted, since) = self.assembler.wanted();
        if !wanted.is_empty() {
            let (packets, lost) = self.capture.trails(&wanted, since, clock_offset_ns);
            self.assembler.hops(packets, lost);
        }

        let flights = self.assembler.advance(now);
        records.extend(
            flights
                .into_iter()
                .map(|flight| Record::Flight(Box::new(flight))),
        );
        let traffic = self.assembler.traffic(now - TRAFFIC_DELAY_NS);
        records.extend(traffic.into_iter().map(Record::Traffic));
        records.extend(self.assembler.lost().map(Record::Gap));
        self.read_until = now;
        records
    }

    /// The wall clock jumped from `before` to `after` a moment ago. What was open is given up: neither its age nor the order
    /// of its events can be told any more.
    pub(super) fn restart(&mut self, before: Timestamp, after: Timestamp) -> Vec<Record> {
        let oldest = self.assembler.complete_until(before);
        let flights = self.assembler.restart(before, after);
        let mut records: Vec<Record> = flights
            .into_iter()
            .map(|flight| Record::Flight(Box::new(flight)))
            .collect();
        records.extend(self.traffic(before));
        let gap = GapSeen {
            from: oldest.min(after),
            to: before.max(after),
            what: GapKind::RecordsLost,
            count: 0,
        };
        records.push(Record::Gap(gap));
        self.read_until = after;
        self.whole_until = after;
        records
    }

    /// Everything that happened before this has been handed out.
    pub(super) fn complete_until(&self) -> Timestamp {
        self.assembler.complete_until(self.read_until)
    }

    /// Queries that wait in a server of this node ([`Assembler::unreplied`]).
    pub(super) fn unreplied(&self) -> Vec<Record> {
        let flights = self.assembler.unreplied();
        flights
            .into_iter()
            .map(|flight| Record::Flight(Box::new(flight)))
            .collect()
    }

    /// Healthy attempts up to now, for somebody who reads now: what comes later makes further records.
    pub(super) fn traffic(&mut self, now: Timestamp) -> Vec<Record> {
        let flights = self.assembler.flush(now);
        let rows = self.assembler.traffic(now + TRAFFIC_DELAY_NS);
        let flights = flights
            .into_iter()
            .map(|flight| Record::Flight(Box::new(flight)));
        flights
            .chain(rows.into_iter().map(Record::Traffic))
            .collect()
    }

    /// The last turn: everything that is still open is handed out.
    pub(super) fn drain(
        mut self,
        now: Timestamp,
        clock_offset_ns: i64,
        owners: &dyn Owners,
    ) -> Vec<Record> {
        self.count_losses();
        let mut records = self.turn(now, clock_offset_ns, owners);
        let flights = self.assembler.drain(now);
        records.extend(
            flights
                .into_iter()
                .map(|flight| Record::Flight(Box::new(flight))),
        );
        records.extend(self.traffic(now));
        records
    }

    /// Anything lost since the last look becomes a gap from then to now: skips carry no key and no time of their own.
    /// Looking takes system calls, one for each program.
    fn losses(&mut self, now: Timestamp, overwritten: bool, records: &mut Vec<Record>) {
        let due = std::mem::take(&mut self.count_now) || now.since(self.whole_until) >= LOSSES_NS;
        if !overwritten && !due {
            return;
        }
        let lost = self.capture.lost();
        let count = lost.total().saturating_sub(self.lost.total());
        self.lost = lost;
        if count > 0 {
            let gap = GapSeen {
                from: self.whole_until,
                to: now,
                what: GapKind::RecordsLost,
                count,
            };
            records.push(Record::Gap(gap));
        }
        self.whole_until = now;
        if overwritten {
            // Packets at sockets are gone: an earlier packet of a port may have been among them.
            self.assembler.recorded_since(now);
        }
    }
}
