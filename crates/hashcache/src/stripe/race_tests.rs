//! Lookups with slow reads: in the meantime objects are put, removed or banned, the log wraps and
//! checkpoints are written. The calls from the device in the middle of a read stand for other
//! threads.

#![cfg(not(loom))]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::Stripe;
use super::lookup::{Begin, FirstAnswer, Recalled};
use crate::address::{LogPos, SetId, Slot};
use crate::clock::Clock;
use crate::config::{Config, PolicyKind};
use crate::device::hooked::Hooked;
use crate::disk::checkpoint::Checkpoint;
use crate::disk::circular_log::Cursor;
use crate::disk::{index_rows, table};
use crate::format::{Family, Fields, Kind, encode_record};
use crate::hidden::KeyRange;
use crate::key::KeyHash;
use crate::object::Version;
use crate::policy::Located;
use crate::shard::{LookupTarget, ReadRequest};
use crate::stripe::StripeLookup;
use crate::{Ban, Cache, Put};

fn open(device: &Arc<Hooked>, change: impl FnOnce(&mut Config)) -> Cache {
    let hour = Duration::from_secs(3600);
    let mut config = Config {
        segment_bytes: Some(1 << 20),
        hot_bytes_max: 0,
        memory_bytes: 16 << 20,
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..Config::on_device(Arc::clone(device) as _)
    };
    change(&mut config);
    Cache::open(config).unwrap()
}

fn put(cache: &Cache, name: &[u8], metadata: &str) {
    cache
        .put(name, Put::metadata(metadata.to_owned()), b"content")
        .unwrap();
}

fn found(cache: &Cache, name: &[u8]) -> Option<Bytes> {
    Some(cache.get(name).wait()?.metadata().clone())
}

fn key(stripe: &Stripe, name: &[u8]) -> KeyHash {
    stripe.medium.secret.name(name)
}

fn located(stripe: &Stripe, name: &[u8]) -> Located {
    let key = key(stripe, name);
    stripe.locate(&stripe.view(key), key)
}

// -- rows on disk -----------------------------------------------------------------------------

/// `log-lru` with one row in each shard: nine names of a shard displace each other. The clock
/// stands still: the writer thread, which starts a checkpoint as soon as a few positions are
/// displaced, has written its part when a flush is answered, and never writes between the
/// checkpoints of a test.
fn crowded(config: &mut Config) {
    config.policy = PolicyKind::LogLru;
    config.clock = Clock::manual(|| Duration::ZERO, || Duration::ZERO);
    config.object_bytes = 136 << 10;
    config.held_share = Some(38);
}

/// Names of the first shard with different entries: if two tags were equal, forgetting one name
/// could forget the other.
fn of_one_row(stripe: &Stripe, count: usize) -> Vec<[u8; 8]> {
    assert_eq!(stripe.index.shape.shard_rows, 1);
    let mut tags = HashSet::new();
    let names = (0u64..).map(u64::to_le_bytes);
    let is_one = |name: &[u8; 8]| {
        let key = key(stripe, name);
        key.shard() == 0 && tags.insert(key.tag(8))
    };
    names.filter(is_one).take(count).collect()
}

/// Writes and publishes a checkpoint, as the writer thread would between two batches.
fn checkpoint(stripe: &Stripe, serial: u64) {
    let (medium, index) = (&stripe.medium, &stripe.index);
    let of_all = |change: fn(&mut dyn crate::policy::LogPolicy)| {
        for mut shard in stripe.shards() {
            change(shard.policy.log_mut().unwrap());
        }
    };
    of_all(|log| log.save_begins());
    let begun = stripe.draw_version().0;
    let cursor = Cursor::default();
    let mut checkpoint = Checkpoint::begin(medium, index, &stripe.log, serial, begun, cursor);
    checkpoint.write_parts(medium, index).unwrap();
    index.file.publish(Some(checkpoint.checkpoint_id()));
    of_all(|log| log.save_counts());
}

