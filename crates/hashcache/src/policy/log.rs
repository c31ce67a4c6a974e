//! HashCache-Log: all objects are in the log; memory holds for each object a tag and the place to
//! read (paper, section 3.5).
//!
//! The published form gives each key one row of 8 entries of 47 bits; at load 1 it reaches 86 % of
//! a full log. By default, here each key has **two** candidate rows, and an insert replaces the
//! oldest entry among both rows. Both forms are implemented ([`Rows`]), to be compared. The
//! published entry has 32 bits of position, 3 of rank and 4 of lap. Here an entry has the number of
//! a *window* of the log, with as many bits as the number of windows needs; ranks are stored only
//! with readmission, because nothing else reads them; and the lap has 2 bits. So on 1 TB, with
//! windows of 4 KiB, an entry takes 38 bits, and 39 with the ninth tag bit that pays for the second
//! row; each time the log is half as large, an entry takes one bit less. 95 % are reachable at 1.08
//! slots a live object.
//!
//! *Grouped*, an entry has 8 bits more. 6 bits tell how far the run reaches behind the object
//! (paper, sections 3.6 and 3.7), so that one read returns all objects that were written with it. 2
//! bits make the tag longer, for two reasons. If an equal tag belongs to another name, its whole
//! run is read in vain. And if a newer entry has the tag of an object, that object does not become
//! hot with the other objects of its page, because it may have been replaced.
//!
//! # Windows
//!
//! A window is a stretch of the log; the geometry of the store fixes the length. Batches start and
//! finish at window boundaries, so **each window holds records of one batch only**. The reader of a
//! window looks in it for a record of the wanted name. The hash of the name and the MAC identify
//! the record, but they do not show if it still counts: a window can hold records that were
//! replaced or removed. A record is *dead* if it was recorded and then replaced or removed, or if
//! it already did not count when its batch was recorded ([`Log::leave_out`]).
//!
//! An entry *matches* a name if it has the tag of the name and is in one of the rows of the name. A
//! lookup reads the windows of all matching entries, the newest window first. Two invariants make
//! the first record that it finds the current record:
//!
//! 1. If an entry matches a name and its window holds a dead record of that name, then the same row
//!    has an entry that matches, of a newer window that holds the name's current record.
//! 2. If the records of two names share an entry, then its row has no older entry of that tag.
//!
//! Why they hold:
//!
//! - The records of one batch in one shard are recorded under one lock: first the records that
//!   count, then the others. Entries of a window are made at no other time. So when a record is
//!   removed later, it is enough to clear the entries of its window: none of them is made again.
//! - [`Log::record`] clears the entries of the window that held the replaced record, if the window
//!   is known. Otherwise the entries that could be older versions stay in one row, the new entry is
//!   stored in that row, and rows lose their oldest entry first: invariant 1.
//! - Every function that clears an entry also clears the older entries of that tag in the row, so
//!   none of these remains without the newer entry that it needs. That may lose another name, in
//!   one of 512 cases times the number of rows.
//! - If a record finds an entry of its own tag and window, the entry belongs to another name, and
//!   both names share it. Then all older entries that match are cleared: invariant 2.
//! - Invariant 2 tells damage from an equal tag ([`Log::explains`]). Say that a window holds no
//!   record of the wanted name. Each row that has an entry for this window must then have it for an
//!   intact record of another name. If so, older entries can be read: the entries of that row are
//!   no older versions, because either the entry is not for the wanted name, or both names share
//!   it. If not, the record that the entry was made for is damaged. It may be the newest record of
//!   the wanted name, so all entries that match are forgotten. Before a lookup reads an older
//!   entry, that entry must still be there: if a newer entry was cleared in between, the older
//!   entry was cleared too.
//! - Recovery records the lists of all batches since the checkpoint in order, each window as the
//!   batch was recorded: first the records that count, then the others. A row that was saved after
//!   some of these batches already has their entries; a record that finds its entry makes no other.
//! - During recovery, a row can have entries *ahead* of the head, of batches that the replay has
//!   not reached. Such a row was saved after the record that is replayed was written. So a record
//!   that matches an entry ahead makes no entry, because the row may know a replacement. The record
//!   clears the older entries that match, in both rows, as if it had made an entry. A sweep or a
//!   new entry that drops an entry ahead clears all other entries of the tag in the row that are
//!   not ahead. At the end of recovery all rows are swept, so that no entry is ahead when the log
//!   continues: the records of a list that cannot be read are forgotten. With one exception: if a
//!   list is damaged and a later segment follows, the records in the rest of the damaged segment
//!   may be found through rows. They are newer than the records in the lists.
//!
//! # Why 2 bits of lap are enough
//!
//! A position counts windows from the start of lap 0, and a log has *C* windows. The head is always
//! at the start of a window, because batches and segments finish there, so the head is such a
//! position too. An entry stores its position modulo 4 *C*, and counts as live if `head -
//! position`, also modulo 4 *C*, is above 0 and below *C*. (The window that starts at the head
//! counts as passed, because the next batch overwrites it.) So an entry is misread only if its true
//! position is more than 4 *C* behind the head, or more than 3 *C* ahead of it. Neither can happen:
//!
//! - **Behind.** Each segment of the log has a part of the rows. When the log opens or skips a
//!   segment, that part is swept: entries that are not live are dropped. Few segments are skipped
//!   in a row (`LEFT_OUT_IN_A_ROW_MAX`, and at most a quarter of all, `LEFT_OUT_SHARE`), so the
//!   head is then at most *C* / 4 away from the start of the segment. So the entries that a sweep
//!   keeps are less than 1¼ *C* behind that place, and less than 2½ *C* behind the head when the
//!   part is swept again.
//! - **Behind, after a checkpoint was loaded.** The rows were saved at or after the cursor of the
//!   checkpoint. Replay continues from the cursor for less than *C*, because a checkpoint that the
//!   log has passed is not loaded (`still_there` in `store/recover`). Then all rows are swept.
//!   Until then an entry is less than 3½ *C* behind. It does not matter how often this happens,
//!   because each replay starts with rows as they were saved.
//! - **Ahead.** Only a checkpoint brings entries that are ahead of the head: it is saved while the
//!   log continues, and replay starts at the cursor. The log has not reached the segment of the
//!   cursor again, so such entries are less than *C* ahead. None is left when recovery is over.
//!   `Log::is_ahead` may take an entry more than 3 *C* behind for an entry ahead, but only during
//!   recovery, and then entries are forgotten, nothing worse.
//! - **A scan, and growth.** The rows are empty at the start, and only the last lap is recorded.
//!
//! A misread entry alone would not return a wrong record, because each record proves its own place.
//! But `forget` and `replaces` name one window. If an entry of another lap were misread as an entry
//! of that window, a removed record would be found again.

