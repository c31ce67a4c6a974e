//! HashCache-LogLRU: everything lies in the log; memory holds the positions of the objects of a row
//! that were used last (paper, section 3.5).
//!
//! A row has 8 entries of 15 bits (tag, generation, rank) and a few positions of 32 bits: that of
//! rank 0, rank 1 and so on. An entry whose rank falls behind them is *displaced*: its position
//! moves to `unsaved_positions`, and the next checkpoint, which saves whole rows, has it (47 bits
//! an entry). *Grouped*, each position has the 8 bits of its run beside it (section 3.6), and 5
//! where it is saved: there a length above 32 KiB is rounded up, by a quarter at most, for with its
//! check a row must fit into the 56 bytes that stores have room for. So the checkpoint is the file
//! of displaced positions, merged in one pass in the order it lies in: each row is made anew from
//! memory, the unsaved positions, and the row saved before.
//!
//! Invariants. An entry's position is that of its rank; otherwise it is among the unsaved
//! positions; otherwise in the row saved last. Of two entries of a row with equal tags, the one
//! used later is the newer: whatever would break that does not happen (`touch`), and rows lose the
//! entry used longest ago. So an older version is never found before, and never outlives, a newer
//! one. Where a position is lost, all that could be the same name is forgotten.
//! Cost: 15 bits a slot and 32 a position, grouped 40: 31 with half of them, grouped 35. One read
//! more for what is displaced. While recovery makes rows anew, all their positions are in memory
//! ([`LogPolicy::widen`]).

use std::ops::Range;

use super::packed::{Packed, load, store};
use super::short_run::{lengthen, shorten};
use super::unsaved_positions::{LogAddress, UnsavedPositions};
use super::{Candidates, Located, LogPolicy, LogPos, WAYS};
use crate::key::KeyHash;

const TAG_BITS: u32 = 8;
const GENERATION_BITS: u32 = 4;
const RANK_BITS: u32 = 3;
const SLOT_BITS: u32 = TAG_BITS + GENERATION_BITS + RANK_BITS;
const POSITION_BITS: u32 = 32;
const GENERATIONS: u64 = 1 << GENERATION_BITS;
const RUN_BITS: u32 = 8;
/// Of a run where it is saved (`short_run`): 3 of exponent, 2 of mantissa.
const SAVED_RUN_BITS: u32 = 5;
const SAVED_RUN_MANTISSA_BITS: u32 = 2;

/// Bits of an entry as it is saved, with its position.
fn saved_bits(grouped: bool) -> u32 {
    let run = if grouped { SAVED_RUN_BITS } else { 0 };
    SLOT_BITS + POSITION_BITS + run
}

/// Bytes of a row as it is saved, with all its positions.
pub(crate) fn saved_row_bytes(grouped: bool) -> usize {
    WAYS * saved_bits(grouped) as usize / 8
}

/// For the longest row that is saved, with room to load the last entry as a word.
const SCRATCH: usize = WAYS * (SLOT_BITS + POSITION_BITS + SAVED_RUN_BITS) as usize / 8 + 8;

/// Bits of memory for a position, grouped with its run.
pub(crate) fn place_bits(grouped: bool) -> u32 {
    POSITION_BITS + if grouped { RUN_BITS } else { 0 }
}

/// Bits of memory for a row of eight entries of which `held` have their positions in it.
pub(crate) fn row_bits(grouped: bool, held: usize) -> u32 {
    SLOT_BITS * 8 + place_bits(grouped) * u32::try_from(held).unwrap_or(8)
}

/// The run that `code` saves.
fn saved_run(code: u8) -> u8 {
    lengthen(code, SAVED_RUN_MANTISSA_BITS)
}

/// What saves a run.
fn saved_code(run: u8) -> u8 {
    shorten(run, SAVED_RUN_MANTISSA_BITS)
}

/// One shard's rows.
pub(crate) struct LogLru {
    grouped: bool,
    rows: u32,
    /// Positions in a row.
    held: usize,
    /// Units in the log; positions are stored modulo this.
    capacity: u64,
    entries: Packed,
    positions: Packed,
    /// The positions behind those, while all are in memory.
    others: Option<Packed>,
    unsaved: UnsavedPositions,
    early_evictions: u64,
}

