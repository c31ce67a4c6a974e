//! The work limit for an import.
//!
//! Host and address sets are combined, each with each. The readers for `acl` and for lines that
//! name an `acl` call [`Work::spend`] with the number of elements in these sets, so that importing
//! a hostile configuration takes only some seconds. If no work is left, a reader leaves out its
//! line and reports this.

use std::cell::Cell;

/// Set elements that may still be processed.
#[derive(Debug)]
pub struct Work {
    left: Cell<usize>,
}

impl Work {
    /// The work limit for an import.
    pub fn new() -> Self {
        Self {
            left: Cell::new(ELEMENTS_MAX),
        }
    }

    /// Takes `elements` from the remaining work.
    ///
    /// # Errors
    /// Fewer are left; afterwards no work is left.
    pub fn spend(&self, elements: usize) -> Result<(), String> {
        let left = self.left.get().checked_sub(elements);
        self.left.set(left.unwrap_or(0));
        left.map(drop)
            .ok_or_else(|| "the lines are too many together".to_owned())
    }
}

/// The work for a name: a long name has many domains above it, and takes memory.
pub fn of_name(name: &str) -> usize {
    1 + name.len() / NAME_PART
}

/// Takes some seconds.
const ELEMENTS_MAX: usize = 4_000_000;
const NAME_PART: usize = 8;
