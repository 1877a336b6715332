//! The programs' own log lines, for who works on them: cargo feature `ebpf-log`, off otherwise, for each line costs
//! thousands of instructions on somebody's packet path.

use std::fmt;

use aya::Ebpf;
use aya_log::EbpfLogger;
use tracing::warn;

/// Reads the lines and hands them to the crate `log`, whose records end up with ours on stderr.
pub(super) struct Lines(Option<EbpfLogger<&'static dyn log::Log>>);

impl Lines {
    /// Finds the map that the programs write their lines to.
    pub(super) fn open(ebpf: &mut Ebpf) -> Self {
        let logger = EbpfLogger::init(ebpf);
        Self(
            logger
                .inspect_err(|error| warn!("the programs' log lines stay unread: {error}"))
                .ok(),
        )
    }

    /// Prints what was written since the last call.
    pub(super) fn print(&mut self) {
        if let Some(logger) = &mut self.0 {
            logger.flush();
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.0.is_some()).finish()
    }
}
