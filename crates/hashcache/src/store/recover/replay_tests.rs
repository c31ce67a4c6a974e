//! Replays if the log skipped a segment, if a checkpoint started before the log, or if the log has
//! wrapped since; and which checkpoint is overwritten.

#![cfg(not(loom))]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::config::{Config, PolicyKind};
use crate::device::hooked::Hooked;
use crate::device::{Device, FaultDevice, MemoryDevice};
use crate::disk::checkpoint::Checkpoint;
use crate::disk::circular_log::LogMap;
use crate::disk::{index_rows, write_superblock};
use crate::format::PART_BYTES;
use crate::memory::AlignedBuf;
use crate::store::device::{FoundSuperblock, front};
use crate::{Ban, Cache, Put};

const MIB: u64 = 1 << 20;
const CONTENT: usize = 3_000;

fn device(bytes: Vec<u8>) -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(MemoryDevice::from_bytes(bytes), None))
}

/// A store for objects of 4 KiB in 32 segments at most, which keeps no object in memory and writes
/// only on request.
fn open(device: &Arc<FaultDevice>) -> Cache {
    open_as(Arc::clone(device) as _, PolicyKind::Log)
}

fn open_as(device: Arc<dyn Device>, policy: PolicyKind) -> Cache {
    let hour = Duration::from_secs(3600);
    Cache::open(Config {
        policy,
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

/// Puts names, starting at `next`, a few in each batch, until `is_enough`. Returns the name after
/// the last.
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

/// A store on `device` with its log at `segment`, and the next name to put.
fn filled_up_to(device: &Arc<FaultDevice>, segment: u64) -> (Cache, u64) {
    let cache = open(device);
    let stripe = Arc::clone(cache.first_stripe());
    let next = fill(&cache, 0, || stripe.log.open_segment().0 >= segment);
    (cache, next)
}

/// Makes reads in the middle of `segment` fail, and lets `cache`, which has put the names below
/// `names`, find out.
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
    // Superblocks and checkpoints of this moment with the log of a lap later, so far behind the
    // segment that a replay from there would find no segment that follows.
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
    // As if this checkpoint had been in progress since the store was created.
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
    // Four laps later the lap bits in its rows mean the current lap.
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

/// A power cut has lost the headers of the last lap, except for a segment further on. If that
/// segment were treated as the next segment of the previous lap, the log would continue there, and
/// all records since the previous lap would be forgotten, or old versions would be found again.
#[test]
fn a_segment_that_a_later_lap_has_written_does_not_follow_one_of_the_lap_before() {
    const CURSOR: u64 = 2;
    // Further behind the cursor than the log can skip segments.
    const LATE: u64 = CURSOR + 2 * LEFT_OUT_IN_A_ROW_MAX;
    let disk = device(vec![0; 32 << 20]);
    let (cache, next) = filled_up_to(&disk, CURSOR);
    cache.close();
    let cache = open(&disk);
    let stripe = Arc::clone(cache.first_stripe());
    let geometry = &stripe.medium.geometry;
    assert!(LATE + 8 < geometry.segments);
    let front = usize::try_from(geometry.log_offset).unwrap();
    let early = disk.media();
    let end = fill(&cache, next, || stripe.log.open_segment() == (1, 1));
    let mut cut = disk.media();
    fill(&cache, end, || stripe.log.open_segment() == (LATE + 1, 1));
    let late = disk.media();
    cut[..front].copy_from_slice(&early[..front]);
    let segment_bytes = geometry.segment_bytes as usize;
    let at = front + usize::try_from(LATE).unwrap() * segment_bytes;
    cut[at..at + segment_bytes].copy_from_slice(&late[at..at + segment_bytes]);
    let killed = open(&device(cut));
    assert_eq!(killed.first_stripe().log.open_segment(), (1, 1));
    let newest = found(&killed, end - 1_000..end);
    assert!(newest > 900, "{newest}");
}

/// If a policy keeps rows on disk, readers look for them in the published checkpoint.
#[test]
fn no_checkpoint_is_written_over_the_one_that_has_the_rows() {
    const NAMES: u64 = 600;
    let device = Hooked::new(vec![0; 32 << 20]);
    let mut next = 0;
    for damaged in [false, false, true, false] {
        if damaged {
            let Ok(FoundSuperblock::Superblock(superblock)) = front(&*device) else {
                panic!("no superblock");
            };
            let serial = superblock.checkpoint_serial;
            let at = superblock.checkpoint_offset + serial % 2 * superblock.checkpoint_bytes;
            let at = usize::try_from(at).unwrap();
            assert!(serial >= 2);
            device.inner.alter(|bytes| bytes[at + 100] ^= 1);
        }
        let cache = open_as(Arc::clone(&device) as _, PolicyKind::LogLru);
        let there = found(&cache, 0..next) as u64;
        assert!(there >= next * 98 / 100, "{there} of {next}");
        let stripe = Arc::clone(cache.first_stripe());
        let written_over = Arc::new(AtomicUsize::new(0));
        let watched = (Arc::clone(&stripe), Arc::clone(&written_over));
        device.watch(move |call| {
            let (stripe, written_over) = &watched;
            let geometry = &stripe.medium.geometry;
            let published = stripe.index.file.checkpoint_id();
            let is_written_over = published.is_some_and(|published| {
                let at = index_rows::area(geometry, published.serial);
                call.writes_to(&(at..at + geometry.checkpoint_bytes))
            });
            written_over.fetch_add(usize::from(is_written_over), Ordering::Relaxed);
        });
        let puts = || stripe.medium.counters.puts.value();
        next = fill(&cache, next, || puts() >= NAMES);
        cache.close();
        device.watch_no_more();
        assert_eq!(
            written_over.load(Ordering::Relaxed),
            0,
            "damaged: {damaged}"
        );
    }
}

/// A skipped segment holds nothing, however long it is skipped.
#[test]
fn a_ban_is_outlived_although_the_log_leaves_a_segment_out_for_good() {
    const BAD: u64 = 12;
    let spoiled = device(vec![0; 32 << 20]);
    let (cache, next) = filled_up_to(&spoiled, BAD + 1);
    spoil(&spoiled, &cache, BAD, next);
    cache
        .remove_matching(&[Ban::prefix(b"none")])
        .wait()
        .unwrap();
    assert_eq!(cache.bans(), 1);
    let stripe = Arc::clone(cache.first_stripe());
    let next = fill(&cache, next, || stripe.log.open_segment() == (BAD + 1, 1));
    assert_eq!(stripe.log.stamps()[usize::try_from(BAD).unwrap()], 0);
    assert_eq!(
        cache.bans(),
        1,
        "what is older lies in the rest of this segment"
    );
    fill(&cache, next, || stripe.log.open_segment() == (BAD + 3, 1));
    assert_eq!(cache.bans(), 0);
}

/// The first load leaves displaced positions on disk, so its rows must not stay if they cannot be
/// read again.
#[test]
fn shards_whose_rows_cannot_be_read_again_know_nothing() {
    let disk = device(vec![0; 32 << 20]);
    let cache = open_as(Arc::clone(&disk) as _, PolicyKind::LogLru);
    let stripe = Arc::clone(cache.first_stripe());
    fill(&cache, 0, || stripe.log.open_segment().0 >= 6);
    cache.close();
    let cache = open_as(Arc::clone(&disk) as _, PolicyKind::LogLru);
    let stripe = cache.first_stripe();
    let (medium, index) = (&stripe.medium, &stripe.index);
    let serial = index.file.checkpoint_id().unwrap().serial;
    let entries = |shards: Range<usize>| {
        let entries = shards.map(|n| stripe.view_at(n).policy.entries());
        entries.sum::<u64>()
    };
    let all = entries(0..SHARDS);
    let half = SHARDS / 2;
    checkpoint::load_shards(medium, index, serial, 0..half);
    assert_eq!(entries(0..SHARDS), all);
    let area = index_rows::area(&medium.geometry, serial);
    disk.refuse_reads(area..area + medium.geometry.checkpoint_bytes);
    let of_others = entries(half..SHARDS);
    checkpoint::load_shards(medium, index, serial, 0..half);
    assert_eq!((entries(0..half), entries(half..SHARDS)), (0, of_others));
}