/// An unpacked entry; tag 0 means empty. Its address is filled in where it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    tag: u16,
    generation: u8,
    rank: u8,
    address: LogAddress,
}

type Row = [Entry; WAYS];

/// The lowest `bits` bits from bit `from` of `word` on.
fn field(word: u64, from: u32, bits: u32) -> u32 {
    u32::try_from(word >> from & ((1 << bits) - 1)).unwrap_or(0)
}

fn narrow(field: u32) -> u8 {
    u8::try_from(field).unwrap_or(0)
}

impl Entry {
    fn unpack(word: u64) -> Self {
        Self {
            tag: u16::from(narrow(field(word, 0, TAG_BITS))),
            generation: narrow(field(word, TAG_BITS, GENERATION_BITS)),
            rank: narrow(field(word, TAG_BITS + GENERATION_BITS, RANK_BITS)),
            address: LogAddress {
                position: field(word, SLOT_BITS, POSITION_BITS),
                run: saved_run(narrow(field(
                    word,
                    SLOT_BITS + POSITION_BITS,
                    SAVED_RUN_BITS,
                ))),
            },
        }
    }

    /// Without its address.
    fn pack(self) -> u64 {
        let rest = u64::from(self.generation) | u64::from(self.rank) << GENERATION_BITS;
        u64::from(self.tag) | rest << TAG_BITS
    }

    fn pack_whole(self) -> u64 {
        let LogAddress { position, run } = self.address;
        let address = u64::from(position) | u64::from(saved_code(run)) << POSITION_BITS;
        self.pack() | address << SLOT_BITS
    }

    /// Empty, in the same place of the order of use.
    fn emptied(self) -> Self {
        Self {
            rank: self.rank,
            ..Self::default()
        }
    }
}

/// The ranks of a row that was never used (all bytes 0): where its entries stand.
fn rank_unless_ranked(row: &mut Row) {
    let seen = row.iter().fold(0, |seen, entry| seen | 1u8 << entry.rank);
    if seen != u8::MAX {
        for (entry, rank) in row.iter_mut().zip(0..) {
            entry.rank = rank;
        }
    }
}

fn generation(at: LogPos, capacity: u64) -> u8 {
    narrow(field(at.0 / capacity, 0, GENERATION_BITS))
}

/// What memory knows of the address of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The log's head has passed it.
    Passed,
    At(LogPos),
    /// In the row saved last.
    Displaced,
}

impl LogLru {
    /// `rows` rows for a log of `capacity` units, `held` positions in each, `unsaved_max` positions
    /// that may wait for a checkpoint.
    pub(crate) fn new(
        grouped: bool,
        rows: u32,
        capacity: u64,
        held: usize,
        unsaved_max: usize,
    ) -> Self {
        assert!((1..WAYS).contains(&held));
        let slots = rows as usize * WAYS;
        Self {
            grouped,
            rows,
            held,
            capacity,
            entries: Packed::new(slots, SLOT_BITS),
            positions: Packed::new(rows as usize * held, place_bits(grouped)),
            others: None,
            unsaved: UnsavedPositions::new(unsaved_max),
            early_evictions: 0,
        }
    }

