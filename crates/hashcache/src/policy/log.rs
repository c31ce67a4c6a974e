//! HashCache-Log: everything lies in the log, memory holds a tag and where to look (paper, section
//! 3.5).
//!
//! The published form gives each key one row of 8 entries of 47 bits; at load 1 it reaches 86 % of
//! a full log. By default each key has **two** candidate rows, and an insert replaces the oldest
//! entry of both. Both forms are implemented ([`Rows`]), to be compared. The published entry has 32
//! bits of position, 3 of rank and 4 of lap. Here an entry has the number of a *window* of the log,
//! in as many bits as the number of windows needs; ranks are kept only with readmission, which
//! alone reads them; and the lap has 2 bits. So on 1 TB, with windows of 4 KiB, an entry takes 38
//! bits, and 39 with the ninth tag bit that pays for the second row; it takes one bit less on each
//! half of that. 95 % are reachable at 1.08 slots a live object.
//!
//! *Grouped*, an entry has 8 bits more. 6 tell how far its run reaches behind it (paper, sections
//! 3.6 and 3.7), so that one read returns the objects that were written with it. 2 make the tag
//! longer: where an equal tag names a run, that is read in vain, and an object whose tag a newer
//! entry has too does not become hot with its page, for it may have been replaced.
//!
//! # Windows
//!
//! A window is a stretch of the log, of a length fixed by the store's geometry. A batch begins and
//! ends where windows do, so **each window holds records of one batch only**. The reader of a
//! window looks for a record of the wanted name in it. The name's hash and the record's MAC tell
//! the record from others, but they do not tell whether it still counts: a window can hold records
//! that were replaced or removed. A record is *dead* if it was recorded and then replaced or
//! removed, or if it did not count any more when its batch was recorded ([`Log::leave_out`]).
//!
//! An entry *matches* a name if it has the name's tag and lies in one of the name's rows. Two
//! invariants make the first record that a lookup finds the current one. Lookups take the windows
//! of all matching entries, the newest window first.
//!
//! 1. If an entry matches a name and its window holds a dead record of that name, then the same row
//!    has an entry that matches, of a newer window that holds the name's current record.
//! 2. If the records of two names share an entry, then its row has no older entry of that tag.
//!
//! Why they hold:
//!
//! - The records of one batch in one shard are recorded under one lock, first those that count,
//!   then those that do not. Entries of a window are made at no other time. So when a record is
//!   taken away later, clearing the entries of its window is enough: none of them comes back.
//! - [`Log::record`] clears the entries of the window that held the replaced record, if it knows
//!   that window. Else the entries that could be older versions stay in one row, the new entry goes
//!   into that row, and rows lose their oldest entry first: invariant 1.
//! - Whatever clears an entry clears the older entries of that tag in its row too, so none of those
//!   is without the newer one that it needs. That may lose another name, one in 512 times the
//!   number of rows.
//! - Where a record finds an entry of its own tag and window, which is another name's, both names
//!   share that entry. Then all older entries that match are cleared: invariant 2.
//! - Invariant 2 tells damage from an equal tag ([`Log::explains`]). Say that a window holds no
//!   record of the wanted name. Each row that has an entry for this window must then have it for
//!   an intact record of another name. If so, older entries can be looked at: those of that row
//!   are no older versions, because either the entry is not of the wanted name, or both names
//!   share it. If not, the record that an entry was made for is damaged. It may be the newest of
//!   the wanted name, so all that match are forgotten. Before an older entry is looked at, it must
//!   still be there: what cleared a newer one in between has cleared it too.
//! - Recovery records the lists of all batches since the checkpoint in their order, each window as
//!   a batch was recorded: first the records that count, then the others. A row that was saved
//!   after some of these batches has their entries already; a record that finds one makes none.
//! - During recovery, a row can have entries *ahead* of the head, of batches that the replay has
//!   not come to. Such a row was saved after the record that is replayed was written. So a record
//!   that matches an entry ahead makes no entry, for the row may know its replacement. It clears
//!   the older entries that match, in both rows, as if it had made one. A sweep or a new entry that
//!   drops an entry ahead clears all others of its tag in the row that are not ahead. At the end of
//!   recovery all rows are swept, so that no entry is ahead when the log goes on: what was in a
//!   list that cannot be read is forgotten. Only the rest of a segment whose list is damaged may be
//!   found through rows, when a later segment follows: it is newer than what the lists say.
//!
//! # Why 2 bits of lap are enough
//!
//! A position counts windows from the beginning of lap 0, and a log has *C* windows. The head is
//! always at the beginning of a window, because batches and segments end there, so it is such a
//! position too. An entry stores its position modulo 4 *C*, and counts as live if `head -
//! position`, modulo 4 *C* too, is above 0 and below *C*. (The window that begins at the head
//! counts as passed: the next batch overwrites it.) So an entry is misread only if it truly lies
//! more than 4 *C* behind the head, or more than 3 *C* ahead of it. Neither can be:
//!
//! - **Behind.** Each segment of the log has a part of the rows. When the log opens or skips a
//!   segment, that part is swept: what is not live is dropped. Few segments are skipped in a row
//!   (`LEFT_OUT_IN_A_ROW_MAX`, and at most a quarter of all, `LEFT_OUT_SHARE`), so the head is then
//!   at most *C* / 4 away from the beginning of the segment. So what a sweep keeps is less than
//!   1¼ *C* behind that place, and less than 2½ *C* behind the head when the part is swept again.
//! - **Behind, after a checkpoint was loaded.** Its rows were saved at or after its cursor. Replay
//!   goes on from the cursor for less than *C*, for a checkpoint that the log has passed is not
//!   loaded (`still_there` in `store/recover`). Then all rows are swept. Until then an entry is
//!   less than 3½ *C* behind. It does not matter how often that repeats, for each replay begins
//!   with rows as they were saved.
//! - **Ahead.** Only a checkpoint brings entries that lie ahead of the head: it is saved while the
//!   log goes on, and replay begins at its cursor. As the log has not come to the segment of the
//!   cursor again, they are less than *C* ahead. None is left when recovery is over.
//!   `Log::is_ahead` may take an entry more than 3 *C* behind for one ahead: during recovery alone,
//!   and at the cost of entries that are forgotten.
//! - **A scan, and growth.** The rows are empty when they begin, and only the last lap is recorded.
//!
//! A misread entry would not be a lie in itself, because each record proves its place. But `forget`
//! and `replaces` name one window. If an entry of another lap were misread as one of that window, a
//! record that was taken away would be found again.

