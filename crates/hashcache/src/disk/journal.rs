//! The remove journal: a ring of blocks, so that an acknowledged `remove` stays in force.
//!
//! A remove is a statement: "nothing with this key below this version". It stays true for ever, so
//! old blocks in the ring do no harm and need not be cleared.
//!
//! Behind the ring are two areas for bans (`areas`). Each ban set is written whole to one area, and
//! when that is durable, to the other.
//!
//! Called by `writer` to write and by `store/recover` to read.
//!
//! A block that is not full takes the next removes, but it is not overwritten for that: a power cut
//! during the write would lose removes that were durable. The longer block is written to the
//! adjacent place, and the next longer block to the first place again. So 169 removes that are
//! written singly fill two blocks in the ring, and at every moment each remove is in a block that
//! is not being written.
//!
//! Invariant: a block is overwritten only if two checkpoints were started since it was written.
//! Whichever checkpoint the next open finds whole, it holds the removes that are gone from the
//! ring. If removes or bans cannot be read any more, the reader reports a [`JournalLoss`], and the
//! store forgets everything older.
//! Cost: a write and a sync for all queued removes; two writes and two syncs for all bans. A
//! checkpoint for each 5/16 of the ring, which has at least 8 blocks of 169 removes, and 190 blocks
//! on devices from 256 MiB on. The checkpoint is written in the background, with 1/10 of the device
//! time; removes that are faster than that wait for it.

mod areas;
mod lost;

use std::io;

use areas::AreaBlock;
use lost::RingPlace;

use crate::disk::Medium;
use crate::format::{
    BANS_PER_BLOCK, BanLine, BansBlock, Family, IO_BLOCK, JOURNAL_BLOCK, JournalBlock,
    REMOVES_PER_BLOCK, Removed,
};
use crate::geometry::{Geometry, bans_blocks};
use crate::memory::AlignedBuf;

/// The writer's state for a block in the ring.
#[derive(Clone, Copy, Default)]
struct RingBlock {
    /// Highest version among the removes in the block.
    version_max: u64,
    /// Serial of the last checkpoint that was started before the block was written.
    checkpoint: u64,
}

/// A block grows by a single remove at a time. This number of ordinals is more than any ring can
/// have used since the newest readable block.
const ORDINALS_SKIPPED: u64 = 1 << 24;

/// Content of the journal on a device.
pub(crate) struct JournalContent {
    pub(crate) removed: Vec<Removed>,
    pub(crate) bans: Vec<BanLine>,
    pub(crate) lost: JournalLoss,
}

/// Parts of a journal that may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalLoss {
    /// Bans: both areas are damaged.
    pub(crate) bans: bool,
    /// Removes in blocks with ordinals below this.
    pub(crate) removes_below: u64,
}

/// A journal block, as it was read.
enum Block {
    Blank,
    Removes(JournalBlock),
    Bans(BansBlock),
    Damaged,
    Unreadable,
}

/// Counts the journal blocks that were written and do not verify; an unreadable block counts, too.
/// Places that were never written hold zeros: the ring is in the region that is checked before a
/// store is created.
pub(crate) fn blocks_damaged(medium: &Medium) -> u64 {
    let geometry = &medium.geometry;
    let mut block = AlignedBuf::zeroed(JOURNAL_BLOCK);
    let damaged = |n: &u64| {
        let read = medium.fill(geometry.journal_offset + n * IO_BLOCK as u64, &mut block);
        let blank = block.iter().all(|byte| *byte == 0);
        let is_ours = JournalBlock::decode(&block, &medium.secret).is_some()
            || BansBlock::decode(&block, &medium.secret).is_some();
        read.is_none() || (!blank && !is_ours)
    };
    (0..geometry.journal_blocks()).filter(damaged).count() as u64
}

/// The ring, as the writer sees it.
pub(crate) struct Journal {
    offset: u64,
    device: u16,
    /// The next block ordinal.
    next: u64,
    /// First place of the last block, and true if longer copies also used the place behind it.
    base: usize,
    doubled: bool,
    /// Place of the longest copy.
    last: usize,
    /// The removes in the last block, while more may be added.
    growing: Vec<Removed>,
    ring: Vec<RingBlock>,
    /// Serial of the last checkpoint that was started, and true if removes were written since.
    begun: u64,
    is_written: bool,
    /// The version in the superblock below which removes may be forgotten.
    forgotten_below: u64,
    /// Blocks in each area for bans; the areas are behind the ring.
    bans_blocks: usize,
    /// Serial of the last ban set.
    bans_serial: u64,
    /// The area to write first, and true if both areas hold the last set.
    bans_first: usize,
    bans_doubled: bool,
    /// Removes that are stored in the areas for bans.
    displaced: Vec<Removed>,
}

