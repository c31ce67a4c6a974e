//! The content that the other side of the link has: a table of chunks and extents.
//!
//! Each side keeps a table in memory, for all streams on a link and all threads. Both sent and
//! received content is entered, because both sides store both. The table may be wrong (the other
//! side's store forgets too), which costs a question and a literal; therefore a table from a file
//! needs no check.
//!
//! Invariant: the table names only extents that were transferred completely.
//! Cost: 16 bytes for a 2 KiB chunk: 8 MiB for 1 GiB of content. A lookup takes a lock and reads
//! two cache lines.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Name;

/// A table of known chunks.
#[derive(Debug)]
pub struct Known(Mutex<Table>);

#[derive(Debug)]
struct Table {
    /// Sets of [`WAYS`] slots.
    slots: Box<[Slot]>,
    /// By number. `None`: forgotten.
    extents: VecDeque<Option<Name>>,
    extents_max: usize,
    /// Number of the first extent in `extents`.
    first: u32,
    entered: u64,
}

/// A chunk. Together with the set, about 80 bits of the chunk hash are compared. If two were equal,
/// the block check would fail and the receiver would request the content.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    tag: u64,
    extent: u32,
    offset: u16,
}

/// The position of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) extent: u32,
    pub(super) offset: u16,
}

/// A chunk in an extent that is being closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) hash: u128,
    pub(super) offset: u16,
}

impl Known {
    /// A table that takes at most `bytes_max` bytes of memory, but at least a set.
    pub fn new(bytes_max: usize) -> Self {
        Self(Mutex::new(Table::new(bytes_max)))
    }

    /// How many extents were entered since the table was made.
    pub fn entered(&self) -> u64 {
        self.table().entered
    }

    /// Memory for the table, bytes.
    pub fn memory_bytes(&self) -> usize {
        let table = self.table();
        size_of_val(&*table.slots) + table.extents.capacity() * size_of::<Option<Name>>()
    }