use std::ops::Range;

use super::short_run::{lengthen, shorten};
use super::{Candidates, Located, LogPolicy, LogPos, Packed, WAYS};
use crate::address::Windows;
use crate::config::Rows;
use crate::key::KeyHash;

const WINDOW_BITS_MAX: u32 = 32;
const GENERATION_BITS: u32 = 2;
const RANK_BITS: u32 = 3;
/// Of a run (`short_run`): 3 of exponent, 3 of mantissa.
const RUN_BITS: u32 = 6;
const RUN_MANTISSA_BITS: u32 = 3;
const GROUPED_TAG_BITS: u32 = 2;
const GENERATIONS: u64 = 1 << GENERATION_BITS;

/// What decides about the form of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogForm {
    pub(crate) rows: Rows,
    /// Bits of the number of a window.
    pub(crate) window_bits: u32,
    /// Entries have the lengths of runs.
    pub(crate) grouped: bool,
    /// Entries have their places in the row's order of use, for readmission.
    pub(crate) ranked: bool,
}

impl LogForm {
    /// Of the longest entry that any store can have.
    pub(crate) const LONGEST: Self = Self {
        rows: Rows::Two,
        window_bits: WINDOW_BITS_MAX,
        grouped: true,
        ranked: true,
    };

    /// Bits of an entry: 8 or 9 of tag, those of the window, 2 of lap; ranked, 3 of rank; grouped,
    /// 2 more of tag and 6 of run.
    pub(crate) fn entry_bits(self) -> u32 {
        let run = if self.grouped { RUN_BITS } else { 0 };
        self.tag_bits() + self.window_bits + GENERATION_BITS + self.rank_bits() + run
    }

