//! PLACEHOLDER with the agreed signature, so that the commands compile; replaced when the branches meet.

use crate::model::Timestamp;
use crate::model::record::{NodeRecord, Record};
use crate::model::timeline::{Header, Line, Lost, NodeHeader, SCHEMA, Summary};

/// What to show.
#[derive(Clone, Debug)]
pub struct Options {
    /// From.
    pub from: Timestamp,
    /// To.
    pub to: Timestamp,
    /// Nodes (or agents) without records, with the reason.
    pub missing: Vec<(String, String)>,
    /// Version of this program.
    pub tool_version: String,
    /// Only these Services; empty: all.
    pub services: Vec<String>,
}

/// A timeline.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Header.
    pub header: Header,
    /// Lines by time.
    pub lines: Vec<Line>,
    /// Totals.
    pub summaries: Vec<Summary>,
}

/// Only the nodes.
pub fn timeline(records: Vec<NodeRecord>, options: &Options) -> Timeline {
    let nodes = records
        .into_iter()
        .filter_map(|record| match record.record {
            Record::Node(info) => Some(NodeHeader {
                name: record.node,
                recorded: true,
                reason: None,
                kernel: Some(info.kernel),
                boot_id: Some(info.boot_id),
                dataplane: info.dataplane,
                clock_offset_ns: None,
                clock_error_ns: None,
                last_record_at: Some(info.last_record_at),
                hooks: info.hooks,
                missing_hooks: info.missing_hooks,
                lost_records: info.lost,
            }),
            _ => None,
        })
        .chain(options.missing.iter().map(|(name, reason)| NodeHeader {
            name: name.clone(),
            recorded: false,
            reason: Some(reason.clone()),
            kernel: None,
            boot_id: None,
            dataplane: None,
            clock_offset_ns: None,
            clock_error_ns: None,
            last_record_at: None,
            hooks: Default::default(),
            missing_hooks: Default::default(),
            lost_records: Lost::default(),
        }))
        .collect();
    Timeline {
        header: Header {
            schema: SCHEMA.to_owned(),
            tool_version: options.tool_version.clone(),
            from: options.from,
            to: options.to,
            reference_node: None,
            services: Vec::new(),
            nodes,
        },
        lines: Vec::new(),
        summaries: Vec::new(),
    }
}
