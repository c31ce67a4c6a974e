//! The cost of each call for the device: every cell of the table in `policy/mod.rs`, counted.

use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, PolicyKind, Rows};

use super::support::{Call, KIB, MIB, Recorder, Value, get, open, quiet};

type Device = Arc<Recorder<MemoryDevice>>;

fn store(policy: PolicyKind, length: usize, objects: u64) -> (Cache, Device) {
    store_with(policy, Rows::Two, length, objects)
}

fn store_with(policy: PolicyKind, rows: Rows, length: usize, objects: u64) -> (Cache, Device) {
    let with = |config| Config { rows, ..config };
    store_of(policy, with, length, objects)
}

/// With so many of 100 sets in memory.
fn store_holding(share: u8, length: usize, objects: u64) -> (Cache, Device) {
    let with = |config| Config {
        held_share: Some(share),
        ..config
    };
    store_of(PolicyKind::SetMemLru, with, length, objects)
}

fn store_of(
    policy: PolicyKind,
    with: impl Fn(Config) -> Config,
    length: usize,
    objects: u64,
) -> (Cache, Device) {
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let config = |device: &Device| {
        with(Config {
            object_bytes: 8 << 10,
            segment_bytes: Some(4 * MIB as u32),
            // Which names share a set, and a tag in it, is the same in each run.
            name_secret: Some([1; 16]),
            ..quiet(device.clone(), policy)
        })
    };
    let cache = open(config(&device));
    for put in 0..objects {
        store_one(&cache, put, length);
        if put % 100 == 99 {
            assert!(cache.flush().wait());
        }
    }
    cache.close();
    // Opened anew nothing is hot, and what is asked for is asked of the disk.
    let cache = open(config(&device));
    device.take_reads();
    device.take_writes();
    (cache, device)
}

fn name(put: u64) -> Vec<u8> {
    format!("http://example.org/{put}").into_bytes()
}

fn store_one(cache: &Cache, put: u64, length: usize) {
    Value::new(put, length).store(cache, &name(put)).unwrap();
}

/// Of a hundred objects that do not fit into a block.
fn each_hit_is_two_reads(cache: &Cache, device: &Device) {
    let mut found = 0;
    for put in 0..100 {
        if get(cache, &name(put)).is_some() {
            found += 1;
            assert_eq!(device.take_reads().len(), 2);
        }
        device.take_reads();
    }
    assert!(found >= 95, "{found} of 100");
}

#[test]
fn log_hit_is_one_read_of_at_most_16_kib_and_its_window() {
    let (cache, device) = store(PolicyKind::Log, 6_000, 1_000);
    let (mut found, mut extra) = (0, 0);
    for put in 0..1_000 {
        let value = get(&cache, &name(put));
        let reads = device.take_reads();
        // The record may begin at any of the 8 units of its window.
        assert!(
            reads
                .iter()
                .all(|read| read.length <= 16 * KIB + 4 * KIB - 512)
        );
        assert!(
            reads
                .iter()
                .all(|read| read.offset.is_multiple_of(4 * KIB as u64))
        );
        if value.is_some() {
            found += 1;
            // One more for an equal tag of another name that lies later in the log.
            extra += reads.len() - 1;
        }
    }
    assert!(found > 990, "{found} of 1,000");
    assert!(extra < 40, "{extra} reads in vain");
    assert_eq!(device.take_writes(), []);
}

#[test]
fn log_hit_beyond_the_first_read_is_two_that_follow_on() {
    let (cache, device) = store(PolicyKind::Log, 50_000, 50);
    for put in 0..50 {
        assert!(get(&cache, &name(put)).is_some());
        let reads = device.take_reads();
        let [first, second] = &reads[reads.len() - 2..] else {
            panic!("{reads:?}")
        };
        assert_eq!(first.offset + first.length as u64, second.offset);
        assert!(first.length + second.length < 53_000 + 4 * KIB - 512);
    }
}

#[test]
fn log_miss_is_at_most_0_031_reads() {
    let (cache, device) = store(PolicyKind::Log, 3_000, 3_000);
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads().len();
    assert!(reads <= 310, "{reads} reads for 10,000 misses");
}

#[test]
fn log_with_one_row_hits_with_one_read_and_misses_with_at_most_0_031() {
    let (cache, device) = store_with(PolicyKind::Log, Rows::One, 3_000, 3_000);
    let found = (0..1_000)
        .filter(|put| get(&cache, &name(*put)).is_some())
        .count();
    let reads = device.take_reads().len();
    assert!(
        found > 950 && reads < found + 40,
        "{reads} reads for {found}"
    );
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads().len();
    assert!(reads <= 310, "{reads} reads for 10,000 misses");
}

