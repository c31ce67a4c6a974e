//! Tests of all layouts, in a directory for temporary files.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::*;

const STREAM_BYTES: u64 = 4 << 20;

fn settings() -> Settings {
    Settings {
        threshold_bytes: 16 << 10,
        buffers: 8,
        ..Settings::new(STREAM_BYTES)
    }
}

/// A layout with a map beside it that says what it must return.
struct Model {
    layout: Box<dyn Layout>,
    stored: BTreeMap<u64, Vec<u8>>,
    /// Gets whose contents have not come.
    waiting: usize,
    now: Duration,
}

impl Model {
    fn new(kind: Kind, root: &Path) -> Self {
        Self {
            layout: kind.open(root, &settings()).unwrap(),
            stored: BTreeMap::new(),
            waiting: 0,
            now: Duration::ZERO,
        }
    }

    fn put(&mut self, number: u64, server: u32, content: Vec<u8>) {
        self.layout
            .put(Object { number, server }, &content)
            .unwrap();
        self.stored.insert(number, content);
    }

    fn act(&mut self, act: impl FnOnce(&mut dyn Layout, Duration, Found<'_>) -> io::Result<()>) {
        let Self {
            layout,
            stored,
            waiting,
            now,
        } = self;
        let mut found = |number, content: &[u8]| {
            *waiting -= 1;
            assert!(stored[&number] == content, "object {number}");
            Ok(())
        };
        act(layout.as_mut(), *now, &mut found).unwrap();
    }

    fn get(&mut self, number: u64) {
        self.waiting += 1;
        self.act(|layout, now, found| layout.get(number, now, found));
    }

    fn remove(&mut self, number: u64) {
        self.act(|layout, _, found| layout.remove(number, found));
        self.stored.remove(&number);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.act(|layout, now, found| layout.due(now, found));
    }

    fn finish(&mut self) {
        self.act(|layout, _, found| layout.finish(found));
        assert_eq!(self.waiting, 0);
    }

    fn any(&self, random: &mut fastrand::Rng) -> u64 {
        let mut stored = self.stored.keys();
        *stored.nth(random.usize(..self.stored.len())).unwrap()
    }

    fn stored_slots(&self) -> u64 {
        let sizes = self.stored.values();
        sizes.map(|content| slots(content.len() as u64)).sum()
    }
}

fn content(random: &mut fastrand::Rng) -> Vec<u8> {
    let most = *random.choice(&[0, 1, 512, 5_000, 20_000, 90_000]).unwrap();
    let mut content = vec![0; random.usize(..=most)];
    random.fill(&mut content);
    content
}

#[test]
fn a_layout_returns_what_was_put() {
    for kind in Kind::ALL {
        for seed in 0..2 {
            let root = tempfile::tempdir().unwrap();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut model = Model::new(kind, root.path());
            for number in 0..800 {
                while model.stored_slots() * SLOT_BYTES > STREAM_BYTES / 2 {
                    model.remove(model.any(&mut random));
                }
                model.put(number, random.u32(..20), content(&mut random));
                for _ in 0..random.u32(..3) {
                    model.get(model.any(&mut random));
                }
                model.pass(Duration::from_millis(random.u64(..60)));
            }
            model.finish();
            let all: Vec<u64> = model.stored.keys().copied().collect();
            for number in all {
                model.get(number);
            }
            model.finish();
        }
    }
}

fn small(model: &mut Model, numbers: std::ops::Range<u64>, server: u32) {
    for number in numbers {
        model.put(
            number,
            server,
            vec![u8::try_from(number % 251).unwrap(); 5_000],
        );
    }
}

#[test]
fn reads_wait_for_a_batch_or_for_their_time() {
    let root = tempfile::tempdir().unwrap();
    let mut model = Model::new(Kind::LazyReads, root.path());
    small(&mut model, 0..30, 0);
    for number in (0..9).rev() {
        model.get(number);
    }
    assert_eq!(model.waiting, 9);
    model.get(20);
    assert_eq!(model.waiting, 0);
    model.get(21);
    model.pass(Duration::from_millis(499));
    assert_eq!(model.waiting, 1);
    model.pass(Duration::from_millis(1));
    assert_eq!(model.waiting, 0);
    model.get(22);
    model.remove(22);
    assert_eq!(model.waiting, 0, "it is read before its place is free");
}

#[test]
fn a_batch_is_read_in_the_order_of_places() {
    let root = tempfile::tempdir().unwrap();
    let mut layout = Kind::LazyReads.open(root.path(), &settings()).unwrap();
    let mut order = vec![];
    for number in 0..20 {
        layout
            .put(Object { number, server: 0 }, &[1; 2_000])
            .unwrap();
    }
    for number in [7, 3, 19, 1, 0, 11, 12, 5, 2, 8] {
        let mut found = |number, _: &[u8]| {
            order.push(number);
            Ok(())
        };
        layout.get(number, Duration::ZERO, &mut found).unwrap();
    }
    assert_eq!(order, [0, 1, 2, 3, 5, 7, 8, 11, 12, 19]);
}

/// Where objects of 5000 bytes lie in the stream, by what their bytes are.
fn places(root: &Path) -> Vec<u8> {
    let bytes = std::fs::read(root.join("stream")).unwrap();
    bytes.chunks(10 * 512).map(|object| object[0]).collect()
}

#[test]
fn objects_of_a_server_come_to_lie_side_by_side() {
    let together = |kind| {
        let root = tempfile::tempdir().unwrap();
        let mut model = Model::new(kind, root.path());
        for number in 0..48 {
            let server = u8::try_from(number % 4).unwrap();
            model.put(number, u32::from(server), vec![server; 5_000]);
        }
        model.finish();
        let places = places(root.path());
        places.windows(2).filter(|two| two[0] == two[1]).count()
    };
    assert_eq!(together(Kind::StreamPacketizer), 0);
    assert_eq!(together(Kind::StreamLoc), 44);
    assert_eq!(together(Kind::LazyReadsLoc), 44);
}

#[test]
fn the_buffer_that_was_not_used_for_longest_makes_room_for_another_server() {
    let root = tempfile::tempdir().unwrap();
    let mut model = Model::new(Kind::StreamLoc, root.path());
    for server in 0..8 {
        small(&mut model, u64::from(server)..u64::from(server) + 1, server);
    }
    small(&mut model, 100..101, 0);
    let written = || std::fs::metadata(root.path().join("stream")).unwrap().len();
    assert_eq!(written(), 0);
    // Server 1 was used before all others; its one object begins a page that waits.
    small(&mut model, 200..201, 8);
    small(&mut model, 300..301, 9);
    assert_eq!(written(), 8 << 10);
    model.remove(0);
    model.finish();
    assert_eq!(places(root.path())[..2], [1, 2]);
    let all: HashSet<u8> = places(root.path()).into_iter().collect();
    assert!(!all.contains(&0), "it was removed before it was written");
}

#[test]
fn a_file_is_deleted_with_its_object() {
    for kind in [Kind::Simple, Kind::Squid, Kind::MultipleDirs, Kind::Buddy] {
        let root = tempfile::tempdir().unwrap();
        let mut model = Model::new(kind, root.path());
        model.put(1, 3, vec![1; 100_000]);
        let with = files(root.path());
        model.remove(1);
        assert_eq!(files(root.path()), with - 1, "{kind}");
    }
}

fn files(root: &Path) -> usize {
    let entries = std::fs::read_dir(root).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path())
            } else {
                1
            }
        })
        .sum()
}

