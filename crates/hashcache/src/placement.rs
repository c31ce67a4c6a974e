//! Which part of a name chooses the device that the object lies on.
//!
//! An embedder chooses it in `Config`; `key` hashes the part, `store` remembers the number of the
//! rule.
//!
//! Invariant: a name has one part, always the same. A store that is opened with another rule than
//! before forgets what it has: under the old rule the hashes of the same names were others, so
//! removes that are known by a hash would not reach what was put.
//! Cost: one more hash of a name where the part is not the whole name.

use std::num::NonZeroU32;

/// Which part of a name chooses the device, of several, on which the object lies: names with equal
/// parts lie on one device. That is worth its price where they are read together
/// ([`Config::grouped`](crate::Config::grouped)): one read finds them all. The price is that a
/// device has the objects of whole parts, so few and large parts fill devices unevenly.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    number: u32,
    part: fn(&[u8]) -> &[u8],
}

impl Placement {
    /// The whole name: objects are spread evenly.
    pub const NAME: Self = Self {
        number: 0,
        part: |name| name,
    };

    /// The part of a name that `part` returns. `number` stands for `part` in the store: one that
    /// takes other parts needs another number.
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
