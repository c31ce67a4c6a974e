//! Loom models: threads work on one stripe at the same time, in every order with a few preemptions.
//!
//! The stripe, its shards, hot objects, log and writer are real, but their threads are not started:
//! the threads in a model do that work. `cargo xtask loom` runs the models.
//!
//! Invariant: a model depends only on the order that loom chooses. Loom does not track reference
//! counts and the queue.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::thread;

use crate::bans::{Ban, Label};
use crate::completion::{Outcome, promise};
use crate::config::{Config, PolicyKind};
use crate::device::MemoryDevice;
use crate::format::{Fields, Kind, record_bytes};
use crate::key::KeyHash;
use crate::lanes;
use crate::memory::RecordHandle;
use crate::memory::ShardedLock;
use crate::object::Version;
use crate::record::Record;
use crate::shard::LookupTarget;
use crate::shard::{Pending, PutToken};
use crate::store;
use crate::stripe::{Accepted, Recalled, Stripe, StripeLookup};
use crate::writer::DeviceWriter;

/// Tries `model` in every order with at most three preemptions (`LOOM_MAX_PREEMPTIONS` for another
/// number): a fault that was inserted on purpose needs three to be found.
fn try_all(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 20_000;
    builder.check(model);
}

// -- helpers for the models -------------------------------------------------------------------

struct Store {
    stripe: Arc<Stripe>,
    device_writer: DeviceWriter,
}

/// A store with an open log segment, so that the next batch opens no segment.
fn store(policy: PolicyKind, hot_bytes_max: u64) -> Store {
    let config = Config {
        policy,
        hot_bytes_max,
        // One set in each shard.
        held_share: Some(1),
        memory_bytes: 32 << 20,
        segment_bytes: Some(1 << 20),
        ..Config::on_device(Arc::new(MemoryDevice::new(32 << 20)))
    };
    let (stripe, device_writer) = store::without_threads(&config).unwrap();
    let mut store = Store {
        stripe,
        device_writer,
    };
    put(&store.stripe, "the first");
    store.device_writer.write_pending();
    store
}

fn key(stripe: &Stripe, name: &str) -> KeyHash {
    stripe.medium.secret.name(name.as_bytes())
}

fn begin(stripe: &Stripe, name: &str) -> Arc<PutToken> {
    stripe.begin(key(stripe, name))
}

fn commit(stripe: &Stripe, name: &str, token: &Arc<PutToken>) -> Accepted {
    commit_with(stripe, name, token, Vec::new())
}

fn commit_with(stripe: &Stripe, name: &str, token: &Arc<PutToken>, labels: Vec<u64>) -> Accepted {
    let key = key(stripe, name);
    let fields = Fields {
        kind: Kind::Head,
        key,
        version: token.version,
        revision: 0,
        confirmed: token.version,
        span: 0,
        incomplete: false,
        total: Some(0),
        span_pages: 4,
        mark: 0,
        group: 0,
        useless_after: 0,
        fresh_until: 0,
        labels,
    };
    let record = Record {
        fields,
        name: bytes::Bytes::copy_from_slice(name.as_bytes()),
        metadata: bytes::Bytes::new(),
        content: Vec::new(),
        at: None,
        storage: crate::object::Storage::Disk,
        judged: std::sync::atomic::AtomicU64::default(),
    };
    let record_bytes = record_bytes(name.len(), record.fields.label_words(), 0, 0);
    let pending = Pending::put(
        RecordHandle::alone(record),
        record_bytes,
        None,
        Arc::default(),
    );
    let pending = Arc::new(pending);
    let accepted = stripe.put_head(&pending, token);
    stripe.end_put(key, token);
    accepted
}

/// Puts an object without content. Returns its version.
fn put(stripe: &Stripe, name: &str) -> Version {
    let token = begin(stripe, name);
    assert_eq!(commit(stripe, name, &token), Accepted::Yes);
    token.version
}

/// Looks up an object, and reads from disk if necessary. Returns the version found.
fn get(stripe: &Arc<Stripe>, name: &str) -> Option<Version> {
    let key = key(stripe, name);
    match stripe.recall_head(key, name.as_bytes()) {
        Recalled::Found(record) => return Some(record.fields.version),
        Recalled::Nothing => return None,
        Recalled::Unsure => {}
    }
    let lookup = stripe.lookup(LookupTarget {
        key,
        name: bytes::Bytes::copy_from_slice(name.as_bytes()),
        span: None,
        expect: 0,
    });
    let found = match lookup {
        StripeLookup::Found(record) => Some(record),
        StripeLookup::Nothing => None,
        StripeLookup::Asked(outcome) => {
            stripe.pool.run_waiting();
            outcome.wait()
        }
        StripeLookup::Deferred(deferred) => deferred.wait(),
    };
    found.map(|record| record.fields.version)
}

