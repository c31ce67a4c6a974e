//! The remove journal: a ring of blocks, so that what a returned `remove` took away stays away.
//!
//! A remove says "nothing of this key below this version", which stays true for ever, so old blocks
//! in the ring do no harm, and none needs to be cleared.
//!
//! Behind the ring lie two areas for rules. Each set of rules is written whole, to the two in turn:
//! the newer one that is whole counts.
//!
//! Called by `flush` to write and by `recover` to read.
//!
//! A block that is not full takes the removes that come next, but is not written over for it: the
//! longer block goes to the place beside it, and the one after that to the first place again. So
//! removes that come one by one fill the ring two blocks at 169 removes, and at every moment each
//! lies in a block that is not being written.
//!
//! Invariant: what lies in a block is lost only when two checkpoints were begun since: whichever of
//! the two an opening finds whole, it holds the removes that are gone from the ring.
//! Cost: one write and one sync for all removes that wait.

use std::io;

use crate::format::{
    BLOCK, JOURNAL_BLOCK, JournalBlock, REMOVES_PER_BLOCK, RULES_PER_BLOCK, Removed, RuleLine,
    RulesBlock,
};
use crate::geometry::Geometry;
use crate::memory::AlignedBuf;
use crate::rules::MAX_RULES;
use crate::stripe::Stripe;

/// What the writer knows of a block in the ring.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Highest version removed in it.
    version_max: u64,
    /// Serial of the last checkpoint begun before it was written.
    checkpoint: u64,
}

/// Blocks of each of the two areas for rules: as many as all rules need, or a quarter of the
/// journal.
fn rules_blocks(geometry: &Geometry) -> usize {
    let quarter = usize::try_from(geometry.journal_blocks() / 4).unwrap_or(usize::MAX);
    MAX_RULES.div_ceil(RULES_PER_BLOCK).min(quarter)
}

/// Most rules there is room for.
pub(crate) fn rules_max(geometry: &Geometry) -> usize {
    MAX_RULES.min(rules_blocks(geometry) * RULES_PER_BLOCK)
}

/// What the journal of a device says.
pub(crate) struct Journalled {
    pub(crate) removed: Vec<Removed>,
    pub(crate) rules: Vec<RuleLine>,
}

/// Blocks of the journal that were written and do not verify; one that cannot be read counts. Where
/// nothing was written there are zeros: the ring lies within what is looked at before a store is
/// made.
pub(crate) fn blocks_damaged(stripe: &Stripe) -> u64 {
    let geometry = &stripe.geometry;
    let mut block = AlignedBuf::zeroed(JOURNAL_BLOCK);
    let damaged = |n: &u64| {
        let read = stripe.fill(geometry.journal_offset + n * BLOCK as u64, &mut block);
        let blank = block.iter().all(|byte| *byte == 0);
        let is_ours = JournalBlock::decode(&block, &stripe.secret).is_some()
            || RulesBlock::decode(&block, &stripe.secret).is_some();
        read.is_none() || (!blank && !is_ours)
    };
    (0..geometry.journal_blocks()).filter(damaged).count() as u64
}

/// Serial and rules of a set, if all its blocks are there.
fn whole_set(blocks: Vec<Option<RulesBlock>>) -> Option<(u64, Vec<RuleLine>)> {
    let first = blocks.first()?.as_ref()?;
    let (serial, count) = (first.serial, first.blocks);
    let mut lines = Vec::new();
    let mut blocks = blocks.into_iter();
    for n in 0..count {
        let block = blocks.next()??;
        if (block.serial, block.block, block.blocks) != (serial, n, count) {
            return None;
        }
        lines.extend(block.lines);
    }
    Some((serial, lines))
}

/// The writer's side of the ring.
pub(crate) struct Journal {
    offset: u64,
    device: u16,
    /// Ordinal of the next block.
    next: u64,
    /// First place of the last block, and whether its longer copies took the place behind it too.
    base: usize,
    doubled: bool,
    /// Place of its longest copy.
    last: usize,
    /// The removes in it, while more may be added.
    growing: Vec<Removed>,
    ring: Vec<Held>,
    /// Serial of the last checkpoint that was begun.
    begun: u64,
    /// What the superblock says of removes that may be gone.
    forgotten_below: u64,
    /// Blocks of each area for rules; they lie behind the ring.
    rules_blocks: usize,
    /// Serial of the last set of rules.
    rules_serial: u64,
    /// Removes that lie where rules go.
    displaced: Vec<Removed>,
}

