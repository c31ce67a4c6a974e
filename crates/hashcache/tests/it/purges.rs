//! A purge that was acknowledged stays true after a kill, a power cut, unreadable sectors and
//! flipped bits, also for names whose newest version was not on disk when the purge came.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashcache::device::{Device, DiskModel, FaultDevice, MemoryDevice, Pace, ThrottleDevice};
use hashcache::{Ban, Cache, Clock, Config, Health, PolicyKind, Put};

use super::support::{
    BadBlocks, Form, Gate, KIB, MIB, POLICIES, Value, copy, forms, get, memory, open, quiet,
};

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
        let labels = if labelled(n) {
            vec![cache.label(b"purged")]
        } else {
            Vec::new()
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
    let ban = Ban::label(cache.label(b"purged"));
    cache.remove_matching(&[ban]).wait().unwrap();
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

/// How many names may have been put out by others that share their place or tag: with `basic`, all
/// names and spans of these tests have 1,280 places.
fn put_out(form: Form) -> u64 {
    match form.policy {
        PolicyKind::Basic => 5,
        _ => 2,
    }
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
        assert!(found.count() as u64 + put_out(form) >= NAMES, "{form:?}");
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
        let ban = Ban::label(cache.label(b"purged"));
        let purged = cache.remove_matching(&[ban]);
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
        let ban = Ban::label(cache.label(b"purged")).softly();
        cache.remove_matching(&[ban]).wait().unwrap();
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
        // Objects that a soft purge makes stale are kept.
        assert!(found + 2 >= NAMES / 2, "{form:?}: {found}");
    }
}

#[test]
fn a_purge_of_tens_of_thousands_of_pending_names_costs_a_block_for_169_of_them_and_few_syncs() {
    const PENDING: u64 = 20_000;
    for form in forms() {
        let is_log = matches!(form.policy, PolicyKind::Log | PolicyKind::LogLru);
        if !is_log {
            continue;
        }
        let device = Arc::new(Gate::new(MemoryDevice::new(256 * MIB)));
        let cache = open(Config {
            memory_bytes: 256 * MIB as u64,
            ..quiet(device.clone(), form)
        });
        let label = cache.label(b"purged");
        // Nothing is on disk before the purge.
        device.shut();
        for n in 0..PENDING {
            let put = Put {
                labels: vec![label],
                ..Put::metadata("m")
            };
            cache.put(&n.to_le_bytes(), put, b"x").unwrap();
        }
        let before = cache.stats();
        assert_eq!(before.batches, 0, "{form:?}: not all is pending");
        let purged = cache.remove_matching(&[Ban::label(label)]);
        device.open();
        purged.wait().unwrap();
        let after = cache.stats();
        let (writes, syncs) = (after.writes - before.writes, after.syncs - before.syncs);
        // Two sets of bans, what the superblock says of removes that the ring overwrites, and
        // batches that were under way.
        assert!(writes <= PENDING.div_ceil(169) + 12, "{form:?}: {writes}");
        assert!(syncs <= 10, "{form:?}: {syncs} syncs");
        assert_eq!(after.checkpoints, before.checkpoints, "{form:?}");
        assert!((0..PENDING).all(|n| cache.get(&n.to_le_bytes()).wait().is_none()));
    }
}

// -- what cannot be read any more -----------------------------------------------------------------

/// Where the journal of a small store lies, its length, and where its areas for bans begin
/// (`docs/FORMAT.md`).
const JOURNAL: usize = 64 * KIB;
const JOURNAL_BYTES: usize = 64 * KIB;
const BLOCK: usize = 4 * KIB;
const AREAS: [usize; 2] = [JOURNAL + 32 * KIB, JOURNAL + 48 * KIB];

/// How the run that made the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

/// The name that [`purged`] removes last: no older block of the ring says that it is gone.
const LAST: u64 = 7;

/// Returns true if a name of [`purged`] was taken away, by its name or by a ban.
fn is_gone(n: u64) -> bool {
    n.is_multiple_of(2) || n.is_multiple_of(5) || n == LAST
}

/// A store of which every second name was purged by its label, every fifth removed by name, with so
/// many removes of other names `before` those and behind them.
fn purged(form: Form, end: End, before: u64, behind: u64) -> Vec<u8> {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), form));
    put_all(&cache, 1, is_labelled);
    assert!(cache.flush().wait());
    let remove = |names: Vec<Vec<u8>>| {
        let removes: Vec<_> = names.iter().map(|name| cache.remove(name)).collect();
        removes.into_iter().for_each(|it| it.wait().unwrap());
    };
    let others = |from: u64, count: u64| (from..from + count).map(|n| n.to_le_bytes().to_vec());
    remove(others(0, before).collect());
    purge(&cache);
    for n in (0..NAMES).filter(|n| n.is_multiple_of(5)) {
        remove(vec![name(n)]);
    }
    remove(others(before, behind).collect());
    remove(vec![name(LAST)]);
    let killed = device.to_bytes();
    cache.close();
    match end {
        End::Closed => device.to_bytes(),
        End::Killed => killed,
    }
}

