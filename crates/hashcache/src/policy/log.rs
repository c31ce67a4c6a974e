//! HashCache-Log: everything lies in the log, memory holds a tag and a position (paper, section
//! 3.5).
//!
//! The published form gives each key one row of 8 entries; at load 1 it reaches 86 % of a full log.
//! Here each key has **two** candidate rows, and an insert replaces the oldest entry of both. That
//! and a ninth tag bit (to pay for the second row) make 48 bits an entry, and 95 % reachable at
//! less than 52 bits a live object.

use std::ops::Range;

use super::{Candidates, Located, LogPos, Policy};
use crate::key::KeyHash;

/// Entries in a row.
pub(crate) const WAYS: usize = 8;
/// 9 bits of tag, 32 of position, 4 of generation, 3 of rank.
pub(crate) const ENTRY_BYTES: usize = 6;

const TAG_BITS: u32 = 9;
const GENERATIONS: u64 = 16;

/// An unpacked entry; tag 0 means empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    position: u32,
    generation: u8,
    rank: u8,
}

impl Entry {
    fn unpack(bytes: [u8; ENTRY_BYTES]) -> Self {
        let [a, b, c, d, e, f] = bytes;
        let rest = u16::from_le_bytes([e, f]);
        Self {
            tag: rest & 0x1ff,
            position: u32::from_le_bytes([a, b, c, d]),
            generation: (rest >> 9 & 0xf) as u8,
            rank: (rest >> 13) as u8,
        }
    }

    fn pack(self) -> [u8; ENTRY_BYTES] {
        let rest = self.tag | u16::from(self.generation) << 9 | u16::from(self.rank) << 13;
        let ([a, b, c, d], [e, f]) = (self.position.to_le_bytes(), rest.to_le_bytes());
        [a, b, c, d, e, f]
    }
}

/// One shard's rows.
pub(crate) struct Log {
    rows: u32,
    /// Units in the log; positions are stored modulo this.
    capacity: u64,
    /// `rows` × [`WAYS`] entries, [`ENTRY_BYTES`] each.
    packed: Box<[u8]>,
    early_evictions: u64,
}

impl Log {
    /// `rows` rows for a log of `capacity` units.
    pub(crate) fn new(rows: u32, capacity: u64) -> Self {
        let bytes = rows as usize * WAYS * ENTRY_BYTES;
        // Zeroed by the kernel on first touch, so an empty index takes no memory yet.
        Self {
            rows,
            capacity,
            packed: vec![0; bytes].into(),
            early_evictions: 0,
        }
    }

    fn entry(&self, row: u32, way: usize) -> Entry {
        let at = (row as usize * WAYS + way) * ENTRY_BYTES;
        let mut bytes = [0; ENTRY_BYTES];
        bytes.copy_from_slice(&self.packed[at..at + ENTRY_BYTES]);
        Entry::unpack(bytes)
    }

    fn store(&mut self, row: u32, way: usize, entry: Entry) {
        let at = (row as usize * WAYS + way) * ENTRY_BYTES;
        self.packed[at..at + ENTRY_BYTES].copy_from_slice(&entry.pack());
    }

    /// The full position of an entry, or `None` when it is empty or the head has passed it.
    fn position(&self, entry: Entry, head: LogPos) -> Option<LogPos> {
        let (lap, reached) = (head.0 / self.capacity, head.0 % self.capacity);
        let position = u64::from(entry.position);
        let generation = u64::from(entry.generation);
        if entry.tag == 0 {
            None
        } else if generation == lap % GENERATIONS && position < reached {
            Some(LogPos(lap * self.capacity + position))
        } else if lap > 0 && generation == (lap - 1) % GENERATIONS && position > reached {
            Some(LogPos((lap - 1) * self.capacity + position))
        } else {
            None
        }
    }

