//! Policies: given a key, *where* to look and what to replace. `stripe` and `writer` do the I/O.
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
//! Invariants: a policy does no I/O and reads no clock. Of two entries that could be the same name,
//! the one at the later place of the log is the newer one: lookups go from new to old. All that
//! could be the same name lies in one row, and rows lose their oldest entry first (`log-lru`: of
//! equal tags); so an older version is never found before, and never outlives, a newer one. What
//! readmission copies is the newest of its name. In a set that memory knows, a put takes the slot
//! of its older version.

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

/// The state a shard's sets were in when one of them was looked for: what is read of it meanwhile
/// may be taken over only if none has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u64);

impl Epoch {
    /// Of policies that learn a set once and keep it, or learn none.
    pub(crate) const ANY: Self = Self(0);
}

/// Most places a lookup can name: two rows of eight.
pub(crate) const MAX_CANDIDATES: usize = 2 * WAYS;

/// Where in the log to look, newest first, and the length of the run of each. A place is the
/// beginning of a window ([`Windows`]), in which the record lies, if at all.
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

    /// Adds one in its place of the order, unless it is there already.
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

    /// How far the run of the record in the window that begins at `at` reaches from the record, as
    /// `format::run_code` tells it; 0 when that is not known.
    pub(crate) fn run(&self, at: LogPos) -> u8 {
        let n = self.as_slice().iter().position(|other| *other == at);
        n.map_or(0, |n| self.runs[n])
    }
}

/// What a policy knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// It is not stored.
    Nowhere,
    /// At one of these positions of the log, if at all.
    Log(Candidates),
    /// At positions of which some are in this row of the shard's saved index: the reader of the row
    /// calls `resolve`.
    Displaced(u32),
    /// In this set of the Disk Table, if at all. The reader of the set passes the epoch to
    /// `learn_set`.
    Set(SetId, Epoch),
    /// In this slot of it, if at all.
    Slot(SetId, Slot),
}

impl Located {
    /// The first of the log's positions to look at.
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

/// What a slot holds, as read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
}

/// One shard's part of an index for the Disk Table.
///
/// No method has a default: a policy that forgot one would answer "nothing to do", and the store
/// would serve what was removed or replaced. A policy that has nothing to do says so itself.
pub(crate) trait TablePolicy: Send + Sync {
    /// Where `key` may lie. Many threads ask at the same time.
    fn locate(&self, key: KeyHash) -> Located;

    /// Whether [`TablePolicy::looked_for`] must be called for each lookup.
    fn notes_look_ups(&self) -> bool;

    /// A caller looks for `key`: from now on its set counts as used last.
    fn looked_for(&mut self, key: KeyHash);

    /// Whether [`TablePolicy::claim`] must be given what the slots of `key`'s set hold.
    fn wants_slots(&self, key: KeyHash) -> bool;

    /// The slot of its set for `key`. It counts as taken from now on.
    fn claim(&mut self, key: KeyHash, slots: &[Option<Occupant>]) -> Slot;

    /// The slot that `key` claimed is written.
    fn written(&mut self, key: KeyHash);

    /// Slots of a set that must be cleared before memory can know what the set holds.
    fn surplus(&self, slots: &[Option<Occupant>]) -> Vec<Slot>;

    /// `slot` of `key`'s set was cleared.
    fn vacated(&mut self, key: KeyHash, slot: Slot);

    /// `key` was served from the slot that memory knows it in.
    fn used(&mut self, key: KeyHash);

    /// `key` is being removed. Returns whether the table may hold it. The tag may stay: until the
    /// slot is cleared, the stripe hides the key (`Shard::removing`).
    fn forget_all(&mut self, key: KeyHash) -> bool;

    /// The first set at or after row `from` that memory should know and does not.
    fn unknown_set(&self, from: u32) -> Option<(u32, SetId)>;

    /// Takes over what the slots of `set` were seen to hold since `epoch`, if memory can tell them
    /// apart.
    fn learn_set(&mut self, set: SetId, epoch: Epoch, slots: &[Option<Occupant>]);

    /// In recovery: `key` was put into `slot`.
    fn claimed(&mut self, key: KeyHash, slot: Slot);

    /// In recovery: what lies in `key`'s set is not known.
    fn unlearn(&mut self, key: KeyHash);

    /// In recovery: the table is known to be empty.
    fn nothing_stored(&mut self);

    /// Appends the bytes of `rows` to `out`.
    fn save(&mut self, rows: Range<u32>, out: &mut Vec<u8>);

    /// Takes over the rows from `first` on, as [`TablePolicy::save`] gave them.
    fn restore(&mut self, first: u32, bytes: &[u8]);

    /// Entries in use.
    fn entries(&self) -> u64;

    /// Forgets everything.
    fn clear(&mut self);
}

