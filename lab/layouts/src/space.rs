//! Which slots of a stream file are free, and which are taken next.
//!
//! Slots are taken in the order of the file, each time from where the last ones ended, over what is
//! in use, and at the end of the file from its beginning: the log of `STREAM`. So an object lies in
//! one piece unless a piece of free space ends before it does.
//!
//! Cost: an entry of an ordered map for each piece of free space.

use std::collections::BTreeMap;

/// Neighbouring slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub slots: u64,
}

pub struct Space {
    /// Lengths of the free pieces by their starts; no two of them touch.
    free: BTreeMap<u64, u64>,
    free_slots: u64,
    /// Where the last slots that were taken end.
    next: u64,
}

impl Space {
    pub fn new(slots: u64) -> Self {
        Self {
            free: BTreeMap::from([(0, slots)]),
            free_slots: slots,
            next: 0,
        }
    }

    /// Takes so many slots; `None` if there are not as many.
    pub fn take(&mut self, slots: u64) -> Option<Vec<Extent>> {
        if slots > self.free_slots {
            return None;
        }
        self.free_slots -= slots;
        let mut extents: Vec<Extent> = vec![];
        let mut left = slots;
        while left > 0 {
            let piece = self.piece_from(self.next).or_else(|| self.piece_from(0));
            let piece = piece.expect("the count of free slots is that of the pieces");
            let taken = Extent {
                slots: piece.slots.min(left),
                ..piece
            };
            self.cut(taken);
            self.next = taken.start + taken.slots;
            left -= taken.slots;
            extents.push(taken);
        }
        Some(extents)
    }

    /// Frees slots that were taken.
    pub fn release(&mut self, extent: Extent) {
        self.free_slots += extent.slots;
        let Extent {
            mut start,
            mut slots,
        } = extent;
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, slots) = (before, length + slots);
        }
        if let Some(length) = self.free.remove(&(extent.start + extent.slots)) {
            slots += length;
        }
        self.free.insert(start, slots);
    }

    /// Mean length of a piece of free space.
    pub fn mean_free_slots(&self) -> u64 {
        self.free_slots / (self.free.len() as u64).max(1)
    }

    /// The first free piece, or end of one, at or after `at`.
    fn piece_from(&self, at: u64) -> Option<Extent> {
        let around = self.free.range(..=at).next_back();
        if let Some((&start, &slots)) = around
            && start + slots > at
        {
            let slots = start + slots - at;
            return Some(Extent { start: at, slots });
        }
        let (&start, &slots) = self.free.range(at..).next()?;
        Some(Extent { start, slots })
    }

    /// Removes `taken` from the free piece around it.
    fn cut(&mut self, taken: Extent) {
        let around = self.free.range(..=taken.start).next_back();
        let (&start, &slots) = around.expect("only free slots are taken");
        let (end, taken_end) = (start + slots, taken.start + taken.slots);
        if start < taken.start {
            self.free.insert(start, taken.start - start);
        } else {
            self.free.remove(&start);
        }
        if taken_end < end {
            self.free.insert(taken_end, end - taken_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, slots: u64) -> Extent {
        Extent { start, slots }
    }

    #[test]
    fn slots_are_taken_in_order_and_from_the_beginning_when_the_end_is_reached() {
        let mut space = Space::new(10);
        assert_eq!(space.take(4), Some(vec![extent(0, 4)]));
        assert_eq!(space.take(4), Some(vec![extent(4, 4)]));
        space.release(extent(0, 4));
        assert_eq!(space.take(3), Some(vec![extent(8, 2), extent(0, 1)]));
        assert_eq!(space.take(4), None);
        assert_eq!(space.take(3), Some(vec![extent(1, 3)]));
    }

    #[test]
    fn an_object_goes_over_what_is_in_use() {
        let mut space = Space::new(10);
        space.take(10).unwrap();
        space.release(extent(1, 2));
        space.release(extent(5, 3));
        assert_eq!(space.take(4), Some(vec![extent(1, 2), extent(5, 2)]));
    }

    #[test]
    fn what_is_freed_behind_the_head_waits_for_the_next_lap() {
        let mut space = Space::new(10);
        space.take(6).unwrap();
        space.release(extent(4, 2));
        assert_eq!(space.mean_free_slots(), 6, "both pieces have become one");
        assert_eq!(space.take(4), Some(vec![extent(6, 4)]));
        assert_eq!(space.take(2), Some(vec![extent(4, 2)]));
    }

    #[test]
    fn no_slot_is_taken_twice_and_none_is_lost() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut space = Space::new(1000);
        let mut taken: Vec<Vec<Extent>> = vec![];
        let mut owners = vec![false; 1000];
        for step in 0..20_000 {
            if random.bool() {
                let slots = random.u64(1..30);
                let free = owners.iter().filter(|owned| !**owned).count() as u64;
                let extents = space.take(slots);
                assert_eq!(extents.is_some(), slots <= free, "step {step}");
                for extent in extents.iter().flatten() {
                    for slot in extent.start..extent.start + extent.slots {
                        let owned = &mut owners[usize::try_from(slot).unwrap()];
                        assert!(!std::mem::replace(owned, true), "step {step}: slot {slot}");
                    }
                }
                taken.extend(extents);
            } else if !taken.is_empty() {
                for extent in taken.swap_remove(random.usize(..taken.len())) {
                    space.release(extent);
                    for slot in extent.start..extent.start + extent.slots {
                        owners[usize::try_from(slot).unwrap()] = false;
                    }
                }
            }
        }
    }
}