use std::ops::Range;

use super::short_run::{lengthen, shorten};
use super::{Candidates, Located, LogPolicy, LogPos, Packed, WAYS};
use crate::address::Windows;
use crate::config::Rows;
use crate::key::KeyHash;

const WINDOW_BITS_MAX: u32 = 32;
const GENERATION_BITS: u32 = 2;
const RANK_BITS: u32 = 3;
/// Run bits (`short_run`): 3 for the exponent, 3 for the mantissa.
const RUN_BITS: u32 = 6;
const RUN_MANTISSA_BITS: u32 = 3;
const GROUPED_TAG_BITS: u32 = 2;
const GENERATIONS: u64 = 1 << GENERATION_BITS;

/// The parameters that fix the entry format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogForm {
    pub(crate) rows: Rows,
    /// Bits for a window number.
    pub(crate) window_bits: u32,
    /// Entries store run lengths.
    pub(crate) grouped: bool,
    /// Entries store their ranks in the row's order of use, for readmission.
    pub(crate) ranked: bool,
}

impl LogForm {
    /// The form with the longest entry that any store can have.
    pub(crate) const LONGEST: Self = Self {
        rows: Rows::Two,
        window_bits: WINDOW_BITS_MAX,
        grouped: true,
        ranked: true,
    };

    /// Bits in an entry: 8 or 9 for the tag, `window_bits`, 2 for the lap; ranked, 3 for the rank;
    /// grouped, 2 more for the tag and 6 for the run.
    pub(crate) fn entry_bits(self) -> u32 {
        let run = if self.grouped { RUN_BITS } else { 0 };
        self.tag_bits() + self.window_bits + GENERATION_BITS + self.rank_bits() + run
    }

    /// A second row doubles the entries that a miss is compared with; one more tag bit halves the
    /// matches again.
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
    /// Window number within the lap.
    window: u32,
    generation: u8,
    /// 0 if ranks are not stored.
    rank: u8,
    /// Distance to the run's end, as a `format::run_code`; 0 if there is no run, or if runs are not
    /// stored.
    run: u8,
}

