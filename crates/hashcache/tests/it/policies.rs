//! Caches opened with another policy than the last time: what one wrote another must not misread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Config, OpenError, PolicyKind, Put, Rows};

use super::support::{
    Form, KIB, MIB, Recorder, SetOnDrop, Value, copy, get, memory, open, quiet, rounds,
};

const OF_SETS: [PolicyKind; 3] = [PolicyKind::Set, PolicyKind::SetMem, PolicyKind::SetMemLru];

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

fn put_all(cache: &Cache, numbers: std::ops::Range<u64>) {
    for put in numbers {
        Value::new(put, 3_000).store(cache, &name(put)).unwrap();
    }
}

#[test]
fn a_cache_made_with_one_policy_opens_with_another_of_its_family() {
    let pairs = OF_SETS.map(|made| OF_SETS.map(|opened| (made, opened)));
    for (made, opened) in pairs.into_iter().flatten() {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), made));
        put_all(&cache, 0..100);
        cache.close();
        let cache = open(quiet(device, opened));
        let found = (0..100).filter(|put| get(&cache, &name(*put)).is_some());
        // Now and then two names of a set have equal tags.
        assert!(found.count() >= 95, "{made:?} then {opened:?}");
    }
}

#[test]
fn a_log_may_change_the_rows_of_its_index() {
    let device = memory(64 * MIB);
    let with = |rows| Config {
        rows,
        ..quiet(device.clone(), PolicyKind::Log)
    };
    for (round, rows) in (0..).zip([Rows::Two, Rows::One, Rows::Two]) {
        let cache = open(with(rows));
        let known = round * 100;
        let found = (0..known).filter(|put| get(&cache, &name(*put)).is_some());
        // Tags of the one row are shorter, and what is full in it is put out.
        assert!(found.count() as u64 * 100 >= known * 97, "{rows:?}");
        put_all(&cache, known..known + 100);
        cache.close();
    }
}

#[test]
fn every_form_of_a_log_rebuilds_its_index_from_that_of_another() {
    let mut device = memory(64 * MIB);
    let [log, log_lru] = [PolicyKind::Log, PolicyKind::LogLru].map(Form::from);
    let grouped = |form| Form {
        grouped: true,
        ..form
    };
    let (log_runs, lru_runs) = (grouped(log), grouped(log_lru));
    // From each to each.
    let forms = [
        log, log_lru, log_runs, log, log_runs, log_lru, log, lru_runs, log, lru_runs, log_lru,
        lru_runs, log_runs, lru_runs,
    ];
    for (round, kind) in (0..).zip(forms) {
        let cache = open(quiet(device.clone(), kind));
        let known = round * 300;
        let found = (0..known).filter(|put| get(&cache, &name(*put)).is_some());
        assert!(found.count() as u64 * 100 >= known * 95, "{kind:?}");
        put_all(&cache, known..known + 300);
        if round % 2 == 0 {
            cache.close();
        } else {
            assert!(cache.flush().wait());
            device = copy(device.to_bytes());
        }
    }
}

/// Half of what is known lies in checkpoints: they are written and replaced, some runs are killed,
/// and the share that memory holds changes.
#[test]
fn positions_on_disk_are_found_again_after_an_end_in_order_and_after_a_kill() {
    let mut device = memory(64 * MIB);
    let mut random = fastrand::Rng::with_seed(9);
    let mut last: Vec<Option<Value>> = vec![None; 5_000];
    for round in 0..6 {
        let config = Config {
            held_share: [None, Some(12), Some(88)][random.usize(..3)],
            ..quiet(device.clone(), PolicyKind::LogLru)
        };
        let cache = open(config);
        let known = last.iter().flatten().count();
        let mut found = 0;
        for (n, last) in last.iter().enumerate() {
            let value = get(&cache, &name(n as u64));
            assert!(value.is_none() || value == *last, "{value:?}, not {last:?}");
            found += usize::from(value.is_some());
        }
        assert!(
            found * 100 >= known * 85,
            "{found} of {known} in round {round}"
        );
        for put in 0..2_000 {
            let n = random.usize(..last.len());
            let value = Value::new(round * 10_000 + put, random.usize(100..4_000));
            value.store(&cache, &name(n as u64)).unwrap();
            last[n] = Some(value);
            if put % 250 == 249 {
                assert!(cache.flush().wait());
            }
        }
        if random.bool() {
            cache.close();
        } else {
            let killed = copy(device.to_bytes());
            drop(cache);
            device = killed;
        }
    }
}

/// Far more positions are displaced than may wait in memory: they are merged in time.
#[test]
fn what_waits_for_the_disk_is_merged_before_there_is_no_room_for_it() {
    let config = |device| Config {
        held_share: Some(12),
        object_bytes: 1_024,
        segment_bytes: Some(24 * MIB as u32),
        ..quiet(device, PolicyKind::LogLru)
    };
    let cache = open(config(memory(128 * MIB)));
    for put in 0..88_000 {
        Value::new(put * 900, 50).store(&cache, &name(put)).unwrap();
        if put % 1_000 == 999 {
            assert!(cache.flush().wait());
        }
    }
    let stats = cache.stats();
    // Some rows have more than eight names, one in forty at five names a row.
    assert!(stats.early_evictions < 2_800, "{}", stats.early_evictions);
    assert!(stats.checkpoints > 0);
    let asked = (0..88_000).step_by(10);
    let found = asked.filter(|put| get(&cache, &name(*put)).is_some());
    assert!(found.count() > 8_800 * 95 / 100);
}