    /// A second row doubles the entries a miss is compared with; one more bit of tag halves them
    /// again.
    fn tag_bits(self) -> u32 {
        let of_rows = match self.rows {
            Rows::One => 8,
            Rows::Two => 9,
        };
        of_rows + if self.grouped { GROUPED_TAG_BITS } else { 0 }
    }

    fn rank_bits(self) -> u32 {
        if self.ranked { RANK_BITS } else { 0 }
    }
}

/// An unpacked entry; tag 0 means empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    /// The window's number in its lap.
    window: u32,
    generation: u8,
    /// 0 when ranks are not kept.
    rank: u8,
    /// Distance to the end of its run, as `format::run_code` tells it; 0 without one, or when runs
    /// are not kept.
    run: u8,
}

/// Takes the lowest `bits` bits off `word`.
fn take(word: &mut u64, bits: u32) -> u64 {
    let low = *word & ((1 << bits) - 1);
    *word >>= bits;
    low
}

impl Entry {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field has as many bits as it takes"
    )]
    fn unpack(mut word: u64, form: LogForm) -> Self {
        Self {
            tag: take(&mut word, form.tag_bits()) as u16,
            window: take(&mut word, form.window_bits) as u32,
            generation: take(&mut word, GENERATION_BITS) as u8,
            rank: take(&mut word, form.rank_bits()) as u8,
            run: lengthen(take(&mut word, RUN_BITS) as u8, RUN_MANTISSA_BITS),
        }
    }

    fn pack(self, form: LogForm) -> u64 {
        let run = shorten(self.run, RUN_MANTISSA_BITS);
        let rest = u64::from(self.rank) | u64::from(run) << form.rank_bits();
        let rest = u64::from(self.generation) | rest << GENERATION_BITS;
        let rest = u64::from(self.window) | rest << form.window_bits;
        u64::from(self.tag) | rest << form.tag_bits()
    }
}

/// One shard's rows.
pub(crate) struct Log {
    form: LogForm,
    rows: u32,
    windows: Windows,
    /// `rows` × [`WAYS`] entries.
    packed: Packed,
    early_evictions: u64,
}

impl Log {
    /// `rows` rows for a log of these `windows`.
    pub(crate) fn new(form: LogForm, rows: u32, windows: Windows) -> Self {
        debug_assert!(windows.count <= 1 << form.window_bits);
        Self {
            form,
            rows,
            windows,
            packed: Packed::new(rows as usize * WAYS, form.entry_bits()),
            early_evictions: 0,
        }
    }

    fn entry(&self, row: u32, way: usize) -> Entry {
        Entry::unpack(self.packed.entry(row as usize * WAYS + way), self.form)
    }

    fn store(&mut self, row: u32, way: usize, entry: Entry) {
        self.packed
            .store(row as usize * WAYS + way, entry.pack(self.form));
    }

    /// The number of an entry's window, counted through all laps, or `None` when it is empty or the
    /// head has passed it.
    fn window(&self, entry: Entry, head: LogPos) -> Option<u64> {
        let count = self.windows.count;
        let head = self.windows.of(head);
        let (lap, reached) = (head / count, head % count);
        let window = u64::from(entry.window);
        let generation = u64::from(entry.generation);
        if entry.tag == 0 {
            None
        } else if generation == lap % GENERATIONS && window < reached {
            Some(lap * count + window)
        } else if lap > 0 && generation == (lap - 1) % GENERATIONS && window > reached {
            Some((lap - 1) * count + window)
        } else {
            None
        }
    }

    /// An entry of `tag` for a window, used last, without a run.
    fn entry_for(&self, tag: u16, window: u64) -> Entry {
        let (lap, window) = (window / self.windows.count, window % self.windows.count);
        Entry {
            tag,
            window: u32::try_from(window).expect("a log has at most 2^32 windows"),
            generation: u8::try_from(lap % GENERATIONS).expect("below 4"),
            rank: 0,
            run: 0,
        }
    }

    fn tag(&self, key: KeyHash) -> u16 {
        key.tag(self.form.tag_bits())
    }

