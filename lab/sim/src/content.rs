//! The bytes of objects in replays: they follow from the object and its size, so no object is kept
//! for the comparison with what a store returns.

/// See the module's head.
pub struct Contents {
    /// Contents are stretches of these random bytes.
    pool: Vec<u8>,
}

impl Contents {
    /// Contents that follow from `seed` too.
    pub fn new(seed: u64) -> Self {
        let mut pool = vec![0; POOL_BYTES];
        fastrand::Rng::with_seed(seed).fill(&mut pool);
        Self { pool }
    }

    /// Writes the content of `object` to `content`, instead of what is in it.
    pub fn write(&self, object: u64, bytes: usize, content: &mut Vec<u8>) {
        content.clear();
        let mut random = fastrand::Rng::with_seed(object);
        // Each stretch begins somewhere else: a page of a large object is not found in the place of
        // another one.
        while content.len() < bytes {
            let from = random.usize(..POOL_BYTES - STRETCH_BYTES);
            let left = bytes - content.len();
            content.extend_from_slice(&self.pool[from..from + left.min(STRETCH_BYTES)]);
        }
    }

    /// What is stored beside the content: a store that mixes up objects or lengths is detected.
    pub fn metadata(object: u64, bytes: u64) -> Vec<u8> {
        [object.to_le_bytes(), bytes.to_le_bytes()].concat()
    }

    /// The length in metadata of `object`; `None` if it is of another one.
    pub fn length_in(object: u64, metadata: &[u8]) -> Option<u64> {
        let (found, bytes) = metadata.split_first_chunk::<8>()?;
        let bytes: [u8; 8] = bytes.try_into().ok()?;
        (u64::from_le_bytes(*found) == object).then_some(u64::from_le_bytes(bytes))
    }
}

const POOL_BYTES: usize = 1 << 20;
/// No multiple of the engine's pages.
const STRETCH_BYTES: usize = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_follows_from_seed_object_and_length() {
        let of = |seed, object, bytes| {
            let mut content = vec![1, 2, 3];
            Contents::new(seed).write(object, bytes, &mut content);
            assert_eq!(content.len(), bytes);
            content
        };
        assert_eq!(of(1, 5, 300_000), of(1, 5, 300_000));
        assert_eq!(of(1, 5, 70_000), of(1, 5, 300_000)[..70_000]);
        assert_ne!(of(1, 5, 100), of(1, 6, 100));
        assert_ne!(of(1, 5, 100), of(2, 5, 100));
        assert!(of(1, 5, 0).is_empty());
    }

    #[test]
    fn metadata_of_another_object_is_told() {
        let metadata = Contents::metadata(7, 1 << 40);
        assert_eq!(Contents::length_in(7, &metadata), Some(1 << 40));
        assert_eq!(Contents::length_in(8, &metadata), None);
        assert_eq!(Contents::length_in(7, &metadata[..15]), None);
    }
}