    /// The candidate rows of `key`; the second is left out when it is the first.
    fn candidate_rows(&self, key: KeyHash) -> impl Iterator<Item = u32> + use<> {
        let (first, second) = (key.first_row(self.rows), key.second_row(self.rows));
        std::iter::once(first).chain(Some(second).filter(|second| *second != first))
    }

    fn places(&self, key: KeyHash) -> impl Iterator<Item = (u32, usize)> + use<> {
        self.candidate_rows(key)
            .flat_map(|row| (0..WAYS).map(move |way| (row, way)))
    }

    /// The entry of `key` that points to `at`.
    fn find(&self, key: KeyHash, at: LogPos, head: LogPos) -> Option<(u32, usize)> {
        let tag = key.tag(TAG_BITS);
        self.places(key).find(|(row, way)| {
            let entry = self.entry(*row, *way);
            entry.tag == tag && self.position(entry, head) == Some(at)
        })
    }

    fn clear(&mut self, row: u32, way: usize) {
        let rank = self.entry(row, way).rank;
        self.store(
            row,
            way,
            Entry {
                tag: 0,
                position: 0,
                generation: 0,
                rank,
            },
        );
    }

    /// Makes the entry the latest used of its row: ranks are the row's order of use, 0 the latest.
    /// Empty entries have ranks too, so that the ranks of a row are always a permutation.
    fn make_latest(&mut self, row: u32, way: usize) {
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

impl Policy for Log {
    fn locate(&self, key: KeyHash, head: LogPos) -> Located {
        let tag = key.tag(TAG_BITS);
        let mut candidates = Candidates::NONE;
        for (row, way) in self.places(key) {
            let entry = self.entry(row, way);
            if entry.tag == tag
                && let Some(at) = self.position(entry, head)
            {
                candidates.add(at);
            }
        }
        if candidates.as_slice().is_empty() {
            return Located::Nowhere;
        }
        candidates.sort();
        Located::Log(candidates)
    }

    fn record(&mut self, key: KeyHash, at: LogPos, replaces: Option<LogPos>, head: LogPos) {
        if let Some((row, way)) = replaces.and_then(|old| self.find(key, old, head)) {
            self.clear(row, way);
        }
        let tag = key.tag(TAG_BITS);
        let live = |log: &Self, (row, way): (u32, usize)| log.position(log.entry(row, way), head);
        // What could be an older version of this name pins the new entry to its own row: rows lose
        // their oldest entry first, so within a row no older version outlives a newer one. Across
        // rows it could, and would then be served. (Both rows: rare, so one of the two is dropped.)
        let mut pinned = None;
        for (row, way) in self.places(key) {
            if self.entry(row, way).tag == tag && live(self, (row, way)).is_some() {
                if pinned.is_some_and(|pinned| pinned != row) {
                    self.clear(row, way);
                } else {
                    pinned = Some(row);
                }
            }
        }
        // An empty entry in the emptier row, else the oldest of the rows: it has the least time
        // left.
        let used = |row: u32| {
            (0..WAYS)
                .filter(|way| live(self, (row, *way)).is_some())
                .count()
        };
        let by_room = |(row, way): &(u32, usize)| (live(self, (*row, *way)), used(*row));
        let open = self
            .places(key)
            .filter(|(row, _)| pinned.is_none_or(|pinned| pinned == *row));
        let Some((row, way)) = open.min_by_key(by_room) else {
            return;
        };
        if live(self, (row, way)).is_some() {
            self.early_evictions += 1;
        }
        let position = u32::try_from(at.0 % self.capacity).expect("a log has at most 2^32 units");
        let generation = u8::try_from(at.0 / self.capacity % GENERATIONS).expect("below 16");
        let rank = self.entry(row, way).rank;
        self.store(
            row,
            way,
            Entry {
                tag,
                position,
                generation,
                rank,
            },
        );
        self.make_latest(row, way);
    }

    fn touch(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        if let Some((row, way)) = self.find(key, at, head) {
            self.make_latest(row, way);
        }
    }

    fn forget(&mut self, key: KeyHash, at: LogPos, head: LogPos) {
        if let Some((row, way)) = self.find(key, at, head) {
            self.clear(row, way);
        }
    }

    fn forget_all(&mut self, key: KeyHash, head: LogPos) -> bool {
        let tag = key.tag(TAG_BITS);
        let mut any = false;
        for (row, way) in self.places(key) {
            let entry = self.entry(row, way);
            if entry.tag == tag {
                any |= self.position(entry, head).is_some();
                self.clear(row, way);
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
                if entry.tag != 0 && self.position(entry, head).is_none() {
                    self.clear(row, way);
                }
            }
        }
    }

    fn save(&self, rows: Range<u32>, out: &mut Vec<u8>) {
        let row_bytes = WAYS * ENTRY_BYTES;
        out.extend_from_slice(
            &self.packed[rows.start as usize * row_bytes..rows.end as usize * row_bytes],
        );
    }

    fn restore(&mut self, first: u32, bytes: &[u8]) {
        let at = first as usize * WAYS * ENTRY_BYTES;
        if let Some(rows) = self.packed.get_mut(at..at + bytes.len()) {
            rows.copy_from_slice(bytes);
        }
    }

    fn clear(&mut self) {
        self.packed.fill(0);
    }

    fn entries(&self) -> u64 {
        let tag = |bytes: &[u8]| u16::from_le_bytes([bytes[4], bytes[5]]) & 0x1ff;
        self.packed
            .chunks_exact(ENTRY_BYTES)
            .filter(|bytes| tag(bytes) != 0)
            .count() as u64
    }

    fn early_evictions(&self) -> u64 {
        self.early_evictions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;

    fn key(n: u64) -> KeyHash {
        Secret::from_bytes([1; 32]).name(&n.to_le_bytes())
    }

    fn found(log: &Log, key: KeyHash, head: u64) -> Vec<u64> {
        match log.locate(key, LogPos(head)) {
            Located::Log(candidates) => candidates.as_slice().iter().map(|at| at.0).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn an_entry_has_48_bits_and_survives_packing() {
        assert_eq!(ENTRY_BYTES * 8, 48);
        for tag in [1, 0x1ff] {
            for (position, generation, rank) in [(0, 0, 0), (u32::MAX, 15, 7), (77, 9, 3)] {
                let entry = Entry {
                    tag,
                    position,
                    generation,
                    rank,
                };
                assert_eq!(Entry::unpack(entry.pack()), entry);
            }
        }
    }

    #[test]
    fn a_look_up_goes_from_new_to_old_and_forgets_what_the_head_has_passed() {
        let mut log = Log::new(4, 1000);
        log.record(key(1), LogPos(100), None, LogPos(110));
        log.record(key(1), LogPos(500), None, LogPos(510));
        assert_eq!(found(&log, key(1), 600), [500, 100]);
        assert_eq!(found(&log, key(1), 1100), [500]);
        assert_eq!(found(&log, key(1), 1099), [500, 100]);
        assert_eq!(found(&log, key(1), 1600), [0; 0]);
    }

    #[test]
    fn a_known_older_version_gives_its_entry_back() {
        let mut log = Log::new(4, 1000);
        log.record(key(1), LogPos(100), None, LogPos(110));
        log.record(key(1), LogPos(500), Some(LogPos(100)), LogPos(510));
        assert_eq!(found(&log, key(1), 600), [500]);
        assert_eq!(log.entries(), 1);
    }

    #[test]
    fn the_oldest_of_both_rows_makes_room() {
        let mut log = Log::new(1, 10_000);
        for n in 0..9 {
            log.record(key(n), LogPos(n * 10), None, LogPos(n * 10 + 10));
        }
        assert_eq!(found(&log, key(0), 90), [0; 0]);
        assert!((1..9).all(|n| found(&log, key(n), 90).contains(&(n * 10))));
        assert_eq!(log.early_evictions(), 1);
    }

    #[test]
    fn an_older_version_never_outlives_a_newer_one() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut log = Log::new(3, 1 << 20);
        let (mut newest, mut put_at) = ([0; 60], std::collections::HashMap::new());
        for at in 1..200_000u64 {
            let n = random.usize(..60);
            log.record(key(n as u64), LogPos(at), None, LogPos(at + 1));
            newest[n] = at;
            put_at.insert(at, n);
            let asked = random.usize(..60);
            let candidates = found(&log, key(asked as u64), at + 1);
            let own = candidates.iter().find(|at| put_at[*at] == asked);
            assert!(
                own.is_none_or(|own| *own == newest[asked]),
                "name {asked} at {at}"
            );
        }
    }

    #[test]
    fn a_name_is_forgotten_even_where_the_head_has_not_come_yet() {
        let mut log = Log::new(4, 1000);
        log.record(key(1), LogPos(500), None, LogPos(510));
        assert!(!log.forget_all(key(1), LogPos(400)));
        assert_eq!(found(&log, key(1), 510), [0; 0]);
        log.record(key(1), LogPos(600), None, LogPos(610));
        assert!(log.forget_all(key(1), LogPos(610)));
        assert_eq!(log.entries(), 0);
    }

    #[test]
    fn swept_every_lap_no_generation_ever_meets_itself() {
        let mut log = Log::new(2, 100);
        log.record(key(1), LogPos(10), None, LogPos(11));
        for lap in 1..40u64 {
            for part in 0..2u32 {
                log.sweep(part..part + 1, LogPos(lap * 100 + 50 * u64::from(part) + 1));
            }
            let head = lap * 100 + 99;
            assert_eq!(found(&log, key(1), head), [0; 0], "lap {lap}");
        }
        assert_eq!(log.entries(), 0);
    }

    #[test]
    fn ranks_of_a_full_row_are_a_permutation_and_the_last_touched_is_first() {
        let mut log = Log::new(1, 10_000);
        for n in 0..8 {
            log.record(key(n), LogPos(n), None, LogPos(n + 1));
        }
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100 {
            let n = random.u64(..8);
            log.touch(key(n), LogPos(n), LogPos(9));
            let mut ranks: Vec<u8> = (0..WAYS).map(|way| log.entry(0, way).rank).collect();
            let (row, way) = log.find(key(n), LogPos(n), LogPos(9)).unwrap();
            assert_eq!(log.entry(row, way).rank, 0);
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn saved_rows_come_back() {
        let mut log = Log::new(64, 100_000);
        for n in 0..300 {
            log.record(key(n), LogPos(n), None, LogPos(n + 1));
        }
        let mut restored = Log::new(64, 100_000);
        for first in [0, 32] {
            let mut bytes = Vec::new();
            log.save(first..first + 32, &mut bytes);
            restored.restore(first, &bytes);
        }
        assert_eq!(restored.packed, log.packed);
    }

    /// Live objects in a full log that can still be found, with slots at `load` objects a slot.
    fn reachable(live_per_100_slots: u64) -> f64 {
        let rows = 4_000;
        let live = u64::from(rows) * 8 * live_per_100_slots / 100;
        let mut log = Log::new(rows, live);
        for n in 0..live * 3 {
            if n % (live / 100) == 0 {
                log.sweep(0..rows, LogPos(n));
            }
            log.record(key(n), LogPos(n), None, LogPos(n + 1));
        }
        let head = live * 3;
        let reachable = (head - live + 1..head).filter(|n| found(&log, key(*n), head).contains(n));
        reachable.count() as f64 / live as f64
    }

    #[test]
    fn two_rows_reach_95_percent_of_a_full_log_at_52_bits_an_object() {
        // 48 bits a slot and 92 live objects on 100 slots are 52 bits an object.
        let share = reachable(92);
        assert!(share >= 0.95, "{share}");
    }
}
