//! HashCache-LogLRU: all objects are in the log; memory holds, for each row, the positions of the
//! objects that were used last (paper, section 3.5).
//!
//! A row has 8 entries of 15 bits (tag, generation, rank) and a few positions of 32 bits: for rank
//! 0, rank 1 and so on. When an entry's rank is too high for these, the entry is *displaced*: its
//! position moves to `unsaved_positions`, and the next checkpoint, which saves whole rows, has it
//! (47 bits an entry). *Grouped*, each position has 8 more bits for the run (section 3.6), and 5
//! where it is saved: there a length above 32 KiB is rounded up, by a quarter at most, because a
//! row with its check must fit into the 56 bytes that stores have room for. So the checkpoint is
//! also the file for displaced positions. It is merged in one pass in the order on disk: each row
//! is rebuilt from memory, the unsaved positions, and the row saved before.
//!
//! Invariants. An entry's position is in memory at its rank; otherwise it is among the unsaved
//! positions; otherwise it is in the row saved last. If two entries in a row have equal tags, the
//! entry used later is the newer version: `touch` does nothing that would break this, and rows lose
//! the least recently used entry. So an older version is never found before a newer version, and
//! never outlives it. If a position is lost, all entries that could be the same name are forgotten.
//! Cost: 15 bits a slot and 32 a position, grouped 40: 31 bits with half the positions in memory,
//! grouped 35. One more read for a displaced entry. While recovery rebuilds rows, all their
//! positions are in memory ([`LogPolicy::widen`]).

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
/// Bits in a saved run (`short_run`): 3 for the exponent, 2 for the mantissa.
const SAVED_RUN_BITS: u32 = 5;
const SAVED_RUN_MANTISSA_BITS: u32 = 2;

/// Bits in a saved entry, including its position.
fn saved_bits(grouped: bool) -> u32 {
    let run = if grouped { SAVED_RUN_BITS } else { 0 };
    SLOT_BITS + POSITION_BITS + run
}

/// Bytes in a saved row, including all positions.
pub(crate) fn saved_row_bytes(grouped: bool) -> usize {
    WAYS * saved_bits(grouped) as usize / 8
}

/// Buffer size for the longest saved row, with room to load the last entry as a word.
const SCRATCH: usize = WAYS * (SLOT_BITS + POSITION_BITS + SAVED_RUN_BITS) as usize / 8 + 8;

/// Bits of memory for a position; grouped, including the run.
pub(crate) fn place_bits(grouped: bool) -> u32 {
    POSITION_BITS + if grouped { RUN_BITS } else { 0 }
}

/// Bits of memory for a row of eight entries with `held` positions.
pub(crate) fn row_bits(grouped: bool, held: usize) -> u32 {
    SLOT_BITS * 8 + place_bits(grouped) * u32::try_from(held).unwrap_or(8)
}

/// Decodes a saved run.
fn saved_run(code: u8) -> u8 {
    lengthen(code, SAVED_RUN_MANTISSA_BITS)
}

/// Encodes a run for saving.
fn saved_code(run: u8) -> u8 {
    shorten(run, SAVED_RUN_MANTISSA_BITS)
}

/// One shard's rows.
pub(crate) struct LogLru {
    grouped: bool,
    rows: u32,
    /// Positions held in memory for each row.
    held: usize,
    /// Units in the log; positions are stored modulo this.
    capacity: u64,
    entries: Packed,
    positions: Packed,
    /// The positions for the other ranks, while all are in memory (`widen`).
    others: Option<Packed>,
    unsaved: UnsavedPositions,
    early_evictions: u64,
}

/// An unpacked entry; tag 0 means empty. The address is set only where it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    tag: u16,
    generation: u8,
    rank: u8,
    address: LogAddress,
}

type Row = [Entry; WAYS];