    /// What it takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.bytes() + self.positions.bytes() + self.unsaved.bytes()
    }

    // -- rows -----------------------------------------------------------------------------------

    fn row_of(&self, key: KeyHash) -> u32 {
        key.first_row(self.rows)
    }

    fn slot(row: u32, way: usize) -> u32 {
        row * 8 + u32::try_from(way).unwrap_or(0)
    }

    /// The entries of a row; their positions are elsewhere and not looked at.
    fn row(&self, row: u32) -> Row {
        let packed = |way| self.entries.entry(row as usize * WAYS + way);
        let mut entries = std::array::from_fn(|way| Entry::unpack(packed(way)));
        rank_unless_ranked(&mut entries);
        entries
    }

    fn store_row(&mut self, row: u32, entries: &Row) {
        for (way, entry) in entries.iter().enumerate() {
            let n = row as usize * WAYS + way;
            self.entries.store(n, entry.pack());
        }
    }

    /// Ranks whose positions are in memory.
    fn held_ranks(&self) -> usize {
        if self.others.is_some() {
            WAYS
        } else {
            self.held
        }
    }

    fn held_address(&self, row: u32, rank: usize) -> LogAddress {
        let word = match &self.others {
            Some(others) if rank >= self.held => {
                others.entry(row as usize * (WAYS - self.held) + rank - self.held)
            }
            _ => self.positions.entry(row as usize * self.held + rank),
        };
        LogAddress {
            position: field(word, 0, POSITION_BITS),
            run: narrow(field(word, POSITION_BITS, RUN_BITS)),
        }
    }

    fn hold_address(&mut self, row: u32, rank: usize, address: LogAddress) {
        let (row, held) = (row as usize, self.held);
        let run = if self.grouped { address.run } else { 0 };
        let word = u64::from(address.position) | u64::from(run) << POSITION_BITS;
        match &mut self.others {
            Some(others) if rank >= held => {
                others.store(row * (WAYS - held) + rank - held, word);
            }
            _ => self.positions.store(row * held + rank, word),
        }
    }

    /// The address of an entry, if memory has it.
    fn address(&self, row: u32, way: usize, entry: Entry) -> Option<LogAddress> {
        let rank = usize::from(entry.rank);
        if rank < self.held_ranks() {
            Some(self.held_address(row, rank))
        } else {
            self.unsaved.address(Self::slot(row, way))
        }
    }

    fn known(&self, row: u32, way: usize, entry: Entry, head: LogPos) -> Known {
        let (lap, generation) = (head.0 / self.capacity, u64::from(entry.generation));
        match self.address(row, way, entry) {
            Some(address) => self
                .log_position(address.position, entry.generation, head)
                .map_or(Known::Passed, Known::At),
            None if generation == lap % GENERATIONS => Known::Displaced,
            None if lap > 0 && generation == (lap - 1) % GENERATIONS => Known::Displaced,
            None => Known::Passed,
        }
    }

    /// The full position, or `None` when the head has passed it.
    fn log_position(&self, position: u32, generation: u8, head: LogPos) -> Option<LogPos> {
        let (lap, reached) = (head.0 / self.capacity, head.0 % self.capacity);
        let (position, generation) = (u64::from(position), u64::from(generation));
        if generation == lap % GENERATIONS && position < reached {
            Some(LogPos(lap * self.capacity + position))
        } else if lap > 0 && generation == (lap - 1) % GENERATIONS && position > reached {
            Some(LogPos((lap - 1) * self.capacity + position))
        } else {
            None
        }
    }

    /// Ways of `row` with the tag of `key`.
    fn of_tag(entries: &Row, key: KeyHash) -> impl Iterator<Item = usize> + use<'_> {
        let tag = key.tag(TAG_BITS);
        (0..WAYS).filter(move |way| entries[*way].tag == tag)
    }

    fn clear_entry(&mut self, row: u32, entries: &mut Row, way: usize) {
        entries[way] = entries[way].emptied();
        self.unsaved.remove(Self::slot(row, way));
    }

    /// The entry at `way` is the latest used, at `address`; whatever falls behind is displaced.
    fn make_latest(&mut self, row: u32, entries: &mut Row, way: usize, address: LogAddress) {
        let own = usize::from(entries[way].rank);
        self.unsaved.remove(Self::slot(row, way));
        let held = self.held_ranks();
        if own >= held {
            self.displace_last(row, entries);
        }
        for rank in (1..=own.min(held - 1)).rev() {
            let address = self.held_address(row, rank - 1);
            self.hold_address(row, rank, address);
        }
        self.hold_address(row, 0, address);
        for entry in entries.iter_mut() {
            entry.rank += u8::from(usize::from(entry.rank) < own);
        }
        entries[way].rank = 0;
    }

    /// The last entry with its position in the row is about to fall behind.
    fn displace_last(&mut self, row: u32, entries: &mut Row) {
        let last = self.held - 1;
        let is_last = |way: &usize| usize::from(entries[*way].rank) == last;
        let Some(way) = (0..WAYS).find(is_last) else {
            return;
        };
        if entries[way].tag == 0 {
            return;
        }
        let address = self.held_address(row, last);
        if !self.unsaved.insert(Self::slot(row, way), address) {
            self.early_evictions += 1;
            self.forget_from(row, entries, way);
        }
    }

    /// Forgets the entry at `way` and those that could be older versions of its name.
    fn forget_from(&mut self, row: u32, entries: &mut Row, way: usize) {
        let lost = entries[way];
        for way in 0..WAYS {
            if entries[way].tag == lost.tag && entries[way].rank >= lost.rank {
                self.clear_entry(row, entries, way);
            }
        }
    }

    /// The place of a new entry: an empty one, or one that the head has passed (of those the one
    /// used last, so that least is displaced), otherwise the one used longest ago.
    fn victim(&self, row: u32, entries: &Row, head: LogPos) -> usize {
        let by_use = |way: &usize| {
            let entry = entries[*way];
            let is_free = entry.tag == 0 || self.known(row, *way, entry, head) == Known::Passed;
            if is_free {
                i16::from(entry.rank)
            } else {
                i16::from(u8::MAX) - i16::from(entry.rank)
            }
        };
        (0..WAYS).min_by_key(by_use).unwrap_or(0)
    }

    // -- saved rows -------------------------------------------------------------------------------

    /// The row as it is to be saved; displaced positions are taken from `old`, the row saved last.
    fn save_row(&mut self, row: u32, old: Option<&[u8]>, out: &mut Vec<u8>) {
        let mut entries = self.row(row);
        for way in 0..WAYS {
            // It may have been forgotten together with another one.
            if entries[way].tag == 0 {
                continue;
            }
            let address = self
                .address(row, way, entries[way])
                .or_else(|| self.saved_address(old?, way, entries[way]));
            match address {
                Some(address) => entries[way].address = address,
                None => {
                    self.forget_from(row, &mut entries, way);
                    self.store_row(row, &entries);
                }
            }
        }
        let mut bytes = [0; SCRATCH];
        for (way, entry) in entries.iter().enumerate() {
            store(
                &mut bytes,
                way,
                saved_bits(self.grouped),
                entry.pack_whole(),
            );
            if usize::from(entry.rank) >= self.held && entry.tag != 0 {
                self.unsaved.mark_saved(Self::slot(row, way));
            }
        }
        out.extend_from_slice(&bytes[..saved_row_bytes(self.grouped)]);
    }

    fn restore_row(&mut self, row: u32, bytes: &[u8]) {
        let Some(mut entries) = self.saved_row(bytes) else {
            return;
        };
        rank_unless_ranked(&mut entries);
        for entry in &entries {
            if usize::from(entry.rank) < self.held_ranks() {
                self.hold_address(row, entry.rank.into(), entry.address);
            }
        }
        self.store_row(row, &entries);
    }

    /// The entries of a row as it was saved.
    fn saved_row(&self, bytes: &[u8]) -> Option<Row> {
        let length = saved_row_bytes(self.grouped);
        let mut scratch = [0; SCRATCH];
        scratch[..length].copy_from_slice(bytes.get(..length)?);
        let entry = |way| Entry::unpack(load(&scratch, way, saved_bits(self.grouped)));
        Some(std::array::from_fn(entry))
    }

    /// The address that a row saved last has for the entry at `way`, if it is the same entry.
    fn saved_address(&self, old: &[u8], way: usize, entry: Entry) -> Option<LogAddress> {
        let saved = self.saved_row(old)?[way];
        (saved.tag == entry.tag && saved.generation == entry.generation).then_some(saved.address)
    }
}

