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
//! Cost: about 100 bytes of memory for each object in each level.

use lru::LruCache;

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

/// Objects in the order of their last use, as many as fit.
pub struct Lru {
    sizes: LruCache<u64, u64>,
    bytes: u64,
    bytes_max: u64,
}

impl Lru {
    /// Without objects, for at most `bytes_max` bytes of them.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            sizes: LruCache::unbounded(),
            bytes: 0,
            bytes_max,
        }
    }

    /// The size of `object`, which has just been used; `None` if it is not here.
    pub fn touch(&mut self, object: u64) -> Option<u64> {
        self.sizes.get(&object).copied()
    }

    /// Inserts an object that is not here. `evicted` is called with each object that leaves for it
    /// and its size. False if it is larger than all: then nothing changes.
    pub fn insert(&mut self, object: u64, bytes: u64, mut evicted: impl FnMut(u64, u64)) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        while self.bytes > self.bytes_max - bytes {
            let (oldest, its_bytes) = self.sizes.pop_lru().expect("their sizes are in the sum");
            self.bytes -= its_bytes;
            evicted(oldest, its_bytes);
        }
        self.bytes += bytes - self.sizes.put(object, bytes).unwrap_or(0);
        true
    }

    /// Objects that are here.
    pub fn objects(&self) -> usize {
        self.sizes.len()
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
