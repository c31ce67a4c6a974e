//! The two areas for bans: each holds the complete set, and one valid area is enough.
//!
//! Called by `journal` with the blocks of both areas.
//!
//! A set is written to the first area, synced, and then written to the second. So at every moment
//! at least one area is whole; and after a set is acknowledged, both areas hold it.
//!
//! Invariant: a damaged area is never mistaken for an area that was never written.

use crate::format::{BanLine, BansBlock};

/// A block in an area, as it was read.
pub(super) enum AreaBlock {
    /// Zeros, or removes from a format before bans.
    Blank,
    Bans(BansBlock),
    /// The block can be read and does not verify.
    Damaged,
    /// The device fails to read the block.
    Unreadable,
}

impl AreaBlock {
    fn is_unreadable(&self) -> bool {
        matches!(self, Self::Unreadable)
    }
}

/// Content of an area.
enum Area {
    Blank,
    Whole(u64, Vec<BanLine>),
    /// A set that a crash has torn, or that is damaged.
    Damaged,
    Unreadable,
}

/// The set that is chosen from both areas.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChosenSet {
    /// The bans in force; `None` if there were bans and they are lost.
    pub(super) lines: Option<Vec<BanLine>>,
    /// The highest serial in any block, even if the set is not whole.
    pub(super) serial: u64,
    /// The area to write first: never the only whole area.
    pub(super) first: usize,
    /// True if both areas hold the chosen set.
    pub(super) is_doubled: bool,
}

/// Chooses the valid set. After a crash (not `clean`) the very first set may have been torn.
pub(super) fn choose(areas: [Vec<AreaBlock>; 2], clean: bool) -> ChosenSet {
    let bears = |block: &AreaBlock| match block {
        AreaBlock::Bans(block) => block.serial,
        _ => 0,
    };
    let highest = areas.iter().flatten().map(bears).max().unwrap_or(0);
    let [one, other] = areas.map(Area::from_blocks);
    let (lines, first, is_doubled) = match (one, other) {
        (Area::Blank, Area::Blank) => (Some(Vec::new()), 0, true),
        (Area::Whole(one, lines), Area::Whole(other, others)) => {
            let newer = if one >= other { lines } else { others };
            (Some(newer), usize::from(one > other), one == other)
        }
        (Area::Whole(_, lines), _) => (Some(lines), 1, false),
        (_, Area::Whole(_, lines)) => (Some(lines), 0, false),
        // No set was ever acknowledged: otherwise both areas would hold it.
        (Area::Blank, Area::Damaged) | (Area::Damaged, Area::Blank) if !clean => {
            (Some(Vec::new()), 0, false)
        }
        _ => (None, 0, false),
    };
    ChosenSet {
        lines,
        serial: highest,
        first,
        is_doubled,
    }
}

impl Area {
    fn from_blocks(blocks: Vec<AreaBlock>) -> Self {
        let any_unreadable = blocks.iter().any(AreaBlock::is_unreadable);
        // A set starts in the first block, so if that is blank, there is no set.
        let mut rest = blocks.iter();
        let blank = matches!(rest.next(), None | Some(AreaBlock::Blank));
        if blank && rest.all(|it| matches!(it, AreaBlock::Blank | AreaBlock::Unreadable)) {
            return Self::Blank;
        }
        match whole_set(blocks) {
            Some((serial, lines)) => Self::Whole(serial, lines),
            None if any_unreadable => Self::Unreadable,
            None => Self::Damaged,
        }
    }
}

/// The serial and the bans in a set, if all blocks are present.
fn whole_set(blocks: Vec<AreaBlock>) -> Option<(u64, Vec<BanLine>)> {
    let mut blocks = blocks.into_iter().map(|it| match it {
        AreaBlock::Bans(block) => Some(block),
        AreaBlock::Blank | AreaBlock::Damaged | AreaBlock::Unreadable => None,
    });
    let first = blocks.next()??;
    let (serial, count) = (first.serial, first.blocks);
    if first.block != 0 {
        return None;
    }
    let mut lines = first.lines;
    for n in 1..count {
        let block = blocks.next()??;
        if (block.serial, block.block, block.blocks) != (serial, n, count) {
            return None;
        }
        lines.extend(block.lines);
    }
    Some((serial, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(serial: u64) -> Vec<AreaBlock> {
        let block = |block| {
            AreaBlock::Bans(BansBlock {
                device: 0,
                serial,
                block,
                blocks: 2,
                lines: Vec::new(),
            })
        };
        vec![block(0), block(1), AreaBlock::Blank]
    }

    fn blank() -> Vec<AreaBlock> {
        vec![AreaBlock::Blank, AreaBlock::Blank, AreaBlock::Blank]
    }

    fn with(mut blocks: Vec<AreaBlock>, n: usize, block: AreaBlock) -> Vec<AreaBlock> {
        blocks[n] = block;
        blocks
    }

    #[test]
    fn one_whole_area_is_enough_and_is_not_written_over_first() {
        let torn = || with(set(7), 1, AreaBlock::Damaged);
        let gone = || with(set(7), 0, AreaBlock::Unreadable);
        for clean in [false, true] {
            for (areas, first) in [
                ([set(7), torn()], 1),
                ([torn(), set(6)], 0),
                ([gone(), set(7)], 0),
                ([set(6), blank()], 1),
            ] {
                let bans = choose(areas, clean);
                assert!(bans.lines.is_some() && !bans.is_doubled);
                assert_eq!(bans.first, first);
            }
        }
        let older = choose([set(8), set(7)], true);
        assert_eq!((older.first, older.is_doubled, older.serial), (1, false, 8));
        assert!(choose([set(8), set(8)], true).is_doubled);
    }

    #[test]
    fn bans_are_lost_when_neither_area_is_whole_and_never_otherwise() {
        let torn = || with(set(7), 1, AreaBlock::Damaged);
        let gone = || with(blank(), 0, AreaBlock::Unreadable);
        let is_lost = |areas, clean| choose(areas, clean).lines.is_none();
        assert!(is_lost([torn(), torn()], false));
        assert!(is_lost([torn(), gone()], false));
        // After an orderly close nothing is torn.
        assert!(!is_lost([torn(), blank()], false) && is_lost([torn(), blank()], true));
        assert!(is_lost([blank(), gone()], false));
        assert!(!is_lost([blank(), blank()], true));
        // A set never starts behind a blank first block.
        let unused = || with(blank(), 2, AreaBlock::Unreadable);
        assert!(!is_lost([blank(), unused()], true));
        assert!(!is_lost([unused(), unused()], true));
    }
}
