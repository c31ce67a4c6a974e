//! Policies: each policy maps a key to the *place* to read and chooses the object to replace.
//! `stripe` and `writer` do the I/O.
//!
//! | policy | bits per slot | reads per hit | reads per miss | writes per put |
//! |---|---|---|---|---|
//! | `basic` | 0 | 1 (2 beyond a block) | 1 | 1 |
//! | `set` | 0 | 1 (2 beyond a block) | 1 | 1 and 1 read, at one place |
//! | `set-mem-lru` | 11, 76 a set | 1 (2 beyond a block) | 1, held 0.031 | 1, not held 1 read |
//! | `set-mem` | 11 | 1 (2 beyond a block) | 0.031 | 1, and 1 and a sync a batch |
//! | `log-lru` | 31, waiting below 1 | 1 (2 if displaced) | at most 0.046 | as `log`, and merging |
//! | `log-lru`, grouped | 35, and waiting | 1 a run, 1 each displaced | as without | as without |
//! | `log` | 39 on 1 TB | 1 (2 beyond the first read) | at most 0.031 | much less than 0.01 |
//! | `log`, one row | 1 less | 1 (2 beyond the first read) | at most 0.031 | much less than 0.01 |
//! | `log`, grouped | 8 more | 1 for a whole run | at most 0.031 | much less than 0.01 |
//! | `log`, readmission | 3 more | as without | as without | at most a third more records |
//!
//! Each cell has a test that counts device calls (`tests/it/cost.rs`, `tests/it/groups.rs`,
//! `tests/it/readmission.rs`, and for the bits `log.rs`, `log_lru.rs`, `ranks.rs` and
//! `held_sets.rs`).
//! Called by `stripe` and `writer` under the shard's lock, so nothing here may wait, read or
//! allocate much.
//!
//! Invariants: a policy does no I/O and reads no clock. If two entries could be the same name, the
//! entry at the later log position is the newer version, so lookups go from new to old. All entries
//! that could be the same name are in the same row, and rows lose their oldest entry first
//! (`log-lru`: the oldest entry with an equal tag). So an older version is never found before a
//! newer version, and never outlives it. Readmission copies only a name's newest version. In a
//! known set, a put takes the older version's slot.

mod basic;
mod held_sets;
mod log;
mod log_lru;
mod packed;
mod ranks;
mod set;
mod set_mem;
mod set_mem_lru;
mod short_run;
mod unsaved_positions;

pub(crate) use basic::Basic;
pub(crate) use held_sets::held_sets_bits;
pub(crate) use log::{Log, LogForm};
pub(crate) use log_lru::{LogLru, place_bits, row_bits, saved_row_bytes};
use packed::Packed;
pub(crate) use ranks::SLOT_BITS;
pub(crate) use set::Set;
pub(crate) use set_mem::SetMem;
pub(crate) use set_mem_lru::SetMemLru;
pub(crate) use unsaved_positions::unsaved_positions_bytes;

/// Entries in a row, slots in a set.
pub(crate) const WAYS: usize = 8;

use std::ops::Range;

use crate::address::{LogPos, SetId, Slot};
use crate::key::KeyHash;
use crate::object::Version;

/// The state of a shard's sets during a lookup. A set that is read from disk after that may be
/// loaded into memory only if no set in the shard has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u64);

impl Epoch {
    /// For policies that never load sets, or that load a set once and keep it.
    pub(crate) const ANY: Self = Self(0);
}

/// The most places that a lookup can return: two rows of eight entries.
pub(crate) const MAX_CANDIDATES: usize = 2 * WAYS;

/// Log positions to read, newest first, each with its run length. A position is the start of a
/// window ([`Windows`]); the record is in that window, if it is stored at all.
///
/// [`Windows`]: crate::address::Windows
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    len: usize,
    at: [LogPos; MAX_CANDIDATES],
    runs: [u8; MAX_CANDIDATES],
}

impl Candidates {
    pub(crate) const NONE: Self = Self {
        len: 0,
        at: [LogPos(0); MAX_CANDIDATES],
        runs: [0; MAX_CANDIDATES],
    };