#[test]
fn other_families_and_other_sets_are_refused() {
    for (made, opened) in [
        (PolicyKind::Log, PolicyKind::SetMem),
        (PolicyKind::Basic, PolicyKind::Set),
        (PolicyKind::SetMem, PolicyKind::Basic),
    ] {
        let device = memory(64 * MIB);
        open(quiet(device.clone(), made)).close();
        let refused = Cache::open(quiet(device, opened)).err();
        let field = matches!(
            refused,
            Some(OpenError::Geometry {
                field: "policy",
                ..
            })
        );
        assert!(field, "{made:?} then {opened:?}: {refused:?}");
    }
}

#[test]
fn a_disk_table_of_other_blocks_is_refused_and_a_log_has_none() {
    let with = |device: &Arc<MemoryDevice>, policy, block_bytes| Config {
        block_bytes,
        ..quiet(device.clone(), policy)
    };
    for policy in [PolicyKind::Basic, PolicyKind::Set, PolicyKind::SetMem] {
        let device = memory(64 * MIB);
        open(with(&device, policy, Some(4 << 10))).close();
        let refused = Cache::open(with(&device, policy, Some(8 << 10))).err();
        let field = matches!(
            &refused,
            Some(OpenError::Geometry { field: "blocks of", found, .. }) if found == "4096"
        );
        assert!(field, "{policy:?}: {refused:?}");
        open(with(&device, policy, Some(4 << 10))).close();
        open(with(&device, policy, None)).close();
    }
    let device = memory(64 * MIB);
    open(with(&device, PolicyKind::Log, Some(4 << 10))).close();
    open(with(&device, PolicyKind::Log, Some(8 << 10))).close();
}

/// Policies in turn, some runs closed in order, some killed: no version but the last is ever found.
#[test]
fn whoever_wrote_last_no_older_version_comes_back() {
    for seed in 0..6 * rounds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut device = memory(16 * MIB);
        let mut last = vec![None; 300];
        for round in 0..8 {
            let policy = OF_SETS[random.usize(..3)];
            let cache = open(quiet(device.clone(), policy));
            for put in 0..random.u64(1..400) {
                let n = random.usize(..last.len());
                if random.u8(..10) == 0 {
                    cache.remove(&name(n as u64)).wait().unwrap();
                    last[n] = None;
                } else {
                    let value = Value::new(round * 1_000 + put, random.usize(100..9_000));
                    value.store(&cache, &name(n as u64)).unwrap();
                    last[n] = Some(value);
                }
            }
            assert!(cache.flush().wait());
            for (n, last) in last.iter().enumerate() {
                let found = get(&cache, &name(n as u64));
                let right = found.is_none() || found == *last;
                assert!(
                    right,
                    "seed {seed} round {round} {policy:?}: {found:?}, not {last:?}"
                );
            }
            if random.bool() {
                cache.close();
            } else {
                let killed = copy(device.to_bytes());
                drop(cache);
                device = killed;
            }
        }
    }
}

#[test]
fn after_a_kill_all_sets_are_learned_without_being_asked_for() {
    let device = memory(64 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    put_all(&cache, 0..400);
    assert!(cache.flush().wait());
    let stored = cache.stats().entries;
    let killed = copy(device.to_bytes());
    drop(cache);
    let cache = open(quiet(killed, PolicyKind::SetMem));
    for _ in 0..10_000_000 {
        if cache.stats().entries == stored {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{} of {stored} entries", cache.stats().entries);
}

/// A device that keeps back one read of a set, with what it had read, until it is let go.
struct LateRead {
    inner: Recorder<MemoryDevice>,
    /// True if the next read of a set is to be held back; and how many are held back.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl LateRead {
    const SET: usize = 64 * KIB;

    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let inner = Recorder::new(MemoryDevice::from_bytes(bytes));
        Arc::new(Self {
            inner,
            state,
            changed,
        })
    }

    fn keep_next(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn wait_until_kept(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.1 == 0));
    }

    fn let_go(&self) {
        self.state.lock().unwrap().1 = 0;
        self.changed.notify_all();
    }
}

impl Device for LateRead {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset, buffer)?;
        let mut state = self.state.lock().unwrap();
        if buffer.len() == Self::SET && std::mem::take(&mut state.0) {
            state.1 = 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.1 > 0));
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> std::io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

/// A store of 640 sets, ten in each shard, of which memory holds one.
fn holding_one(device: Arc<dyn Device>) -> Config {
    Config {
        held_share: Some(1),
        segment_bytes: Some(4 * MIB as u32),
        ..quiet(device, PolicyKind::SetMemLru)
    }
}