impl LogPolicy for LogLru {
    fn locate(&self, key: KeyHash, head: LogPos) -> Located {
        let row = self.row_of(key);
        let entries = self.row(row);
        let mut candidates = Candidates::NONE;
        for way in Self::of_tag(&entries, key) {
            let entry = entries[way];
            match self.known(row, way, entry, head) {
                Known::Passed => {}
                Known::At(at) => {
                    let address = self.address(row, way, entry);
                    candidates.add(at, address.unwrap_or_default().run);
                }
                Known::Displaced => return Located::Displaced(row),
            }
        }
        if candidates.as_slice().is_empty() {
            return Located::Nowhere;
        }
        Located::Log(candidates)
    }

    fn points_to(&self, key: KeyHash, at: LogPos, head: LogPos) -> bool {
        let row = self.row_of(key);
        let entries = self.row(row);
        let points = |way| match self.known(row, way, entries[way], head) {
            Known::Passed => false,
            Known::At(known) => known == at,
            Known::Displaced => entries[way].generation == generation(at, self.capacity),
        };
        Self::of_tag(&entries, key).any(points)
    }

    // An entry points to one record, whatever its name.
    fn explains(&self, _key: KeyHash, _at: LogPos, others: &[KeyHash], _head: LogPos) -> bool {
        !others.is_empty()
    }