#[test]
fn log_put_is_much_less_than_a_write_and_no_read() {
    let (cache, device) = store(PolicyKind::Log, 3_000, 10);
    for put in 0..1_000 {
        store_one(&cache, 100 + put, 3_000);
    }
    assert!(cache.flush().wait());
    let writes = device.take_writes();
    assert!(writes.len() <= 9, "{writes:?}");
    assert_eq!(device.take_reads(), []);
    // And little is written beside the records.
    let bytes: usize = writes.iter().map(|call| call.length).sum();
    assert!(bytes < 1_000 * 4_700, "{bytes}");
}

#[test]
fn log_lru_hit_is_one_read_and_one_more_of_its_row_where_its_position_is_on_disk() {
    // Five objects a row, of which four have their positions in memory.
    let (cache, device) = store(PolicyKind::LogLru, 3_000, 6_000);
    let (mut found, mut rows, mut extra) = (0, 0, 0);
    for put in 0..6_000 {
        let value = get(&cache, &name(put));
        let reads = device.take_reads();
        if value.is_some() {
            let of_row = usize::from(reads[0].length <= KIB);
            found += 1;
            rows += of_row;
            extra += reads.len() - 1 - of_row;
        }
    }
    assert!(found > 5_000, "{found} of 6,000");
    assert!(
        (500..found / 2).contains(&rows),
        "{rows} rows read for {found}"
    );
    assert!(extra < 250, "{extra} reads in vain");
    // The merge runs with the next batch.
    assert_eq!(device.take_writes(), []);
}

#[test]
fn log_lru_miss_is_at_most_0_046_reads() {
    let (cache, device) = store(PolicyKind::LogLru, 3_000, 6_000);
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads().len();
    assert!(reads <= 460, "{reads} reads for 10,000 misses");
}

#[test]
fn log_lru_put_is_much_less_than_a_write_and_reads_only_what_is_merged() {
    let (cache, device) = store(PolicyKind::LogLru, 3_000, 5_000);
    for put in 0..3_000 {
        store_one(&cache, 10_000 + put, 3_000);
        if put % 500 == 499 {
            assert!(cache.flush().wait());
        }
    }
    const PART: usize = 256 * KIB;
    let (reads, writes) = (device.take_reads(), device.take_writes());
    assert!(reads.iter().all(|read| read.length == PART), "{reads:?}");
    let merged = writes.iter().filter(|write| write.length == PART).count();
    assert!(reads.len() <= merged, "{} for {merged}", reads.len());
    assert!(writes.len() <= 90, "{}", writes.len());
}

#[test]
fn log_lru_grouped_costs_as_much_a_miss_and_a_put_as_without() {
    let grouped = |config| Config {
        grouped: true,
        ..config
    };
    let (cache, device) = store_of(PolicyKind::LogLru, grouped, 3_000, 6_000);
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads().len();
    assert!(reads <= 460, "{reads} reads for 10,000 misses");
    for put in 0..3_000 {
        store_one(&cache, 10_000 + put, 3_000);
        if put % 500 == 499 {
            assert!(cache.flush().wait());
        }
    }
    let writes = device.take_writes().len();
    assert!(writes <= 90, "{writes}");
}

#[test]
fn log_grouped_costs_one_read_a_run_and_as_much_a_miss_and_a_put_as_without() {
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let config = || Config {
        grouped: true,
        segment_bytes: Some(4 * MIB as u32),
        // All of it waits for the flush.
        memory_bytes: 64 * MIB as u64,
        ..quiet(device.clone(), PolicyKind::Log)
    };
    let cache = open(config());
    // Groups of five: `store_one` makes one of each of five neighbours, the fifth has none.
    for put in 0..3_000 {
        store_one(&cache, put, 3_000);
    }
    assert!(cache.flush().wait());
    let writes = device.take_writes().len();
    assert!(writes <= 30, "{writes} writes for 3,000 puts");
    cache.close();
    let cache = open(config());
    device.take_reads();
    let found = (0..3_000).filter(|put| get(&cache, &name(*put)).is_some());
    let found = found.count();
    let reads = device.take_reads().len();
    // Groups of 600 members, in runs of a mebibyte: 3,000 objects of which 600 are alone.
    assert!(found >= 2_900 && reads <= 800, "{reads} reads for {found}");
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads().len();
    assert!(reads <= 310, "{reads} reads for 10,000 misses");
}

#[test]
fn a_hot_hit_costs_nothing() {
    for policy in PolicyKind::ALL {
        let (cache, device) = store(policy, 3_000, 20);
        // The last one, which none has put out.
        assert!(get(&cache, &name(19)).is_some());
        device.take_reads();
        for _ in 0..100 {
            assert!(get(&cache, &name(19)).is_some());
        }
        assert_eq!(device.take_reads(), []);
    }
}