#[test]
fn a_row_of_a_checkpoint_that_was_replaced_while_it_was_read_is_read_anew() {
    let device = Hooked::new(vec![0; 32 << 20]);
    let cache = open(&device, crowded);
    let stripe = Arc::clone(cache.first_stripe());
    let names = of_one_row(&stripe, 12);
    for name in &names[..7] {
        put(&cache, name, "old");
    }
    assert!(cache.flush().wait());
    checkpoint(&stripe, 1_000);
    assert!(matches!(located(&stripe, &names[0]), Located::Displaced(_)));
    assert_eq!(found(&cache, &names[0]), Some("old".into()));
    put(&cache, &names[0], "older");
    for name in &names[7..11] {
        put(&cache, name, "other");
    }
    assert!(cache.flush().wait());
    checkpoint(&stripe, 1_001);
    assert!(matches!(located(&stripe, &names[0]), Located::Displaced(_)));
    let rows = index_rows::area(&stripe.medium.geometry, 1_001);
    let rows = rows..rows + stripe.medium.geometry.checkpoint_bytes;
    let meanwhile = {
        let (cache, stripe, names) = (cache.clone(), Arc::clone(&stripe), names.clone());
        move || {
            put(&cache, &names[0], "new");
            for name in names[1..5].iter().chain(&names[11..]) {
                put(&cache, name, "other");
            }
            assert!(cache.flush().wait());
            checkpoint(&stripe, 1_002);
            assert!(matches!(located(&stripe, &names[0]), Located::Displaced(_)));
        }
    };
    device.before(move |call| call.reads_from(&rows), meanwhile);
    assert_eq!(found(&cache, &names[0]), Some("new".into()));
    assert_eq!(device.hooks_left(), 0, "no row was read");
}

/// A lost write to the index file has left the row of the second-last checkpoint in place.
#[test]
fn a_row_of_an_older_checkpoint_in_the_same_place_is_not_taken_for_that_of_the_newest() {
    let device = Hooked::new(vec![0; 32 << 20]);
    let cache = open(&device, crowded);
    let stripe = Arc::clone(cache.first_stripe());
    let names = of_one_row(&stripe, 7);
    let geometry = &stripe.medium.geometry;
    let rows = usize::try_from(index_rows::area(geometry, 1_000)).unwrap();
    let rows = rows..rows + usize::try_from(geometry.checkpoint_bytes).unwrap();
    let mut older = Vec::new();
    for (serial, round) in [(1_000, "old"), (1_001, "new"), (1_002, "newest")] {
        for name in &names {
            // The entry takes the place of the entry that it replaces.
            let intent = cache.intend(name).unwrap();
            let intent = match cache.get(name).wait() {
                Some(hit) => intent.replacing(&hit),
                None => intent,
            };
            let writer = intent.writer(Put::metadata(round)).unwrap();
            writer.commit().unwrap();
            assert!(cache.flush().wait());
        }
        checkpoint(&stripe, serial);
        if serial == 1_000 {
            older = device.inner.to_bytes()[rows.clone()].to_vec();
        }
    }
    assert!(matches!(located(&stripe, &names[0]), Located::Displaced(_)));
    assert_eq!(found(&cache, &names[0]), Some("newest".into()));
    checkpoint(&stripe, 1_003);
    checkpoint(&stripe, 1_004);
    device
        .inner
        .alter(|bytes| bytes[rows].copy_from_slice(&older));
    for name in &names {
        let found = found(&cache, name);
        assert!(found.as_ref().is_none_or(|it| it == "newest"), "{found:?}");
    }
}