impl Journal {
    pub(crate) fn new(geometry: &Geometry, device: u16) -> Self {
        let blocks = usize::try_from(geometry.journal_blocks())
            .unwrap_or(usize::MAX)
            .min(1 << 16);
        let rules_blocks = rules_blocks(geometry);
        let blocks = blocks - 2 * rules_blocks;
        Self {
            offset: geometry.journal_offset,
            device,
            next: 0,
            base: blocks.saturating_sub(1),
            doubled: false,
            last: blocks.saturating_sub(1),
            growing: Vec::new(),
            ring: vec![Held::default(); blocks],
            begun: 0,
            forgotten_below: 0,
            rules_blocks,
            rules_serial: 0,
            displaced: Vec::new(),
        }
    }

    /// Reads the ring: every remove it holds, and the rules; `None` when the device refuses. The
    /// writer goes on behind the newest block.
    pub(crate) fn read(
        &mut self,
        stripe: &Stripe,
        checkpoint: u64,
        forgotten_below: u64,
    ) -> Option<Journalled> {
        self.begun = checkpoint;
        self.forgotten_below = forgotten_below;
        let mut all = Vec::new();
        let length = (self.ring.len() + 2 * self.rules_blocks) * BLOCK;
        let mut bytes = AlignedBuf::zeroed(length);
        stripe.fill(self.offset, &mut bytes)?;
        let rules = self.read_rules(stripe, &bytes[self.ring.len() * BLOCK..]);
        for (place, block) in bytes.chunks(JOURNAL_BLOCK).enumerate() {
            let Some(block) = JournalBlock::decode(block, &stripe.secret) else {
                continue;
            };
            if block.device != self.device {
                continue;
            }
            let version_max = block
                .removed
                .iter()
                .map(|it| it.version.0)
                .max()
                .unwrap_or(0);
            if place >= self.ring.len() {
                // From before there were rules: written anew before rules go there.
                self.next = self.next.max(block.ordinal.saturating_add(1));
                self.displaced.extend_from_slice(&block.removed);
                all.extend(block.removed);
                continue;
            }
            // Written under this checkpoint at the latest: the next two must begin before it goes.
            self.ring[place] = Held {
                version_max,
                checkpoint,
            };
            if block.ordinal >= self.next {
                self.next = block.ordinal.saturating_add(1);
                // A copy may lie in front of it or behind: neither is written over soon.
                (self.base, self.last, self.doubled) = (place, place, true);
            }
            all.extend(block.removed);
        }
        Some(Journalled {
            removed: all,
            rules,
        })
    }

    /// The rules of the newer area that is whole.
    fn read_rules(&mut self, stripe: &Stripe, areas: &[u8]) -> Vec<RuleLine> {
        let mut newest: Option<(u64, Vec<RuleLine>)> = None;
        for area in areas.chunks(self.rules_blocks * BLOCK) {
            let decode = |bytes| RulesBlock::decode(bytes, &stripe.secret);
            let own = |it: &RulesBlock| it.device == self.device;
            let blocks: Vec<_> = area
                .chunks(BLOCK)
                .map(|it| decode(it).filter(own))
                .collect();
            // Serials are never used twice, whether their set is whole or not.
            let highest = blocks.iter().flatten().map(|it| it.serial).max();
            self.rules_serial = self.rules_serial.max(highest.unwrap_or(0));
            if let Some((serial, lines)) = whole_set(blocks)
                && newest.as_ref().is_none_or(|(other, _)| *other < serial)
            {
                newest = Some((serial, lines));
            }
        }
        let (serial, lines) = newest.unwrap_or_default();
        // The next one goes to the other area: that one may be the only one that is whole.
        self.rules_serial += (self.rules_serial - serial) % 2;
        lines
    }

    /// Removes that lie where rules go, once: they must be written anew first.
    pub(crate) fn take_displaced(&mut self) -> Vec<Removed> {
        std::mem::take(&mut self.displaced)
    }

