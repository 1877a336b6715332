//! Values of flags: durations, sizes, times, names, tokens.

use std::path::Path;
use std::time::Duration;

use super::Failure;
use crate::model::Timestamp;
use crate::model::timeline::Code;

/// `90s`, `15m`, `2h`, `1h30m`, `7d`, `250ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as 90s, 15m, 1h30m or 7d");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let value: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let milliseconds: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        let part = value.checked_mul(milliseconds).ok_or_else(wrong)?;
        sum = sum
            .checked_add(Duration::from_millis(part))
            .ok_or_else(wrong)?;
    }
    if i64::try_from(sum.as_nanos()).is_err() {
        return Err(format!("`{text}` is longer than 292 years"));
    }
    Ok(sum)
}

/// `256MiB`, `1GiB`, `500MB`, `1048576`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size such as 256MiB, 1GiB or 500MB");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let value: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match &text[digits..] {
        "" | "B" => 1,
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => 1 << 30,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    value.checked_mul(unit).ok_or_else(wrong)
}

/// RFC 3339, or a duration before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// A time.
    At(Timestamp),
    /// So long ago.
    Ago(Duration),
}

impl When {
    /// The time, given the time now.
    pub(super) fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now - nanoseconds(ago),
        }
    }
}

/// A duration that [`duration`] has checked.
pub(super) fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn when(text: &str) -> Result<When, String> {
    text.parse()
        .map(When::At)
        .or_else(|_| duration(text).map(When::Ago))
        .map_err(|_| {
            format!("`{text}` is neither a time such as 2026-09-07T21:04:07Z nor a duration such as 10m (ago)")
        })
}

/// The time now.
pub(super) fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// `namespace/name`, both as Kubernetes allows them (RFC 1123 labels; a Service's name has no dots).
pub(super) fn service(text: &str) -> Result<String, String> {
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && part
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    match text.split_once('/') {
        Some((namespace, name)) if label(namespace) && label(name) => Ok(text.to_owned()),
        _ => Err(format!(
            "`{text}` is not NAMESPACE/NAME such as kube-system/kube-dns"
        )),
    }
}

/// A verdict's code.
pub(super) fn verdict(text: &str) -> Result<Code, String> {
    serde_json::from_value(serde_json::Value::from(text)).map_err(|_| {
        format!("`{text}` is no verdict code such as programming-lag; docs/verdicts.md lists them")
    })
}

/// Reads a bearer token from a file; blanks around it do not count.
pub(super) fn token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "--token-file {}: cannot be read ({error})",
            path.display()
        ))
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(Failure::usage(format!(
            "--token-file {}: is empty",
            path.display()
        )));
    }
    // What may stand in an Authorization header (RFC 6750, 2.1).
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::usage(format!(
            "--token-file {}: a token is one line of printable ASCII without blanks",
            path.display()
        )));
    }
    Ok(token.to_owned())
}