    /// The candidate row or rows of `key`; a second is left out when it is the first.
    fn candidate_rows(&self, key: KeyHash) -> impl Iterator<Item = u32> + use<> {
        let first = key.first_row(self.rows);
        let second = (self.form.rows == Rows::Two).then(|| key.second_row(self.rows));
        std::iter::once(first).chain(second.filter(|second| *second != first))
    }

    fn places(&self, key: KeyHash) -> impl Iterator<Item = (u32, usize)> + use<> {
        self.candidate_rows(key)
            .flat_map(|row| (0..WAYS).map(move |way| (row, way)))
    }

    /// The entry of `row` with the tag of `key` for the window of `at`, also if the entry does not
    /// count at this head.
    fn way_of(&self, row: u32, key: KeyHash, at: LogPos, head: LogPos) -> Option<usize> {
        let window = self.windows.of(at);
        let made = self.entry_for(self.tag(key), window);
        (0..WAYS).find(|way| {
            let entry = self.entry(row, *way);
            let is_equal = (entry.tag, entry.window, entry.generation)
                == (made.tag, made.window, made.generation);
            // A caller may have kept `at` for so many laps that a later window has its bits.
            is_equal && self.window(entry, head).is_none_or(|it| it == window)
        })
    }

    /// The same in the rows of `key`.
    fn place_of(&self, key: KeyHash, at: LogPos, head: LogPos) -> Option<(u32, usize)> {
        let mut rows = self.candidate_rows(key);
        rows.find_map(|row| Some((row, self.way_of(row, key, at, head)?)))
    }

    /// Whether an entry is of a window ahead of the head: always less than a lap, as the module's
    /// head shows.
    fn is_ahead(&self, entry: Entry, head: LogPos) -> bool {
        let all = GENERATIONS * self.windows.count;
        let window = u64::from(entry.generation) * self.windows.count + u64::from(entry.window);
        let distance = (window + all - self.windows.of(head) % all) % all;
        entry.tag != 0 && distance < self.windows.count
    }

    /// Whether an entry that matches `key` is ahead of the head: the replay has not come to it.
    fn is_any_ahead(&self, key: KeyHash, head: LogPos) -> bool {
        let tag = self.tag(key);
        self.places(key).any(|(row, way)| {
            let entry = self.entry(row, way);
            entry.tag == tag && self.is_ahead(entry, head)
        })
    }

    /// The entry of `key` for the window of `at`, if the head has not passed it.
    fn find(&self, key: KeyHash, at: LogPos, head: LogPos) -> Option<(u32, usize)> {
        let (row, way) = self.place_of(key, at, head)?;
        let window = self.window(self.entry(row, way), head);
        (window == Some(self.windows.of(at))).then_some((row, way))
    }

    /// The windows in which `key` may lie, newest first.
    fn candidates(&self, key: KeyHash, head: LogPos) -> Candidates {
        let tag = self.tag(key);
        let mut candidates = Candidates::NONE;
        for (row, way) in self.places(key) {
            let entry = self.entry(row, way);
            if entry.tag == tag
                && let Some(window) = self.window(entry, head)
            {
                candidates.add(self.windows.start(window), entry.run);
            }
        }
        candidates
    }

    fn clear_entry(&mut self, row: u32, way: usize) {
        let rank = self.entry(row, way).rank;
        self.store(
            row,
            way,
            Entry {
                tag: 0,
                window: 0,
                generation: 0,
                rank,
                run: 0,
            },
        );
    }

    /// Clears the entries of `row` that have the tag of `key` and windows older than `window`.
    fn clear_older(&mut self, row: u32, key: KeyHash, window: u64, head: LogPos) {
        self.clear_tag_below(row, self.tag(key), window, head);
    }

    fn clear_tag_below(&mut self, row: u32, tag: u16, window: u64, head: LogPos) {
        for way in 0..WAYS {
            let entry = self.entry(row, way);
            if entry.tag == tag && self.window(entry, head).is_some_and(|it| it < window) {
                self.clear_entry(row, way);
            }
        }
    }

    /// Clears an entry if it is ahead of the head, with the others of its tag in the row that are
    /// not: they are older.
    fn drop_if_ahead(&mut self, row: u32, way: usize, head: LogPos) {
        let entry = self.entry(row, way);
        if self.is_ahead(entry, head) {
            self.clear_entry(row, way);
            self.clear_tag_below(row, entry.tag, u64::MAX, head);
        }
    }