/// Names that are found. None of them may be among those that are gone.
fn found(cache: &Cache, what: &str) -> u64 {
    let there = |n: &u64| round_of(cache, *n).is_some();
    let there: Vec<u64> = (0..NAMES).filter(there).collect();
    let back: Vec<_> = there.iter().filter(|n| is_gone(**n)).collect();
    assert!(back.is_empty(), "{what}: {back:?} came back");
    there.len() as u64
}

/// Opens `bytes` with those blocks unreadable, and what that leaves once more with the same blocks
/// blank, as a disk gives a sector that it has replaced. Returns how many names are found, and
/// whether the store says that it has forgotten all.
fn open_with_bad_blocks(bytes: &[u8], form: Form, bad: &[usize], what: &str) -> (u64, bool) {
    let bad: Vec<u64> = bad.iter().map(|at| *at as u64).collect();
    let device = Arc::new(BadBlocks::new(
        MemoryDevice::from_bytes(bytes.to_vec()),
        &bad,
    ));
    let cache = open(quiet(device.clone(), form));
    let names = found(&cache, what);
    assert_eq!(cache.health(), Health::InService, "{what}");
    let forgotten = cache.stats().forgotten;
    // The store continues, and objects that are put now stay.
    put_all(&cache, 2, |_| false);
    assert!(cache.flush().wait());
    let mut left = device.inner.to_bytes();
    let again = open(quiet(copy(left.clone()), form));
    let stays = (0..NAMES).filter(|n| round_of(&again, *n) == Some(2));
    assert!(stays.count() as u64 + put_out(form) >= NAMES, "{what}");
    // Not closed: what lies on the disk now is what was written until the bad blocks were read.
    let device = Arc::new(BadBlocks::new(
        MemoryDevice::from_bytes(bytes.to_vec()),
        &bad,
    ));
    let cache = open(quiet(device.clone(), form));
    assert_eq!(found(&cache, what), names);
    left = device.inner.to_bytes();
    for at in bad.into_iter().map(|at| at as usize) {
        if left[at..at + BLOCK] == bytes[at..at + BLOCK] {
            left[at..at + BLOCK].fill(0);
        }
    }
    found(&open(quiet(copy(left), form)), &format!("{what}, replaced"));
    (names, forgotten > 0)
}

#[test]
fn an_unreadable_block_of_the_journal_brings_nothing_back() {
    for form in forms() {
        for end in [End::Closed, End::Killed] {
            // Few: the ring has not wrapped; many: it has, and its blocks are full.
            for (before, behind) in [(0, 0), (400, 400)] {
                if before > 0 && !POLICIES.contains(&form.policy) {
                    continue;
                }
                let bytes = purged(form, end, before, behind);
                let whole = found(&open(quiet(copy(bytes.clone()), form)), "whole");
                assert!(whole + 3 >= (0..NAMES).filter(|n| !is_gone(*n)).count() as u64);
                let mut spared = 0;
                let blocks = (JOURNAL..JOURNAL + JOURNAL_BYTES).step_by(BLOCK);
                for block in blocks.clone() {
                    let what = format!("{form:?} {end:?} {before}: block at {block}");
                    let (names, forgotten) = open_with_bad_blocks(&bytes, form, &[block], &what);
                    assert_eq!(names, if forgotten { 0 } else { whole }, "{what}");
                    spared += u64::from(!forgotten);
                    // Of bans there are two sets, and the table clears slots.
                    let is_in_ring = block < AREAS[0];
                    let is_table = !matches!(form.policy, PolicyKind::Log | PolicyKind::LogLru);
                    assert!(!forgotten || (is_in_ring && !is_table), "{what}");
                    // A checkpoint has what was removed before it.
                    assert!(!forgotten || end == End::Killed, "{what}");
                }
                // The areas for bans, and the part of the ring that was not written yet.
                assert!(spared >= 8, "{form:?} {end:?} {before}: {spared}");
            }
        }
    }
}

#[test]
fn removes_that_a_checkpoint_holds_may_be_lost() {
    for policy in [PolicyKind::Log, PolicyKind::LogLru] {
        let device = copy(purged(policy.into(), End::Closed, 200, 0));
        let cache = open(quiet(device.clone(), policy));
        let whole = found(&cache, "whole");
        // Behind the checkpoint: blocks from before it are no loss any more.
        cache.remove(b"another").wait().unwrap();
        let bytes = device.to_bytes();
        let first = open_with_bad_blocks(&bytes, policy.into(), &[JOURNAL], "the first block");
        assert_eq!(first, (whole, false), "{policy:?}");
    }
}

#[test]
fn one_damaged_set_of_rules_of_two_takes_nothing_with_it() {
    for form in forms() {
        for end in [End::Closed, End::Killed] {
            let bytes = purged(form, end, 0, 0);
            let whole = found(&open(quiet(copy(bytes.clone()), form)), "whole");
            for area in AREAS {
                for at in [0, 20, 40, 60, BLOCK - 1] {
                    let what = format!("{form:?} {end:?}: byte {at} of the set at {area}");
                    let mut damaged = bytes.clone();
                    damaged[area + at] ^= 4;
                    let device = copy(damaged);
                    let cache = open(quiet(device.clone(), form));
                    assert_eq!(found(&cache, &what), whole, "{what}");
                    assert_eq!(cache.stats().forgotten, 0, "{what}");
                    // The other was damaged later: both are whole again by then.
                    let mut damaged = device.to_bytes();
                    damaged[AREAS[0] + AREAS[1] - area + at] ^= 4;
                    assert_eq!(found(&open(quiet(copy(damaged), form)), &what), whole);
                }
            }
        }
    }
}

