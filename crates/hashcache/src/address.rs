//! Where a record lies: a position in the log, or a slot of a set of the Disk Table.
//!
//! Used by everything between `policy`, which says where, and `disk`, which reads and writes there.

/// Units since the log was made. Never used twice, so a position names one record for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogPos(pub(crate) u64);

/// A set of the Disk Table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetId(pub(crate) u64);

/// A slot within its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) usize);

/// How the index of a log divides it: into stretches of equally many units, counted from the
/// beginning of the log through all laps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Units in a window; a lap is a whole number of windows.
    pub(crate) units: u64,
    /// Windows in a lap.
    pub(crate) count: u64,
}

impl Windows {
    /// The number of the window in which `at` lies.
    pub(crate) fn of(self, at: LogPos) -> u64 {
        at.0 / self.units
    }

    /// Where window `n` begins.
    pub(crate) fn start(self, n: u64) -> LogPos {
        LogPos(n * self.units)
    }

    /// Where the window begins in which `at` lies.
    pub(crate) fn start_of(self, at: LogPos) -> LogPos {
        self.start(self.of(at))
    }

    /// Bits of the number of a window in its lap.
    pub(crate) fn bits(self) -> u32 {
        u64::BITS - self.count.saturating_sub(1).leading_zeros()
    }
}
