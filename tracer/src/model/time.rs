//! Wall-clock times with nanoseconds.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanoseconds since the Unix epoch, UTC. Written in JSON as RFC 3339 with nine digits, so that it reads and sorts well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Nanoseconds from `earlier` to `self`; negative if `self` is the earlier one.
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The whole second this time lies in.
    pub const fn second(self) -> Self {
        Self(self.0.div_euclid(1_000_000_000) * 1_000_000_000)
    }
}

impl Add<i64> for Timestamp {
    type Output = Self;
    fn add(self, nanoseconds: i64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Sub<i64> for Timestamp {
    type Output = Self;
    fn sub(self, nanoseconds: i64) -> Self {
        Self(self.0.saturating_sub(nanoseconds))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(time) => write!(f, "{time:.9}"),
            Err(_) => write!(f, "{}ns", self.0),
        }
    }
}

/// The text is not an RFC 3339 time between the years 1677 and 2262.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 time such as 2026-09-07T21:04:07.002Z")]
pub struct ParseError(String);

impl FromStr for Timestamp {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        text.parse::<jiff::Timestamp>()
            .ok()
            .and_then(|time| i64::try_from(time.as_nanosecond()).ok())
            .map(Self)
            .ok_or_else(|| ParseError(text.to_owned()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string", "format": "date-time",
            "description": "RFC 3339, UTC, nanoseconds"
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn round_trip_keeps_nanoseconds() {
        let time = Timestamp(1_788_815_047_002_000_001);
        assert_eq!(time.to_string(), "2026-09-07T21:04:07.002000001Z");
        assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time);
    }

    #[test]
    fn nonsense_is_refused_with_the_text_in_the_message() {
        let error = "yesterday".parse::<Timestamp>().unwrap_err();
        assert!(error.to_string().contains("yesterday"));
    }
}