/// Runs `what` in parallel with the model's first thread, in another lane.
fn beside<T: 'static>(what: impl FnOnce() -> T + 'static) -> thread::JoinHandle<T> {
    thread::spawn(move || {
        lanes::take(1);
        what()
    })
}

const NO_HOT: u64 = 0;
const HOT: u64 = u64::MAX;

// -- the models -------------------------------------------------------------------------------

#[test]
fn a_committed_object_is_found_while_it_is_written() {
    for hot in [NO_HOT, HOT] {
        try_all(move || {
            let Store {
                stripe,
                mut device_writer,
            } = store(PolicyKind::Log, hot);
            let version = put(&stripe, "a");
            let writer = beside(move || device_writer.write_pending());
            assert_eq!(get(&stripe, "a"), Some(version));
            writer.join().unwrap();
            assert_eq!(get(&stripe, "a"), Some(version));
        });
    }
}

#[test]
fn a_removed_object_is_never_found_again_although_it_is_being_written() {
    try_all(|| {
        let Store {
            stripe,
            mut device_writer,
        } = store(PolicyKind::Log, HOT);
        put(&stripe, "a");
        let writer = beside(move || device_writer.write_pending());
        stripe.remove(key(&stripe, "a"));
        assert_eq!(get(&stripe, "a"), None);
        writer.join().unwrap();
        assert_eq!(get(&stripe, "a"), None);
    });
}

#[test]
fn a_removed_object_is_never_found_again_although_it_is_being_read() {
    try_all(|| {
        let Store {
            stripe,
            mut device_writer,
        } = store(PolicyKind::Log, HOT);
        let version = put(&stripe, "a");
        device_writer.write_pending();
        stripe.shared.hot.remove(key(&stripe, "a"));
        let reader = {
            let stripe = Arc::clone(&stripe);
            beside(move || get(&stripe, "a"))
        };
        stripe.remove(key(&stripe, "a"));
        assert_eq!(get(&stripe, "a"), None);
        let read = reader.join().unwrap();
        assert!(read.is_none_or(|it| it == version));
        assert_eq!(get(&stripe, "a"), None);
    });
}

#[test]
fn a_put_that_began_before_a_remove_is_not_found_after_it() {
    try_all(|| {
        let Store { stripe, .. } = store(PolicyKind::Log, HOT);
        let token = begin(&stripe, "a");
        let putter = {
            let stripe = Arc::clone(&stripe);
            beside(move || commit(&stripe, "a", &token))
        };
        stripe.remove(key(&stripe, "a"));
        assert_eq!(get(&stripe, "a"), None);
        putter.join().unwrap();
        assert_eq!(get(&stripe, "a"), None);
    });
}

#[test]
fn a_put_that_begins_beside_a_remove_is_found_if_it_is_newer() {
    try_all(|| {
        let Store { stripe, .. } = store(PolicyKind::Log, NO_HOT);
        let putter = {
            let stripe = Arc::clone(&stripe);
            beside(move || {
                let token = begin(&stripe, "a");
                (commit(&stripe, "a", &token), token.version)
            })
        };
        let (removed, _) = stripe.remove(key(&stripe, "a"));
        let (accepted, version) = putter.join().unwrap();
        // An older version may have been found before the remove.
        assert!(accepted == Accepted::Yes || version < removed);
        let found = get(&stripe, "a");
        assert_eq!(found, (version > removed).then_some(version));
    });
}

/// A checkpoint that has drawn a version sees all removes with a lower version, because these are
/// not applied to it again.
#[test]
fn a_remove_that_is_older_than_a_checkpoint_is_seen_by_it() {
    try_all(|| {
        let Store {
            stripe,
            mut device_writer,
        } = store(PolicyKind::Log, NO_HOT);
        put(&stripe, "a");
        device_writer.write_pending();
        let remover = {
            let stripe = Arc::clone(&stripe);
            beside(move || stripe.remove(key(&stripe, "a")).0)
        };
        let begun = stripe.draw_version();
        let saved = stripe.contains_hint(key(&stripe, "a"));
        let removed = remover.join().unwrap();
        assert!(removed > begun || !saved, "{removed:?} < {begun:?}, saved");
    });
}