#[test]
fn set_hit_is_one_read_of_a_set() {
    let (cache, device) = store(PolicyKind::Set, 3_000, 500);
    for put in 0..500 {
        assert!(get(&cache, &name(put)).is_some());
        let [Call { length, .. }] = device.take_reads()[..] else {
            panic!("more than one read")
        };
        assert_eq!(length, 64 * KIB);
    }
    assert_eq!(device.take_writes(), []);
}

#[test]
fn set_hit_beyond_a_block_is_two_reads() {
    let (cache, device) = store(PolicyKind::Set, 30_000, 100);
    each_hit_is_two_reads(&cache, &device);
}

#[test]
fn set_miss_is_one_read() {
    let (cache, device) = store(PolicyKind::Set, 3_000, 100);
    for put in 0..100 {
        assert!(get(&cache, &name(1_000 + put)).is_none());
        assert_eq!(device.take_reads().len(), 1);
    }
}

#[test]
fn set_put_is_one_read_and_one_write_at_one_place() {
    let (cache, device) = store(PolicyKind::Set, 3_000, 100);
    for put in 0..50 {
        store_one(&cache, 1_000 + put, 3_000);
        assert!(cache.flush().wait());
        let (reads, writes) = (device.take_reads(), device.take_writes());
        let ([read], [write]) = (&reads[..], &writes[..]) else {
            panic!("{reads:?} {writes:?}")
        };
        assert_eq!((read.length, write.length), (64 * KIB, 8 * KIB));
        assert!((read.offset..read.offset + 64 * KIB as u64).contains(&write.offset));
    }
}

#[test]
fn set_mem_hit_is_one_read_of_a_block() {
    let (cache, device) = store(PolicyKind::SetMem, 3_000, 500);
    let mut found = 0;
    for put in 0..500 {
        found += u32::from(get(&cache, &name(put)).is_some());
        // Of two names of a set with equal tags the later one has put the earlier one out.
        let reads = device.take_reads();
        assert!(reads.iter().all(|read| read.length == 8 * KIB), "{reads:?}");
        assert_eq!(reads.len(), 1);
    }
    assert!(found >= 490, "{found} of 500");
    assert_eq!(device.take_writes(), []);
}

#[test]
fn set_mem_miss_is_0_031_reads_when_sets_are_full() {
    // 640 sets of 8 slots: 8,000 objects fill them, all but a few.
    let (cache, device) = store(PolicyKind::SetMem, 3_000, 8_000);
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads().len();
    assert!(
        (240..=360).contains(&reads),
        "{reads} reads for 10,000 misses"
    );
}

#[test]
fn set_mem_put_is_one_write_and_one_for_its_batch_and_no_read() {
    let (cache, device) = store(PolicyKind::SetMem, 3_000, 100);
    for put in 0..100 {
        store_one(&cache, 1_000 + put, 3_000);
    }
    assert!(cache.flush().wait());
    assert_eq!(device.take_reads(), []);
    let writes = device.take_writes();
    // And the end mark that the flush leaves behind the list of the batch.
    let marks = writes.iter().filter(|write| write.length == 4 * KIB);
    assert_eq!(marks.count(), 1, "{writes:?}");
    let others = writes.iter().filter(|write| write.length == 8 * KIB);
    assert_eq!(others.count(), 101, "{writes:?}");
    assert_eq!(writes.len(), 102, "{writes:?}");
}

/// Sets of the store of these tests.
const SETS: usize = 640;

#[test]
fn set_mem_lru_hit_is_one_read_of_its_set_or_where_that_is_held_of_its_block() {
    let (cache, device) = store_holding(100, 3_000, 1_000);
    let mut sets = std::collections::HashSet::new();
    let mut found = 0;
    for put in 0..1_000 {
        found += u32::from(get(&cache, &name(put)).is_some());
        let [Call { offset, length }] = device.take_reads()[..] else {
            // Held, and without it: put out by an equal tag.
            continue;
        };
        if length == 64 * KIB {
            assert!(sets.insert(offset), "read though it was held");
        } else {
            assert_eq!(length, 8 * KIB);
            assert!(sets.contains(&(offset / (64 * KIB as u64) * (64 * KIB as u64))));
        }
    }
    assert!(found >= 980, "{found} of 1,000");
    assert!(sets.len() > SETS * 2 / 3 && sets.len() <= SETS);
    assert_eq!(device.take_writes(), []);
}

#[test]
fn set_mem_lru_hit_beyond_a_block_is_two_reads() {
    let (cache, device) = store_holding(100, 30_000, 100);
    each_hit_is_two_reads(&cache, &device);
}