    fn resolve(&self, key: KeyHash, saved: &[u8], head: LogPos) -> Candidates {
        let row = self.row_of(key);
        let entries = self.row(row);
        let mut candidates = Candidates::NONE;
        for way in Self::of_tag(&entries, key) {
            let entry = entries[way];
            if self.known(row, way, entry, head) == Known::Passed {
                continue;
            }
            let in_memory = self.address(row, way, entry);
            let Some(address) = in_memory.or_else(|| self.saved_address(saved, way, entry)) else {
                // It could be the newest version: no older one may answer for it.
                return Candidates::NONE;
            };
            if let Some(at) = self.log_position(address.position, entry.generation, head) {
                candidates.add(at, address.run);
            }
        }
        candidates
    }

    fn record(&mut self, key: KeyHash, at: LogPos, replaces: Option<LogPos>, head: LogPos) {
        if let Some(old) = replaces {
            self.forget(key, old, head);
        }
        let row = self.row_of(key);
        let mut entries = self.row(row);
        let way = self.victim(row, &entries, head);
        if entries[way].tag != 0 && self.known(row, way, entries[way], head) != Known::Passed {
            self.early_evictions += 1;
        }
        self.clear_entry(row, &mut entries, way);
        let address = LogAddress {
            position: u32::try_from(at.0 % self.capacity).expect("a log has at most 2^32 units"),
            run: 0,
        };
        self.make_latest(row, &mut entries, way, address);
        // Not before: older versions that find no room to wait are forgotten by their tag.
        entries[way].tag = key.tag(TAG_BITS);
        entries[way].generation = generation(at, self.capacity);
        self.store_row(row, &entries);
    }

    // An entry points to one record, and none was made for this one.
    fn leave_out(&mut self, _key: KeyHash, _at: LogPos, _head: LogPos) {}

    fn set_run(&mut self, key: KeyHash, at: LogPos, run: u8, head: LogPos) {
        let row = self.row_of(key);
        let entries = self.row(row);
        for way in Self::of_tag(&entries, key) {
            let entry = entries[way];
            let (held, is_it) = (
                usize::from(entry.rank) < self.held_ranks(),
                self.known(row, way, entry, head) == Known::At(at),
            );
            if held && is_it {
                let address = self.held_address(row, entry.rank.into());
                self.hold_address(row, entry.rank.into(), LogAddress { run, ..address });
            }
        }
    }

    // Readmission counts hits on hot objects, see `writer/readmission`.
    fn is_hot(&self, _key: KeyHash, _at: LogPos, _head: LogPos) -> bool {
        false
    }

    // Only of the newest of equal tags, or an older version could outlive it; and what is displaced
    // only when there is but one, or it could be given the position of another name.
    fn touch(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        let row = self.row_of(key);
        let mut entries = self.row(row);
        let count = Self::of_tag(&entries, key).count();
        let newest = Self::of_tag(&entries, key).min_by_key(|way| entries[*way].rank);
        let Some(way) = newest else {
            return;
        };
        let is_it = match self.known(row, way, entries[way], head) {
            Known::Passed => false,
            Known::At(known) => known == at,
            Known::Displaced => {
                count == 1 && entries[way].generation == generation(at, self.capacity)
            }
        };
        if is_it {
            // The run of a displaced entry is known only after its row was read; the reader sets
            // it.
            let run = self.address(row, way, entries[way]).unwrap_or_default().run;
            let position = u32::try_from(at.0 % self.capacity).unwrap_or(0);
            self.make_latest(row, &mut entries, way, LogAddress { position, run });
            self.store_row(row, &entries);
        }
    }

