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
