//! Groups: what is put together is read together, whatever is put in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashcache::device::{Device, DiskModel, MemoryDevice, Pace, ThrottleDevice};
use hashcache::{Ban, Cache, Clock, Config, PolicyKind, Put};

use super::support::{KIB, MIB, Recorder, Value, copy, get, memory, open, quiet, read};

/// Objects of a page.
const OBJECTS: u64 = 13;

/// The secret is fixed: with some secrets two names have equal tags in one row, and then a lookup
/// reads the page of the other one too.
fn grouped(device: Arc<dyn Device>) -> Config {
    Config {
        grouped: true,
        name_secret: Some(*b"no equal tags !!"),
        memory_bytes: 64 * MIB as u64,
        segment_bytes: Some(8 * MIB as u32),
        ..quiet(device, PolicyKind::Log)
    }
}

fn name(page: u64, object: u64) -> Vec<u8> {
    format!("http://example.org/{page}/{object}").into_bytes()
}

/// The value an object of a page always has: 2 to 14 KiB.
fn value(page: u64, object: u64) -> Value {
    let length = 2 * KIB + (page * 7_919 + object * 104_729) as usize % (12 * KIB);
    Value::new(page * OBJECTS + object, length)
}

fn put(cache: &Cache, page: u64, object: u64) {
    put_in(cache, page, object, page + 1);
}

fn put_in(cache: &Cache, page: u64, object: u64, group: u64) {
    let (name, value) = (name(page, object), value(page, object));
    let put = Put {
        group,
        ..Put::metadata(value.metadata())
    };
    cache.put(&name, put, &value.content(&name)).unwrap();
}

type Recorded = Arc<Recorder<MemoryDevice>>;

/// Puts `pages` with clients whose requests interleave, opens the store anew, and forgets what
/// was asked of the device so far.
fn filled(pages: u64, group: fn(u64, u64) -> u64) -> (Cache, Recorded) {
    filled_with(grouped, pages, group)
}