/// Checks the time between adding a ban and checking the pending records for it. If the put hid the
/// record then, nothing on disk would show that it is purged.
#[test]
fn a_put_does_not_hide_a_purged_pending_record_that_is_still_to_be_removed() {
    try_all(|| {
        let Store { stripe, .. } = store(PolicyKind::Log, NO_HOT);
        let label = Label(7);
        let purged = begin(&stripe, "a");
        let accepted = commit_with(&stripe, "a", &purged, vec![label.0]);
        assert_eq!(accepted, Accepted::Yes);
        let line = Ban::label(label).line(&stripe.medium.secret, stripe.draw_version());
        stripe.bans.add(&[line], &stripe.medium.budget);
        let hiding = {
            let stripe = Arc::clone(&stripe);
            beside(move || {
                let token = begin(&stripe, "a");
                commit(&stripe, "a", &token)
            })
        };
        let (removed, _) = stripe.remove_barred();
        assert_eq!(removed.len(), 1);
        assert_eq!(removed[0].key, key(&stripe, "a"));
        hiding.join().unwrap();
    });
}

#[test]
fn no_look_up_behind_a_purge_finds_what_it_took_by_joining_an_earlier_one() {
    for hot in [NO_HOT, HOT] {
        try_all(move || {
            let Store {
                stripe,
                mut device_writer,
            } = store(PolicyKind::Log, hot);
            put(&stripe, "a");
            device_writer.write_pending();
            stripe.shared.hot.remove(key(&stripe, "a"));
            let reader = {
                let stripe = Arc::clone(&stripe);
                beside(move || drop(get(&stripe, "a")))
            };
            let line = Ban::everything(stripe.draw_version().0);
            // Loom does not track the ban table. This lock makes loom vary how the next calls and
            // the reader's steps are ordered.
            drop(stripe.shard(key(&stripe, "a")));
            stripe.bans.add(&[line], &stripe.medium.budget);
            assert_eq!(get(&stripe, "a"), None);
            reader.join().unwrap();
        });
    }
}

#[test]
fn no_put_is_older_than_the_oldest_that_was_under_way() {
    try_all(|| {
        let Store { stripe, .. } = store(PolicyKind::Log, NO_HOT);
        let beginner = {
            let stripe = Arc::clone(&stripe);
            beside(move || begin(&stripe, "a"))
        };
        let oldest = stripe.oldest_begun();
        let token = beginner.join().unwrap();
        assert!(token.version >= oldest, "{:?} < {oldest:?}", token.version);
    });
}

#[test]
fn a_miss_beside_a_put_is_no_answer_once_that_has_returned() {
    for hot in [NO_HOT, HOT] {
        try_all(move || {
            let Store { stripe, .. } = store(PolicyKind::Log, hot);
            let reader = {
                let stripe = Arc::clone(&stripe);
                beside(move || get(&stripe, "a"))
            };
            let version = put(&stripe, "a");
            assert_eq!(get(&stripe, "a"), Some(version));
            let read = reader.join().unwrap();
            assert!(read.is_none_or(|it| it == version));
        });
    }
}

/// Lookups skip a name that is being removed, but a later put must be found, even while it changes
/// from pending to hot.
#[test]
fn what_was_put_since_a_remove_that_is_not_done_is_found_while_it_is_written() {
    for has_room in [true, false] {
        try_all(move || {
            let Store {
                stripe,
                mut device_writer,
            } = store(PolicyKind::Set, HOT);
            let key = key(&stripe, "a");
            if has_room {
                stripe.remove(key);
            } else {
                stripe.remove_with_range(key)
            }
            assert!(stripe.shard(key).is_removing(key));
            assert_eq!(stripe.shard(key).removing.is_empty(), !has_room);
            let version = put(&stripe, "a");
            let writer = beside(move || device_writer.write_pending());
            assert_eq!(get(&stripe, "a"), Some(version));
            writer.join().unwrap();
            assert_eq!(get(&stripe, "a"), Some(version));
        });
    }
}

#[test]
fn what_was_read_late_does_not_hide_what_was_put_since() {
    try_all(|| {
        let Store {
            stripe,
            mut device_writer,
        } = store(PolicyKind::Log, HOT);
        let old = put(&stripe, "a");
        device_writer.write_pending();
        stripe.shared.hot.remove(key(&stripe, "a"));
        let reader = {
            let stripe = Arc::clone(&stripe);
            beside(move || get(&stripe, "a"))
        };
        let new = put(&stripe, "a");
        assert_eq!(get(&stripe, "a"), Some(new));
        let read = reader.join().unwrap();
        assert!(read == Some(old) || read == Some(new), "{read:?}");
        assert_eq!(get(&stripe, "a"), Some(new));
    });
}