impl Journal {
    pub(crate) fn new(geometry: &Geometry, device: u16) -> Self {
        let blocks = usize::try_from(geometry.journal_blocks())
            .unwrap_or(usize::MAX)
            .min(1 << 16);
        let bans_blocks = bans_blocks(geometry);
        let blocks = blocks - 2 * bans_blocks;
        Self {
            offset: geometry.journal_offset,
            device,
            next: 0,
            base: blocks.saturating_sub(1),
            doubled: false,
            last: blocks.saturating_sub(1),
            growing: Vec::new(),
            ring: vec![RingBlock::default(); blocks],
            begun: 0,
            is_written: false,
            forgotten_below: 0,
            bans_blocks,
            bans_serial: 0,
            bans_first: 0,
            bans_doubled: true,
            displaced: Vec::new(),
        }
    }

    /// Reads the journal, block by block if the device fails to read it whole. The writer continues
    /// behind the newest block. `clean`: the store was closed in order.
    pub(crate) fn read(
        &mut self,
        medium: &Medium,
        checkpoint: u64,
        forgotten_below: u64,
        clean: bool,
    ) -> JournalContent {
        self.begun = checkpoint;
        self.forgotten_below = forgotten_below;
        let mut blocks = self.read_blocks(medium);
        let areas = blocks.split_off(self.ring.len());
        let mut removed = Vec::new();
        let mut seen = Vec::with_capacity(blocks.len());
        for (place, block) in blocks.into_iter().enumerate() {
            seen.push(match block {
                // Ban sets are never stored in the ring.
                Block::Blank | Block::Bans(_) => RingPlace::Blank,
                Block::Damaged => RingPlace::Damaged,
                Block::Unreadable => RingPlace::Unreadable,
                Block::Removes(block) => {
                    let ordinal = block.ordinal;
                    self.take_block(place, block, &mut removed);
                    RingPlace::Block(ordinal)
                }
            });
        }
        // The most that is written at once, and the places for the growing block.
        let torn = self.quarter() + 3;
        let removes_below = match medium.geometry.family {
            Family::Log => lost::lost_below(&seen, clean, torn).unwrap_or(0),
            // With a Disk Table the writer clears slots and does not use the ring.
            Family::Table => 0,
        };
        if removes_below > 0 {
            // An ordinal that a lost block may have is not used again.
            self.next = self.next.saturating_add(ORDINALS_SKIPPED);
        }
        let (bans, bans_lost) = self.read_bans(areas, clean, &mut removed);
        let lost = JournalLoss {
            bans: bans_lost,
            removes_below,
        };
        JournalContent {
            removed,
            bans,
            lost,
        }
    }

    fn read_blocks(&self, medium: &Medium) -> Vec<Block> {
        let count = self.ring.len() + 2 * self.bans_blocks;
        let mut bytes = AlignedBuf::zeroed(count * IO_BLOCK);
        let is_whole = medium.fill(self.offset, &mut bytes).is_some();
        let mut block = |(n, bytes): (usize, &mut [u8])| {
            let at = self.offset + (n * IO_BLOCK) as u64;
            if !is_whole && medium.fill(at, bytes).is_none() {
                return Block::Unreadable;
            }
            let mut block = self.decode(medium, bytes);
            // Read a damaged block again, because a single wrong read must not lose all stored
            // objects, and must not look like a block that a crash has torn.
            if matches!(block, Block::Damaged) && medium.fill(at, bytes).is_some() {
                block = self.decode(medium, bytes);
            }
            block
        };
        let blocks = bytes.chunks_mut(IO_BLOCK).enumerate();
        blocks.map(&mut block).collect()
    }

