//! `--fail-on failed>0,zeroReadyNs>2s`: conditions on the totals.

use std::cmp::Ordering;
use std::str::FromStr;

use super::values;
use crate::model::timeline::{Code, Summary};

/// One or more conditions; met if any is, by any Service.
#[derive(Clone, Debug)]
pub(super) struct FailOn(Vec<Condition>);

#[derive(Clone, Debug)]
struct Condition {
    text: String,
    total: Total,
    operator: Operator,
    limit: i64,
}

#[derive(Clone, Copy, Debug)]
enum Total {
    Field(fn(&Summary) -> Option<i64>),
    Verdict(Code),
}

/// An operator, by the orderings that fulfil it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operator(&'static [Ordering]);

/// Longer ones first: `>=` begins with `>`.
const OPERATORS: [(&str, Operator); 7] = [
    (">=", Operator(&[Ordering::Greater, Ordering::Equal])),
    ("<=", Operator(&[Ordering::Less, Ordering::Equal])),
    ("!=", Operator(&[Ordering::Less, Ordering::Greater])),
    ("==", Operator(&[Ordering::Equal])),
    (">", Operator(&[Ordering::Greater])),
    ("<", Operator(&[Ordering::Less])),
    ("=", Operator(&[Ordering::Equal])),
];

fn whole(count: u64) -> Option<i64> {
    Some(i64::try_from(count).unwrap_or(i64::MAX))
}

/// A total and how it is read off a summary.
type Field = (&'static str, fn(&Summary) -> Option<i64>);

/// The totals by their names in JSON.
const FIELDS: [Field; 15] = [
    ("queries", |s| whole(s.queries)),
    ("answered", |s| whole(s.answered)),
    ("late", |s| whole(s.late)),
    ("refused", |s| whole(s.refused)),
    ("unanswered", |s| whole(s.unanswered)),
    ("failed", |s| whole(s.failed)),
    ("recovered", |s| whole(s.recovered)),
    ("attempts", |s| whole(s.attempts)),
    ("retransmissions", |s| whole(s.retransmissions)),
    ("events", |s| whole(s.events)),
    ("minimumReady", |s| s.minimum_ready.map(i64::from)),
    ("zeroReadyEvents", |s| whole(s.zero_ready_events)),
    ("zeroReadyNs", |s| Some(s.zero_ready_ns)),
    ("lostRecords", |s| whole(s.lost_records)),
    ("missingNodes", |s| whole(s.missing_nodes.len() as u64)),
];

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(Condition::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Condition {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = |why: &str| {
            let names: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
            format!(
                "`{text}`: {why}; write a condition such as failed>0 or programming-lag>=5, of {} or a verdict code",
                names.join(", ")
            )
        };
        let (name, operator, limit) = OPERATORS
            .iter()
            .find_map(|(sign, operator)| {
                text.split_once(sign)
                    .map(|(name, limit)| (name.trim(), *operator, limit.trim()))
            })
            .ok_or_else(|| wrong("no comparison"))?;
        let total = FIELDS
            .iter()
            .find(|(field, _)| *field == name)
            .map(|(_, read)| Total::Field(*read))
            .or_else(|| values::verdict(name).ok().map(Total::Verdict))
            .ok_or_else(|| wrong("no such total"))?;
        let limit = limit
            .parse()
            .ok()
            .or_else(|| {
                let duration = values::duration(limit)
                    .ok()
                    .filter(|_| name.ends_with("Ns"));
                duration.map(values::nanoseconds)
            })
            .ok_or_else(|| wrong("no number to compare with"))?;
        Ok(Self {
            text: text.to_owned(),
            total,
            operator,
            limit,
        })
    }

    fn value(&self, summary: &Summary) -> Option<i64> {
        match self.total {
            Total::Field(read) => read(summary),
            Total::Verdict(code) => whole(summary.verdicts.get(code.name()).copied().unwrap_or(0)),
        }
    }
}

impl FailOn {
    /// The conditions that are met, each in a sentence.
    pub(super) fn met(&self, summaries: &[Summary]) -> Vec<String> {
        summaries
            .iter()
            .flat_map(|summary| {
                self.0.iter().filter_map(move |condition| {
                    let value = condition.value(summary)?;
                    let met = condition.operator.0.contains(&value.cmp(&condition.limit));
                    met.then(|| format!("{}: {} is met: {value}", summary.service, condition.text))
                })
            })
            .collect()
    }
}