    /// Writes the table, for [`Known::read_from`]. The table is not locked all the time; entries
    /// that are made meanwhile may be written partly.
    ///
    /// # Errors
    /// Errors from `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let (sets, first, extents) = {
            let table = self.table();
            (table.sets(), table.first, table.extents.clone())
        };
        let count = u32::try_from(extents.len()).map_err(io::Error::other)?;
        let sets_written = u32::try_from(sets).map_err(io::Error::other)?;
        for number in [sets_written, first, count] {
            out.write_all(&number.to_le_bytes())?;
        }
        for extent in extents {
            out.write_all(&extent.map_or(FORGOTTEN, |name| name.0))?;
        }
        for set in 0..sets {
            let mut bytes = [0; WAYS * SLOT_BYTES];
            let table = self.table();
            let slots = &table.slots[set * WAYS..(set + 1) * WAYS];
            for (slot, bytes) in slots.iter().zip(bytes.chunks_exact_mut(SLOT_BYTES)) {
                bytes[..8].copy_from_slice(&slot.tag.to_le_bytes());
                bytes[8..12].copy_from_slice(&slot.extent.to_le_bytes());
                bytes[12..].copy_from_slice(&slot.offset.to_le_bytes());
            }
            drop(table);
            out.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Makes a table of `bytes_max` as [`Known::new`], with the entries that [`Known::write_to`]
    /// has written. A written table with another size is read completely, and the result is empty.
    ///
    /// # Errors
    /// Errors from `input`, also if it is too short.
    pub fn read_from(input: &mut impl Read, bytes_max: usize) -> io::Result<Self> {
        let mut number = || {
            let mut bytes = [0; 4];
            input.read_exact(&mut bytes)?;
            Ok::<_, io::Error>(u32::from_le_bytes(bytes))
        };
        let (sets, first, count) = (number()? as usize, number()?, number()? as usize);
        let mut table = Table::new(bytes_max);
        let fits = sets == table.sets() && count <= table.extents_max;
        if fits {
            table.first = first;
        }
        for _ in 0..count {
            let mut name = FORGOTTEN;
            input.read_exact(&mut name)?;
            if fits {
                let name = Some(Name(name)).filter(|name| name.0 != FORGOTTEN);
                table.extents.push_back(name);
            }
        }
        for at in 0..sets.saturating_mul(WAYS) {
            let mut bytes = [0; SLOT_BYTES];
            input.read_exact(&mut bytes)?;
            if fits {
                let [b0, b1, b2, b3, b4, b5, b6, b7, e0, e1, e2, e3, o0, o1] = bytes;
                table.slots[at] = Slot {
                    tag: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
                    extent: u32::from_le_bytes([e0, e1, e2, e3]),
                    offset: u16::from_le_bytes([o0, o1]),
                };
            }
        }
        Ok(Self(Mutex::new(table)))
    }

    /// The position of a chunk with this hash, and the extent's name; preferably `next`, which
    /// continues the previous run.
    pub(super) fn find(&self, hash: u128, next: Option<Place>) -> Option<(Place, Name)> {
        self.table().find(hash, next)
    }

    /// Enters an extent that was transferred completely.
    pub(super) fn enter(&self, name: Name, chunks: &[Chunk]) {
        self.table().enter(name, chunks);
    }

    /// Forgets an extent, because the receiver has lost it.
    pub(super) fn forget(&self, extent: u32) {
        let mut table = self.table();
        let place = table.place(extent);
        if let Some(name) = table.extents.get_mut(place) {
            *name = None;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn new(bytes_max: usize) -> Self {
        let sets = bytes_max * 7 / 8 / (WAYS * size_of::<Slot>());
        let sets = 1_usize << sets.max(1).ilog2();
        let slots = vec![Slot::default(); sets * WAYS].into_boxed_slice();
        let left = bytes_max.saturating_sub(size_of_val(&*slots));
        let mut extents = VecDeque::new();
        let extents_max = left / size_of::<Option<Name>>();
        // Extents hold at least ten chunks: more extents would never be found.
        let extents_max = extents_max.min(slots.len() / 8);
        extents.reserve_exact(extents_max);
        Self {
            slots,
            extents,
            extents_max,
            first: 1,
            entered: 0,
        }
    }

    fn sets(&self) -> usize {
        self.slots.len() / WAYS
    }

    fn find(&self, hash: u128, next: Option<Place>) -> Option<(Place, Name)> {
        let (set, tag) = self.set(hash);
        let mut found = None;
        for slot in &self.slots[set] {
            let Some(name) = self.name(slot.extent).filter(|_| slot.tag == tag) else {
                continue;
            };
            let place = Place {
                extent: slot.extent,
                offset: slot.offset,
            };
            if Some(place) == next {
                return Some((place, name));
            }
            // The receiver keeps the most recently sent extent longest.
            let age = |place: Place| self.place(place.extent);
            if found.is_none_or(|(known, _)| age(known) < age(place)) {
                found = Some((place, name));
            }
        }
        found
    }

    fn name(&self, extent: u32) -> Option<Name> {
        *self.extents.get(self.place(extent))?
    }

    fn enter(&mut self, name: Name, chunks: &[Chunk]) {
        if self.extents_max == 0 {
            return;
        }
        if self.extents.len() == self.extents_max {
            self.extents.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.entered += 1;
        let count = u32::try_from(self.extents.len()).unwrap_or(u32::MAX);
        let extent = self.first.wrapping_add(count);
        self.extents.push_back(Some(name));
        for chunk in chunks {
            let (set, tag) = self.set(chunk.hash);
            // Including the new extent.
            let (first, count) = (self.first, count + 1);
            let oldest = self.slots[set].iter_mut().max_by_key(|slot| {
                let place = slot.extent.wrapping_sub(first);
                if place < count {
                    count - place
                } else {
                    u32::MAX
                }
            });
            *oldest.expect("a set has slots") = Slot {
                tag,
                extent,
                offset: chunk.offset,
            };
        }
    }

    fn place(&self, extent: u32) -> usize {
        extent.wrapping_sub(self.first) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "parts of a hash")]
    fn set(&self, hash: u128) -> (std::ops::Range<usize>, u64) {
        let sets = self.sets();
        let set = (hash >> 64) as usize & (sets - 1);
        (set * WAYS..(set + 1) * WAYS, hash as u64)
    }
}

const WAYS: usize = 8;
/// A slot in a file.
const SLOT_BYTES: usize = 14;
/// In a file, the name for an extent that was forgotten.
const FORGOTTEN: [u8; 16] = [0; 16];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_where_it_is_and_a_forgotten_extent_is_not_found() {
        let known = Known::new(1 << 20);
        let chunk = |hash: u128, offset| Chunk { hash, offset };
        known.enter(Name([1; 16]), &[chunk(5, 0), chunk(6, 700)]);
        known.enter(Name([2; 16]), &[chunk(6, 0)]);
        let first = known.find(5, None).unwrap();
        assert_eq!(first.1, Name([1; 16]));
        let next = Place {
            offset: 700,
            ..first.0
        };
        let next_found = Some((next, Name([1; 16])));
        assert_eq!(known.find(6, Some(next)), next_found);
        let newest = known.find(6, None).unwrap();
        assert_eq!(newest.1, Name([2; 16]));
        known.forget(newest.0.extent);
        assert_eq!(known.find(6, None), next_found);
    }

    #[test]
    fn the_table_keeps_its_bound_and_finds_the_last_extents() {
        for bytes in [1_000, 100_000, 1 << 20] {
            let known = Known::new(bytes);
            known.table().first = u32::MAX - 50;
            let hash = |extent: u128, n: u128| {
                (extent * 16 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            };
            for extent in 0..10_000 {
                let chunks: Vec<Chunk> = (0..16)
                    .map(|n| Chunk {
                        hash: hash(extent, n),
                        offset: 0,
                    })
                    .collect();
                known.enter(Name([0; 16]), &chunks);
            }
            assert!(known.memory_bytes() <= bytes, "{bytes}");
            let found = (0..16).filter(|&n| known.find(hash(9_999, n), None).is_some());
            assert!(found.count() > 8);
        }
    }

    #[test]
    fn a_table_is_read_as_it_was_written_and_a_cut_or_other_one_is_not() {
        let known = Known::new(10_000);
        let chunk = |hash: u128, offset| Chunk { hash, offset };
        for extent in 1..5 {
            let hash = u128::from(extent) << 64 | u128::from(extent);
            known.enter(Name([extent; 16]), &[chunk(hash, 0), chunk(hash + 1, 700)]);
        }
        let hash = 4 << 64 | 5;
        let found = known.find(hash, None).unwrap();
        let mut file = Vec::new();
        known.write_to(&mut file).unwrap();
        let again = Known::read_from(&mut &file[..], 10_000).unwrap();
        assert_eq!(again.find(hash, None), Some(found));
        let mut rest = &file[..];
        let other = Known::read_from(&mut rest, 1 << 20).unwrap();
        assert!(other.find(hash, None).is_none() && rest.is_empty());
        for length in [0, 5, 12, 20, file.len() - 1] {
            assert!(Known::read_from(&mut &file[..length], 10_000).is_err());
        }
        // Any bytes make some table, which may be wrong.
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut damaged = file.clone();
            for _ in 0..20 {
                let at = random.usize(..damaged.len());
                damaged[at] = random.u8(..);
            }
            if let Ok(known) = Known::read_from(&mut &damaged[..], 10_000) {
                known.enter(Name([9; 16]), &[chunk(hash, 3)]);
                assert_eq!(known.find(hash, None).unwrap().1, Name([9; 16]));
            }
        }
    }
}
