//! Objects sent to a child: the sender finds dictionaries here by content.
//!
//! The parent keeps a table per child and loses it at a restart, which only costs bytes. An object
//! is entered when it was completely sent and may be used as a dictionary. It is found by
//! fingerprints (`sketch`), only among objects from the same origin. This table does not know if
//! the child still has the object: the child looks it up by key and digest.
//!
//! Invariant: [`Sent::find`] returns an object only if the key starts with the wanted origin, and
//! only the newest object for a key.
//! Cost: at most the bytes that were given to [`Sent::new`]. An object takes 72 in the index, 64 in
//! the list, plus the key; so 1 MiB holds 4,600 objects with 72-byte keys. A search reads a cache
//! line per fingerprint and compares the candidates.

use std::collections::VecDeque;

use crate::digest::Digest;
use crate::limits::DICTIONARY_BYTES_MAX;
use crate::sketch::{ASKED_BYTES, FINGERPRINTS_MAX, FINGERPRINTS_MIN, Sketch, mix};

/// An object that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentObject {
    /// The cache key.
    pub key: Box<[u8]>,
    /// SHA-256 of the content.
    pub digest: Digest,
    /// Content length, bytes.
    pub length: u64,
}

/// The object that needs a dictionary.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The cache key.
    pub key: &'a [u8],
    /// Length of the key prefix that names the origin. A dictionary must have the same origin.
    pub origin_bytes: usize,
    /// Content length, if known.
    pub length: Option<u64>,
}

/// The objects that were most recently sent to a child.
#[derive(Debug)]
pub struct Sent {
    seed: u64,
    /// Sets of [`WAYS`] slots.
    index: Box<[Slot]>,
    /// Ordered by number; never longer than the initial capacity. `None`: replaced or forgotten.
    objects: VecDeque<Option<SentObject>>,
    objects_max: usize,
    /// Number of the first object in `objects`.
    first: u32,
    key_bytes: usize,
    key_bytes_max: usize,
}

/// A fingerprint's tag, and the number of an object that has this fingerprint.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    tag: u32,
    object: u32,
}

impl Sent {
    /// A table that takes at most `bytes_max` bytes of memory. `seed` is secret, so that nobody can
    /// make content that fills selected sets.
    pub fn new(bytes_max: usize, seed: u64) -> Self {
        let objects_max = bytes_max / (INDEX_BYTES + OBJECT_BYTES + EXPECTED_KEY_BYTES);
        let sets = (objects_max * SLOTS_PER_OBJECT / WAYS).max(1);
        // The largest power of two that is not larger.
        let sets = 1_usize << sets.ilog2();
        let index = vec![Slot::default(); sets * WAYS].into_boxed_slice();
        let mut objects = VecDeque::new();
        objects.reserve_exact(objects_max);
        let fixed = size_of_val(&*index) + objects.capacity() * OBJECT_BYTES;
        Self {
            seed,
            index,
            objects,
            objects_max,
            first: 1,
            key_bytes: 0,
            key_bytes_max: bytes_max.saturating_sub(fixed),
        }
    }

    /// Enters an object. It replaces the earlier object with the same key.
    pub fn insert(&mut self, object: SentObject, sketch: &Sketch) {
        self.forget(&object.key);
        let bytes = key_bytes(&object);
        if bytes > self.key_bytes_max || self.objects_max == 0 {
            return;
        }
        while self.key_bytes + bytes > self.key_bytes_max || self.objects.len() == self.objects_max
        {
            self.drop_first();
        }
        let number = self.first.wrapping_add(u32_of(self.objects.len()));
        let hashes = hashes(self.seed, &object.key, sketch);
        self.key_bytes += bytes;
        self.objects.push_back(Some(object));
        for hash in hashes {
            self.enter(hash, number);
        }
    }

    /// Finds the object that is probably most similar to the `wanted` object, which has `sketch` so
    /// far.
    ///
    /// Many objects from a site start alike, or contain each other. Therefore, among the objects
    /// that share fingerprints, a similar length and a similar name count as much as the
    /// fingerprints.
    pub fn find(&self, sketch: &Sketch, wanted: &Wanted<'_>) -> Option<&SentObject> {
        let mut candidates: Vec<(u32, u32)> = Vec::new();
        for &fingerprint in sketch.fingerprints() {
            for number in self.numbers(mix(fingerprint ^ self.seed)) {
                match candidates.iter_mut().find(|known| known.1 == number) {
                    Some((count, _)) => *count += 1,
                    None => candidates.push((1, number)),
                }
            }
        }
        let origin = wanted.key.get(..wanted.origin_bytes)?;
        let found = candidates.into_iter().filter_map(|(count, number)| {
            let object = self.object(number)?;
            let is_of_origin = object.key.starts_with(origin);
            let age = number.wrapping_sub(self.first);
            is_of_origin.then(|| (shared(count, object.length), age, object))
        });
        let found: Vec<(u64, u32, &SentObject)> = found.collect();
        let most = found.iter().map(|&(shared, _, _)| shared).max()?;
        let best = found.into_iter().max_by_key(|&(shared, age, object)| {
            let score = score(object, shared, most, wanted);
            (score, age)
        });
        best.map(|(_, _, object)| object)
    }