/// Extracts `bits` bits from `word`, starting at bit `from`.
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

    /// Packs the entry without its address.
    fn pack(self) -> u64 {
        let rest = u64::from(self.generation) | u64::from(self.rank) << GENERATION_BITS;
        u64::from(self.tag) | rest << TAG_BITS
    }

    fn pack_whole(self) -> u64 {
        let LogAddress { position, run } = self.address;
        let address = u64::from(position) | u64::from(saved_code(run)) << POSITION_BITS;
        self.pack() | address << SLOT_BITS
    }

    /// An empty entry with the same rank.
    fn emptied(self) -> Self {
        Self {
            rank: self.rank,
            ..Self::default()
        }
    }
}

/// Sets ranks in entry order, for a row that was never used (all bytes 0).
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

/// Result when memory is searched for an entry's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The log's head has passed the entry.
    Passed,
    At(LogPos),
    /// The position is in the row saved last.
    Displaced,
}

impl LogLru {
    /// `rows` rows for a log of `capacity` units, with `held` positions in each row; at most
    /// `unsaved_max` positions may wait for a checkpoint.
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

    /// Memory in use, bytes.
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

    /// Reads a row's entries without their positions, which are stored elsewhere.
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

    /// Number of ranks with positions in memory.
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

    /// An entry's address, if it is in memory.
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

    /// The full log position, or `None` if the head has passed it.
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

    /// Makes the entry at `way` the most recently used, at `address`; the entry that drops out of
    /// the held ranks is displaced.
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

    /// Displaces the entry with the last held rank: its position moves to the unsaved positions.
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

    /// Forgets the entry at `way` and all entries that could be older versions.
    fn forget_from(&mut self, row: u32, entries: &mut Row, way: usize) {
        let lost = entries[way];
        for way in 0..WAYS {
            if entries[way].tag == lost.tag && entries[way].rank >= lost.rank {
                self.clear_entry(row, entries, way);
            }
        }
    }

    /// Chooses the place for a new entry: the most recently used among empty and passed entries, so
    /// that as few entries as possible are displaced; otherwise the least recently used entry.
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

    /// Saves a row; displaced positions are taken from `old`, the row saved last.
    fn save_row(&mut self, row: u32, old: Option<&[u8]>, out: &mut Vec<u8>) {
        let mut entries = self.row(row);
        for way in 0..WAYS {
            // The entry may have been forgotten together with another entry.
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

    /// Decodes a saved row.
    fn saved_row(&self, bytes: &[u8]) -> Option<Row> {
        let length = saved_row_bytes(self.grouped);
        let mut scratch = [0; SCRATCH];
        scratch[..length].copy_from_slice(bytes.get(..length)?);
        let entry = |way| Entry::unpack(load(&scratch, way, saved_bits(self.grouped)));
        Some(std::array::from_fn(entry))
    }

    /// The address in the row saved last for the entry at `way`, if it is the same entry.
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

    // An entry points to one record only, so any record found there explains it.
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
                // This entry could be the newest version, so no older version may be returned
                // instead.
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
        // Set the tag only now: if there is no room for the displaced entry, `make_latest` forgets
        // entries by tag.
        entries[way].tag = key.tag(TAG_BITS);
        entries[way].generation = generation(at, self.capacity);
        self.store_row(row, &entries);
    }

    // An entry points to one record, and no entry was made for this record.
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

    // For this policy, readmission counts hits on hot objects, see `writer/readmission`.
    fn is_hot(&self, _key: KeyHash, _at: LogPos, _head: LogPos) -> bool {
        false
    }

    // Only the newest equal tag is touched, otherwise an older version could outlive it. A
    // displaced entry is touched only if no other entry has its tag, otherwise it could get another
    // name's position.
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
            // A displaced entry's run is known only after its row was read; the reader sets it.
            let run = self.address(row, way, entries[way]).unwrap_or_default().run;
            let position = u32::try_from(at.0 % self.capacity).unwrap_or(0);
            self.make_latest(row, &mut entries, way, LogAddress { position, run });
            self.store_row(row, &entries);
        }
    }

    // A displaced entry may be the record at `at`, or another name. Forgetting too much is allowed,
    // but an older version must not remain.
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

    // A displaced entry is dropped a lap late, because only the generation shows that it is passed.
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

    // A displaced entry counts until its generation shows that the head has passed it.
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
