//! Selects the name part that chooses an object's device.
//!
//! Set by an embedder in `Config`; `key` hashes the part, `store` remembers the rule's number.
//!
//! Invariant: a name has one part, always the same. A store that is opened with another rule
//! forgets all objects: the same names had other hashes under the old rule, so removes that are
//! known by hash would not reach the stored objects.
//! Cost: one more hash for a name if the part is not the whole name.

use std::num::NonZeroU32;

/// Selects the name part that chooses the device in a store with several devices: names with equal
/// parts are on one device. This helps if they are read together
/// ([`Config::grouped`](crate::Config::grouped)), because one read finds all of them. On the other
/// hand, a part is never split over devices, so few and large parts fill the devices unevenly.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    number: u32,
    part: fn(&[u8]) -> &[u8],
}

impl Placement {
    /// The whole name: objects are distributed evenly.
    pub const NAME: Self = Self {
        number: 0,
        part: |name| name,
    };

    /// `part` returns the part for a name. `number` identifies `part` in the store: a function that
    /// selects other parts needs another number.
    pub const fn new(number: NonZeroU32, part: fn(&[u8]) -> &[u8]) -> Self {
        Self {
            number: number.get(),
            part,
        }
    }

    pub(crate) fn number(self) -> u32 {
        self.number
    }

    pub(crate) fn part(self, name: &[u8]) -> &[u8] {
        (self.part)(name)
    }
}