/// Removes the lowest `bits` bits from `word` and returns them.
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
    /// `rows` rows for a log with these `windows`.
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

    /// An entry's window number, counted through all laps, or `None` if the entry is empty or the
    /// head has passed the window.
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

    /// A new entry with `tag` for a window: rank 0, no run.
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

    /// The candidate row or rows for `key`; a second row equal to the first is left out.
    fn candidate_rows(&self, key: KeyHash) -> impl Iterator<Item = u32> + use<> {
        let first = key.first_row(self.rows);
        let second = (self.form.rows == Rows::Two).then(|| key.second_row(self.rows));
        std::iter::once(first).chain(second.filter(|second| *second != first))
    }

    fn places(&self, key: KeyHash) -> impl Iterator<Item = (u32, usize)> + use<> {
        self.candidate_rows(key)
            .flat_map(|row| (0..WAYS).map(move |way| (row, way)))
    }

    /// Finds the entry in `row` with `key`'s tag for the window that contains `at`, even if the
    /// entry does not count at this head.
    fn way_of(&self, row: u32, key: KeyHash, at: LogPos, head: LogPos) -> Option<usize> {
        let window = self.windows.of(at);
        let made = self.entry_for(self.tag(key), window);
        (0..WAYS).find(|way| {
            let entry = self.entry(row, *way);
            let is_equal = (entry.tag, entry.window, entry.generation)
                == (made.tag, made.window, made.generation);
            // A caller may have kept `at` for several laps, until a later window has equal bits.
            is_equal && self.window(entry, head).is_none_or(|it| it == window)
        })
    }

    /// As [`Log::way_of`], in all rows for `key`.
    fn place_of(&self, key: KeyHash, at: LogPos, head: LogPos) -> Option<(u32, usize)> {
        let mut rows = self.candidate_rows(key);
        rows.find_map(|row| Some((row, self.way_of(row, key, at, head)?)))
    }

    /// Returns true if an entry's window is ahead of the head. The distance is always less than a
    /// lap, as the module head shows.
    fn is_ahead(&self, entry: Entry, head: LogPos) -> bool {
        let all = GENERATIONS * self.windows.count;
        let window = u64::from(entry.generation) * self.windows.count + u64::from(entry.window);
        let distance = (window + all - self.windows.of(head) % all) % all;
        entry.tag != 0 && distance < self.windows.count
    }

    /// Returns true if an entry that matches `key` is ahead of the head: the replay has not reached
    /// it.
    fn is_any_ahead(&self, key: KeyHash, head: LogPos) -> bool {
        let tag = self.tag(key);
        self.places(key).any(|(row, way)| {
            let entry = self.entry(row, way);
            entry.tag == tag && self.is_ahead(entry, head)
        })
    }

    /// Finds the entry for `key` and the window that contains `at`, if the head has not passed the
    /// window.
    fn find(&self, key: KeyHash, at: LogPos, head: LogPos) -> Option<(u32, usize)> {
        let (row, way) = self.place_of(key, at, head)?;
        let window = self.window(self.entry(row, way), head);
        (window == Some(self.windows.of(at))).then_some((row, way))
    }

    /// The windows in which `key` may be stored, newest first.
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

    /// Clears an entry if it is ahead of the head, and the other entries with its tag in the row
    /// that are not ahead, because they are older.
    fn drop_if_ahead(&mut self, row: u32, way: usize, head: LogPos) {
        let entry = self.entry(row, way);
        if self.is_ahead(entry, head) {
            self.clear_entry(row, way);
            self.clear_tag_below(row, entry.tag, u64::MAX, head);
        }
    }

    /// Clears the entries that match `key` for the window that contains `at`, and the older entries
    /// in their rows.
    fn forget_window(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        for row in self.candidate_rows(key) {
            if let Some(way) = self.way_of(row, key, at, head) {
                self.clear_entry(row, way);
                self.clear_older(row, key, self.windows.of(at), head);
            }
        }
    }

    /// Chooses the place for an entry that could be newer than all entries that match `key`; `None`
    /// if there is none.
    ///
    /// An entry that could be an older version pins the new entry to its row: rows lose their
    /// oldest entry first, so within a row no older version outlives a newer version. Across rows
    /// it could, and would then be served. (If both rows have such an entry, which is rare, the
    /// entry in the second row is dropped.)
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
        // Prefer an empty entry in the emptier row, else take the oldest entry, which has the least
        // time left.
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

    /// Makes the entry the most recently used in the row: ranks are the order of use, 0 the latest.
    /// Empty entries have ranks too, so that a row's ranks are always a permutation.
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
            // The row was never used (all bytes 0): start with the entries' order.
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

    // All windows are in memory: `locate` never returns a row to read.
    fn resolve(&self, key: KeyHash, _saved: &[u8], head: LogPos) -> Candidates {
        self.candidates(key, head)
    }

    fn record(&mut self, key: KeyHash, at: LogPos, replaces: Option<LogPos>, head: LogPos) {
        let window = self.windows.of(at);
        // In a replay, `replaces` is the record's own position.
        let is_replay = replaces == Some(at);
        if let Some(old) = replaces.filter(|old| self.windows.of(*old) != window) {
            self.forget_window(key, old, head);
        }
        // The entry belongs to another name, or in a replay to this name, from a row that was saved
        // later.
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

    /// If several records share an entry, the longest run counts.
    fn set_run(&mut self, key: KeyHash, at: LogPos, run: u8, head: LogPos) {
        if self.form.grouped
            && let Some((row, way)) = self.find(key, at, head)
        {
            let entry = self.entry(row, way);
            let run = entry.run.max(run);
            self.store(row, way, Entry { run, ..entry });
        }
    }

    /// An entry that was never used again ranks behind all entries that were added to the row
    /// later. An object is hot if it was used after more than half of the newer entries were added.
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

    // No window waits for a checkpoint, and all windows are always in memory.

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