/// One shard's part of an index for the log. Without defaults, as [`TablePolicy`].
///
/// `head` is the head of the log: an entry whose place it has passed does not count.
pub(crate) trait LogPolicy: Send + Sync {
    /// Where `key` may lie. Many threads ask at the same time.
    fn locate(&self, key: KeyHash, head: LogPos) -> Located;

    /// Whether an entry that may be `key` points to `at`, or to the window of `at`. Where the
    /// entry's position is on disk, its tag and lap decide: then the entry may be another one of
    /// that lap.
    fn points_to(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool;

    /// Whether the entries that may be `key` and point to `at`, or to its window, are all of some
    /// of `others`, whose records lie there. If not, the record of one of them is damaged. Also if
    /// there is no such entry any more.
    fn explains(&self, key: KeyHash, at: LogPos, others: &[KeyHash], head: LogPos) -> bool;

    /// Where `key` may lie, given its row as the last checkpoint that counts has it.
    fn resolve(&self, key: KeyHash, saved: &[u8], head: LogPos) -> Candidates;

    /// `key` was written at `at`; `replaces` is where an older version of it is known to lie.
    fn record(&mut self, key: KeyHash, at: LogPos, replaces: Option<LogPos>, head: LogPos);

    /// `key` was written at `at`, but that record does not count: it must not be found. To be
    /// called after all records of its window that count were recorded, under the same lock.
    fn leave_out(&mut self, key: KeyHash, at: LogPos, head: LogPos);

    /// The run of the record at `at` reaches as far as `run` tells (`format::run_code`). No effect
    /// when the entry is no longer there, or has no room for it.
    fn set_run(&mut self, key: KeyHash, at: LogPos, run: u8, head: LogPos);

    /// Whether what lies at `at` was used late enough to be worth keeping when the log wraps.
    fn is_hot(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool;

    /// `key` was served from `at`, and neither put nor removed since the lookup began. No effect
    /// when the entry is no longer there.
    fn touch(&mut self, key: KeyHash, at: LogPos, head: LogPos);

    /// What lies at `at` must not be found any more. No effect when the entry is no longer there.
    fn forget(&mut self, key: KeyHash, at: LogPos, head: LogPos);

    /// Nothing that could be `key` may be found any more, wherever it lies: in recovery that may
    /// be beyond the head, which is still on its way there. Returns whether any of it lay on this
    /// side of the head.
    fn forget_all(&mut self, key: KeyHash, head: LogPos) -> bool;

    /// Rows of the index, for `sweep`.
    fn rows(&self) -> u32;

    /// Drops entries that the head has passed, so that the few bits of the lap in an entry never
    /// mean another lap. Called for every row each time the log goes round.
    fn sweep(&mut self, rows: Range<u32>, head: LogPos);

    /// Appends the bytes of `rows` to `out`. `old`: as the last checkpoint that counts has them,
    /// empty if none does.
    fn save(&mut self, rows: Range<u32>, old: &[u8], out: &mut Vec<u8>);

    /// Takes over the rows from `first` on, as [`LogPolicy::save`] gave them.
    fn restore(&mut self, first: u32, bytes: &[u8]);

    /// From now on memory has all positions, also those that otherwise lie on disk: rows are
    /// restored, filled and saved without a read. Takes `IndexShape::widened_bytes` more.
    fn widen(&mut self);

    /// What only `widen` had in memory has been saved.
    fn narrow(&mut self);

    /// Rows are going to be saved for a checkpoint, from the first on.
    fn save_begins(&mut self);

    /// The checkpoint that all rows were saved for counts from now on.
    fn save_counts(&mut self);

    /// How much of the room for what only a checkpoint can take in is used, in 1/100.
    fn unsaved(&self) -> usize;

    /// Entries in use.
    fn entries(&self) -> u64;

    /// Entries in use whose records the head has not passed.
    fn live(&self, head: LogPos) -> u64;

    /// Entries that left their rows for want of room, before the log wrapped to their records.
    fn early_evictions(&self) -> u64;

    /// Forgets everything.
    fn clear(&mut self);
}

/// One shard's part of an index, of either family. A device has one family for life, so the same
/// variant stands in all of its shards.
pub(crate) enum ShardPolicy {
    Table(Box<dyn TablePolicy>),
    Log(Box<dyn LogPolicy>),
}

impl ShardPolicy {
    /// The policy of the Disk Table, for what only the table needs.
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

    /// The policy of the log, for what only the log needs.
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

    /// Whether each lookup must take the lock that changes a shard, to note the order of use.
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

    /// Entries in use whose records are still there. In a table the head passes nothing.
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
        // The check itself finds a default, alone and before other methods.
        for default in [
            "fn forget_all(&mut self) {}",
            "fn forget_all(&self) -> bool {\n false;\n    }",
        ] {
            let planted = format!("trait Any: Send {{\n    {default}\n    fn other(&self);\n}}\n");
            assert_eq!(defaults(&planted, "Any"), ["forget_all"]);
        }
    }
}