    /// Clears the entries that match `key` of the window of `at`, and in their rows the older ones.
    fn forget_window(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        for row in self.candidate_rows(key) {
            if let Some(way) = self.way_of(row, key, at, head) {
                self.clear_entry(row, way);
                self.clear_older(row, key, self.windows.of(at), head);
            }
        }
    }

    /// The place for an entry that could be a newer version of those that match `key`; `None` when
    /// it has none.
    ///
    /// What could be an older version pins the new entry to its own row: rows lose their oldest
    /// entry first, so within a row no older version outlives a newer one. Across rows it could,
    /// and would then be served. (Both rows: rare, so one of the two is dropped.)
    fn place_for(&mut self, key: KeyHash, head: LogPos) -> Option<(u32, usize)> {
        let tag = self.tag(key);
        let live = |log: &Self, (row, way): (u32, usize)| log.window(log.entry(row, way), head);
        let mut pinned = None;
        for (row, way) in self.places(key) {
            if self.entry(row, way).tag != tag || live(self, (row, way)).is_none() {
                continue;
            }
            if *pinned.get_or_insert(row) != row {
                self.clear_entry(row, way);
            }
        }
        // An empty entry in the emptier row, else the oldest of the rows: it has the least time
        // left.
        let used = |row: u32| {
            (0..WAYS)
                .filter(|way| live(self, (row, *way)).is_some())
                .count()
        };
        let by_room = |(row, way): &(u32, usize)| {
            let is_used = self.entry(*row, *way).tag != 0;
            (live(self, (*row, *way)), used(*row), is_used)
        };
        self.places(key)
            .filter(|(row, _)| pinned.is_none_or(|pinned| pinned == *row))
            .min_by_key(by_room)
    }

    /// Makes the entry the latest used of its row: ranks are the row's order of use, 0 the latest.
    /// Empty entries have ranks too, so that the ranks of a row are always a permutation.
    fn make_latest(&mut self, row: u32, way: usize) {
        if !self.form.ranked {
            return;
        }
        let mut entries: [Entry; WAYS] = std::array::from_fn(|way| self.entry(row, way));
        if entries
            .iter()
            .fold(0, |seen, entry| seen | 1u8 << entry.rank)
            != u8::MAX
        {
            // Never used (all bytes 0): the order is where they stand.
            for (entry, rank) in entries.iter_mut().zip(0..) {
                entry.rank = rank;
            }
        }
        let own = entries[way].rank;
        for entry in &mut entries {
            entry.rank += u8::from(entry.rank < own);
        }
        entries[way].rank = 0;
        for (way, entry) in entries.into_iter().enumerate() {
            self.store(row, way, entry);
        }
    }
}

impl LogPolicy for Log {
    fn locate(&self, key: KeyHash, head: LogPos) -> Located {
        let candidates = self.candidates(key, head);
        if candidates.as_slice().is_empty() {
            Located::Nowhere
        } else {
            Located::Log(candidates)
        }
    }

