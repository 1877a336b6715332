//! Conntrack time-outs for UDP of the network namespace this process is in.

use std::fs;
use std::path::Path;

use crate::model::flight::ConntrackTimeouts;

/// Reads them; the kernel's defaults where they are absent (conntrack is not loaded) or unreadable.
pub fn timeouts() -> ConntrackTimeouts {
    // What /proc/sys/net shows follows the reader's namespace.
    read(Path::new("/proc/sys/net/netfilter"))
}

fn read(directory: &Path) -> ConntrackTimeouts {
    let default = ConntrackTimeouts::default();
    let seconds = |file: &str| -> Option<i64> {
        let text = fs::read_to_string(directory.join(file)).ok()?;
        text.trim().parse::<i64>().ok()?.checked_mul(1_000_000_000)
    };
    ConntrackTimeouts {
        unreplied_ns: seconds("nf_conntrack_udp_timeout").unwrap_or(default.unreplied_ns),
        stream_ns: seconds("nf_conntrack_udp_timeout_stream").unwrap_or(default.stream_ns),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_cannot_be_read_is_the_kernels_default() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()), ConntrackTimeouts::default());
        fs::write(directory.path().join("nf_conntrack_udp_timeout"), "10\n").unwrap();
        fs::write(
            directory.path().join("nf_conntrack_udp_timeout_stream"),
            "soon",
        )
        .unwrap();
        let read = read(directory.path());
        assert_eq!(
            (read.unreplied_ns, read.stream_ns),
            (10_000_000_000, 120_000_000_000)
        );
    }
}