#[test]
fn who_asks_for_what_is_being_read_gets_it_too() {
    try_all(|| {
        let Store {
            stripe,
            mut device_writer,
        } = store(PolicyKind::Log, NO_HOT);
        let version = put(&stripe, "a");
        device_writer.write_pending();
        let before = stripe.medium.counters.reads.value();
        let reader = {
            let stripe = Arc::clone(&stripe);
            beside(move || get(&stripe, "a"))
        };
        assert_eq!(get(&stripe, "a"), Some(version));
        assert_eq!(reader.join().unwrap(), Some(version));
        let reads = stripe.medium.counters.reads.value() - before;
        let joined = stripe.medium.counters.joined_reads.value();
        assert_eq!(reads + joined, 2, "{reads} reads, {joined} joined");
    });
}

#[test]
fn a_set_that_was_read_late_does_not_hide_what_was_put_in_it_since() {
    try_all(|| {
        let Store {
            stripe,
            mut device_writer,
        } = store(PolicyKind::SetMemLru, NO_HOT);
        let set = |name: &str| key(&stripe, name).set(stripe.medium.geometry.sets);
        let shard = |name: &str| key(&stripe, name).shard();
        let mut names = (0..).map(|n| format!("b{n}"));
        let neighbour = names.find(|name| set(name) == set("a")).unwrap();
        let other = |name: &String| shard(name) == shard("a") && set(name) != set("a");
        let other = names.find(other).unwrap();
        let old = put(&stripe, "a");
        device_writer.write_pending();
        // Memory now holds this set instead.
        let third = put(&stripe, &other);
        device_writer.write_pending();
        let reader = {
            let stripe = Arc::clone(&stripe);
            beside(move || get(&stripe, "a"))
        };
        let new = put(&stripe, &neighbour);
        device_writer.write_pending();
        // And again: now only a row reader knows the content.
        assert_eq!(get(&stripe, &other), Some(third));
        assert_eq!(get(&stripe, &neighbour), Some(new));
        assert_eq!(reader.join().unwrap(), Some(old));
        assert_eq!(get(&stripe, &neighbour), Some(new));
        assert_eq!(get(&stripe, "a"), Some(old));
    });
}

#[test]
fn whoever_waits_gets_the_value_and_nobody_waits_for_ever() {
    try_all(|| {
        let (promise, outcome) = promise::<Option<u32>>();
        let waits = |outcome: &Outcome<Option<u32>>| {
            let outcome = outcome.clone();
            thread::spawn(move || outcome.wait())
        };
        let waiter = waits(&outcome);
        let task = {
            let outcome = outcome.clone();
            thread::spawn(move || block_on(outcome))
        };
        promise.set(Some(7));
        assert_eq!(waiter.join().unwrap(), Some(7));
        assert_eq!(task.join().unwrap(), Some(7));
        let mut outcome = outcome;
        let polled = std::pin::Pin::new(&mut outcome);
        let polled = polled.poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(Some(7)));
    });
    try_all(|| {
        let (promise, outcome) = promise::<Option<u32>>();
        let task = thread::spawn(move || block_on(outcome));
        drop(promise);
        assert_eq!(task.join().unwrap(), None);
    });
}

#[test]
fn nobody_reads_what_is_being_written_whatever_the_lane() {
    try_all(|| {
        let locks = Arc::new(ShardedLock::<[u32; 2], 1>::new([[0; 2]]));
        let reads = |lane| {
            let locks = Arc::clone(&locks);
            thread::spawn(move || {
                lanes::take(lane);
                let seen = *locks.read(0);
                assert_eq!(seen[0], seen[1]);
            })
        };
        let readers = [reads(0), reads(1)];
        let tries = {
            let locks = Arc::clone(&locks);
            thread::spawn(move || {
                if let Some(mut both) = locks.try_write(0) {
                    both[0] += 1;
                    both[1] += 1;
                }
            })
        };
        {
            let mut both = locks.write(0);
            both[0] += 1;
            both[1] += 1;
        }
        readers.into_iter().for_each(|it| it.join().unwrap());
        tries.join().unwrap();
        let both = *locks.read(0);
        assert!(both[0] == both[1] && (1..=2).contains(&both[0]));
    });
}
