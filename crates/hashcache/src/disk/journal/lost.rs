//! Decides which removes may be lost if ring blocks cannot be read.
//!
//! Pure: called by `journal` with the state for each block.
//!
//! The ring is written in order, two places at a time: the growing block is at a place or at the
//! place behind it, and the next block at the first free place behind both. So the neighbours of an
//! unreadable block tell what it may have held: nothing, if the ring was not yet written that far;
//! removes older than in the readable blocks behind it; or, next to the newest readable block, the
//! newest removes.
//!
//! Invariant: the result never understates the loss.

/// State for a place in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingPlace {
    /// Zeros, or a block of another kind: no remove was ever written here.
    Blank,
    /// A block with this ordinal.
    Block(u64),
    /// The block can be read and does not verify.
    Damaged,
    /// The device fails to read the block.
    Unreadable,
}

/// Returns the ordinal below which blocks with removes may be lost: `u64::MAX` if the newest block
/// may be lost; `None` if nothing is lost.
///
/// After a crash (not `clean`) a damaged block among the `torn` places that are written next counts
/// as a torn write: no remove in that write had been acknowledged, and the older removes that it
/// overwrote had been given up before.
pub(super) fn lost_below(ring: &[RingPlace], clean: bool, torn: usize) -> Option<u64> {
    let places = ring.len();
    let ordinal = |place: usize| match ring[place % places] {
        RingPlace::Block(ordinal) => Some(ordinal),
        RingPlace::Blank | RingPlace::Damaged | RingPlace::Unreadable => None,
    };
    let newest = (0..places)
        .filter(|place| ordinal(*place).is_some())
        .max_by_key(|it| ordinal(*it));
    // Where the write after the newest block may have gone, if there was such a write.
    let frontier = match newest {
        Some(newest) => [newest + places - 1, newest + 1, newest + 2].map(|it| it % places),
        None => [0, 0, 0],
    };
    let first_torn = newest.map_or(0, |newest| newest + places - 1);
    let is_torn = |place: usize| !clean && (place + places - first_torn % places) % places < torn;
    let is_lost = |place: &usize| match ring[*place] {
        RingPlace::Unreadable => true,
        RingPlace::Damaged => !is_torn(*place),
        RingPlace::Blank | RingPlace::Block(_) => false,
    };
    let lost: Vec<usize> = (0..places).filter(is_lost).collect();
    if lost.is_empty() {
        return None;
    }
    if frontier.iter().any(|place| lost.contains(place)) {
        return Some(u64::MAX);
    }
    let Some(newest) = newest else {
        // The first place is blank, so nothing was ever written.
        return None;
    };
    // In the first lap, nothing is written behind the newest block and the copy beside it.
    let first_lap = ring.get(newest + 2) == Some(&RingPlace::Blank);
    let below = |place: usize| {
        // A block takes two places, and either place may hold the later copy, so the place directly
        // behind does not count.
        let behind = (2..=places).map(|step| place + step);
        behind.into_iter().find_map(ordinal).unwrap_or(u64::MAX)
    };
    let written = |place: &usize| !(first_lap && *place > newest);
    lost.into_iter().filter(written).map(below).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring after writing this many removes singly, as `journal` does.
    fn written(places: usize, blocks: usize, copies: usize) -> Vec<RingPlace> {
        let mut ring = vec![RingPlace::Blank; places];
        let (mut ordinal, mut base) = (0, 0);
        for _ in 0..blocks {
            for copy in 0..copies {
                ring[(base + copy % 2) % places] = RingPlace::Block(ordinal);
                ordinal += 1;
            }
            base = (base + copies.min(2)) % places;
        }
        ring
    }

    /// For every ring and each place in it: a block that was lost there is below the reported
    /// bound.
    #[test]
    fn no_block_that_is_lost_has_an_ordinal_that_is_said_to_be_there() {
        for copies in 1..5 {
            for blocks in 0..40 {
                let ring = written(8, blocks, copies);
                for place in 0..8 {
                    for bad in [RingPlace::Unreadable, RingPlace::Damaged] {
                        let mut read = ring.clone();
                        read[place] = bad;
                        let lost = lost_below(&read, true, 2);
                        let what = format!("{copies} copies, {blocks} blocks, place {place}");
                        match ring[place] {
                            RingPlace::Block(ordinal) => {
                                assert!(lost.is_some_and(|below| ordinal < below), "{what}");
                            }
                            _ => assert!(matches!(lost, None | Some(u64::MAX)), "{what}"),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_place_that_the_ring_has_not_come_to_holds_nothing() {
        let mut ring = written(8, 2, 2);
        ring[6] = RingPlace::Unreadable;
        assert_eq!(lost_below(&ring, true, 2), None);
        // A newer block may be behind the newest known block.
        ring[5] = RingPlace::Unreadable;
        assert_eq!(lost_below(&ring, true, 2), Some(u64::MAX));
        let mut blank = vec![RingPlace::Blank; 8];
        blank[3] = RingPlace::Unreadable;
        assert_eq!(lost_below(&blank, true, 2), None);
        blank[0] = RingPlace::Unreadable;
        assert_eq!(lost_below(&blank, true, 2), Some(u64::MAX));
    }

    #[test]
    fn an_older_block_is_lost_below_the_blocks_behind_it() {
        // 0 1 | 2 3 | 4 5 | 6 7, then 8 9 over the first two.
        let mut ring = written(8, 5, 2);
        ring[4] = RingPlace::Unreadable;
        assert_eq!(lost_below(&ring, true, 2), Some(6));
    }

    #[test]
    fn a_write_that_a_crash_has_torn_is_no_loss() {
        let mut ring = written(8, 3, 1);
        ring[3] = RingPlace::Damaged;
        assert_eq!(lost_below(&ring, false, 4), None);
        assert_eq!(lost_below(&ring, true, 4), Some(u64::MAX));
        // In an older block it is a loss.
        ring[3] = RingPlace::Blank;
        ring[0] = RingPlace::Damaged;
        assert_eq!(lost_below(&ring, false, 4), Some(2));
    }
}
