//! Two caches, one behind the other: least recently used objects in memory, and least recently
//! used objects on disk. What the disk has to do is told as operations on whole objects, which a
//! layout turns into reads and writes (WebCoSM, section 3.1 and Figure 5).
//!
//! A request that memory answers does not reach the disk. Any other request is a read if the disk
//! has the object, else a write of what was fetched, for which the disk deletes the objects that
//! were not requested for longest. Either way the object is in memory then. The published trace
//! (Table 1) has 32 % hits in memory, 4 % reads and 64 % writes.
//!
//! A name is an object: when a request's size differs from the stored one, the stored one counts.
//! Cost: that of two [`Lru`].

use std::ops::ControlFlow;

use serde::Serialize;

use crate::lru::Lru;
use crate::source::{Source, SourceError};
use crate::view::{Access, Sizes, View};

/// What a disk has to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Read a stored object.
    Read {
        /// Which one.
        object: u64,
        /// Its size.
        bytes: u64,
    },
    /// Store an object.
    Write {
        /// Which one.
        object: u64,
        /// Its size.
        bytes: u64,
    },
    /// Delete a stored object.
    Delete {
        /// Which one.
        object: u64,
        /// Its size.
        bytes: u64,
    },
}

/// What answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The cache in memory.
    Memory,
    /// The cache on disk.
    Disk,
    /// Neither: it is fetched.
    Origin,
}

/// See the module's head.
pub struct TwoLevel {
    memory: Lru,
    disk: Lru,
}

impl TwoLevel {
    /// Two empty caches of so many bytes of objects. (WebCoSM: 512 MB and 2 GB.)
    pub fn new(memory_bytes: u64, disk_bytes: u64) -> Self {
        Self {
            memory: Lru::new(memory_bytes),
            disk: Lru::new(disk_bytes),
        }
    }

    /// A request for `object`, `bytes` long if it is not stored. `disk` is called with each
    /// operation in its order: an object is deleted before the one that takes its room is written.
    pub fn request(
        &mut self,
        object: u64,
        bytes: u64,
        mut disk: impl FnMut(DiskOperation),
    ) -> Level {
        if self.memory.touch(object).is_some() {
            return Level::Memory;
        }
        let (level, bytes) = match self.disk.touch(object) {
            Some(bytes) => {
                disk(DiskOperation::Read { object, bytes });
                (Level::Disk, bytes)
            }
            None => {
                let delete = |object, bytes| disk(DiskOperation::Delete { object, bytes });
                if self.disk.insert(object, bytes, delete) {
                    disk(DiskOperation::Write { object, bytes });
                }
                (Level::Origin, bytes)
            }
        };
        self.memory.insert(object, bytes, |_, _| ());
        level
    }
}

/// Sends all requests of `source` through two levels.
///
/// # Errors
/// Those of the source.
pub fn replay(
    source: &mut dyn Source,
    view: View,
    (memory_bytes, disk_bytes): (u64, u64),
) -> Result<Table, SourceError> {
    let sizes = Sizes::new(view, source)?;
    let mut levels = TwoLevel::new(memory_bytes, disk_bytes);
    let mut table = Table::default();
    source.read(&mut |request| {
        match sizes.access(request) {
            None => table.without_size += 1,
            Some(_) if !request.may_be_stored => table.uncacheable += 1,
            Some(Access { object, bytes }) => {
                let level = levels.request(object, bytes, |operation| table.add(operation));
                table.requests += 1;
                table.memory_hits += u64::from(level == Level::Memory);
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(table)
}

/// What two levels did: Table 1 of WebCoSM. JSON has the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Requests that count and whose response may be stored.
    pub requests: u64,
    /// Requests that do not count, because their size is not known.
    pub without_size: u64,
    /// Requests whose response may not be stored: no level is asked.
    pub uncacheable: u64,
    /// Requests that memory answered.
    pub memory_hits: u64,
    /// Reads of objects.
    pub reads: u64,
    /// Octets of those.
    pub read_bytes: u64,
    /// Writes of objects.
    pub writes: u64,
    /// Octets of those.
    pub written_bytes: u64,
    /// Objects deleted.
    pub deletes: u64,
}

impl Table {
    fn add(&mut self, operation: DiskOperation) {
        let (count, sum, bytes) = match operation {
            DiskOperation::Read { bytes, .. } => (&mut self.reads, &mut self.read_bytes, bytes),
            DiskOperation::Write { bytes, .. } => {
                (&mut self.writes, &mut self.written_bytes, bytes)
            }
            DiskOperation::Delete { .. } => {
                self.deletes += 1;
                return;
            }
        };
        *count += 1;
        *sum = sum.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_answers_first_and_the_disk_deletes_what_was_not_used_for_longest() {
        let mut levels = TwoLevel::new(20, 30);
        let mut done = vec![];
        let mut ask = |object| {
            let level = levels.request(object, 10, |operation| done.push(operation));
            (level, std::mem::take(&mut done))
        };
        let write = |object| DiskOperation::Write { object, bytes: 10 };
        let read = |object| DiskOperation::Read { object, bytes: 10 };
        let delete = |object| DiskOperation::Delete { object, bytes: 10 };
        for object in 1..=3 {
            assert_eq!(ask(object), (Level::Origin, vec![write(object)]));
        }
        // Memory has 2 and 3; the disk does not learn that 2 was used.
        assert_eq!(ask(2), (Level::Memory, vec![]));
        assert_eq!(ask(1), (Level::Disk, vec![read(1)]));
        assert_eq!(ask(4), (Level::Origin, vec![delete(2), write(4)]));
        assert_eq!(ask(2), (Level::Origin, vec![delete(3), write(2)]));
    }

    #[test]
    fn an_object_larger_than_a_level_passes_it_by() {
        let mut levels = TwoLevel::new(10, 100);
        let mut asked = |object, bytes| {
            let mut operations = 0;
            let level = levels.request(object, bytes, |_| operations += 1);
            (level, operations)
        };
        assert_eq!(asked(1, 50), (Level::Origin, 1));
        assert_eq!(asked(1, 50), (Level::Disk, 1));
        assert_eq!(asked(2, 101), (Level::Origin, 0));
        assert_eq!(asked(2, 101), (Level::Origin, 0));
        assert_eq!(asked(1, 50), (Level::Disk, 1));
    }

    #[test]
    fn the_stored_size_counts_when_a_request_says_another() {
        let mut levels = TwoLevel::new(0, 100);
        levels.request(1, 40, |_| ());
        let mut read = 0;
        levels.request(1, 70, |operation| match operation {
            DiskOperation::Read { bytes, .. } => read = bytes,
            other => panic!("{other:?}"),
        });
        assert_eq!(read, 40);
    }
}
