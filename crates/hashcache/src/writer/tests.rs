//! The order of the writer's calls, as the device sees it.

#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::address::LogPos;
use crate::config::{Config, PolicyKind};
use crate::device::hooked::{Call, Hooked};
use crate::device::{Device, MemoryDevice};
use crate::disk::Segment;
use crate::disk::circular_log::Cursor;
use crate::format::Listed;
use crate::stripe::Stripe;
use crate::{Ban, Cache, Clock, Put};

fn config(device: Arc<dyn Device>, policy: PolicyKind) -> Config {
    let hour = Duration::from_secs(3600);
    Config {
        policy,
        segment_bytes: Some(1 << 20),
        hot_bytes_max: 0,
        memory_bytes: 16 << 20,
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..Config::on_device(device)
    }
}

fn put(cache: &Cache, name: &[u8], metadata: &str, content: usize) {
    let put = Put::metadata(metadata.to_owned());
    cache.put(name, put, &vec![7; content]).unwrap();
}

// -- the log ----------------------------------------------------------------------------------

/// Returns true if a write of `length` bytes at `at` overwrites a place in the log where the
/// previous lap may still be read.
fn writes_over_what_is_live(stripe: &Stripe, at: u64, length: usize) -> bool {
    let geometry = &stripe.medium.geometry;
    let unit_bytes = u64::from(geometry.unit_bytes);
    let Some(first) = at
        .checked_sub(geometry.log_offset)
        .map(|it| it / unit_bytes)
    else {
        return false;
    };
    let (open, open_lap) = stripe.log.open_segment();
    let is_live = |unit: u64| {
        // A footer may be written when the next segment is open already.
        let is_late = unit / geometry.segment_units() > open;
        let before = open_lap.checked_sub(1 + u64::from(is_late));
        before.is_some_and(|lap| stripe.log.is_live(LogPos(lap * geometry.capacity() + unit)))
    };
    (first..first + length as u64 / unit_bytes).any(is_live)
}

#[test]
fn nothing_of_the_log_is_written_over_before_the_head_has_passed_it() {
    for policy in PolicyKind::ALL {
        for readmission in [false, true] {
            let device = Hooked::new(vec![0; 12 << 20]);
            let cache = Cache::open(Config {
                readmission,
                ..config(Arc::clone(&device) as _, policy)
            })
            .unwrap();
            let stripe = Arc::clone(cache.first_stripe());
            let (early, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let watched = (Arc::clone(&stripe), Arc::clone(&early), Arc::clone(&all));
            device.watch(move |call| {
                let (stripe, early, all) = &watched;
                if let Call::Write(at, length) = call {
                    all.fetch_add(1, Ordering::Relaxed);
                    let is_early = writes_over_what_is_live(stripe, at, length);
                    early.fetch_add(usize::from(is_early), Ordering::Relaxed);
                }
            });
            // Batches small and large, so that segments stop at many distances from their footers.
            for n in 0..4_000_u64 {
                let content = [300, 15_000, 40_000][usize::try_from(n % 3).unwrap()];
                put(&cache, &(n % 40).to_le_bytes(), "m", content);
                if n % 7 < 2 {
                    assert!(cache.flush().wait());
                }
                if stripe.log.open_segment().1 >= 3 {
                    break;
                }
            }
            assert!(cache.flush().wait());
            device.watch_no_more();
            let (early, all) = (early.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
            assert!(stripe.log.open_segment().1 >= 2, "{policy:?}: {all} writes");
            assert_eq!(
                early, 0,
                "{policy:?}, readmission: {readmission}, of {all} writes"
            );
        }
    }
}

/// Recovery relies on it if an index names windows with several records.
#[test]
fn no_batch_has_two_records_of_one_name_however_many_threads_put_it() {
    for grouped in [false, true] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let cache = Cache::open(Config {
            grouped,
            memory_bytes: 64 << 20,
            ..config(device, PolicyKind::Log)
        })
        .unwrap();
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for n in 0..300_u64 {
                        let put = Put {
                            group: n % 2,
                            ..Put::metadata("m")
                        };
                        // A newer put may supersede this put.
                        let _ = cache.put(&((n + thread) % 5).to_le_bytes(), put, b"content");
                        assert!(n % 3 < 2 || cache.flush().wait());
                    }
                });
            }
        });
        assert!(cache.flush().wait());
        let stripe = cache.first_stripe();
        let windows = stripe.index.shape.windows;
        let mut lines = 0;
        for segment in 0..stripe.medium.geometry.segments {
            let position = stripe.log.position(0, segment, 0);
            let Some(place) = stripe.log.place(position) else {
                break;
            };
            let cursor = Cursor {
                segment,
                stamp: place.stamp,
                ..Cursor::default()
            };
            let listed = Segment::walk(&stripe.medium, cursor, 0, 0, None).listed;
            lines += listed.len();
            let window_of = |it: &Listed| u64::from(it.offset) / windows.units;
            for lines in listed.chunk_by(|one, other| window_of(one) == window_of(other)) {
                let keys = lines.iter().map(|it| (it.key.high, it.key.low));
                assert_eq!(
                    BTreeSet::from_iter(keys).len(),
                    lines.len(),
                    "grouped: {grouped}"
                );
            }
        }
        assert!(lines > 40, "{lines}");
    }
}

