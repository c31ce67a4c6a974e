//! The index is as large as we say, by the kernel's account, and finds what we say it finds.

use std::sync::Arc;

use hashcache::{Cache, Config, PolicyKind, Put, PutError, Rows, Stats};

use super::support::{KIB, MIB, Overlay, Value, get, memory, open, quiet};

/// Bytes of the index's mappings that are resident, as `/proc/self/smaps` has it. No other test has
/// an index so large that it is mapped.
fn resident_bytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_index, mut kib) = (false, 0);
    for line in maps.lines() {
        let is_head = !line.split(' ').next().unwrap_or_default().ends_with(':');
        if is_head {
            is_index = line.contains("hashcache-index");
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| is_index) {
            let number = rest.trim().strip_suffix("kB").unwrap();
            kib += number.trim().parse::<u64>().unwrap();
        }
    }
    kib * 1024
}

fn name(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// Puts `names` small objects, as fast as they are written.
fn put_all(cache: &Cache, names: std::ops::Range<u64>, length: usize) {
    let content = vec![7; length];
    for n in names {
        let put = || cache.put(&name(n), Put::metadata(&b""[..]), &content);
        match put() {
            Err(PutError::Full) => {
                assert!(cache.flush().wait());
                put().unwrap();
            }
            other => drop(other.unwrap()),
        }
    }
    assert!(cache.flush().wait());
}

fn is_within_3_percent(stats: &Stats) {
    let (told, resident) = (stats.index_bytes, resident_bytes());
    let off = told.abs_diff(resident) as f64 / told as f64;
    assert!(off <= 0.03, "told {told}, resident {resident}");
}

/// A log whose index has 10 million slots.
fn log_of_10_million(policy: PolicyKind) -> Config {
    let size = 10_000_000 * 8 * KIB as u64 / 103 * 100;
    Config {
        size_bytes: Some(size),
        memory_bytes: 256 * MIB as u64,
        object_bytes: 8 << 10,
        segment_bytes: Some(16 * MIB as u32),
        ..quiet(Arc::new(Overlay::new(size, Arc::default())), policy)
    }
}

#[test]
fn the_index_of_10_million_slots_takes_the_memory_that_stats_tell() {
    // As many objects as touch every page of the index; the rest of the slots stays empty.
    let cache = open(log_of_10_million(PolicyKind::Log));
    put_all(&cache, 0..150_000, 1);
    let stats = cache.stats();
    assert!(
        (9_990_000..10_010_000).contains(&stats.index_slots),
        "{}",
        stats.index_slots
    );
    // Of 80 GB, 19 million windows have numbers of 25 bits.
    assert!((36.0..36.1).contains(&stats.index_bits_per_slot()));
    is_within_3_percent(&stats);
    drop(cache);

    // What waits for a checkpoint lies in parts too small to be mapped: below a bit a slot.
    let cache = open(log_of_10_million(PolicyKind::LogLru));
    put_all(&cache, 0..150_000, 1);
    let stats = cache.stats();
    assert!((31.8..31.9).contains(&stats.index_bits_per_slot()));
    is_within_3_percent(&stats);
    drop(cache);

    let cache = open(Config {
        grouped: true,
        ..log_of_10_million(PolicyKind::LogLru)
    });
    put_all(&cache, 0..150_000, 1);
    let stats = cache.stats();
    assert!((35.8..35.9).contains(&stats.index_bits_per_slot()));
    is_within_3_percent(&stats);
    drop(cache);

    // `set-mem` writes ranks to every set when a store is made.
    let size = 10_000_000 * 2 * KIB as u64 / 2 * 3 + 600 * MIB as u64;
    let config = Config {
        size_bytes: Some(size),
        memory_bytes: 256 * MIB as u64,
        object_bytes: 2 << 10,
        block_bytes: Some(2 << 10),
        segment_bytes: Some(16 * MIB as u32),
        ..quiet(
            Arc::new(Overlay::new(size, Arc::default())),
            PolicyKind::SetMem,
        )
    };
    let cache = open(config);
    let stats = cache.stats();
    assert!(stats.index_slots >= 10_000_000, "{}", stats.index_slots);
    assert!((11.0..11.01).contains(&stats.index_bits_per_slot()));
    is_within_3_percent(&stats);
}

/// The objects in a log that was filled one and a half times, and in its index.
struct FullLog {
    cache: Cache,
    oldest: u64,
    all: u64,
}

impl FullLog {
    fn held(&self) -> u64 {
        self.all - self.oldest
    }

    fn reached(&self) -> u64 {
        let all = self.oldest..self.all;
        all.filter(|n| get_one(&self.cache, *n)).count() as u64
    }
}

fn get_one(cache: &Cache, n: u64) -> bool {
    cache.get(&name(n)).wait().is_some()
}

const LOG_BYTES: u64 = 48 << 20;

fn full_log(rows: Rows, object_bytes: u64) -> FullLog {
    let config = Config {
        rows,
        memory_bytes: 24 * MIB as u64,
        hot_bytes_max: 0,
        object_bytes: u32::try_from(object_bytes).unwrap(),
        segment_bytes: Some(MIB as u32),
        ..quiet(memory(usize::try_from(LOG_BYTES).unwrap()), PolicyKind::Log)
    };
    let cache = open(config);
    let all = LOG_BYTES / object_bytes * 3 / 2;
    put_all(&cache, 0..all, 1_300);
    // The oldest that is there tells how far back the log reaches.
    let oldest = (0..all).find(|n| get_one(&cache, *n)).unwrap();
    FullLog { cache, oldest, all }
}

/// Sized for what the log will hold, for the mean size of an object.
fn log_of_known_objects(rows: Rows) -> FullLog {
    // 1,300 bytes with their head are three units, and there are lists beside them.
    let held = full_log(rows, 3 * 512 + 200).held();
    full_log(rows, LOG_BYTES / held)
}

#[test]
fn two_rows_reach_95_percent_of_a_full_log_with_1_083_slots_for_each_live_object() {
    let log = log_of_known_objects(Rows::Two);
    let (reached, stats) = (log.reached(), log.cache.stats());
    let share = reached as f64 / log.held() as f64;
    assert!(share >= 0.95, "{share}");
    // Even when those that are not found do not count.
    let slots = stats.index_slots as f64 / stats.live_entries as f64;
    // With the slots of 36 bits of a log of 80 GB.
    assert!(slots <= 1.083 && slots * 36.0 <= 39.0, "{slots}");
    // This one has 11,000 windows.
    assert_eq!(stats.index_bits_per_slot().round(), 25.0);
    let entries = stats.live_entries as f64 / reached as f64;
    assert!((0.999..1.001).contains(&entries), "{entries}");
}

#[test]
fn one_row_reaches_86_percent_and_takes_more_for_each() {
    let log = log_of_known_objects(Rows::One);
    let share = log.reached() as f64 / log.held() as f64;
    assert!((0.85..0.89).contains(&share), "{share}");
    let stats = log.cache.stats();
    let slots = stats.index_slots as f64 / stats.live_entries as f64;
    assert!((1.15..1.23).contains(&slots), "{slots}");
}

#[test]
fn set_mem_takes_11_and_a_half_bits_for_each_object_after_half_as_many_puts_again_as_slots() {
    let config = Config {
        block_bytes: Some(2 << 10),
        hot_bytes_max: 0,
        ..quiet(memory(96 * MIB), PolicyKind::SetMem)
    };
    let cache = open(config);
    let slots = cache.stats().index_slots;
    put_all(&cache, 0..slots * 3 / 2, 100);
    let stats = cache.stats();
    let bits = stats.index_bits_per_object();
    assert!((11.0..=11.5).contains(&bits), "{bits}");
    assert_eq!(stats.index_bits_per_slot(), 11.0);
}

#[test]
fn with_8_ways_and_8_bits_a_miss_is_a_false_read_in_3_1_percent() {
    for (policy, rows) in [
        (PolicyKind::SetMem, Rows::Two),
        (PolicyKind::Log, Rows::One),
    ] {
        let config = Config {
            rows,
            block_bytes: Some(2 << 10),
            object_bytes: 512,
            hot_bytes_max: 0,
            ..quiet(memory(64 * MIB), policy)
        };
        let cache = open(config);
        // All slots are taken: what the paper counts with.
        let slots = cache.stats().index_slots;
        put_all(&cache, 0..slots * 4, 100);
        let full = cache.stats();
        let share = full.live_entries as f64 / slots as f64;
        let misses = 100_000;
        for n in 0..misses {
            assert!(cache.get(&name(1 << 40 | n)).wait().is_none());
        }
        let false_reads = cache.stats().false_reads - full.false_reads;
        let percent = false_reads as f64 / misses as f64 * 100.0;
        // Of empty slots there are no false reads.
        let percent = percent / share;
        assert!(
            (2.8..=3.4).contains(&percent),
            "{policy:?}: {percent} %, {share} full"
        );
    }
}

#[test]
fn blocks_of_2_kib_hold_small_objects_their_tails_and_no_name_that_is_too_long() {
    for policy in [PolicyKind::Basic, PolicyKind::Set, PolicyKind::SetMem] {
        let device = memory(64 * MIB);
        let config = || Config {
            block_bytes: Some(2 << 10),
            // With some secrets a name takes the place of another.
            name_secret: Some(*b"no equal tags !!"),
            ..quiet(device.clone(), policy)
        };
        let cache = open(config());
        let long = vec![b'n'; 1636];
        let names: Vec<&[u8]> = vec![b"small", b"large", &long];
        for (put, name) in (0..).zip(&names) {
            Value::new(put, 100 + 30_000 * put as usize)
                .store(&cache, name)
                .unwrap();
        }
        let longer = vec![b'n'; 1637];
        let refused = Value::new(9, 1).store(&cache, &longer);
        assert_eq!(refused, Err(PutError::Name { length: 1637 }));
        assert_eq!(get(&cache, &longer), None);
        cache.close();
        let cache = open(config());
        for (put, name) in (0..).zip(&names) {
            let value = Value::new(put, 100 + 30_000 * put as usize);
            assert_eq!(get(&cache, name), Some(value), "{policy:?}");
        }
    }
}