    /// Forgets the object with this key, because the child has lost it.
    pub fn forget(&mut self, key: &[u8]) {
        let number = self.numbers(key_hash(self.seed, key)).find(|&number| {
            self.object(number)
                .is_some_and(|object| *object.key == *key)
        });
        if let Some(number) = number
            && let Some(object) = self.objects.get_mut(self.place(number))
        {
            self.key_bytes -= object.take().map_or(0, |object| key_bytes(&object));
        }
    }

    /// How many objects are in the table, including replaced objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns true if nothing was sent.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.objects.pop_front() {
            self.first = self.first.wrapping_add(1);
            self.key_bytes -= first.map_or(0, |object| key_bytes(&object));
        }
    }

    /// Enters `number` in a free slot of the set, or in the slot with the oldest object.
    fn enter(&mut self, hash: u64, number: u32) {
        let first = self.first;
        let len = u32_of(self.objects.len());
        let set = self.set(hash);
        // An object that is no longer in the list counts as the oldest: its place wraps to a large
        // number.
        let oldest = self.index[set]
            .iter_mut()
            .max_by_key(|slot| {
                let place = slot.object.wrapping_sub(first);
                if place < len { len - place } else { u32::MAX }
            })
            .expect("a set has slots");
        *oldest = Slot {
            tag: tag(hash),
            object: number,
        };
    }

    fn numbers(&self, hash: u64) -> impl Iterator<Item = u32> {
        let slots = &self.index[self.set(hash)];
        let wanted = slots.iter().filter(move |slot| slot.tag == tag(hash));
        wanted.map(|slot| slot.object)
    }

    fn object(&self, number: u32) -> Option<&SentObject> {
        self.objects.get(self.place(number))?.as_ref()
    }

    /// Index of an object in the list, if it is still there.
    fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    fn set(&self, hash: u64) -> std::ops::Range<usize> {
        let sets = self.index.len() / WAYS;
        let set = usize::try_from(hash >> 32).unwrap_or(0) & (sets - 1);
        set * WAYS..(set + 1) * WAYS
    }
}

fn hashes(seed: u64, key: &[u8], sketch: &Sketch) -> Vec<u64> {
    let fingerprints = sketch.fingerprints().iter();
    let hashes = fingerprints.map(|print| mix(print ^ seed));
    hashes.chain([key_hash(seed, key)]).collect()
}

/// Expected number of shared fingerprints with an object of `length` bytes, if no fingerprint had
/// been left out. A sketch has no more fingerprints for 11 MB than for 2 MiB, so for an 11 MB
/// object's start only a sixth are known.
fn shared(count: u32, length: u64) -> u64 {
    let sketched = ASKED_BYTES as u64;
    let scaled = u64::from(count) * length.clamp(sketched, DICTIONARY_BYTES_MAX) / sketched;
    scaled.min(FINGERPRINTS_MAX as u64)
}

/// Similarity in three respects, each 0 to 255: fingerprints, length, name.
fn score(object: &SentObject, shared: u64, most: u64, wanted: &Wanted<'_>) -> u64 {
    let share = |part: u64, whole: u64| part.saturating_mul(255) / whole.max(1);
    let length = wanted.length.map_or(0, |length| {
        share(length.min(object.length), length.max(object.length))
    });
    let (a, b) = (&wanted.key[wanted.origin_bytes..], &*object.key);
    let b = b.get(wanted.origin_bytes..).unwrap_or_default();
    let shorter = a.len().min(b.len());
    let front = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let back = a.iter().rev().zip(b.iter().rev());
    let back = back
        .take(shorter - front)
        .take_while(|(a, b)| a == b)
        .count();
    let name = share((front + back) as u64, a.len().max(b.len()) as u64);
    share(shared, most) + length + name
}

/// A key has a slot too, so that a newer object replaces an older object with the same key.
fn key_hash(seed: u64, key: &[u8]) -> u64 {
    let words = key.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(mix(seed ^ key.len() as u64), |hash, word| mix(hash ^ word))
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn tag(hash: u64) -> u32 {
    hash as u32
}

fn u32_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn key_bytes(object: &SentObject) -> usize {
    object.key.len() + ALLOCATION_BYTES
}

const WAYS: usize = 8;
/// Slots for the fingerprints and the key.
const SLOTS_PER_OBJECT: usize = FINGERPRINTS_MIN + 1;
const INDEX_BYTES: usize = SLOTS_PER_OBJECT * size_of::<Slot>();
const OBJECT_BYTES: usize = size_of::<Option<SentObject>>();
/// Allocator overhead for a key.
const ALLOCATION_BYTES: usize = 16;
/// A key of usual length, for the size of the index.
const EXPECTED_KEY_BYTES: usize = 72 + ALLOCATION_BYTES;

#[cfg(test)]
mod tests;