    fn decode(&self, medium: &Medium, bytes: &[u8]) -> Block {
        if bytes.iter().all(|byte| *byte == 0) {
            return Block::Blank;
        }
        let removes = JournalBlock::decode(bytes, &medium.secret);
        if let Some(block) = removes.filter(|it| it.device == self.device) {
            return Block::Removes(block);
        }
        let bans = BansBlock::decode(bytes, &medium.secret);
        let bans = bans.filter(|it| it.device == self.device);
        bans.map_or(Block::Damaged, Block::Bans)
    }

    fn take_block(&mut self, place: usize, block: JournalBlock, removed: &mut Vec<Removed>) {
        let versions = block.removed.iter().map(|it| it.version.0);
        // Written under this checkpoint at the latest: two more checkpoints must start before the
        // block is overwritten.
        self.ring[place] = RingBlock {
            version_max: versions.max().unwrap_or(0),
            checkpoint: self.begun,
        };
        if block.ordinal >= self.next {
            self.next = block.ordinal.saturating_add(1);
            // A copy may be before it or behind it: neither place is overwritten soon.
            (self.base, self.last, self.doubled) = (place, place, true);
        }
        removed.extend(block.removed);
    }

    /// Returns the bans in force, and true if bans are lost. Adds removes that are stored in the
    /// areas for bans.
    fn read_bans(
        &mut self,
        blocks: Vec<Block>,
        clean: bool,
        removed: &mut Vec<Removed>,
    ) -> (Vec<BanLine>, bool) {
        let mut areas = [Vec::new(), Vec::new()];
        for (n, block) in blocks.into_iter().enumerate() {
            areas[n / self.bans_blocks].push(match block {
                Block::Blank => AreaBlock::Blank,
                Block::Bans(block) => AreaBlock::Bans(block),
                Block::Damaged => AreaBlock::Damaged,
                Block::Unreadable => AreaBlock::Unreadable,
                Block::Removes(block) => {
                    // From a format before bans: these removes are written again before bans
                    // overwrite them.
                    self.next = self.next.max(block.ordinal.saturating_add(1));
                    self.displaced.extend_from_slice(&block.removed);
                    removed.extend(block.removed);
                    AreaBlock::Blank
                }
            });
        }
        let bans = areas::choose(areas, clean);
        // Serials are never reused, even if the set is not whole.
        self.bans_serial = bans.serial;
        self.bans_first = bans.first;
        self.bans_doubled = bans.is_doubled;
        let is_lost = bans.lines.is_none();
        (bans.lines.unwrap_or_default(), is_lost)
    }

    /// Returns true if the bans should be written again although they are unchanged, because only
    /// one area holds them.
    pub(crate) fn has_one_set_of_bans(&self) -> bool {
        // Removes in the areas must first be copied to the ring, and an open has no time for that.
        !self.bans_doubled && self.displaced.is_empty()
    }