    fn points_to(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool {
        self.find(key, at, head).is_some()
    }

    fn explains(&self, key: KeyHash, at: LogPos, others: &[KeyHash], head: LogPos) -> bool {
        let made_for = |row: u32, other: &KeyHash| {
            key.shard() == other.shard()
                && self.tag(key) == self.tag(*other)
                && self.candidate_rows(*other).any(|it| it == row)
        };
        self.candidate_rows(key)
            .filter(|row| self.way_of(*row, key, at, head).is_some())
            .all(|row| others.iter().any(|other| made_for(row, other)))
    }

    // All windows are in memory: `locate` never says that a row must be read.
    fn resolve(&self, key: KeyHash, _saved: &[u8], head: LogPos) -> Candidates {
        self.candidates(key, head)
    }

    fn record(&mut self, key: KeyHash, at: LogPos, replaces: Option<LogPos>, head: LogPos) {
        let window = self.windows.of(at);
        // A record names its own place in a replay.
        let is_replay = replaces == Some(at);
        if let Some(old) = replaces.filter(|old| self.windows.of(*old) != window) {
            self.forget_window(key, old, head);
        }
        // Another name's, or in a replay this name's own, from a row that was saved later.
        let place = self.place_of(key, at, head);
        if place.is_some() || is_replay && self.is_any_ahead(key, head) {
            for row in self.candidate_rows(key) {
                self.clear_older(row, key, window, head);
            }
            if let Some((row, way)) = place {
                self.make_latest(row, way);
            }
            return;
        }
        let Some((row, way)) = self.place_for(key, head) else {
            return;
        };
        let old = self.entry(row, way);
        self.early_evictions += u64::from(self.window(old, head).is_some());
        if is_replay {
            self.drop_if_ahead(row, way, head);
        }
        let entry = Entry {
            rank: old.rank,
            ..self.entry_for(self.tag(key), window)
        };
        self.store(row, way, entry);
        self.make_latest(row, way);
    }

    fn leave_out(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        self.forget_window(key, at, head);
    }

    /// Of the records that share an entry, the longest run counts.
    fn set_run(&mut self, key: KeyHash, at: LogPos, run: u8, head: LogPos) {
        if self.form.grouped
            && let Some((row, way)) = self.find(key, at, head)
        {
            let entry = self.entry(row, way);
            let run = entry.run.max(run);
            self.store(row, way, Entry { run, ..entry });
        }
    }

    /// Of what came into its row since, an entry that was never used again was used before all. It
    /// is hot when it was used after more than half.
    fn is_hot(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool {
        let found = self.form.ranked.then(|| self.find(key, at, head));
        let Some((row, way)) = found.flatten() else {
            return false;
        };
        let own = Some(self.windows.of(at));
        let newer = |way: &usize| self.window(self.entry(row, *way), head) > own;
        let newer = (0..WAYS).filter(newer).count();
        2 * usize::from(self.entry(row, way).rank) < newer
    }

    fn touch(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        if self.form.ranked
            && let Some((row, way)) = self.find(key, at, head)
        {
            self.make_latest(row, way);
        }
    }

    fn forget(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        self.forget_window(key, at, head);
    }

    fn forget_all(&mut self, key: KeyHash, head: LogPos) -> bool {
        let tag = self.tag(key);
        let mut any = false;
        for (row, way) in self.places(key) {
            let entry = self.entry(row, way);
            if entry.tag == tag {
                any |= self.window(entry, head).is_some();
                self.clear_entry(row, way);
            }
        }
        any
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    fn sweep(&mut self, rows: Range<u32>, head: LogPos) {
        for row in rows {
            for way in 0..WAYS {
                let entry = self.entry(row, way);
                if entry.tag != 0 && self.window(entry, head).is_none() {
                    self.drop_if_ahead(row, way, head);
                    self.clear_entry(row, way);
                }
            }
        }
    }

    fn save(&mut self, rows: Range<u32>, _old: &[u8], out: &mut Vec<u8>) {
        let entries = rows.start as usize * WAYS..rows.end as usize * WAYS;
        self.packed.save(entries, out);
    }

    fn restore(&mut self, first: u32, bytes: &[u8]) {
        self.packed.restore(first as usize * WAYS, bytes);
    }

    fn clear(&mut self) {
        self.packed.clear();
    }

    // No window waits for a checkpoint, and memory has all of them at any time.

    fn widen(&mut self) {}

    fn narrow(&mut self) {}

    fn save_begins(&mut self) {}

    fn save_counts(&mut self) {}

    fn unsaved(&self) -> usize {
        0
    }

    fn entries(&self) -> u64 {
        let used = |n: &usize| self.packed.entry(*n) & ((1 << self.form.tag_bits()) - 1) != 0;
        (0..self.rows as usize * WAYS).filter(used).count() as u64
    }

    fn live(&self, head: LogPos) -> u64 {
        let entry = |n: usize| Entry::unpack(self.packed.entry(n), self.form);
        (0..self.rows as usize * WAYS)
            .filter(|n| self.window(entry(*n), head).is_some())
            .count() as u64
    }

    fn early_evictions(&self) -> u64 {
        self.early_evictions
    }
}

#[cfg(test)]
mod tests;
