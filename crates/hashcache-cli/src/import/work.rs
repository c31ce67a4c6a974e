//! The work that an import may still do.
//!
//! Sets of hosts and addresses are combined, each with each. The readers of `acl` and of the lines
//! that name them spend the elements of these sets here, so that the import of a hostile
//! configuration ends within some seconds. A reader that cannot spend leaves out its line and tells
//! it.

use std::cell::Cell;

/// Elements of sets that may still be looked at.
#[derive(Debug)]
pub struct Work {
    left: Cell<usize>,
}

impl Work {
    /// The work of one import.
    pub fn new() -> Self {
        Self {
            left: Cell::new(ELEMENTS_MAX),
        }
    }

    /// Takes `elements` from what is left.
    ///
    /// # Errors
    /// So many are not left; then, nothing is.
    pub fn spend(&self, elements: usize) -> Result<(), String> {
        let left = self.left.get().checked_sub(elements);
        self.left.set(left.unwrap_or(0));
        left.map(drop)
            .ok_or_else(|| "the lines are too many together".to_owned())
    }
}

/// The work of a name: a long one has many domains above it, and takes memory.
pub fn of_name(name: &str) -> usize {
    1 + name.len() / NAME_PART
}

/// Some seconds.
const ELEMENTS_MAX: usize = 4_000_000;
const NAME_PART: usize = 8;