    /// The next ordinal for a block with removes.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.next
    }

    /// Takes the removes that are stored in the areas for bans: they must be written to the ring
    /// before the areas are written.
    pub(crate) fn take_displaced(&mut self) -> Vec<Removed> {
        std::mem::take(&mut self.displaced)
    }

    /// Writes the bans in force to one area and then to the other. Durable when this returns.
    pub(crate) fn write_bans(&mut self, medium: &Medium, lines: &[BanLine]) -> io::Result<()> {
        let blocks = lines.len().div_ceil(BANS_PER_BLOCK).max(1);
        assert!(
            blocks <= self.bans_blocks,
            "there are no more bans than have room"
        );
        self.bans_serial += 1;
        let mut bytes = AlignedBuf::zeroed(blocks * IO_BLOCK);
        let narrow = |n: usize| u16::try_from(n).expect("at most 33 blocks");
        for (n, out) in bytes.chunks_mut(IO_BLOCK).enumerate() {
            let lines = lines.iter().skip(n * BANS_PER_BLOCK);
            let block = BansBlock {
                device: self.device,
                serial: self.bans_serial,
                block: narrow(n),
                blocks: narrow(blocks),
                lines: lines.take(BANS_PER_BLOCK).copied().collect(),
            };
            block.encode(out, &medium.secret);
        }
        self.bans_doubled = false;
        for area in [self.bans_first, 1 - self.bans_first] {
            let place = self.ring.len() + area * self.bans_blocks;
            medium.write(self.offset + (place * IO_BLOCK) as u64, &bytes)?;
            // A power cut must not tear both areas.
            medium.sync()?;
            // If the next write fails, this area is the only whole area.
            self.bans_first = 1 - area;
        }
        self.bans_doubled = true;
        Ok(())
    }

    /// A quarter of the ring: the blocks that are given up at once.
    fn quarter(&self) -> usize {
        (self.ring.len() / 4).max(2)
    }

    /// Removes that may be written before `forgets` must be checked again.
    pub(crate) fn removes_at_once(&self) -> usize {
        (self.quarter() - 1) * REMOVES_PER_BLOCK
    }

    pub(crate) fn checkpoint_began(&mut self, serial: u64) {
        self.begun = serial;
        self.is_written = false;
    }

    /// If writing `removes` more would lose removes that the superblock does not yet declare
    /// forgotten, returns the version below which it must. That covers a quarter of the ring at
    /// once.
    pub(crate) fn forgets(&self, removes: usize) -> Option<u64> {
        // One block more than they fill: the growing block may take the second place, too.
        let lost = self.lost(removes.div_ceil(REMOVES_PER_BLOCK) + 1);
        (lost >= self.forgotten_below && lost > 0).then(|| self.lost(self.quarter()) + 1)
    }

    /// The next `n` places without the last block.
    fn ahead(&self, n: usize) -> impl Iterator<Item = RingBlock> {
        let first = self.base + 1 + usize::from(self.doubled);
        (first..first + n).map(|place| self.ring[place % self.ring.len()])
    }

    /// Highest version in the next `places` places.
    fn lost(&self, places: usize) -> u64 {
        self.ahead(places)
            .map(|held| held.version_max)
            .max()
            .unwrap_or(0)
    }

    /// Returns true if removes that are about to be overwritten are not yet in two checkpoints.
    pub(crate) fn needs_checkpoint(&self, completed: u64) -> bool {
        self.any_young(self.quarter(), completed)
    }

    /// Returns true if a checkpoint should start now, so that it is complete before it is needed.
    /// False while there are no new removes, for example after an open.
    pub(crate) fn wants_checkpoint(&self, completed: u64) -> bool {
        let quarter = self.quarter();
        self.is_written && self.any_young(quarter + quarter / 2, completed)
    }

    /// Returns true if any place among the next `places` holds removes that are not yet in two
    /// checkpoints.
    fn any_young(&self, places: usize, completed: u64) -> bool {
        let young = |held: RingBlock| held.version_max > 0 && held.checkpoint + 2 > completed;
        self.ahead(places).any(young)
    }

    /// Writes `removed`. Durable after the caller's sync.
    pub(crate) fn write(&mut self, medium: &Medium, removed: &[Removed]) -> io::Result<()> {
        let room = match self.growing.len() {
            0 => 0,
            length => REMOVES_PER_BLOCK - length,
        };
        let (now, later) = removed.split_at(removed.len().min(room));
        if !now.is_empty() {
            // The growing block has two places. This is the other place: the copy there is shorter,
            // and the adjacent copy stays intact.
            let behind = (self.base + 1) % self.ring.len();
            self.last = if self.last == self.base {
                behind
            } else {
                self.base
            };
            self.doubled = true;
            self.growing.extend_from_slice(now);
            self.write_block(medium)?;
        }
        for block in later.chunks(REMOVES_PER_BLOCK) {
            self.base = (self.base + 1 + usize::from(self.doubled)) % self.ring.len();
            self.last = self.base;
            self.doubled = false;
            self.growing = block.to_vec();
            self.write_block(medium)?;
        }
        Ok(())
    }

    fn write_block(&mut self, medium: &Medium) -> io::Result<()> {
        let mut bytes = AlignedBuf::zeroed(JOURNAL_BLOCK);
        let removed = self.growing.clone();
        let version_max = removed.iter().map(|it| it.version.0).max().unwrap_or(0);
        let block = JournalBlock {
            device: self.device,
            ordinal: self.next,
            removed,
        };
        block.encode(&mut bytes, &medium.secret);
        self.next += 1;
        self.is_written = true;
        self.ring[self.last] = RingBlock {
            version_max,
            checkpoint: self.begun,
        };
        medium.write(self.offset + (self.last * IO_BLOCK) as u64, &bytes)
    }

    /// The superblock now declares removes below `below` forgotten.
    pub(crate) fn forgot(&mut self, below: u64) {
        self.forgotten_below = below;
    }
}

#[cfg(test)]
mod tests;
