//! A record's address: a position in the log, or a slot in a Disk Table set.
//!
//! Used by all modules from `policy`, which chooses the address, to `disk`, which reads and writes
//! there.

/// Units since the log was created. Never reused, so a position identifies one record for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogPos(pub(crate) u64);

/// A set of the Disk Table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetId(pub(crate) u64);

/// A slot within its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) usize);

/// How the index divides the log: into stretches with equally many units, counted from the log's
/// start through all laps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Units in a window; a lap is a whole number of windows.
    pub(crate) units: u64,
    /// Windows in a lap.
    pub(crate) count: u64,
}

impl Windows {
    /// Number of the window that contains `at`.
    pub(crate) fn of(self, at: LogPos) -> u64 {
        at.0 / self.units
    }

    /// Start of window `n`.
    pub(crate) fn start(self, n: u64) -> LogPos {
        LogPos(n * self.units)
    }

    /// Start of the window that contains `at`.
    pub(crate) fn start_of(self, at: LogPos) -> LogPos {
        self.start(self.of(at))
    }

    /// Bits for a window number within a lap.
    pub(crate) fn bits(self) -> u32 {
        u64::BITS - self.count.saturating_sub(1).leading_zeros()
    }
}
