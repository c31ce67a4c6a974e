//! A purge that was acknowledged stays true after a kill, a power cut, unreadable sectors and
//! flipped bits, also for names whose newest version was not on disk when the purge came.

use std::sync::Arc;

use hashcache::device::{FaultDevice, MemoryDevice};
use hashcache::{Cache, Put, Rule};

use super::support::{Form, MIB, Value, copy, forms, get, memory, open, quiet};

/// Names of these tests; those that are even have a label from their second put on.
const NAMES: u64 = 24;

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

fn is_labelled(n: u64) -> bool {
    n.is_multiple_of(2)
}

/// Puts round `round` of all names, with the label where `labelled` says so.
fn put_all(cache: &Cache, round: u64, labelled: fn(u64) -> bool) {
    for n in 0..NAMES {
        let value = Value::new(round * 1_000 + n, 700 + 900 * (n as usize % 5));
        let labels = match labelled(n) {
            true => vec![cache.label(b"purged")],
            false => Vec::new(),
        };
        let put = Put {
            labels,
            ..Put::metadata(value.metadata())
        };
        cache.put(&name(n), put, &value.content(&name(n))).unwrap();
    }
}

fn round_of(cache: &Cache, n: u64) -> Option<u64> {
    get(cache, &name(n)).map(|value| value.put / 1_000)
}

fn purge(cache: &Cache) {
    let rule = Rule::label(cache.label(b"purged"));
    cache.remove_matching(&[rule]).wait().unwrap();
}

/// No labelled name answers with anything older than round `oldest`.
fn nothing_older(cache: &Cache, oldest: u64, what: &str) {
    for n in (0..NAMES).filter(|n| is_labelled(*n)) {
        let round = round_of(cache, n);
        assert!(
            round.is_none_or(|round| round >= oldest),
            "{what}: name {n} answers with round {round:?}, purged below {oldest}"
        );
    }
}

/// Opened twice: what the first opening has written must not bring back what it did not serve.
fn nothing_older_after_a_kill(bytes: Vec<u8>, form: Form, oldest: u64, what: &str) {
    let device = copy(bytes);
    let cache = open(quiet(device.clone(), form));
    nothing_older(&cache, oldest, what);
    let again = copy(device.to_bytes());
    nothing_older(&open(quiet(again, form)), oldest, what);
    cache.close();
    nothing_older(&open(quiet(device, form)), oldest, what);
}

#[test]
fn an_older_version_does_not_answer_when_the_purged_one_was_pending_at_a_kill() {
    for form in forms() {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), form));
        put_all(&cache, 1, |_| false);
        assert!(cache.flush().wait());
        put_all(&cache, 2, is_labelled);
        purge(&cache);
        nothing_older(&cache, 3, "before the kill");
        for n in (0..NAMES).filter(|n| !is_labelled(*n)) {
            assert_eq!(round_of(&cache, n), Some(2), "{form:?}: not matched");
        }
        nothing_older_after_a_kill(device.to_bytes(), form, 3, &format!("{form:?}"));
        // A put behind the purge takes the place of what the purge took, and is lost in turn.
        put_all(&cache, 3, |_| false);
        let found = (0..NAMES).filter(|n| round_of(&cache, *n) == Some(3));
        assert_eq!(found.count() as u64, NAMES, "{form:?}");
        nothing_older_after_a_kill(device.to_bytes(), form, 3, &format!("{form:?}, put again"));
        // And it stays when it is written.
        assert!(cache.flush().wait());
        let killed = open(quiet(copy(device.to_bytes()), form));
        let found = (0..NAMES).filter(|n| round_of(&killed, *n) == Some(3));
        assert!(found.count() as u64 + 2 >= NAMES, "{form:?}");
    }
}

#[test]
fn a_version_put_between_the_purge_and_its_end_does_not_hide_what_it_took() {
    for form in forms() {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), form));
        put_all(&cache, 1, |_| false);
        assert!(cache.flush().wait());
        put_all(&cache, 2, is_labelled);
        let rule = Rule::label(cache.label(b"purged"));
        let purged = cache.remove_matching(&[rule]);
        // Before the writing thread has taken the purge up, as far as this thread can tell.
        put_all(&cache, 3, |_| false);
        purged.wait().unwrap();
        nothing_older_after_a_kill(device.to_bytes(), form, 3, &format!("{form:?}"));
    }
}

#[test]
fn an_older_version_does_not_answer_after_a_power_cut_that_follows_a_purge() {
    for form in forms() {
        for written in [false, true] {
            let inner = MemoryDevice::new(16 * MIB);
            let device = Arc::new(FaultDevice::with_volatile_cache(inner));
            let cache = open(quiet(device.clone(), form));
            put_all(&cache, 1, |_| false);
            assert!(cache.flush().wait());
            put_all(&cache, 2, is_labelled);
            if written {
                assert!(cache.cut_batch().wait());
            }
            purge(&cache);
            device.cut_power(|| false);
            let what = format!("{form:?}, batch written: {written}");
            nothing_older_after_a_kill(device.media(), form, 3, &what);
        }
    }
}

#[test]
fn a_soft_purge_of_what_was_pending_leaves_nothing_fresh_that_is_older() {
    for form in forms() {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), form));
        put_all(&cache, 1, |_| false);
        assert!(cache.flush().wait());
        put_all(&cache, 2, is_labelled);
        let rule = Rule::label(cache.label(b"purged")).softly();
        cache.remove_matching(&[rule]).wait().unwrap();
        let stale = |cache: &Cache, n| Some(cache.get(&name(n)).wait()?.is_made_stale());
        assert_eq!(stale(&cache, 0), Some(true));
        let killed = open(quiet(copy(device.to_bytes()), form));
        let mut found = 0;
        for n in (0..NAMES).filter(|n| is_labelled(*n)) {
            assert_ne!(
                stale(&killed, n),
                Some(false),
                "{form:?}: name {n} is fresh"
            );
            found += u64::from(stale(&killed, n).is_some());
        }
        // What a soft purge makes stale is kept.
        assert!(found + 2 >= NAMES / 2, "{form:?}: {found}");
    }
}
