//! Which objects the disk keeps: LRU-TH with two watermarks, as Foxy has it (WebCoSM, section 4).
//!
//! Objects above a threshold are not stored. When what is stored exceeds the high watermark, the
//! objects that were not used for longest are deleted until the low watermark is reached. Sizes
//! count in slots of 512 bytes, for every layout, so that all layouts get the same operations.

use lru::LruCache;

use super::{SLOT_BYTES, slots};
use hashcache_sim::two_level::DiskOperation;

/// How much the disk keeps, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// When more than this is stored, deletion begins.
    pub high: u64,
    /// It ends when no more than this is stored.
    pub low: u64,
    /// Larger objects are not stored.
    pub object_max: u64,
}

pub struct Watermarks {
    marks: Marks,
    /// Sizes of what is stored, by last use.
    stored: LruCache<u64, u64>,
    stored_bytes: u64,
}

impl Watermarks {
    pub fn new(marks: Marks) -> Self {
        Self {
            marks,
            stored: LruCache::unbounded(),
            stored_bytes: 0,
        }
    }

    /// A request for `object`, which is `bytes` long if it is not stored: calls `disk` with a read,
    /// with a write and the deletions before it, or not at all.
    pub fn request(&mut self, object: u64, bytes: u64, mut disk: impl FnMut(DiskOperation)) {
        if let Some(&bytes) = self.stored.get(&object) {
            disk(DiskOperation::Read { object, bytes });
            return;
        }
        let Marks {
            high,
            low,
            object_max,
        } = self.marks;
        if bytes > object_max || space(bytes) > low {
            return;
        }
        if self.stored_bytes + space(bytes) > high {
            self.delete_to(low - space(bytes), &mut disk);
        }
        self.stored.put(object, bytes);
        self.stored_bytes += space(bytes);
        disk(DiskOperation::Write { object, bytes });
    }

    fn delete_to(&mut self, bytes_max: u64, disk: &mut impl FnMut(DiskOperation)) {
        while self.stored_bytes > bytes_max {
            let (object, bytes) = self.stored.pop_lru().expect("their sizes are in the sum");
            self.stored_bytes -= space(bytes);
            disk(DiskOperation::Delete { object, bytes });
        }
    }
}

fn space(bytes: u64) -> u64 {
    slots(bytes) * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const MARKS: Marks = Marks {
        high: 100 << 10,
        low: 80 << 10,
        object_max: 20 << 10,
    };

    #[test]
    fn what_is_stored_stays_between_the_marks_once_it_has_reached_the_high_one() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut watermarks = Watermarks::new(MARKS);
        let mut stored: HashMap<u64, u64> = HashMap::new();
        let mut began = false;
        for _ in 0..5_000 {
            let (object, bytes) = (random.u64(..200), random.u64(..25 << 10));
            let mut deleted = false;
            watermarks.request(object, bytes, |operation| match operation {
                DiskOperation::Read { object, bytes } => assert_eq!(stored[&object], bytes),
                DiskOperation::Write { object, bytes } => {
                    assert!(bytes <= MARKS.object_max);
                    assert_eq!(stored.insert(object, bytes), None);
                }
                DiskOperation::Delete { object, bytes } => {
                    deleted = true;
                    assert_eq!(stored.remove(&object), Some(bytes));
                }
            });
            let bytes: u64 = stored.values().map(|bytes| space(*bytes)).sum();
            began |= deleted;
            assert!(bytes <= MARKS.high);
            assert!(!deleted || bytes <= MARKS.low, "{bytes} after a deletion");
            assert!(!began || bytes > MARKS.low - (21 << 10), "{bytes}");
        }
        assert!(began);
    }

    #[test]
    fn the_object_that_was_not_used_for_longest_goes_first() {
        let marks = Marks {
            high: 2 * SLOT_BYTES,
            low: 2 * SLOT_BYTES,
            object_max: SLOT_BYTES,
        };
        let mut watermarks = Watermarks::new(marks);
        let mut done = vec![];
        for object in [1, 2, 1, 3] {
            watermarks.request(object, 10, |operation| done.push(operation));
        }
        let gone = DiskOperation::Delete {
            object: 2,
            bytes: 10,
        };
        assert_eq!(done[3], gone);
    }
}
