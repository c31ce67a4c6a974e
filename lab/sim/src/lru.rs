//! Objects in the order of their last use, as many as fit.
//!
//! Called by `two_level` and `rival`. Cost: about 100 bytes of memory for each object.

use lru::LruCache;

/// See the module's head.
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

    /// Inserts an object, in place of what is here under its number. `evicted` is called with each
    /// object that leaves for it and its size. False if it is larger than all: then nothing
    /// changes.
    pub fn insert(&mut self, object: u64, bytes: u64, mut evicted: impl FnMut(u64, u64)) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        self.remove(object);
        while self.bytes > self.bytes_max - bytes {
            let (oldest, its_bytes) = self.pop_oldest().expect("their sizes are in the sum");
            evicted(oldest, its_bytes);
        }
        self.sizes.put(object, bytes);
        self.bytes += bytes;
        true
    }

    /// Takes `object` away; its size, if it is here.
    pub fn remove(&mut self, object: u64) -> Option<u64> {
        let bytes = self.sizes.pop(&object)?;
        self.bytes -= bytes;
        Some(bytes)
    }

    /// Takes away the object that was not used for longest, and its size.
    pub fn pop_oldest(&mut self) -> Option<(u64, u64)> {
        let (object, bytes) = self.sizes.pop_lru()?;
        self.bytes -= bytes;
        Some((object, bytes))
    }

    /// Sets a bound, and takes away what does not fit any more.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        while self.bytes > bytes_max && self.pop_oldest().is_some() {}
    }

    /// Objects that are here.
    pub fn objects(&self) -> u64 {
        self.sizes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_that_was_not_used_for_longest_leaves_first() {
        let mut lru = Lru::new(30);
        for object in 1..=3 {
            assert!(lru.insert(object, 10, |_, _| panic!("there is room")));
        }
        assert_eq!(lru.touch(1), Some(10));
        let mut gone = vec![];
        assert!(lru.insert(4, 15, |object, bytes| gone.push((object, bytes))));
        assert_eq!(gone, [(2, 10), (3, 10)]);
        assert!(!lru.insert(5, 31, |_, _| panic!("it does not fit")));
        // The same number again takes the place of what was there.
        assert!(lru.insert(4, 20, |_, _| panic!("there is room")));
        assert_eq!(
            (lru.objects(), lru.remove(4), lru.remove(4)),
            (2, Some(20), None)
        );
        lru.insert(6, 20, |_, _| ());
        lru.set_bytes_max(20);
        assert_eq!((lru.touch(1), lru.touch(6)), (None, Some(20)));
        assert_eq!((lru.pop_oldest(), lru.pop_oldest()), (Some((6, 20)), None));
    }
}
