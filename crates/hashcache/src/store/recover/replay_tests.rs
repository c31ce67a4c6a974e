//! What a replay does where the log left a segment out, and where a checkpoint began before the
//! log.

#![cfg(not(loom))]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::config::Config;
use crate::device::{Device, FaultDevice, MemoryDevice};
use crate::disk::checkpoint::Checkpoint;
use crate::disk::circular_log::LogMap;
use crate::disk::write_superblock;
use crate::format::PART_BYTES;
use crate::memory::AlignedBuf;
use crate::store::device::{FoundSuperblock, front};
use crate::{Cache, Put};

const MIB: u64 = 1 << 20;
const CONTENT: usize = 3_000;

fn device(bytes: Vec<u8>) -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(MemoryDevice::from_bytes(bytes), None))
}

/// A store for objects of 4 KiB in 32 segments at most, which keeps no object in memory and writes
/// when it is told to.
fn open(device: &Arc<FaultDevice>) -> Cache {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let hour = Duration::from_secs(3600);
    Cache::open(Config {
        object_bytes: 4 << 10,
        segment_bytes: Some(1 << 20),
        hot_bytes_max: 0,
        memory_bytes: 16 * MIB,
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..Config::on_device(device)
    })
    .unwrap()
}

fn name(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// Puts names from `next` on, a few a batch, until `is_enough`. Returns the name after the last.
fn fill(cache: &Cache, mut next: u64, is_enough: impl Fn() -> bool) -> u64 {
    while !is_enough() {
        for _ in 0..20 {
            let put = Put::metadata(&b""[..]);
            cache.put(&name(next), put, &[7; CONTENT]).unwrap();
            next += 1;
        }
        assert!(cache.flush().wait());
    }
    next
}

fn is_found(cache: &Cache, n: u64) -> bool {
    cache.get(&name(n)).wait().is_some()
}

fn found(cache: &Cache, names: Range<u64>) -> usize {
    names.filter(|n| is_found(cache, *n)).count()
}

/// A store on `device` whose log has come to `segment`, and the next name to put.
fn filled_up_to(device: &Arc<FaultDevice>, segment: u64) -> (Cache, u64) {
    let cache = open(device);
    let stripe = Arc::clone(cache.first_stripe());
    let next = fill(&cache, 0, || stripe.log.open_segment().0 >= segment);
    (cache, next)
}

/// From now on reads of the middle of `segment` fail, and `cache`, which has put the names below
/// `names`, knows it.
fn spoil(device: &FaultDevice, cache: &Cache, segment: u64, names: u64) {
    let medium = &cache.first_stripe().medium;
    let segment_bytes = u64::from(medium.geometry.segment_bytes);
    let middle = medium.geometry.log_offset + segment * segment_bytes + segment_bytes / 2;
    device.refuse_reads(middle..middle + 4096);
    let is_known = || medium.bad_places.leaves_out(&medium.geometry, segment);
    assert!((0..names).any(|n| !is_found(cache, n) && is_known()));
}

#[test]
fn a_replay_leaves_no_entry_that_the_head_has_passed_also_where_a_segment_was_left_out() {
    const BAD: u64 = 12;
    let spoiled = device(vec![0; 32 << 20]);
    let (cache, next) = filled_up_to(&spoiled, BAD + 1);
    spoil(&spoiled, &cache, BAD, next);
    let stripe = Arc::clone(cache.first_stripe());
    fill(&cache, next, || stripe.log.open_segment() == (BAD + 1, 2));
    let killed = open(&device(spoiled.media()));
    let stripe = killed.first_stripe();
    assert_eq!(stripe.log.open_segment(), (BAD + 1, 2));
    let entries = || stripe.views().map(|it| it.policy.entries()).sum::<u64>();
    let all = entries();
    assert!(all > 1_000, "{all}");
    (0..stripe.medium.geometry.segments).for_each(|segment| stripe.sweep(segment));
    assert_eq!(entries(), all);
}

#[test]
fn a_checkpoint_is_not_gone_by_if_the_log_has_left_out_the_segment_of_its_cursor() {
    const CURSOR: u64 = 12;
    let spoiled = device(vec![0; 32 << 20]);
    let (cache, mut next) = filled_up_to(&spoiled, CURSOR);
    cache.close();
    let cache = open(&spoiled);
    let stripe = Arc::clone(cache.first_stripe());
    // Superblocks and checkpoints as they are here, and the log as it is a lap later, so far behind
    // the segment that a replay from there would find none that follows.
    let front = usize::try_from(stripe.medium.geometry.log_offset).unwrap();
    let early = spoiled.media();
    next = fill(&cache, next, || stripe.log.open_segment().0 > CURSOR);
    spoil(&spoiled, &cache, CURSOR, next);
    let end = fill(&cache, next, || {
        stripe.log.open_segment() == (CURSOR + 12, 1)
    });
    let mut late = spoiled.media();
    late[..front].copy_from_slice(&early[..front]);
    let killed = open(&device(late));
    assert_eq!(killed.first_stripe().log.open_segment(), (CURSOR + 12, 1));
    let newest = found(&killed, end - 1_000..end);
    assert!(newest > 900, "{newest}");
}

#[test]
fn rows_of_a_checkpoint_that_began_before_the_log_do_not_count() {
    let device_of_all = device(vec![0; 16 << 20]);
    let (cache, next) = filled_up_to(&device_of_all, 6);
    let stripe = Arc::clone(cache.first_stripe());
    // As if this checkpoint had been under way since the store was made.
    const SERIAL: u64 = 1_001;
    let (medium, index) = (&stripe.medium, &stripe.index);
    let empty = LogMap::new(&medium.geometry, medium.device_id);
    let cursor = Cursor::default();
    let mut checkpoint = Checkpoint::begin(medium, index, &empty, SERIAL, 1, cursor);
    let mut saved = Vec::new();
    while !checkpoint.is_whole() {
        let mut out = AlignedBuf::zeroed(PART_BYTES);
        let at = checkpoint.put_part(medium, index, &mut out);
        saved.push((at, out.to_vec()));
    }
    // Four laps later the bits of the lap in its rows mean the lap that is there.
    fill(&cache, next, || stripe.log.open_segment() == (6, 4));
    let image = device_of_all.media();
    let recovered = |serial: u64| {
        let device = device(image.clone());
        let Ok(FoundSuperblock::Superblock(mut superblock)) = front(&*device) else {
            panic!("no superblock");
        };
        superblock.checkpoint_serial = serial;
        superblock.checkpoint_parts = saved.len() as u64;
        for _ in 0..2 {
            write_superblock(&*device, &mut superblock).unwrap();
        }
        for (at, bytes) in &saved {
            device.write_at(*at, bytes).unwrap();
        }
        let cache = open(&device);
        let entries = cache.first_stripe().views();
        entries.map(|it| it.policy.entries()).sum::<u64>()
    };
    // No checkpoint has the other serial.
    let (with, without) = (recovered(SERIAL), recovered(SERIAL + 2));
    assert_eq!(with, without);
}
