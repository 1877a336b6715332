//! The only place that knows the database: a node's records in one SQLite file.