    /// Inserts a position in order. If it is there already, only the longer run is kept.
    fn add(&mut self, at: LogPos, run: u8) {
        let n = self.as_slice().partition_point(|other| *other > at);
        if self.as_slice().get(n) == Some(&at) {
            self.runs[n] = self.runs[n].max(run);
            return;
        }
        self.at.copy_within(n..self.len, n + 1);
        self.runs.copy_within(n..self.len, n + 1);
        (self.at[n], self.runs[n]) = (at, run);
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[LogPos] {
        &self.at[..self.len]
    }

    /// For the record in the window that starts at `at`: returns how far the run reaches from the
    /// record, as a `format::run_code`; 0 if unknown.
    pub(crate) fn run(&self, at: LogPos) -> u8 {
        let n = self.as_slice().iter().position(|other| *other == at);
        n.map_or(0, |n| self.runs[n])
    }
}

/// Lookup result from a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// The key is not stored.
    Nowhere,
    /// The record is at one of these log positions, if it is stored at all.
    Log(Candidates),
    /// Some positions are only in this row, in the shard's saved index: the row's reader calls
    /// `resolve`.
    Displaced(u32),
    /// The object is in this Disk Table set, if it is stored at all. The set's reader passes the
    /// epoch to `learn_set`.
    Set(SetId, Epoch),
    /// The object is in this slot, if it is stored at all.
    Slot(SetId, Slot),
}

impl Located {
    /// The log position to read first.
    pub(crate) fn newest_in_log(&self) -> Option<LogPos> {
        match self {
            Self::Log(candidates) => candidates.as_slice().first().copied(),
            Self::Nowhere | Self::Displaced(_) | Self::Set(..) | Self::Slot(..) => None,
        }
    }

    /// See [`Candidates::run`].
    pub(crate) fn run(&self, at: LogPos) -> u8 {
        match self {
            Self::Log(candidates) => candidates.run(at),
            Self::Nowhere | Self::Displaced(_) | Self::Set(..) | Self::Slot(..) => 0,
        }
    }
}

/// Slot content, as read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
}

/// One shard's part of an index for the Disk Table.
///
/// No method has a default: a policy that forgot to implement a method would silently do nothing,
/// and the store would serve objects that were removed or replaced. A policy with nothing to do
/// must therefore write an empty method.
pub(crate) trait TablePolicy: Send + Sync {
    /// Returns the place where `key` may be stored. Many threads call this at the same time.
    fn locate(&self, key: KeyHash) -> Located;

    /// Returns true if [`TablePolicy::looked_for`] must be called for each lookup.
    fn notes_look_ups(&self) -> bool;

    /// A caller looks for `key`: its set becomes the set used last.
    fn looked_for(&mut self, key: KeyHash);

    /// Returns true if [`TablePolicy::claim`] needs the slot contents in `key`'s set.
    fn wants_slots(&self, key: KeyHash) -> bool;

    /// Chooses a slot in `key`'s set and marks it as taken.
    fn claim(&mut self, key: KeyHash, slots: &[Option<Occupant>]) -> Slot;

    /// The write to the slot that `key` claimed has finished.
    fn written(&mut self, key: KeyHash);

    /// Slots in a set that must be cleared before the set can be loaded into memory.
    fn surplus(&self, slots: &[Option<Occupant>]) -> Vec<Slot>;

    /// `slot` of `key`'s set was cleared.
    fn vacated(&mut self, key: KeyHash, slot: Slot);

    /// `key` was served from the slot that memory knows it in.
    fn used(&mut self, key: KeyHash);

    /// `key` is being removed. Returns true if the table may hold it. The tag may stay: until the
    /// slot is cleared, the stripe hides the key (`Shard::removing`).
    fn forget_all(&mut self, key: KeyHash) -> bool;

    /// The first set, at or after row `from`, that should be in memory and is not.
    fn unknown_set(&self, from: u32) -> Option<(u32, SetId)>;

    /// Loads into memory the slot contents in `set`, read since `epoch`, if their tags differ.
    fn learn_set(&mut self, set: SetId, epoch: Epoch, slots: &[Option<Occupant>]);

    /// In recovery: `key` was put into `slot`.
    fn claimed(&mut self, key: KeyHash, slot: Slot);

    /// In recovery: the content of `key`'s set is unknown.
    fn unlearn(&mut self, key: KeyHash);

    /// In recovery: the table is known to be empty.
    fn nothing_stored(&mut self);

    /// Appends the bytes of `rows` to `out`.
    fn save(&mut self, rows: Range<u32>, out: &mut Vec<u8>);