/// The set that each of these names lies in, as their puts tell.
fn sets_of(names: std::ops::Range<u64>) -> (Vec<u8>, Vec<u64>) {
    let device = LateRead::new(vec![0; 64 * MIB]);
    let cache = open(holding_one(device.clone()));
    device.inner.take_writes();
    let mut sets = Vec::new();
    for n in names {
        put_all(&cache, n..n + 1);
        assert!(cache.flush().wait());
        sets.push(device.inner.take_writes()[0].offset / LateRead::SET as u64);
    }
    cache.close();
    (device.inner.inner.to_bytes(), sets)
}

#[test]
fn a_set_read_before_a_put_and_shown_after_it_was_given_away_is_not_believed() {
    let (bytes, sets) = sets_of(0..400);
    let table = u64::from_le_bytes(bytes[4096 + 136..][..8].try_into().unwrap());
    let shard = |n: usize| (sets[n] - table / LateRead::SET as u64) / 10;
    // Two names of one set, and one of another set of the same shard. Of some shards one set alone
    // has names, so all pairs are tried.
    let other = |a: usize| {
        let is_other = |c: &usize| shard(*c) == shard(a) && sets[*c] != sets[a];
        (0..400).find(is_other)
    };
    let (a, b, c) = (0..400)
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .filter(|(a, b)| sets[*a] == sets[*b])
        .find_map(|(a, b)| Some((a, b, other(a)?)))
        .unwrap();
    let [a, b, c] = [a, b, c].map(|n| n as u64);

    let device = LateRead::new(bytes);
    let cache = open(holding_one(device.clone()));
    cache.remove(&name(b)).wait().unwrap();
    device.keep_next();
    // In a batch, it is read before anybody waits for it.
    let late = cache.get_many(&[name(a).as_slice()]).remove(0);
    device.wait_until_kept();
    // Put into the set that is being read, then given away for another.
    put_all(&cache, b..b + 1);
    assert!(cache.flush().wait());
    put_all(&cache, c..c + 1);
    assert!(cache.flush().wait());
    device.let_go();
    assert!(late.wait().is_some());
    assert!(
        cache.contains_hint(&name(b)),
        "the set is taken for what it was"
    );
}

/// Sets are loaded and evicted, readers ask all the time, and the writer looks whether the last it
/// wrote is what it finds.
#[test]
fn however_sets_come_and_go_no_older_version_comes_back() {
    const NAMES: usize = 3_000;
    let device = memory(64 * MIB);
    let mut last: Vec<Option<Value>> = vec![None; NAMES];
    let mut random = fastrand::Rng::with_seed(4);
    let mut hits = 0;
    for round in 0..3 * rounds() {
        let cache = open(holding_one(device.clone()));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (cache, done) = (&cache, &done);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    while !done.load(Ordering::Relaxed) {
                        get(cache, &name(random.u64(..NAMES as u64)));
                    }
                });
            }
            let _done = SetOnDrop(&done);
            for put in 0..4_000 {
                let n = random.usize(..NAMES);
                let found = get(&cache, &name(n as u64));
                assert!(
                    found.is_none() || found == last[n],
                    "round {round} put {put}: {found:?}, not {:?}",
                    last[n]
                );
                hits += u64::from(found.is_some());
                if random.u8(..20) == 0 {
                    cache.remove(&name(n as u64)).wait().unwrap();
                    last[n] = None;
                } else {
                    let value = Value::new(round * 10_000 + put, random.usize(100..9_000));
                    if value.store(&cache, &name(n as u64)).is_ok() {
                        last[n] = Some(value);
                    }
                }
                if random.u8(..30) == 0 {
                    assert!(cache.flush().wait());
                }
            }
        });
        cache.close();
    }
    assert!(hits > 5_000, "{hits}");
}

/// The contents of some objects, in the order of their places on the device.
fn order_on_device(name_secret: Option<[u8; 16]>) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(24 * MIB));
    let config = Config {
        policy: PolicyKind::Basic,
        name_secret,
        ..Config::on_device(device.clone())
    };
    let cache = Cache::open(config).unwrap();
    for n in 1..=20 {
        let put = Put::metadata("text/plain");
        cache.put(&[n], put, &[n; 1_000]).unwrap();
    }
    assert!(cache.flush().wait());
    let mut bytes = vec![0; 24 * MIB];
    device.read_at(0, &mut bytes).unwrap();
    let is_content = |chunk: &&[u8]| (1..=20).contains(&chunk[0]) && *chunk == [chunk[0]; 500];
    let mut order: Vec<u8> = bytes
        .chunks_exact(500)
        .filter(is_content)
        .map(|it| it[0])
        .collect();
    order.dedup();
    order
}

#[test]
fn stores_with_the_same_secret_put_names_into_the_same_slots() {
    let one = order_on_device(Some([7; 16]));
    assert_eq!(one.len(), 20);
    assert_eq!(one, order_on_device(Some([7; 16])));
    assert_ne!(one, order_on_device(Some([8; 16])));
    assert_ne!(one, order_on_device(None));
}