    // What is displaced may be what lies at `at`, or another name: forgetting too much is allowed,
    // but not to leave an older version of what was forgotten.
    fn forget(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        let row = self.row_of(key);
        let mut entries = self.row(row);
        let of_at = generation(at, self.capacity);
        for way in 0..WAYS {
            let entry = entries[way];
            if entry.tag != key.tag(TAG_BITS) {
                continue;
            }
            match self.known(row, way, entry, head) {
                Known::At(known) if known == at => self.clear_entry(row, &mut entries, way),
                Known::Displaced if entry.generation == of_at => {
                    self.forget_from(row, &mut entries, way);
                }
                Known::Passed | Known::At(_) | Known::Displaced => {}
            }
        }
        self.store_row(row, &entries);
    }

    fn forget_all(&mut self, key: KeyHash, head: LogPos) -> bool {
        let row = self.row_of(key);
        let mut entries = self.row(row);
        let mut any = false;
        for way in 0..WAYS {
            if entries[way].tag == key.tag(TAG_BITS) {
                any |= self.known(row, way, entries[way], head) != Known::Passed;
                self.clear_entry(row, &mut entries, way);
            }
        }
        self.store_row(row, &entries);
        any
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    // A displaced entry is dropped a lap late, when its generation alone says that it is passed.
    fn sweep(&mut self, rows: Range<u32>, head: LogPos) {
        for row in rows {
            let mut entries = self.row(row);
            for way in 0..WAYS {
                let entry = entries[way];
                if entry.tag != 0 && self.known(row, way, entry, head) == Known::Passed {
                    self.clear_entry(row, &mut entries, way);
                    self.store_row(row, &entries);
                }
            }
        }
    }

    fn save(&mut self, rows: Range<u32>, old: &[u8], out: &mut Vec<u8>) {
        let mut old = old.chunks_exact(saved_row_bytes(self.grouped));
        for row in rows {
            self.save_row(row, old.next(), out);
        }
    }

    fn restore(&mut self, first: u32, bytes: &[u8]) {
        let rows = bytes.chunks_exact(saved_row_bytes(self.grouped));
        for (row, bytes) in (first..self.rows).zip(rows) {
            self.restore_row(row, bytes);
        }
    }

    fn widen(&mut self) {
        let others = self.rows as usize * (WAYS - self.held);
        self.others = Some(Packed::new(others, place_bits(self.grouped)));
    }

    fn narrow(&mut self) {
        self.others = None;
    }

    fn save_begins(&mut self) {
        self.unsaved.mark_all_unsaved();
    }

    fn save_counts(&mut self) {
        self.unsaved.drop_saved();
    }

    fn unsaved(&self) -> usize {
        self.unsaved.fullness()
    }

    fn entries(&self) -> u64 {
        let used = |n: &usize| Entry::unpack(self.entries.entry(*n)).tag != 0;
        (0..self.rows as usize * WAYS).filter(used).count() as u64
    }

    // What is displaced counts until its generation alone says that the head has passed it.
    fn live(&self, head: LogPos) -> u64 {
        let of_row = |row: u32| {
            let entries = self.row(row);
            let live = |way: &usize| {
                let entry = entries[*way];
                entry.tag != 0 && self.known(row, *way, entry, head) != Known::Passed
            };
            (0..WAYS).filter(live).count() as u64
        };
        (0..self.rows).map(of_row).sum()
    }

    fn early_evictions(&self) -> u64 {
        self.early_evictions
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.positions.clear();
        if self.others.is_some() {
            self.widen();
        }
        self.unsaved.clear();
    }
}

#[cfg(test)]
mod tests;