#[test]
fn buddy_uses_the_first_free_slot_of_a_size() {
    let root = tempfile::tempdir().unwrap();
    let mut model = Model::new(Kind::Buddy, root.path());
    small(&mut model, 0..20, 0);
    let file = root.path().join("slots-10");
    let length = std::fs::metadata(&file).unwrap().len();
    model.remove(12);
    model.remove(3);
    small(&mut model, 20..22, 0);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), length);
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!((bytes[3 * 5_120], bytes[12 * 5_120]), (20, 21));
}

struct Still;

impl Surroundings for Still {
    fn now(&mut self) -> io::Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn all_layouts_get_the_same_operations_and_keep_within_the_watermarks() {
    let marks = Marks {
        high: STREAM_BYTES * 3 / 4,
        low: STREAM_BYTES * 7 / 10,
        object_max: 256 << 10,
    };
    let replay_settings = ReplaySettings {
        memory_bytes: STREAM_BYTES / 4,
        marks,
        unsynced_max: 1 << 20,
    };
    for shape in [Shape::Table3, Shape::Dec] {
        let mut all = vec![];
        for kind in Kind::ALL {
            let root = tempfile::tempdir().unwrap();
            let mut replay =
                Replay::new(kind, root.path(), &settings(), replay_settings, Still).unwrap();
            let mut source = Source::new(shape, 5, 20);
            for _ in 0..4_000 {
                replay.request(source.request()).unwrap();
            }
            replay.finish().unwrap();
            let counts = replay.counts();
            assert!(counts.written_bytes > 2 * STREAM_BYTES && counts.reads > 0);
            assert!(counts.deletes > 0 && counts.deletes < counts.writes);
            all.push(counts);
        }
        assert!(all.windows(2).all(|two| two[0] == two[1]), "{all:?}");
    }
}

#[test]
fn a_layout_is_named_as_in_the_paper() {
    for kind in Kind::ALL {
        assert_eq!(kind.name().to_lowercase().parse(), Ok(kind));
    }
    assert!("heap".parse::<Kind>().unwrap_err().contains("SQUID"));
}