fn filled_with(
    config: fn(Arc<dyn Device>) -> Config,
    pages: u64,
    group: fn(u64, u64) -> u64,
) -> (Cache, Recorded) {
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let cache = open(config(device.clone()));
    for object in 0..OBJECTS {
        for page in 0..pages {
            put_in(&cache, page, object, group(page, object));
        }
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(config(device.clone()));
    device.take_reads();
    device.take_writes();
    (cache, device)
}

fn lru(device: Arc<dyn Device>) -> Config {
    Config {
        policy: PolicyKind::LogLru,
        ..grouped(device)
    }
}

/// A row a shard, 64 in all, so that some hundred objects displace each other.
fn crowded(device: Arc<dyn Device>) -> Config {
    Config {
        object_bytes: 136 << 10,
        held_share: Some(38),
        ..lru(device)
    }
}

#[derive(Debug, Default)]
struct Asked {
    found: usize,
    /// Reads of rows of the index file, and of the log.
    rows: usize,
    runs: usize,
}

/// Asks for all objects of `pages`.
fn ask(cache: &Cache, device: &Recorded, pages: std::ops::Range<u64>) -> Asked {
    let mut asked = Asked::default();
    for page in pages {
        for object in 0..OBJECTS {
            let found = get(cache, &name(page, object));
            assert!(found.is_none() || found == Some(value(page, object)));
            asked.found += usize::from(found.is_some());
        }
    }
    let reads = device.take_reads();
    asked.rows = reads.iter().filter(|read| read.length <= KIB).count();
    asked.runs = reads.len() - asked.rows;
    asked
}

#[test]
fn a_page_is_one_read_however_its_objects_came() {
    let (cache, device) = filled(6, |page, _| page + 1);
    for page in 0..6 {
        for object in 0..OBJECTS {
            assert_eq!(get(&cache, &name(page, object)), Some(value(page, object)));
        }
        assert_eq!(device.take_reads().len(), 1, "page {page}");
    }
    assert_eq!(device.take_writes(), []);
    let stats = cache.stats();
    assert_eq!((stats.group_reads, stats.prefetched), (6, 6 * 12));
}

#[test]
fn with_log_lru_a_page_is_one_read_where_positions_are_held_and_one_a_row_where_they_are_on_disk() {
    // Rows of one object or two: all positions are held.
    let (cache, device) = filled_with(lru, 6, |page, _| page + 1);
    let pages: Vec<_> = (0..6)
        .map(|page| ask(&cache, &device, page..page + 1))
        .collect();
    let whole = |it: &&Asked| it.found as u64 == OBJECTS && it.rows == 0;
    assert_eq!(pages.iter().filter(whole).count(), 6, "{pages:?}");
    // By the chance of one in a hundred two of them have equal tags, and one is read in vain.
    let at_once = pages.iter().filter(|it| it.runs == 1).count();
    assert!(at_once >= 5, "{pages:?}");

    // Rows of four or five, some of up to eight, of which three are held.
    const PAGES: u64 = 22;
    let (cache, device) = filled_with(crowded, PAGES, |page, _| page + 1);
    let all = ask(&cache, &device, 0..PAGES);
    assert!(all.found >= 265, "{all:?}");
    assert!((60..170).contains(&all.rows), "{all:?}");
    // Some rows had more than eight: evicted objects are not read along, and lookups for them may
    // miss.
    assert!((22..48).contains(&all.runs), "{all:?}");
    cache.close();

    // Read as pages they came back into memory as pages.
    let cache = open(crowded(device.clone()));
    device.take_reads();
    let last = ask(&cache, &device, PAGES - 2..PAGES);
    assert!(last.found >= 20 && last.rows <= 5, "{last:?}");
    assert!((2..=6).contains(&last.runs), "{last:?}");
}

#[test]
fn with_log_lru_a_sibling_that_was_replaced_does_not_come_back_from_the_index_file() {
    let holding_one = |device: Arc<dyn Device>| Config {
        held_share: Some(12),
        ..crowded(device)
    };
    let (cache, device) = filled_with(holding_one, 8, |page, _| page + 1);
    let new = |n: u64| Value::new(1_000 + n, 3_000);
    for n in (0..OBJECTS).filter(|n| n % 2 == 1) {
        new(n).store(&cache, &name(1, n)).unwrap();
    }
    cache.remove(&name(1, 4)).wait().unwrap();
    assert!(cache.flush().wait());
    // Others push what was replaced and what replaced it out of memory, onto the same rows.
    for page in 20..28 {
        (0..OBJECTS).for_each(|object| put(&cache, page, object));
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(holding_one(device.clone()));
    device.take_reads();
    let found = (0..OBJECTS).filter(|n| {
        let found = get(&cache, &name(1, *n));
        let right = match n {
            4 => None,
            n if n % 2 == 1 => Some(new(*n)),
            n => Some(value(1, *n)),
        };
        assert!(found.is_none() || found == right, "{n}: {found:?}");
        found.is_some()
    });
    assert!(found.count() >= 9);
    let rows = device.take_reads();
    let rows = rows.iter().filter(|read| read.length <= KIB).count();
    assert!(rows >= 4, "{rows}");
}

#[test]
fn with_log_lru_no_more_than_sixteen_rows_are_read_for_the_members_of_a_run() {
    const MEMBERS: u64 = 40;
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let cache = open(crowded(device.clone()));
    let member = |n: u64| (name(0, n), Value::new(n * 900, 2 * KIB));
    for n in 0..MEMBERS {
        let (name, value) = member(n);
        let put = Put {
            group: 1,
            ..Put::metadata(value.metadata())
        };
        cache.put(&name, put, &value.content(&name)).unwrap();
    }
    assert!(cache.flush().wait());
    // Four a row, of which three are held: most of the page's positions are on disk.
    for n in 0..256 {
        Value::new(n, KIB).store(&cache, &name(1, n)).unwrap();
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(crowded(device.clone()));
    device.take_reads();
    let (mut found, mut most) = (0, 0);
    for n in 0..MEMBERS {
        let (name, value) = member(n);
        let there = get(&cache, &name);
        assert!(there.is_none() || there == Some(value), "{n}");
        found += u64::from(there.is_some());
        let reads = device.take_reads();
        let rows = reads.iter().filter(|read| read.length <= KIB).count();
        // One to know where it lies, and those of its siblings.
        assert!(rows <= 17, "{n}: {rows} rows");
        most = most.max(rows);
    }
    assert!(most >= 16, "{most} rows");
    // Those beyond were looked for when they were asked for. (Full rows have put some out.)
    assert!(found >= MEMBERS * 3 / 4, "{found}");
}

#[test]
fn from_a_member_on_the_rest_of_the_run_is_read_and_no_more() {
    let (cache, device) = filled(3, |page, _| page + 1);
    assert!(get(&cache, &name(1, 7)).is_some());
    for object in 8..OBJECTS {
        assert!(get(&cache, &name(1, object)).is_some());
    }
    assert_eq!(device.take_reads().len(), 1);
    assert!(get(&cache, &name(1, 6)).is_some());
    assert_eq!(device.take_reads().len(), 1);
}

#[test]
fn what_was_read_along_and_is_hot_is_not_read_again() {
    let (cache, device) = filled(3, |page, _| page + 1);
    let one_read = |object: u64| {
        assert!(get(&cache, &name(1, object)).is_some());
        let reads = device.take_reads();
        let [read] = reads[..] else {
            panic!("{reads:?}");
        };
        read.offset..read.offset + read.length as u64
    };
    let to_the_end = one_read(9);
    let middle = one_read(4);
    let start = one_read(0);
    // To the window in which the other read began.
    let window = |from: u64| from..from + 8 * KIB as u64 + 1;
    assert!(window(to_the_end.start).contains(&middle.end));
    assert!(window(middle.start).contains(&start.end));
    for object in 0..OBJECTS {
        assert!(get(&cache, &name(1, object)).is_some());
    }
    assert_eq!(device.take_reads(), []);
}

/// Puts objects of these sizes, one after another, in one group, with their lengths announced or
/// not, and opens the store anew. Returns what it then reads to give each, in the order of `asked`.
fn reads_of(sizes: &[usize], length: Length, asked: &[usize]) -> Vec<usize> {
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let cache = open(grouped(device.clone()));
    let object = |n: usize| (name(0, n as u64), Value::new(n as u64, sizes[n]));
    for (n, size) in sizes.iter().enumerate() {
        let (name, value) = object(n);
        let put = Put {
            group: 9,
            length: matches!(length, Length::Announced).then_some(*size as u64),
            ..Put::metadata(value.metadata())
        };
        let mut writer = cache.intend(&name).unwrap().writer(put).unwrap();
        for piece in value.content(&name).chunks(50_000) {
            writer.write(piece).unwrap();
        }
        writer.commit().unwrap();
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(grouped(device.clone()));
    device.take_reads();
    let mut reads = Vec::new();
    for n in asked {
        let (name, value) = object(*n);
        assert_eq!(get(&cache, &name), Some(value), "{n}");
        reads.push(device.take_reads().len());
    }
    reads
}

enum Length {
    Announced,
    Unknown,
}

#[test]
fn an_object_of_up_to_512_kib_comes_whole_with_one_read() {
    for length in [Length::Announced, Length::Unknown] {
        assert_eq!(reads_of(&[262_000], length, &[0]), [1]);
    }
    assert_eq!(reads_of(&[20 * KIB], Length::Announced, &[0]), [1]);
    assert_eq!(reads_of(&[512 * KIB], Length::Announced, &[0]), [1]);
    // A longer one: its head, and the spans read ahead, as without groups.
    assert_eq!(reads_of(&[600 * KIB], Length::Announced, &[0]), [2]);
}

#[test]
fn the_spans_of_its_objects_come_with_a_page() {
    let sizes = [30 * KIB, 200 * KIB, 5 * KIB, 150 * KIB];
    for length in [Length::Announced, Length::Unknown] {
        assert_eq!(reads_of(&sizes, length, &[0, 3, 1, 2]), [1, 0, 0, 0]);
    }
    // From a member on the rest of the run is read, and no more.
    let from_the_third = reads_of(&sizes, Length::Announced, &[2, 3, 0, 1]);
    assert_eq!(from_the_third, [1, 0, 1, 0]);
}

#[test]
fn members_asked_for_at_once_share_one_read() {
    let (cache, device) = filled(4, |page, _| page + 1);
    for page in 0..4 {
        let names: Vec<_> = (0..OBJECTS).map(|object| name(page, object)).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        for (object, lookup) in (0..).zip(cache.get_many(&names)) {
            let hit = lookup.wait().unwrap();
            assert_eq!(read(&hit, &name(page, object)), Some(value(page, object)));
        }
        // The first is read by one thread, and another may get to the second before.
        let reads = device.take_reads().len();
        assert!(reads <= 3, "{reads} reads");
    }
}

/// A device that can hold reads of more than 512 KiB, which are counted then.
struct HoldsRuns {
    inner: Recorder<MemoryDevice>,
    begun: AtomicUsize,
    held: AtomicBool,
}

impl HoldsRuns {
    fn new(bytes: usize) -> Self {
        Self {
            inner: Recorder::new(MemoryDevice::new(bytes)),
            begun: AtomicUsize::new(0),
            held: AtomicBool::new(false),
        }
    }

    fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let millis = (0..60_000).find(|_| {
            std::thread::sleep(Duration::from_millis(1));
            is_so(self)
        });
        assert!(millis.is_some(), "waited in vain");
    }
}

impl Device for HoldsRuns {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.len() > 512 * KIB && self.held.load(Ordering::SeqCst) {
            assert_eq!(buffer.as_ptr().align_offset(2 * MIB), 0, "no huge page");
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.wait_until(|it| !it.held.load(Ordering::SeqCst));
        }
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn lookups_that_waited_for_a_run_in_vain_wait_for_their_own() {
    let device = Arc::new(HoldsRuns::new(64 * MIB));
    let config = Config {
        memory_bytes: 256 * MIB as u64,
        ..grouped(device.clone())
    };
    let cache = open(config.clone());
    // The run of the first group ends, by rounding, within the second. It takes a huge page.
    let (first, second) = (0..70, 70..83);
    let object = |n: u64| (format!("object/{n}").into_bytes(), Value::new(n, 14 * KIB));
    for n in first.start..second.end {
        let (name, value) = object(n);
        let put = Put {
            group: 1 + u64::from(second.contains(&n)),
            ..Put::metadata(value.metadata())
        };
        cache.put(&name, put, &value.content(&name)).unwrap();
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(config);
    device.inner.take_reads();
    device.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let cache = &cache;
        scope.spawn(move || assert_eq!(get(cache, &object(0).0), Some(object(0).1)));
        device.wait_until(|it| it.begun.load(Ordering::SeqCst) == 1);
        for n in second.clone() {
            scope.spawn(move || assert_eq!(get(cache, &object(n).0), Some(object(n).1)));
        }
        // Long enough for them to ask.
        std::thread::sleep(Duration::from_millis(100));
        device.held.store(false, Ordering::SeqCst);
    });
    let reads = device.inner.take_reads();
    let first_group = first.count() * 15 * KIB;
    assert!(
        reads.iter().any(|read| read.length > first_group),
        "{reads:?}"
    );
    // Nobody read a record alone that another one was reading with its run.
    let stats = cache.stats();
    let alone = (stats.member_reads, stats.lone_reads, stats.ungrouped_reads);
    assert_eq!(alone, (0, 0, 0), "{reads:?}");
}

#[test]
fn a_batch_cut_early_leaves_open_groups_whole() {
    let device = Arc::new(Recorder::new(MemoryDevice::new(64 * MIB)));
    let clock = Arc::new(AtomicU64::new(0));
    let seconds = Arc::clone(&clock);
    let now = move || Duration::from_secs(seconds.load(Ordering::SeqCst));
    let config = Config {
        clock: Clock::new(now, || Duration::ZERO),
        ..grouped(device.clone())
    };
    let cache = open(config);
    device.take_writes();
    put_in(&cache, 1, 0, 0);
    put(&cache, 2, 0);
    let both = cache.stats().pending_bytes;
    assert!(cache.cut_batch().wait());
    let held = cache.stats().pending_bytes;
    assert!(0 < held && held < both, "{held} of {both}");
    assert_eq!(device.take_writes().len(), 1);
    clock.store(3, Ordering::SeqCst);
    assert!(cache.cut_batch().wait());
    assert_eq!(cache.stats().pending_bytes, 0);
}

#[test]
fn neighbours_of_another_group_stay_cold() {
    let (cache, device) = filled(4, |page, object| if object == 12 { 99 } else { page + 1 });
    assert!(get(&cache, &name(2, 0)).is_some());
    assert_eq!(cache.stats().prefetched, 11);
    assert!(get(&cache, &name(2, 12)).is_some());
    assert_eq!(device.take_reads().len(), 2);
    // The run of group 99 is another: it was read from its third member on.
    assert_eq!(cache.stats().prefetched, 12);
}

#[test]
fn each_read_is_counted_under_its_cause() {
    let device = memory(64 * MIB);
    let cache = open(grouped(device.clone()));
    (0..3).for_each(|object| put(&cache, 1, object));
    put_in(&cache, 2, 0, 0);
    put(&cache, 3, 0);
    // Longer than the first read of a record whose length is not known.
    let (long, long_name) = (Value::new(1_000, 40 * KIB), name(4, 0));
    long.store(&cache, &long_name).unwrap();
    cache.close();
    let cache = open(grouped(device));
    for (page, object) in [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)] {
        assert_eq!(get(&cache, &name(page, object)), Some(value(page, object)));
    }
    assert_eq!(get(&cache, &long_name), Some(long));
    let stats = cache.stats();
    assert_eq!((stats.group_reads, stats.prefetched), (1, 2));
    assert_eq!((stats.ungrouped_reads, stats.lone_reads), (2, 1));
    assert_eq!(stats.rest_reads, 1);
    assert_eq!(
        (stats.repeated_group_reads, stats.prefetched_dropped),
        (0, 0)
    );
}

#[test]
fn what_is_put_does_not_push_out_what_was_read_along() {
    let small = |device: Arc<dyn Device>| Config {
        hot_bytes_max: MIB as u64,
        ..grouped(device)
    };
    let (cache, device) = filled_with(small, 6, |page, _| page + 1);
    assert_eq!(get(&cache, &name(2, 0)), Some(value(2, 0)));
    for page in 10..40 {
        (0..OBJECTS).for_each(|object| put(&cache, page, object));
        assert!(cache.flush().wait());
    }
    device.take_reads();
    for object in 0..OBJECTS {
        assert_eq!(get(&cache, &name(2, object)), Some(value(2, object)));
    }
    assert_eq!(device.take_reads(), []);
}

#[test]
fn what_is_read_along_by_rounding_is_no_sibling() {
    let device = memory(64 * MIB);
    let cache = open(grouped(device.clone()));
    let tiny = |n: u64| Value::new(n * 900, 500);
    let name = |n: u64| format!("tiny/{n}").into_bytes();
    // Two groups of two records of a KiB: the run of the first ends within the second.
    for n in 0..4 {
        let put = Put {
            group: 1 + n / 2,
            ..Put::metadata(tiny(n).metadata())
        };
        cache
            .put(&name(n), put, &tiny(n).content(&name(n)))
            .unwrap();
    }
    cache.close();
    let cache = open(grouped(device));
    assert_eq!(get(&cache, &name(0)), Some(tiny(0)));
    assert_eq!(cache.stats().prefetched, 1);
    assert_eq!(get(&cache, &name(2)), Some(tiny(2)));
    assert_eq!(cache.stats().prefetched, 2);
}

#[test]
fn without_a_group_nothing_is_read_along() {
    let (cache, device) = filled(4, |_, _| 0);
    for object in 0..OBJECTS {
        assert!(get(&cache, &name(2, object)).is_some());
    }
    assert!(device.take_reads().len() >= 13);
    assert_eq!(cache.stats().prefetched, 0);
}

#[test]
fn a_sibling_that_was_replaced_or_removed_does_not_come_back() {
    let (cache, _) = filled(3, |page, _| page + 1);
    let new = Value::new(1_000, 3_000);
    new.store(&cache, &name(1, 4)).unwrap();
    assert!(cache.flush().wait());
    cache.remove(&name(1, 5)).wait().unwrap();
    // Pending, and not yet written.
    let newer = Value::new(1_001, 4_000);
    newer.store(&cache, &name(1, 6)).unwrap();
    assert!(get(&cache, &name(1, 0)).is_some());
    assert_eq!(get(&cache, &name(1, 4)), Some(new));
    assert_eq!(get(&cache, &name(1, 5)), None);
    assert_eq!(get(&cache, &name(1, 6)), Some(newer));
    assert_eq!(get(&cache, &name(1, 7)), Some(value(1, 7)));
}

#[test]
fn a_sibling_that_a_rule_has_taken_is_not_kept() {
    for config in [grouped, lru] {
        let (cache, _) = filled_with(config, 1, |_, _| 1);
        cache
            .remove_matching(&[Ban::name(&name(0, 3)), Ban::name(&name(0, 7))])
            .wait()
            .unwrap();
        assert_eq!(get(&cache, &name(0, 0)), Some(value(0, 0)));
        assert_eq!(cache.stats().prefetched, OBJECTS - 3);
        for object in [3, 7] {
            assert!(cache.get_hot(&name(0, object)).is_none());
            assert_eq!(get(&cache, &name(0, object)), None);
        }
    }
}

#[test]
fn a_damaged_member_ends_the_run_and_is_a_miss_itself() {
    let device = memory(64 * MIB);
    let cache = open(grouped(device.clone()));
    (0..OBJECTS).for_each(|object| put(&cache, 1, object));
    assert!(cache.flush().wait());
    cache.close();
    let mut bytes = device.to_bytes();
    let name_at = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).position(|it| it == name);
    let at = name_at(&bytes, b"/1/5").unwrap();
    bytes[at] ^= 1;
    let cache = open(grouped(copy(bytes)));
    assert!(get(&cache, &name(1, 0)).is_some());
    assert_eq!(cache.stats().prefetched, 4);
    assert_eq!(get(&cache, &name(1, 5)), None);
    for object in 6..OBJECTS {
        assert_eq!(get(&cache, &name(1, object)), Some(value(1, object)));
    }
}

#[test]
fn runs_survive_a_kill_a_close_and_an_opening_without_groups() {
    let device = memory(64 * MIB);
    let cache = open(grouped(device.clone()));
    for object in 0..OBJECTS {
        (0..8).for_each(|page| put(&cache, page, object));
    }
    assert!(cache.flush().wait());
    let killed = device.to_bytes();
    cache.close();
    let all_found = |cache: &Cache| {
        let found = (0..8).flat_map(|page| (0..OBJECTS).map(move |object| (page, object)));
        found
            .filter(|(page, object)| {
                get(cache, &name(*page, *object)) == Some(value(*page, *object))
            })
            .count()
    };
    // From the checkpoint, from lists after a kill, and from lists after a run that had no runs.
    let device = copy(device.to_bytes());
    let ungrouped = |device: Arc<dyn Device>| Config {
        grouped: false,
        ..grouped(device)
    };
    open(ungrouped(device.clone())).close();
    for image in [device.to_bytes(), killed] {
        let device = Arc::new(Recorder::new(MemoryDevice::from_bytes(image)));
        let cache = open(grouped(device.clone()));
        device.take_reads();
        assert_eq!(all_found(&cache), 104);
        assert!(device.take_reads().len() <= 12);
        cache.close();
        let cache = open(grouped(device.clone()));
        device.take_reads();
        assert_eq!(all_found(&cache), 104);
        assert!(device.take_reads().len() <= 12);
        cache.close();
        let cache = open(ungrouped(device.clone()));
        assert_eq!(all_found(&cache), 104);
        assert_eq!(cache.stats().group_reads, 0);
    }
}

#[test]
fn a_group_longer_than_a_run_comes_in_runs_of_two_mebibytes() {
    reads_of_a_long_group(64 * MIB, 3);
}

/// There is no memory for huge pages, and runs are shorter.
#[test]
fn a_group_longer_than_a_run_comes_in_runs_with_little_memory_too() {
    reads_of_a_long_group(15 * MIB, 12);
}

fn reads_of_a_long_group(memory_bytes: usize, reads_max: usize) {
    let device = Arc::new(Recorder::new(MemoryDevice::new(128 * MIB)));
    let config = Config {
        memory_bytes: memory_bytes as u64,
        ..grouped(device.clone())
    };
    let cache = open(config.clone());
    let long = |n: u64| Value::new(n, 60 * KIB);
    let name = |n: u64| format!("object/{n:03}").into_bytes();
    for n in 0..60 {
        let put = Put {
            group: 5,
            ..Put::metadata(long(n).metadata())
        };
        cache
            .put(&name(n), put, &long(n).content(&name(n)))
            .unwrap();
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(config);
    device.take_reads();
    for n in 0..60 {
        assert_eq!(get(&cache, &name(n)), Some(long(n)));
    }
    let reads = device.take_reads();
    assert!(reads.len() <= reads_max, "{reads:?}");
    assert!(reads.iter().all(|read| read.length <= 2 * MIB));
    assert!(
        reads.iter().any(|read| read.length > 512 * KIB),
        "{reads:?}"
    );
}

/// Numbers below a bound, each as often as its rank says.
pub struct Zipf {
    below: Vec<f64>,
}

impl Zipf {
    pub fn new(n: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let below: Vec<f64> = (1..=n)
            .map(|rank| {
                sum += 1.0 / (rank as f64).powf(exponent);
                sum
            })
            .collect();
        Self {
            below: below.into_iter().map(|it| it / sum).collect(),
        }
    }

    pub fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        let at = random.f64();
        self.below.partition_point(|below| *below < at) as u64
    }
}

/// Seeks and hits per request of pages asked for by eight clients in turn, object by object.
fn page_workload(policy: PolicyKind, grouped: bool) -> (f64, f64) {
    const CLIENTS: usize = 8;
    const VISITS: usize = 3_000;
    let disk = Arc::new(MemoryDevice::new(160 * MIB));
    let device = Arc::new(ThrottleDevice::new(
        disk,
        DiskModel::HDD_7200,
        Pace::Modelled,
        1,
    ));
    let cache = open(Config {
        grouped,
        memory_bytes: 24 * MIB as u64,
        segment_bytes: Some(4 * MIB as u32),
        ..quiet(device.clone(), policy)
    });
    let mut random = fastrand::Rng::with_seed(9);
    let pages = Zipf::new(1_500, 0.8);
    // Page and next object of each client.
    let mut clients = [(0, OBJECTS); CLIENTS];
    let (mut requests, mut hits, mut begun) = (0u64, 0u64, 0);
    let mut seeks_before = 0;
    while begun < VISITS {
        for client in &mut clients {
            if client.1 == OBJECTS {
                *client = (pages.draw(&mut random), 0);
                begun += 1;
                if begun == VISITS / 2 {
                    // From here on it counts.
                    assert!(cache.flush().wait());
                    (requests, hits) = (0, 0);
                    seeks_before = device.figures().seeks;
                }
                if begun % 32 == 0 {
                    assert!(cache.flush().wait());
                }
            }
            let (page, object) = *client;
            client.1 += 1;
            requests += 1;
            match get(&cache, &name(page, object)) {
                Some(found) => {
                    assert_eq!(found, value(page, object));
                    hits += 1;
                }
                None => put(&cache, page, object),
            }
        }
    }
    let seeks = device.figures().seeks - seeks_before;
    (
        seeks as f64 / requests as f64,
        hits as f64 / requests as f64,
    )
}

#[test]
fn pages_cost_less_than_0_45_of_the_seeks_with_the_same_memory() {
    let (alone, hits_alone) = page_workload(PolicyKind::Log, false);
    let (together, hits_together) = page_workload(PolicyKind::Log, true);
    println!("seeks a request: {alone:.3} alone, {together:.3} together");
    println!("hits: {hits_alone:.3} alone, {hits_together:.3} together");
    assert!(together <= 0.45 * alone, "{together:.3} of {alone:.3}");
    assert!((hits_alone - hits_together).abs() < 0.02);
}

#[test]
fn with_log_lru_pages_cost_less_than_0_45_of_the_seeks_too() {
    let (alone, hits_alone) = page_workload(PolicyKind::LogLru, false);
    let (together, hits_together) = page_workload(PolicyKind::LogLru, true);
    println!("seeks a request: {alone:.3} alone, {together:.3} together");
    println!("hits: {hits_alone:.3} alone, {hits_together:.3} together");
    assert!(together <= 0.45 * alone, "{together:.3} of {alone:.3}");
    assert!((hits_alone - hits_together).abs() < 0.02);
}