#[test]
fn with_both_sets_of_rules_damaged_everything_older_is_forgotten() {
    for form in forms() {
        for end in [End::Closed, End::Killed] {
            let what = format!("{form:?} {end:?}");
            let bytes = purged(form, end, 0, 0);
            let mut damaged = bytes.clone();
            AREAS.into_iter().for_each(|area| damaged[area + 40] ^= 4);
            let device = copy(damaged);
            let cache = open(quiet(device.clone(), form));
            // Nor does the index lead to any of it, where it is made of lists and checkpoints.
            let entries = cache.stats().entries;
            let is_log = matches!(form.policy, PolicyKind::Log | PolicyKind::LogLru);
            assert!(!is_log || entries == 0, "{what}: {entries} entries");
            assert_eq!((found(&cache, &what), cache.stats().forgotten), (0, 1));
            // Objects that are put later are kept, also by the openings that follow.
            put_all(&cache, 2, |_| false);
            assert!(cache.flush().wait());
            let again = open(quiet(copy(device.to_bytes()), form));
            let stays = (0..NAMES).filter(|n| round_of(&again, *n) == Some(2));
            assert!(stays.count() as u64 + put_out(form) >= NAMES, "{what}");
            assert_eq!(again.stats().forgotten, 0, "{what}");
            // Unreadable is as bad as damaged.
            let (names, forgotten) = open_with_bad_blocks(&bytes, form, &AREAS, &what);
            assert_eq!((names, forgotten), (0, true), "{what}");
        }
    }
}

/// A device that notes what a power cut in each write to the areas for bans would leave: of all
/// that is not synced only the last sectors.
struct Torn {
    inner: MemoryDevice,
    state: Mutex<TornState>,
}

#[derive(Default)]
struct TornState {
    unsynced: Vec<(usize, Vec<u8>)>,
    images: Vec<Vec<u8>>,
}

impl Device for Torn {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let mut state = self.state.lock().unwrap();
        let first = buffer[..512].to_vec();
        let mut before = vec![0; 512];
        self.inner.read_at(offset, &mut before)?;
        self.inner.write_at(offset, buffer)?;
        // No more than its checksum is new.
        before[..8].copy_from_slice(&first[..8]);
        state.unsynced.push((at, before));
        if (AREAS[0]..JOURNAL + JOURNAL_BYTES).contains(&at) {
            let mut image = self.inner.to_bytes();
            for (at, torn) in &state.unsynced {
                image[*at..at + torn.len()].copy_from_slice(torn);
            }
            state.images.push(image);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.state.lock().unwrap().unsynced.clear();
        Ok(())
    }
}

#[test]
fn a_power_cut_while_rules_are_written_leaves_one_set_whole() {
    for form in forms() {
        let device = Arc::new(Torn {
            inner: MemoryDevice::from_bytes(purged(form, End::Closed, 0, 0)),
            state: Mutex::default(),
        });
        let cache = open(quiet(device.clone(), form));
        let whole = found(&cache, "whole");
        for n in 0..2_u64 {
            let ban = Ban::label(cache.label(&n.to_le_bytes()));
            cache.remove_matching(&[ban]).wait().unwrap();
        }
        let images = std::mem::take(&mut device.state.lock().unwrap().images);
        assert!(images.len() >= 4);
        for (n, image) in images.into_iter().enumerate() {
            let what = format!("{form:?}, write {n}");
            let cache = open(quiet(copy(image), form));
            assert_eq!((found(&cache, &what), cache.stats().forgotten), (whole, 0));
        }
    }
}

/// With a clock that only the disk moves, or nothing, no remove may wait for time to pass.
#[test]
fn by_a_manual_clock_every_remove_ends() {
    for policy in [PolicyKind::Log, PolicyKind::Set] {
        let disk = Arc::new(ThrottleDevice::new(
            memory(32 * MIB),
            DiskModel::HDD_7200,
            Pace::Modelled,
            1,
        ));
        let clock_disk = Arc::clone(&disk);
        let clocks = [
            Clock::manual(|| Duration::ZERO, || Duration::ZERO),
            Clock::manual(move || clock_disk.busy(), || Duration::ZERO),
        ];
        for clock in clocks {
            let cache = open(Config {
                clock,
                ..quiet(disk.clone(), policy)
            });
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // More than the ring of the journal has room for.
                for n in 0..2_000_u32 {
                    cache.remove(&n.to_le_bytes()).wait().unwrap();
                }
                done.send(()).unwrap();
            });
            let ended = is_done.recv_timeout(Duration::from_secs(60));
            assert!(ended.is_ok(), "{policy:?}: a remove waits");
        }
    }
}