    /// Writes the rules in force. Durable after the caller's sync.
    pub(crate) fn write_rules(&mut self, stripe: &Stripe, lines: &[RuleLine]) -> io::Result<()> {
        let blocks = lines.len().div_ceil(RULES_PER_BLOCK).max(1);
        assert!(
            blocks <= self.rules_blocks,
            "there are no more rules than have room"
        );
        self.rules_serial += 1;
        let mut bytes = AlignedBuf::zeroed(blocks * BLOCK);
        let narrow = |n: usize| u16::try_from(n).expect("at most 33 blocks");
        for (n, out) in bytes.chunks_mut(BLOCK).enumerate() {
            let lines = lines.iter().skip(n * RULES_PER_BLOCK);
            let block = RulesBlock {
                device: self.device,
                serial: self.rules_serial,
                block: narrow(n),
                blocks: narrow(blocks),
                lines: lines.take(RULES_PER_BLOCK).copied().collect(),
            };
            block.encode(out, &stripe.secret);
        }
        let area = usize::from(!self.rules_serial.is_multiple_of(2));
        let place = self.ring.len() + area * self.rules_blocks;
        stripe.write(self.offset + (place * BLOCK) as u64, &bytes)
    }

    /// A quarter of the ring: what is given up at once.
    fn quarter(&self) -> usize {
        (self.ring.len() / 4).max(2)
    }

    /// Removes that may be written without asking `forgets` again.
    pub(crate) fn removes_at_once(&self) -> usize {
        (self.quarter() - 1) * REMOVES_PER_BLOCK
    }

    pub(crate) fn checkpoint_began(&mut self, serial: u64) {
        self.begun = serial;
    }

    /// If writing `removes` more would lose removes that the superblock does not declare forgotten
    /// yet: the version below which it must. Declares a quarter of the ring at once.
    pub(crate) fn forgets(&self, removes: usize) -> Option<u64> {
        // One more than they fill: the block that is growing may take its second place.
        let lost = self.lost(removes.div_ceil(REMOVES_PER_BLOCK) + 1);
        (lost >= self.forgotten_below && lost > 0).then(|| self.lost(self.quarter()) + 1)
    }

    /// The next `n` places that hold nothing of the last block.
    fn ahead(&self, n: usize) -> impl Iterator<Item = Held> {
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

    /// Whether what is about to be lost is not yet held by two checkpoints.
    pub(crate) fn needs_checkpoint(&self, completed: u64) -> bool {
        let young = |held: Held| held.version_max > 0 && held.checkpoint + 2 > completed;
        self.ahead(self.quarter()).any(young)
    }

    /// Writes `removed`. Durable after the caller's sync.
    pub(crate) fn write(&mut self, stripe: &Stripe, removed: &[Removed]) -> io::Result<()> {
        let room = match self.growing.len() {
            0 => 0,
            length => REMOVES_PER_BLOCK - length,
        };
        let (now, later) = removed.split_at(removed.len().min(room));
        if !now.is_empty() {
            // The other of its two places: the copy there is shorter, and the one beside it stays.
            let behind = (self.base + 1) % self.ring.len();
            self.last = if self.last == self.base {
                behind
            } else {
                self.base
            };
            self.doubled = true;
            self.growing.extend_from_slice(now);
            self.write_block(stripe)?;
        }
        for block in later.chunks(REMOVES_PER_BLOCK) {
            self.base = (self.base + 1 + usize::from(self.doubled)) % self.ring.len();
            self.last = self.base;
            self.doubled = false;
            self.growing = block.to_vec();
            self.write_block(stripe)?;
        }
        Ok(())
    }

    fn write_block(&mut self, stripe: &Stripe) -> io::Result<()> {
        let mut bytes = AlignedBuf::zeroed(JOURNAL_BLOCK);
        let removed = self.growing.clone();
        let version_max = removed.iter().map(|it| it.version.0).max().unwrap_or(0);
        let block = JournalBlock {
            device: self.device,
            ordinal: self.next,
            removed,
        };
        block.encode(&mut bytes, &stripe.secret);
        self.next += 1;
        self.ring[self.last] = Held {
            version_max,
            checkpoint: self.begun,
        };
        stripe.write(self.offset + (self.last * BLOCK) as u64, &bytes)
    }

    /// The superblock declares removes below `below` forgotten.
    pub(crate) fn forgot(&mut self, below: u64) {
        self.forgotten_below = below;
    }
}