#[test]
fn set_mem_lru_miss_is_one_read_and_0_031_where_its_set_is_held() {
    let (cache, device) = store_holding(100, 3_000, 8_000);
    let miss = |put: u64| assert!(get(&cache, &name(1_000_000 + put)).is_none());
    // With 5,000, one secret in 150 leaves a set out.
    (0..10_000).for_each(miss);
    let reads = device.take_reads();
    let of_sets = reads.iter().filter(|read| read.length == 64 * KIB).count();
    assert_eq!(of_sets, SETS);
    (10_000..20_000).for_each(miss);
    let reads = device.take_reads();
    assert!(reads.iter().all(|read| read.length == 8 * KIB));
    let reads = reads.len();
    // Five standard deviations of 17.
    assert!(
        (225..=395).contains(&reads),
        "{reads} reads for 10,000 misses"
    );
}

#[test]
fn set_mem_lru_reads_as_many_sets_as_memory_does_not_hold() {
    // Three of ten sets in each shard, and at the start none.
    let (cache, device) = store_holding(30, 3_000, 8_000);
    for put in 0..10_000 {
        assert!(get(&cache, &name(1_000_000 + put)).is_none());
    }
    let reads = device.take_reads();
    let of_sets = reads.iter().filter(|read| read.length == 64 * KIB).count();
    assert!(of_sets.abs_diff(10_000 * 7 / 10) < 200, "{of_sets}");
    assert!(reads.len() - of_sets < 130, "{} in vain", reads.len());
}

#[test]
fn set_mem_lru_put_is_one_write_and_one_read_where_its_set_is_not_held() {
    let (cache, device) = store_holding(100, 3_000, 100);
    let mut sets = std::collections::HashSet::new();
    for put in 0..500 {
        store_one(&cache, 1_000 + put, 3_000);
        assert!(cache.flush().wait());
        let (reads, writes) = (device.take_reads(), device.take_writes());
        let [write] = writes[..] else {
            panic!("{writes:?}")
        };
        assert_eq!(write.length, 8 * KIB);
        let set = write.offset / (64 * KIB as u64) * (64 * KIB as u64);
        let read = Call {
            offset: set,
            length: 64 * KIB,
        };
        let expected = sets.insert(set).then_some(read);
        assert_eq!(reads, Vec::from_iter(expected));
    }
}

#[test]
fn basic_is_one_read_to_look_up_and_one_write_to_store() {
    let (cache, device) = store(PolicyKind::Basic, 3_000, 100);
    for put in 0..200 {
        get(&cache, &name(put));
        let [Call { length, .. }] = device.take_reads()[..] else {
            panic!("not one read")
        };
        assert_eq!(length, 8 * KIB);
    }
    store_one(&cache, 1_000, 3_000);
    assert!(cache.flush().wait());
    assert_eq!(device.take_reads(), []);
    let [Call { length, .. }] = device.take_writes()[..] else {
        panic!("not one write")
    };
    assert_eq!(length, 8 * KIB);
}

#[test]
fn a_remove_is_one_write_and_one_for_all_that_wait() {
    let (cache, device) = store(PolicyKind::Log, 3_000, 100);
    cache.remove(&name(3)).wait().unwrap();
    let [Call { length: 4096, .. }] = device.take_writes()[..] else {
        panic!("not one block")
    };
    let removes: Vec<_> = (10..60).map(|put| cache.remove(&name(put))).collect();
    removes
        .into_iter()
        .for_each(|remove| remove.wait().unwrap());
    // As many as the thread was woken in between, at most one each; all fit into one block.
    assert!(
        device
            .take_writes()
            .iter()
            .all(|write| write.length == 4096)
    );
    assert_eq!(device.take_reads(), []);
}

#[test]
fn readers_of_one_object_share_its_read() {
    let (cache, device) = store(PolicyKind::Log, 3_000, 10);
    let lookups: Vec<_> = (0..50).map(|_| cache.get(&name(5))).collect();
    for lookup in lookups {
        assert!(lookup.wait().is_some());
    }
    assert_eq!(device.take_reads().len(), 1);
}

#[test]
fn an_object_of_16_mib_written_alone_is_read_up_to_a_mebibyte_at_once() {
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let config = |device: &Device| Config {
        memory_bytes: 64 * MIB as u64,
        segment_bytes: Some(8 * MIB as u32),
        ..quiet(device.clone(), PolicyKind::Log)
    };
    let cache = open(config(&device));
    store_one(&cache, 1, 16 * MIB);
    cache.close();
    let cache = open(config(&device));
    device.take_reads();
    assert!(get(&cache, &name(1)).is_some());
    let reads = device.take_reads();
    // 64 spans, four at once, less where a batch ends; two reads for the head.
    assert!(reads.len() <= 24, "{} reads", reads.len());
    assert!(reads.iter().all(|read| read.length <= MIB + 64 * KIB));
    // Some read in vain, for an equal tag of another span.
    let bytes: usize = reads.iter().map(|read| read.length).sum();
    assert!(bytes < 17 * MIB, "{bytes} bytes");
}