/// A device with slow writes from the other thread.
struct SlowBeside {
    inner: MemoryDevice,
    in_flight: AtomicUsize,
    beside: AtomicUsize,
    was_synced_early: AtomicBool,
}

impl Device for SlowBeside {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        if thread::current().name() == Some("hc-background") {
            self.beside.fetch_add(1, Ordering::SeqCst);
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            // Long enough for a sync that does not wait.
            for _ in 0..300 {
                thread::yield_now();
            }
            self.inner.write_at(offset, buffer)?;
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            return Ok(());
        }
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        if self.in_flight.load(Ordering::SeqCst) > 0 {
            self.was_synced_early.store(true, Ordering::SeqCst);
        }
        self.inner.sync()
    }
}

#[test]
fn a_sync_makes_the_batch_durable_that_the_other_thread_is_writing() {
    let device = Arc::new(SlowBeside {
        inner: MemoryDevice::new(32 << 20),
        in_flight: AtomicUsize::new(0),
        beside: AtomicUsize::new(0),
        was_synced_early: AtomicBool::new(false),
    });
    let cache = Cache::open(config(Arc::clone(&device) as _, PolicyKind::Log)).unwrap();
    for n in 0..20_u64 {
        put(&cache, &n.to_le_bytes(), "m", 200_000);
        match n % 3 {
            0 => assert!(cache.flush().wait()),
            1 => {
                let cut = cache.cut_batch();
                cache.remove(b"none").wait().unwrap();
                assert!(cut.wait());
            }
            _ => {
                let ban = Ban::prefix(b"none").softly();
                cache.remove_matching(&[ban]).wait().unwrap();
            }
        }
    }
    cache.close();
    assert!(
        device.beside.load(Ordering::SeqCst) > 10,
        "no batch was written beside"
    );
    assert!(!device.was_synced_early.load(Ordering::SeqCst));
}

// -- removes ----------------------------------------------------------------------------------

/// In the Disk Table lookups skip a name until its slot is cleared. Between the clearing for the
/// first remove and its answer, a newer version is written and removed: that slot is cleared only
/// later.
#[test]
fn a_remove_that_is_done_leaves_a_later_one_of_the_name_in_force() {
    let tables = [
        PolicyKind::Basic,
        PolicyKind::Set,
        PolicyKind::SetMem,
        PolicyKind::SetMemLru,
    ];
    for policy in tables {
        let device = Hooked::new(vec![0; 16 << 20]);
        // No time passes, so a round takes all removes that wait.
        let clock = Clock::new(|| Duration::ZERO, || Duration::ZERO);
        let cache = Cache::open(Config {
            clock,
            ..config(Arc::clone(&device) as _, policy)
        })
        .unwrap();
        let geometry = &cache.first_stripe().medium.geometry;
        let table =
            geometry.table_offset..geometry.table_offset + geometry.sets * geometry.set_bytes();
        let journal = geometry.journal_offset..geometry.journal_offset + geometry.journal_bytes;
        let answers = Arc::new(Mutex::new(Vec::new()));
        let found = |cache: &Cache| cache.get(b"name").wait().map(|it| it.metadata().clone());
        put(&cache, b"name", "first", 100);
        assert!(cache.flush().wait());
        // All of this is queued while the writer thread is busy.
        let (queued, removes) = (cache.clone(), Arc::new(Mutex::new(Vec::new())));
        let later = {
            let (cache, device, answers) =
                (cache.clone(), Arc::clone(&device), Arc::clone(&answers));
            let (table, removes) = (table.clone(), Arc::clone(&removes));
            // The bans are written after the pending records.
            move || {
                removes.lock().unwrap().push(cache.remove(b"name"));
                answers.lock().unwrap().push(found(&cache));
                let cleared = move || answers.lock().unwrap().push(found(&cache));
                device.before(move |call| call.writes_to(&table), cleared);
            }
        };
        let queue = {
            let (device, removes) = (Arc::clone(&device), Arc::clone(&removes));
            move || {
                removes.lock().unwrap().push(queued.remove(b"name"));
                let label = queued.label(b"label");
                let labelled = Put {
                    labels: vec![label],
                    ..Put::metadata("second")
                };
                queued.put(b"name", labelled, b"content").unwrap();
                let ban = Ban::label(label).softly();
                removes.lock().unwrap().push(queued.remove_matching(&[ban]));
                device.before(move |call| call.writes_to(&journal), later);
            }
        };
        put(&cache, b"another", "m", 100);
        device.before(move |call| call.writes_to(&table), queue);
        assert!(cache.flush().wait());
        // The remove that was queued last is done last.
        loop {
            let Some(remove) = removes.lock().unwrap().pop() else {
                break;
            };
            remove.wait().unwrap();
        }
        assert!(cache.flush().wait());
        assert_eq!(device.hooks_left(), 0, "{policy:?}");
        assert_eq!(*answers.lock().unwrap(), [None, None], "{policy:?}");
        assert_eq!(found(&cache), None, "{policy:?}");
    }
}
