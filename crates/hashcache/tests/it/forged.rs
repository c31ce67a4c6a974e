//! Content that was chosen to have the CRC32C of other content, and a power cut that mixes the two.

use std::ops::Range;
use std::sync::Arc;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, PolicyKind, Put};

use super::support::{EVERY, KIB, MIB, Recorder, content, copy, forged, open, quiet};

/// Puts an object in a batch of its own.
fn put(cache: &Cache, name: &str, bytes: &[u8]) {
    cache
        .put(name.as_bytes(), Put::metadata("m"), bytes)
        .unwrap();
    assert!(cache.flush().wait());
}

/// The content that a store with these bytes answers with.
fn found(image: &[u8], policy: PolicyKind, name: &str) -> Option<Vec<u8>> {
    let cache = open(quiet(copy(image.to_vec()), policy));
    let hit = cache.get(name.as_bytes()).wait()?;
    hit.reader(0..u64::MAX).read_to_vec().ok()
}

/// Where `bytes` lie in `image`.
fn find(image: &[u8], bytes: &[u8]) -> Option<usize> {
    image.windows(bytes.len()).position(|it| it == bytes)
}

/// What a power cut leaves of a write of content over older content at `content`: of the sectors in
/// the second half of it all arrive, and no others.
fn torn(before: &[u8], after: &[u8], content: &Range<usize>) -> Vec<u8> {
    let from = (content.start + content.len() / 2).next_multiple_of(512);
    let to = content.end / 512 * 512;
    let mut torn = before.to_vec();
    torn[from..to].copy_from_slice(&after[from..to]);
    torn
}

/// Fits into a slot of the Disk Table.
const LENGTH: usize = 7 * KIB;
const NAME: &str = "object/0000";

/// Puts content until it is written over `place`. Returns what the device held before that write.
fn overwrite(
    cache: &Cache,
    device: &Recorder<MemoryDevice>,
    place: &Range<usize>,
    bytes: &[u8],
    name: impl Fn(usize) -> String,
) -> Option<Vec<u8>> {
    let mut before = device.inner.to_bytes();
    device.take_writes();
    for n in 1..2_000 {
        put(cache, &name(n), bytes);
        let writes = device.take_writes().into_iter().map(|call| {
            let at = usize::try_from(call.offset).unwrap();
            at..at + call.length
        });
        let writes: Vec<_> = writes.collect();
        if writes.iter().any(|it| it.contains(&place.start)) {
            return Some(before);
        }
        for range in writes {
            let to = &mut before[range.clone()];
            device.inner.read_at(range.start as u64, to).unwrap();
        }
    }
    None
}

#[test]
fn a_torn_write_of_content_forged_to_the_crc32c_of_the_older_content_is_a_miss() {
    let mut served = Vec::new();
    for policy in EVERY {
        let is_log = matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
        let older = content(b"older", 1, LENGTH);
        // Both halves differ from the older content, so their mixture is neither.
        let newer = forged(&forged(&older, KIB), 5 * KIB);
        let device = Arc::new(Recorder::new(MemoryDevice::new(12 * MIB)));
        let cache = open(quiet(device.clone(), policy));
        put(&cache, NAME, &older);
        let at = find(&device.inner.to_bytes(), &older).expect("it was written");
        let place = at..at + LENGTH;
        // The table family writes over the slot of the name; a log comes round to its place.
        let name = |n| {
            if is_log {
                format!("object/{n:04}")
            } else {
                NAME.to_owned()
            }
        };
        let before = overwrite(&cache, &device, &place, &newer, name).expect("it is overwritten");
        let after = device.inner.to_bytes();
        assert!(after[place.clone()] == newer, "{policy:?}");
        let torn = torn(&before, &after, &place);
        let mixture = &torn[place];
        assert!(mixture != older && mixture != newer, "{policy:?}");
        assert_eq!(crc32c::crc32c(mixture), crc32c::crc32c(&older));
        // If nothing of the write had arrived, the older content would answer: the mixture is
        // looked at.
        assert!(found(&before, policy, NAME) == Some(older), "{policy:?}");
        if found(&torn, policy, NAME).is_some() {
            served.push(policy);
        }
    }
    assert_eq!(served, [], "policies that serve the mixture");
}
