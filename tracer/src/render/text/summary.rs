//! The last lines: totals of each Service.

use std::io::{self, Write};

use super::layout::{Flow, Tone};
use super::{Style, words};
use crate::model::timeline::Summary;
use crate::render::{Shown, missing};

pub(super) fn write(out: &mut dyn Write, shown: Shown<'_>, style: &Style) -> io::Result<()> {
    for summary in shown.summaries {
        one(summary).line(out, style, "", "  ")?;
    }
    if shown.summaries.is_empty() {
        Flow::new()
            .text(Tone::Warn, "no Service was seen, so there are no totals")
            .line(out, style, "", "  ")?;
    }
    if missing::nothing_recorded(shown.header, shown.summaries) {
        Flow::new()
            .text(
                Tone::Bad,
                "nothing recorded, so nothing can be said of any query",
            )
            .line(out, style, "", "  ")?;
    }
    Ok(())
}

fn one(summary: &Summary) -> Flow {
    let queries = words::count(summary.queries, "query", "queries");
    let mut flow = Flow::new()
        .keep(Tone::Bold, &format!("{}:", summary.service))
        .keep(Tone::Plain, &queries);
    let counts = [
        (summary.answered, "answered", Tone::Plain),
        (summary.recovered, "recovered", Tone::Warn),
        (summary.late, "too late", Tone::Bad),
        (summary.refused, "refused", Tone::Bad),
        (summary.unanswered, "unanswered", Tone::Bad),
    ];
    for (count, what, tone) in counts {
        if count > 0 {
            let text = format!("{} {what}", words::number(count));
            flow = flow.then(",").keep(tone, &text);
        }
    }
    if summary.queries > 0 && summary.failed == 0 {
        flow = flow.then(",").keep(Tone::Good, "0 failed");
    }
    if summary.retransmissions > 0 {
        let text = words::count(summary.retransmissions, "retransmission", "retransmissions");
        flow = flow.then(",").keep(Tone::Plain, &text);
    }
    if !summary.verdicts.is_empty() {
        flow = flow.then(" ·").keep(Tone::Plain, "verdicts:");
        for (position, (code, count)) in summary.verdicts.iter().enumerate() {
            if position > 0 {
                flow = flow.then(",");
            }
            flow = flow.keep(Tone::Plain, &format!("{code} {}", words::number(*count)));
        }
    }
    flow.then(" ·").join(endpoints(summary))
}

/// `5 endpoint changes, always at least 1 ready`
fn endpoints(summary: &Summary) -> Flow {
    let changes = words::count(summary.events, "endpoint change", "endpoint changes");
    let flow = Flow::new().keep(Tone::Plain, &changes).then(",");
    match summary.minimum_ready {
        None => flow.keep(Tone::Warn, "ready endpoints unknown"),
        Some(0) => {
            // A change can come while there is none: the events are not the times.
            let times = match summary.zero_ready_windows.len() as u64 {
                1 => "once".to_owned(),
                times => words::count(times, "time", "times"),
            };
            let span = words::duration(summary.zero_ready_ns);
            flow.text(
                Tone::Bad,
                &format!("without a ready endpoint {times}, for {span} in all"),
            )
        }
        Some(minimum) => flow.keep(Tone::Plain, &format!("always at least {minimum} ready")),
    }
}
