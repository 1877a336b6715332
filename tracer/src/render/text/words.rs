//! Times, durations, numbers and names as people say them.

use std::net::{IpAddr, SocketAddr};

use jiff::tz::TimeZone;

use crate::model::Timestamp;
use crate::model::timeline::{Client, Code, Conditions, Convergence, Verdict};

/// Whose time of day is shown.
#[derive(Clone, Debug)]
pub enum Clock {
    /// UTC.
    Utc,
    /// This time zone.
    Zone(TimeZone),
}

impl Clock {
    fn zoned(&self, at: Timestamp) -> Option<jiff::Zoned> {
        let zone = match self {
            Self::Utc => TimeZone::UTC,
            Self::Zone(zone) => zone.clone(),
        };
        jiff::Timestamp::from_nanosecond(i128::from(at.0))
            .ok()
            .map(|time| time.to_zoned(zone))
    }

    /// `21:04:07.002`
    pub(super) fn time(&self, at: Timestamp) -> String {
        self.zoned(at).map_or_else(
            || at.to_string(),
            |time| format!("{}", time.strftime("%H:%M:%S.%3f")),
        )
    }

    /// `2026-09-07 UTC`
    pub(super) fn date(&self, at: Timestamp) -> String {
        self.zoned(at).map_or_else(
            || at.to_string(),
            |time| match self {
                Self::Utc => format!("{} UTC", time.strftime("%Y-%m-%d")),
                Self::Zone(_) => format!("{}", time.strftime("%Y-%m-%d %:z")),
            },
        )
    }
}

/// `412 µs`, `840 ms`, `5.869 s`, `2 min 3 s`; the sign in front of negative ones.
pub(super) fn duration(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let ns = nanoseconds.unsigned_abs();
    let text = match ns {
        0..1_000 => format!("{ns} ns"),
        // Rounded up at the edge, so that 999,999 ns is 1 ms.
        1_000..999_500 => format!("{} µs", (ns + 500) / 1_000),
        999_500..9_950_000 => format!("{:.1} ms", ns as f64 / 1e6),
        9_950_000..999_500_000 => format!("{} ms", (ns + 500_000) / 1_000_000),
        999_500_000..59_999_500_000 => format!("{:.3} s", ns as f64 / 1e9),
        _ => {
            let seconds = (ns + 500_000_000) / 1_000_000_000;
            if seconds < 3600 {
                format!("{} min {} s", seconds / 60, seconds % 60)
            } else {
                format!("{} h {} min", seconds / 3600, seconds % 3600 / 60)
            }
        }
    };
    format!("{sign}{text}")
}

/// With a sign always: `+38 ms`.
pub(super) fn signed(nanoseconds: i64) -> String {
    if nanoseconds < 0 {
        duration(nanoseconds)
    } else {
        format!("+{}", duration(nanoseconds))
    }
}

/// `12,408`
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 query`, `12,408 queries`
pub(super) fn count(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(value), if value == 1 { one } else { many })
}

/// The address, with its port unless that is 53.
pub(super) fn address(address: SocketAddr) -> String {
    if address.port() == 53 {
        ip(address.ip())
    } else {
        address.to_string()
    }
}

pub(super) fn ip(address: IpAddr) -> String {
    address.to_string()
}

/// `ready`, `terminating, serving`, `gone`
pub(super) const fn conditions(conditions: Option<Conditions>) -> &'static str {
    match conditions {
        None => "gone",
        Some(Conditions {
            ready: true,
            terminating: false,
            ..
        }) => "ready",
        // publishNotReadyAddresses keeps ready true while terminating (KEP-1672).
        Some(Conditions {
            ready: true,
            terminating: true,
            ..
        }) => "ready, terminating",
        Some(Conditions {
            serving: true,
            terminating: true,
            ..
        }) => "terminating, serving",
        Some(Conditions {
            terminating: true, ..
        }) => "terminating, not serving",
        Some(_) => "not ready",
    }
}

/// `default/probe-7xk (nslookup)`, `host 10.0.0.2 (nslookup)`
pub(super) fn client(client: &Client) -> String {
    let who = who(client);
    match &client.process {
        Some(process) => format!("{who} ({process})"),
        None => who,
    }
}

/// Without the process.
pub(super) fn who(client: &Client) -> String {
    match (&client.namespace, &client.pod) {
        (Some(namespace), Some(pod)) => format!("{namespace}/{pod}"),
        _ => format!("host {}", client.address),
    }
}

/// A cause as people say it, without its code.
pub(super) fn cause(code: Code, convergence: Option<Convergence>) -> &'static str {
    match code {
        Code::NoEndpoints => "no endpoint",
        Code::PolicyDrop => "dropped by a policy",
        Code::StaleConntrack => "pinned to a backend that had gone",
        Code::ProgrammingLag => match convergence {
            Some(Convergence::Late) => "late rules",
            Some(Convergence::Normal) => "rules changing in their usual time",
            None => "rules not yet changed",
        },
        Code::TerminatingBackend => "backend shutting down",
        Code::BackendDiedFirst => "backend died before the API said so",
        Code::BackendNotReady => "backend not ready yet",
        Code::KernelDrop => "dropped by the kernel",
        Code::BackendClosed => "nobody listening at the backend",
        Code::BackendSilent => "silent backend",
        Code::BackendSlow => "slow backend",
        Code::ErrorRcode => "answered with an error",
        Code::CaptureGap => "records missing",
        Code::Unexplained => "unexplained",
    }
}

/// `late rules on worker2 (programming-lag)`; an ambiguous one names every code that fits.
pub(super) fn verdict(verdict: &Verdict, node: &str) -> String {
    let here = match verdict.code {
        Code::NoEndpoints
        | Code::PolicyDrop
        | Code::StaleConntrack
        | Code::ProgrammingLag
        | Code::CaptureGap => format!(" on {node}"),
        _ => String::new(),
    };
    let first = format!(
        "{}{here} ({})",
        cause(verdict.code, verdict.convergence),
        verdict.code.name()
    );
    if verdict.alternatives.is_empty() {
        return first;
    }
    let others: Vec<String> = verdict
        .alternatives
        .iter()
        .filter(|code| **code != verdict.code)
        .map(|code| format!("{} ({})", cause(*code, None), code.name()))
        .collect();
    format!("either {first} or {}", others.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well_at_every_size() {
        let cases = [
            (0, "0 ns"),
            (412_345, "412 µs"),
            (999_999, "1.0 ms"),
            (5_940_000, "5.9 ms"),
            (840_000_000, "840 ms"),
            (999_999_999, "1.000 s"),
            (5_869_000_000, "5.869 s"),
            (59_999_999_999, "1 min 0 s"),
            (123_000_000_000, "2 min 3 s"),
            (11_040_000_000_000, "3 h 4 min"),
            (-840_000_000, "-840 ms"),
        ];
        for (nanoseconds, text) in cases {
            assert_eq!(duration(nanoseconds), text);
        }
        assert_eq!(duration(i64::MIN), "-2562047 h 47 min");
    }

    #[test]
    fn numbers_have_their_thousands() {
        assert_eq!(number(12_408), "12,408");
        assert_eq!(number(100), "100");
        assert_eq!(number(1_000_000), "1,000,000");
    }
}