#[test]
fn while_a_checkpoint_is_made_the_one_that_counts_each_displaced_object_is_found() {
    let device = Hooked::new(vec![0; 32 << 20]);
    for round in ["first", "second", "third"] {
        let cache = open(&device, crowded);
        let stripe = Arc::clone(cache.first_stripe());
        let names: Vec<_> = (0u64..300).map(u64::to_le_bytes).collect();
        for name in &names {
            put(&cache, name, round);
        }
        assert!(cache.flush().wait());
        let is_right = move |cache: &Cache, name: &[u8]| {
            let found = found(cache, name);
            assert!(
                found.as_ref().is_none_or(|it| it == round),
                "{round}: {found:?}"
            );
            found.is_some()
        };
        let there: Vec<_> = names
            .into_iter()
            .filter(|it| is_right(&cache, it))
            .collect();
        assert!(there.len() > 200, "{}", there.len());
        let unsaved = |stripe: &Stripe| {
            let shards = stripe.views();
            shards.map(|it| it.policy.log().unwrap().unsaved()).max()
        };
        assert!(
            unsaved(&stripe) > Some(0),
            "no position waits for a checkpoint"
        );
        // Everything from the last part of the checkpoint to the end of the superblock write.
        let looked = Arc::new(Mutex::new(0));
        let looks = {
            let (cache, looked) = (cache.clone(), Arc::clone(&looked));
            move || {
                let found = there.iter().filter(|it| is_right(&cache, *it)).count();
                *looked.lock().unwrap() = found;
                assert_eq!(found, there.len());
            }
        };
        device.before(|call| call.writes_to(&(0..8 << 10)), looks);
        cache.close();
        assert_eq!(device.hooks_left(), 0);
        assert!(*looked.lock().unwrap() > 200, "{round}");
    }
}

// -- bans -------------------------------------------------------------------------------------

fn request(stripe: &Arc<Stripe>, name: &[u8]) -> FirstAnswer {
    let wanted = LookupTarget {
        key: key(stripe, name),
        name: Bytes::copy_from_slice(name),
        span: None,
        expect: 0,
    };
    stripe.ask(wanted, Begin::Now)
}

