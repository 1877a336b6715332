//! A timeline as text for people and as NDJSON for programs.