    /// Loads the rows that start at `first`, in the format written by [`TablePolicy::save`].
    fn restore(&mut self, first: u32, bytes: &[u8]);

    /// Entries in use.
    fn entries(&self) -> u64;

    /// Forgets everything.
    fn clear(&mut self);
}

/// One shard's part of an index for the log. It has no default methods, for the reason given at
/// [`TablePolicy`].
///
/// `head` is the log's head: an entry does not count if the head has passed its position.
pub(crate) trait LogPolicy: Send + Sync {
    /// Returns the places where `key` may be stored. Many threads call this at the same time.
    fn locate(&self, key: KeyHash, head: LogPos) -> Located;

    /// Returns true if an entry that may be `key` points to `at`, or to its window. If the entry's
    /// position is only on disk, the tag and the lap decide, so another entry with that lap may
    /// match.
    fn points_to(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool;

    /// Returns true if every entry that may be `key` and points to `at`, or to its window, belongs
    /// to a record in `others`, which the reader found there. Otherwise an entry has a damaged
    /// record. Also true if there is no such entry any more.
    fn explains(&self, key: KeyHash, at: LogPos, others: &[KeyHash], head: LogPos) -> bool;

    /// Returns the positions where `key` may be stored, given its row in the last valid checkpoint.
    fn resolve(&self, key: KeyHash, saved: &[u8], head: LogPos) -> Candidates;

    /// `key` was written at `at`; `replaces` is an older version's known position.
    fn record(&mut self, key: KeyHash, at: LogPos, replaces: Option<LogPos>, head: LogPos);

    /// `key` was written at `at`, but the record does not count and must not be found. Call this
    /// under the same lock as [`LogPolicy::record`], after all records in that window that count.
    fn leave_out(&mut self, key: KeyHash, at: LogPos, head: LogPos);

    /// Sets how far the run reaches from the record at `at` (`format::run_code`). No effect if the
    /// entry is no longer there, or has no room for a run.
    fn set_run(&mut self, key: KeyHash, at: LogPos, run: u8, head: LogPos);

    /// Returns true if the object at `at` was used recently enough to be kept when the log wraps.
    fn is_hot(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool;

    /// `key` was served from `at`, and neither put nor removed since the lookup started. No effect
    /// if the entry is no longer there.
    fn touch(&mut self, key: KeyHash, at: LogPos, head: LogPos);

    /// The record at `at` must not be found any more. No effect if the entry is no longer there.
    fn forget(&mut self, key: KeyHash, at: LogPos, head: LogPos);

    /// No entry that could be `key` may be found any more, at any position. In recovery the
    /// position may be ahead of the head, which has not reached it yet. Returns true if such an
    /// entry was live, that is, behind the head and not passed.
    fn forget_all(&mut self, key: KeyHash, head: LogPos) -> bool;

    /// Number of rows in the index, for `sweep`.
    fn rows(&self) -> u32;

    /// Drops entries that the head has passed. An entry stores only a few lap bits, and they must
    /// never be read as a later lap; so this is called for every row once per lap.
    fn sweep(&mut self, rows: Range<u32>, head: LogPos);

    /// Appends `rows` to `out`. `old` has the same rows from the last valid checkpoint; it is empty
    /// if there is none.
    fn save(&mut self, rows: Range<u32>, old: &[u8], out: &mut Vec<u8>);

    /// Loads the rows that start at `first`, in the format written by [`LogPolicy::save`].
    fn restore(&mut self, first: u32, bytes: &[u8]);

    /// Keeps all positions in memory, also those that are otherwise on disk only. Then rows can be
    /// restored, filled and saved without a read. Takes `IndexShape::widened_bytes` more memory.
    fn widen(&mut self);

    /// Undoes `widen`: the positions that only `widen` kept in memory are saved now.
    fn narrow(&mut self);

    /// A checkpoint starts: all rows will be saved, from the first row on.
    fn save_begins(&mut self);

    /// The checkpoint is complete and valid: all rows are saved in it.
    fn save_counts(&mut self);

    /// Fill level of the room for positions that wait for the next checkpoint, in 1/100.
    fn unsaved(&self) -> usize;

    /// Entries in use.
    fn entries(&self) -> u64;

    /// Entries in use whose records the head has not passed.
    fn live(&self, head: LogPos) -> u64;

    /// Entries dropped because their rows were full, before the log wrapped to their records.
    fn early_evictions(&self) -> u64;

    /// Forgets everything.
    fn clear(&mut self);
}

/// One shard's part of an index, for either family. A device never changes its family, so all its
/// shards have the same variant.
pub(crate) enum ShardPolicy {
    Table(Box<dyn TablePolicy>),
    Log(Box<dyn LogPolicy>),
}

impl ShardPolicy {
    /// The Disk Table policy, for calls that only the table has.
    pub(crate) fn table(&self) -> Option<&dyn TablePolicy> {
        match self {
            Self::Table(table) => Some(&**table),
            Self::Log(_) => None,
        }
    }

    pub(crate) fn table_mut(&mut self) -> Option<&mut dyn TablePolicy> {
        match self {
            Self::Table(table) => Some(&mut **table),
            Self::Log(_) => None,
        }
    }

    /// The log policy, for calls that only the log has.
    pub(crate) fn log(&self) -> Option<&dyn LogPolicy> {
        match self {
            Self::Table(_) => None,
            Self::Log(log) => Some(&**log),
        }
    }

    pub(crate) fn log_mut(&mut self) -> Option<&mut dyn LogPolicy> {
        match self {
            Self::Table(_) => None,
            Self::Log(log) => Some(&mut **log),
        }
    }

    pub(crate) fn locate(&self, key: KeyHash, head: LogPos) -> Located {
        match self {
            Self::Table(table) => table.locate(key),
            Self::Log(log) => log.locate(key, head),
        }
    }

    /// Returns true if each lookup must take the shard's write lock, to update the order of use.
    pub(crate) fn notes_look_ups(&self) -> bool {
        self.table().is_some_and(TablePolicy::notes_look_ups)
    }

    pub(crate) fn forget_all(&mut self, key: KeyHash, head: LogPos) -> bool {
        match self {
            Self::Table(table) => table.forget_all(key),
            Self::Log(log) => log.forget_all(key, head),
        }
    }

    /// See [`LogPolicy::save`]: a table needs no `old` rows.
    pub(crate) fn save(&mut self, rows: Range<u32>, old: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Table(table) => table.save(rows, out),
            Self::Log(log) => log.save(rows, old, out),
        }
    }

    pub(crate) fn restore(&mut self, first: u32, bytes: &[u8]) {
        match self {
            Self::Table(table) => table.restore(first, bytes),
            Self::Log(log) => log.restore(first, bytes),
        }
    }

    pub(crate) fn entries(&self) -> u64 {
        match self {
            Self::Table(table) => table.entries(),
            Self::Log(log) => log.entries(),
        }
    }

    /// Entries in use with records that still exist. In a table the head passes no record.
    pub(crate) fn live(&self, head: LogPos) -> u64 {
        match self {
            Self::Table(table) => table.entries(),
            Self::Log(log) => log.live(head),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Table(table) => table.clear(),
            Self::Log(log) => log.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    /// The methods with a body that `source` declares in the trait `name`.
    fn defaults(source: &str, name: &str) -> Vec<String> {
        let (_, from) = source.split_once(&format!("trait {name}:")).unwrap();
        let (body, _) = from.split_once("\n}\n").unwrap();
        let methods: Vec<_> = body.split("    fn ").skip(1).collect();
        assert!(!methods.is_empty());
        // A declaration ends with a semicolon before any brace.
        let has_body = |it: &&str| it.find('{').is_some_and(|at| it.find(';') > Some(at));
        let has_none = |it: &&str| has_body(it) || !it.contains(';');
        let name = |it: &str| it.split('(').next().unwrap_or(it).to_owned();
        methods.iter().copied().filter(has_none).map(name).collect()
    }

    #[test]
    fn a_policy_that_forgets_a_method_does_not_compile() {
        let source = include_str!("mod.rs");
        for name in ["TablePolicy", "LogPolicy"] {
            assert_eq!(defaults(source, name), [""; 0], "{name}");
        }
        // The check itself finds a default method, both as the only method and before other
        // methods.
        for default in [
            "fn forget_all(&mut self) {}",
            "fn forget_all(&self) -> bool {\n false;\n    }",
        ] {
            let planted = format!("trait Any: Send {{\n    {default}\n    fn other(&self);\n}}\n");
            assert_eq!(defaults(&planted, "Any"), ["forget_all"]);
        }
    }
}