#[test]
fn a_lookup_that_joins_one_which_waited_for_a_run_does_not_find_what_a_ban_took() {
    let grouped = |config: &mut Config| {
        config.grouped = true;
        config.hot_bytes_max = 4 << 20;
    };
    let device = Hooked::new(vec![0; 32 << 20]);
    let cache = open(&device, grouped);
    for name in [b"page/1", b"page/2"] {
        let put = Put {
            group: 1,
            ..Put::metadata("m")
        };
        cache.put(name, put, b"content").unwrap();
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(&device, grouped);
    let stripe = cache.first_stripe();
    let FirstAnswer::Disk(waits) = request(stripe, b"page/2") else {
        panic!("it is not on disk");
    };
    // Objects that the run loads become hot.
    let waits: ReadRequest = *waits;
    assert!(found(&cache, b"page/1").is_some());
    assert!(stripe.shared.hot.contains(key(stripe, b"page/2")));
    cache
        .remove_matching(&[Ban::prefix(b"page/2")])
        .wait()
        .unwrap();
    let FirstAnswer::Memory(StripeLookup::Asked(joined)) = request(stripe, b"page/2") else {
        panic!("it does not join");
    };
    stripe.answer(waits, None);
    assert!(joined.wait().is_none());
}

// -- the Disk Table ---------------------------------------------------------------------------

const TABLES: [PolicyKind; 4] = [
    PolicyKind::Basic,
    PolicyKind::Set,
    PolicyKind::SetMem,
    PolicyKind::SetMemLru,
];

/// The checksum of a tail has no key: content that the log has written over the tail may be crafted
/// to fit.
#[test]
fn a_tail_that_the_log_has_passed_while_it_was_read_does_not_count() {
    for policy in TABLES {
        let device = Hooked::new(vec![0; 16 << 20]);
        let config = |config: &mut Config| config.policy = policy;
        let cache = open(&device, config);
        let long = |name: &[u8], byte: u8| {
            cache
                .put(name, Put::metadata("m"), &[byte; 30_000])
                .unwrap();
            assert!(cache.flush().wait());
        };
        long(b"name", 7);
        let stripe = Arc::clone(cache.first_stripe());
        let geometry = &stripe.medium.geometry;
        assert_eq!(geometry.family, Family::Table);
        let log = geometry.log_offset..geometry.device_bytes;
        let image = device.inner.to_bytes();
        let in_tail = image.windows(512).rposition(|it| it == [7; 512]).unwrap();
        let at = LogPos((in_tail as u64 - log.start) / u64::from(geometry.unit_bytes));
        assert_eq!(stripe.log.open_segment().1, 0);
        let meanwhile = {
            let (cache, stripe, device) = (cache.clone(), Arc::clone(&stripe), Arc::clone(&device));
            move || {
                let mut laps = 0;
                while stripe.log.is_live(at) {
                    let put = Put::metadata("m");
                    cache.put(b"other", put, &[8; 30_000]).unwrap();
                    assert!(cache.flush().wait());
                    laps += 1;
                    assert!(laps < 10_000, "the log does not come round");
                }
                let tail = in_tail - 40_000..in_tail + 512;
                device
                    .inner
                    .alter(|bytes| bytes[tail.clone()].copy_from_slice(&image[tail]));
            }
        };
        assert!(cache.get(b"name").wait().is_some(), "{policy:?}");
        device.before(move |call| call.reads_from(&log), meanwhile);
        assert!(cache.get(b"name").wait().is_none(), "{policy:?}");
        assert_eq!(device.hooks_left(), 0, "{policy:?}: no tail was read");
        assert_eq!(cache.stats().damaged, 0, "{policy:?}");
    }
}

/// Puts an object with a tail under `name`. Then looks it up. Between the read of the slot and the
/// read of the tail, `clear` clears or overwrites the slot, and a ban on `name` is made and
/// forgotten.
fn found_beside_a_ban(policy: PolicyKind, clear: fn(&Cache, &Stripe, KeyHash)) -> Option<Bytes> {
    let device = Hooked::new(vec![0; 16 << 20]);
    let cache = open(&device, |config| config.policy = policy);
    let put = Put::metadata("m");
    cache.put(b"name", put, &[7; 30_000]).unwrap();
    assert!(cache.flush().wait());
    let stripe = Arc::clone(cache.first_stripe());
    let key = key(&stripe, b"name");
    let geometry = &stripe.medium.geometry;
    let log = geometry.log_offset..geometry.device_bytes;
    let meanwhile = {
        let (cache, stripe) = (cache.clone(), Arc::clone(&stripe));
        move || {
            clear(&cache, &stripe, key);
            let set = SetId(key.set(stripe.medium.geometry.sets));
            let filled = table::read_set(&stripe.medium, set).unwrap().filled;
            assert!(filled.iter().all(|it| it.occupant.key != key));
            let ban = cache.remove_matching(&[Ban::prefix(b"name")]);
            ban.wait().unwrap();
            while cache.bans() > 0 {
                assert!(cache.flush().wait());
            }
        }
    };
    device.before(move |call| call.reads_from(&log), meanwhile);
    let found = found(&cache, b"name");
    assert_eq!(device.hooks_left(), 0, "{policy:?}: no tail was read");
    found
}

#[test]
fn what_a_ban_took_is_not_found_by_a_read_whose_slot_was_cleared_with_a_range_before() {
    for policy in TABLES {
        let found = found_beside_a_ban(policy, |cache, stripe, key| {
            let version = stripe.draw_version();
            stripe
                .shard(key)
                .hidden
                .hide(KeyRange::from_key(key), version);
            stripe.queue.clear_hidden();
            while stripe.view(key).hidden.any() {
                assert!(cache.flush().wait());
            }
        });
        assert_eq!(found, None, "{policy:?}");
    }
}

#[test]
fn what_a_ban_took_is_not_found_by_a_read_whose_slot_a_put_has_taken_before() {
    for policy in TABLES {
        let found = found_beside_a_ban(policy, |cache, stripe, own| {
            let sets = stripe.medium.geometry.sets;
            let names = (0u64..).map(u64::to_le_bytes);
            let of_set = |name: &[u8; 8]| key(stripe, name).set(sets) == own.set(sets);
            for name in names.filter(of_set).take(64) {
                put(cache, &name, "m");
                assert!(cache.flush().wait());
            }
        });
        assert_eq!(found, None, "{policy:?}");
    }
}

/// A record that was put after the remove may just have become hot.
#[test]
fn while_a_range_is_hidden_a_look_in_memory_does_not_say_that_a_name_is_missing() {
    for policy in TABLES {
        let device = Hooked::new(vec![0; 16 << 20]);
        let cache = open(&device, |config| config.policy = policy);
        let stripe = cache.first_stripe();
        let key = key(stripe, b"name");
        stripe
            .shard(key)
            .hidden
            .hide(KeyRange::from_key(key), stripe.draw_version());
        let recalled = stripe.recall_head(key, b"name");
        assert!(matches!(recalled, Recalled::Unsure), "{policy:?}");
    }
}

/// Crashes and wrong reads can leave two versions.
#[test]
fn of_two_versions_of_a_name_in_a_set_the_newer_is_found_whichever_slot_it_has() {
    for policy in TABLES.into_iter().filter(|it| *it != PolicyKind::Basic) {
        for slots in [[0, 5], [5, 0], [3, 4], [7, 6]] {
            let device = Hooked::new(vec![0; 16 << 20]);
            let config = |config: &mut Config| config.policy = policy;
            let cache = open(&device, config);
            let stripe = cache.first_stripe();
            let medium = &stripe.medium;
            let key = key(stripe, b"name");
            let set = SetId(key.set(medium.geometry.sets));
            for (slot, (version, metadata)) in slots.into_iter().zip([(5, "old"), (6, "new")]) {
                let fields = Fields {
                    kind: Kind::Head,
                    key,
                    version: Version(version),
                    revision: 0,
                    confirmed: Version(version),
                    span: 0,
                    incomplete: false,
                    total: Some(0),
                    span_pages: 4,
                    mark: 0,
                    group: 0,
                    useless_after: 0,
                    fresh_until: 0,
                    labels: Vec::new(),
                };
                let place = table::place(medium, set, Slot(slot));
                let mut block = vec![0; medium.geometry.block_bytes as usize];
                let metadata = Bytes::from(metadata);
                let secret = &medium.secret;
                encode_record(
                    &mut block,
                    secret,
                    &fields,
                    place,
                    None,
                    b"name",
                    &metadata,
                    &[],
                );
                table::write_slot(medium, set, Slot(slot), &block).unwrap();
            }
            let image = device.inner.to_bytes();
            let what = format!("{policy:?} {slots:?}");
            let walk = |cache: &Cache| {
                let objects = cache.walk().flat_map(|step| step.objects);
                let objects: Vec<Bytes> = objects.map(|it| it.metadata).collect();
                assert_eq!(objects, ["new"], "{what}");
            };
            let peek = |cache: &Cache| {
                let peeked = cache.peek(b"name").wait().map(|it| it.metadata().clone());
                assert_eq!(peeked, Some("new".into()), "{what}");
            };
            let get =
                |cache: &Cache| assert_eq!(found(cache, b"name"), Some("new".into()), "{what}");
            // Each call comes first in a store that has not read the set yet.
            let first: [&dyn Fn(&Cache); 3] = [&walk, &peek, &get];
            for first in first {
                let cache = open(&Hooked::new(image.clone()), config);
                let stripe = cache.first_stripe();
                stripe.shard(key).policy.table_mut().unwrap().unlearn(key);
                first(&cache);
                walk(&cache);
                peek(&cache);
                get(&cache);
            }
        }
    }
}
