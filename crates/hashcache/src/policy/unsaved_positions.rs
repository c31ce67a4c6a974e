//! Log positions that have left their rows in memory and are not in a checkpoint yet.
//!
//! Called by `log_lru`. This is a hash table with open addressing and a fixed size: it does not
//! grow, so it allocates no memory under a shard's lock.
//!
//! Invariant: a slot is in the table at most once.
//! Cost: 12 bytes for each place in the table; eight places for seven positions.

/// An object's address: the position modulo the log size, and how far the run reaches from there,
/// as a `format::run_code` (0 if there is no run, or if runs are not stored).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogAddress {
    pub(super) position: u32,
    pub(super) run: u8,
}

/// A position and the slot that it belongs to.
#[derive(Clone, Copy, Default)]
struct UnsavedPosition {
    /// The slot plus 1; 0 means an empty place.
    slot: u32,
    position: u32,
    run: u8,
    /// The checkpoint in progress has this position.
    saved: bool,
}

const _: () = assert!(size_of::<UnsavedPosition>() == 12);

/// The unsaved positions of one shard.
pub(crate) struct UnsavedPositions {
    places: Box<[UnsavedPosition]>,
    len: usize,
    most: usize,
}

fn places(most: usize) -> usize {
    most + most.div_ceil(7) + 1
}

/// Memory for `most` positions, bytes.
pub(crate) fn unsaved_positions_bytes(most: usize) -> u64 {
    (places(most) * size_of::<UnsavedPosition>()) as u64
}

impl UnsavedPositions {
    /// Room for `most` positions.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            places: vec![UnsavedPosition::default(); places(most)].into(),
            len: 0,
            most,
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.places) as u64
    }

    /// Fill level, in 1/100.
    pub(crate) fn fullness(&self) -> usize {
        self.len * 100 / self.most.max(1)
    }

    pub(super) fn address(&self, slot: u32) -> Option<LogAddress> {
        let it = self.places[self.find(slot)];
        let UnsavedPosition { position, run, .. } = it;
        (it.slot != 0).then_some(LogAddress { position, run })
    }

    /// Stores the `address` for `slot` and replaces an older address; false if the table is full.
    #[must_use]
    pub(super) fn insert(&mut self, slot: u32, address: LogAddress) -> bool {
        let at = self.find(slot);
        let is_new = self.places[at].slot == 0;
        if is_new && self.len >= self.most {
            return false;
        }
        self.len += usize::from(is_new);
        self.places[at] = UnsavedPosition {
            slot: slot + 1,
            position: address.position,
            run: address.run,
            saved: false,
        };
        true
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let at = self.find(slot);
        if self.places[at].slot != 0 {
            self.remove_at(at);
        }
    }

    /// Marks `slot`'s position as saved in the checkpoint in progress.
    pub(crate) fn mark_saved(&mut self, slot: u32) {
        let at = self.find(slot);
        self.places[at].saved = self.places[at].slot != 0;
    }

    /// A new checkpoint starts: it has no position yet.
    pub(crate) fn mark_all_unsaved(&mut self) {
        self.places.iter_mut().for_each(|it| it.saved = false);
    }

    /// The checkpoint is valid: removes the positions that it has.
    pub(crate) fn drop_saved(&mut self) {
        for at in 0..self.places.len() {
            // The removal moves later places in the probe sequence to `at`, so check `at` again.
            while self.places[at].saved {
                self.remove_at(at);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.len > 0 {
            self.places.fill(UnsavedPosition::default());
        }
        self.len = 0;
    }

    /// The place where the search for `slot` starts.
    fn home(&self, slot: u32) -> usize {
        let spread = u64::from(slot.wrapping_mul(0x9e37_79b1));
        usize::try_from((spread * self.places.len() as u64) >> 32).unwrap_or(0)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) % self.places.len()
    }

    /// Returns `slot`'s place, or the empty place for it. (There is always an empty place.)
    fn find(&self, slot: u32) -> usize {
        let mut at = self.home(slot);
        while self.places[at].slot != 0 && self.places[at].slot != slot + 1 {
            at = self.after(at);
        }
        at
    }

    /// Empties a place and closes the gap, so that no search stops too early.
    fn remove_at(&mut self, mut hole: usize) {
        self.len -= 1;
        let count = self.places.len();
        let mut at = hole;
        loop {
            self.places[hole] = UnsavedPosition::default();
            loop {
                at = self.after(at);
                let place = self.places[at];
                if place.slot == 0 {
                    return;
                }
                // The entry may move back unless its search starts behind the hole.
                let home = self.home(place.slot - 1);
                let (from_home, from_hole) =
                    ((at + count - home) % count, (at + count - hole) % count);
                if from_home >= from_hole {
                    self.places[hole] = place;
                    hole = at;
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_holds_what_a_map_would_whatever_happens() {
        for most in [0, 1, 5, 60] {
            let mut random = fastrand::Rng::with_seed(most as u64);
            let mut unsaved = UnsavedPositions::new(most);
            let mut plain: HashMap<u32, (LogAddress, bool)> = HashMap::new();
            for _ in 0..30_000 {
                let slot = random.u32(..100);
                let address = LogAddress {
                    position: random.u32(..),
                    run: random.u8(..),
                };
                match random.u32(..1000) {
                    0..500 => {
                        let room = plain.len() < most || plain.contains_key(&slot);
                        assert_eq!(unsaved.insert(slot, address), room);
                        if room {
                            plain.insert(slot, (address, false));
                        }
                    }
                    500..700 => {
                        unsaved.remove(slot);
                        plain.remove(&slot);
                    }
                    700..900 => {
                        if let Some(it) = plain.get_mut(&slot) {
                            unsaved.mark_saved(slot);
                            it.1 = true;
                        }
                    }
                    900..990 => {}
                    990..995 => {
                        unsaved.mark_all_unsaved();
                        plain.values_mut().for_each(|it| it.1 = false);
                    }
                    _ => {
                        unsaved.drop_saved();
                        plain.retain(|_, it| !it.1);
                    }
                }
                let expected = plain.get(&slot).map(|it| it.0);
                assert_eq!(unsaved.address(slot), expected);
                assert_eq!(unsaved.len, plain.len());
            }
            assert!((0..100).all(|slot| unsaved.address(slot) == plain.get(&slot).map(|it| it.0)));
        }
    }

    #[test]
    fn a_million_positions_take_14_bytes_each() {
        assert_eq!(unsaved_positions_bytes(1 << 20).div_ceil(1 << 20), 14);
    }
}
