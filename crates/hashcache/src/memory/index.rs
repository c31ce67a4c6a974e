//! Memory of the index, which an operator can measure: each large part is mapped from a memory file
//! called `hashcache-index`, so `/proc/self/smaps` shows how much memory it takes.
//!
//! Called by `policy/packed`. The index is not in the heap, because there it could not be
//! distinguished from the rest. Names for anonymous mappings would do as well, but many kernels are
//! built without them.
//!
//! Invariant: bytes that were never written are zero and take no memory.

use std::ops::{Deref, DerefMut};

use super::mapping::Mapping;

/// Parts with at least this size are mapped: smaller parts would waste too much of their last page.
const MAPPED: usize = 64 << 10;
/// Name of the file and of the mapping.
const NAME: &str = "hashcache-index";

/// A part of an index.
pub(crate) struct IndexMemory(Memory);

enum Memory {
    Heap(Box<[u8]>),
    Mapped(Mapping),
}

impl IndexMemory {
    /// `len` zero bytes.
    pub(crate) fn zeroed(len: usize) -> Self {
        if len < MAPPED {
            return Self(Memory::Heap(vec![0; len].into()));
        }
        // Without memory files, only the line in smaps is missing.
        Self(match Mapping::named(NAME, len) {
            Ok(mapping) => Memory::Mapped(mapping),
            Err(_) => Memory::Heap(vec![0; len].into()),
        })
    }
}

impl Deref for IndexMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(mapping) => mapping.bytes(),
        }
    }
}

impl DerefMut for IndexMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(mapping) => mapping.bytes_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_zero_and_keeps_what_is_written() {
        for len in [0, 1, 100, MAPPED - 1, MAPPED, MAPPED + 1, 3 << 20] {
            let mut memory = IndexMemory::zeroed(len);
            assert_eq!(memory.len(), len);
            assert!(memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
            assert!(memory.iter().all(|byte| *byte == 7));
        }
    }
}
