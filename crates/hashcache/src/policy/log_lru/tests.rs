//! Lookups in `log_lru`, whichever positions are in memory, among the unsaved positions and in the
//! checkpoint.

use super::*;
use crate::key::Secret;

fn key(n: u64) -> KeyHash {
    Secret::from_bytes([1; 32]).name(&n.to_le_bytes())
}

/// A policy with the checkpoint that counts for it.
struct Disk {
    log: LogLru,
    saved: Vec<u8>,
}

impl Disk {
    fn new(rows: u32, capacity: u64, held: usize, unsaved_max: usize) -> Self {
        let log = LogLru::new(false, rows, capacity, held, unsaved_max);
        let saved = Vec::new();
        Self { log, saved }
    }

    fn grouped(rows: u32, capacity: u64, held: usize, unsaved_max: usize) -> Self {
        let log = LogLru::new(true, rows, capacity, held, unsaved_max);
        let saved = Vec::new();
        Self { log, saved }
    }

    fn saved_row(&self, row: u32) -> &[u8] {
        let length = saved_row_bytes(self.log.grouped);
        let at = row as usize * length;
        self.saved.get(at..at + length).unwrap_or_default()
    }

    fn candidates(&mut self, key: KeyHash, head: u64) -> Candidates {
        let head = LogPos(head);
        match self.log.locate(key, head) {
            Located::Log(candidates) => candidates,
            Located::Displaced(row) => self.log.resolve(key, self.saved_row(row), head),
            _ => Candidates::NONE,
        }
    }

    fn found(&mut self, key: KeyHash, head: u64) -> Vec<u64> {
        let candidates = self.candidates(key, head);
        candidates.as_slice().iter().map(|at| at.0).collect()
    }

    fn run(&mut self, n: u64, at: u64, head: u64) -> u8 {
        self.candidates(key(n), head).run(LogPos(at))
    }

    fn put_with_run(&mut self, n: u64, at: u64, run: u8) {
        self.put(n, at);
        self.log.set_run(key(n), LogPos(at), run, LogPos(at + 1));
    }

    fn is_displaced(&mut self, key: KeyHash, head: u64) -> bool {
        matches!(self.log.locate(key, LogPos(head)), Located::Displaced(_))
    }

    fn put(&mut self, n: u64, at: u64) {
        self.log.record(key(n), LogPos(at), None, LogPos(at + 1));
    }

    /// The rows that the checkpoint under way has saved; `between` is done in front of each.
    fn pass(&mut self, mut between: impl FnMut(&mut Self)) -> Vec<u8> {
        self.log.save_begins();
        let mut out = Vec::new();
        for row in 0..self.log.rows() {
            between(self);
            let old = self.saved_row(row).to_vec();
            self.log.save(row..row + 1, &old, &mut out);
        }
        out
    }

    fn save(&mut self) {
        self.saved = self.pass(|_| ());
        self.log.save_counts();
    }
}

#[test]
fn half_of_the_positions_make_31_bits_a_slot_and_saved_it_is_47() {
    assert_eq!(row_bits(false, 4), 31 * 8);
    assert_eq!(saved_row_bytes(false), 47);
    let log = LogLru::new(false, 1000, 1 << 20, 4, 0);
    let mut out = Vec::new();
    log.entries.save(0..8, &mut out);
    log.positions.save(0..8, &mut out);
    // Two rows' worth of positions: eight of them.
    assert_eq!(out.len() * 8, 8 * 15 + 8 * 32);
}

/// With its check behind it a saved row is 56 bytes: what stores have room for (docs/FORMAT.md).
#[test]
fn grouped_half_of_the_positions_make_35_bits_a_slot_and_saved_it_is_52() {
    assert_eq!(row_bits(true, 4), 35 * 8);
    assert_eq!(saved_row_bytes(true), 52);
    let log = LogLru::new(true, 1000, 1 << 20, 4, 0);
    let mut out = Vec::new();
    log.entries.save(0..8, &mut out);
    log.positions.save(0..8, &mut out);
    assert_eq!(out.len() * 8, 8 * 15 + 8 * 40);
    // Positions that wait for a checkpoint take no more memory than without groups.
    let ungrouped = LogLru::new(false, 1000, 1 << 20, 4, 500).unsaved.bytes();
    let grouped = LogLru::new(true, 1000, 1 << 20, 4, 500).unsaved.bytes();
    assert_eq!(grouped, ungrouped);
}

#[test]
fn a_run_goes_where_its_position_goes_and_comes_back_with_it() {
    let mut disk = Disk::grouped(1, 10_000, 4, 100);
    for (n, run) in (0..8).zip(1..) {
        disk.put_with_run(n, n * 10, run);
    }
    let all_there = |disk: &mut Disk| {
        (0..8)
            .zip(1..)
            .all(|(n, run)| disk.run(n, n * 10, 80) == run)
    };
    // In the rows, among the unsaved positions, in the checkpoint, and in the one that was merged
    // with it.
    assert!(all_there(&mut disk));
    disk.save();
    assert_eq!(disk.log.unsaved(), 0);
    assert!(disk.is_displaced(key(0), 80));
    assert!(all_there(&mut disk));
    disk.save();
    assert!(all_there(&mut disk));
    // Used: the reader hands back what the saved row said.
    let run = disk.run(0, 0, 80);
    disk.log.touch(key(0), LogPos(0), LogPos(80));
    disk.log.set_run(key(0), LogPos(0), run, LogPos(80));
    assert!(!disk.is_displaced(key(0), 80));
    assert!(all_there(&mut disk));
    // What memory has of it is not overwritten by a use.
    disk.log.touch(key(7), LogPos(70), LogPos(80));
    assert!(all_there(&mut disk));
    // Another object in the place of one has none.
    disk.put(8, 80);
    assert_eq!((disk.run(8, 80, 81), disk.run(0, 0, 81)), (0, 1));
}

#[test]
fn without_room_for_runs_none_is_kept_wherever_the_position_is() {
    let mut disk = Disk::new(1, 10_000, 4, 100);
    (0..8).for_each(|n| disk.put_with_run(n, n * 10, 9));
    let none = |disk: &mut Disk| (0..8).all(|n| disk.run(n, n * 10, 80) == 0);
    assert!(none(&mut disk));
    disk.save();
    assert!(none(&mut disk));
}

#[test]
fn while_all_positions_are_in_memory_so_are_their_runs() {
    let mut disk = Disk::grouped(1, 10_000, 4, 0);
    disk.log.widen();
    for (n, run) in (0..8).zip(20..) {
        disk.put_with_run(n, n * 10, run);
        assert_eq!(disk.run(n, n * 10, 80), run);
    }
    disk.save();
    disk.log.narrow();
    for (n, run) in (0..8).zip(20..) {
        let saved = saved_run(saved_code(run));
        let expected = if n < 4 { saved } else { run };
        assert_eq!(disk.run(n, n * 10, 80), expected);
    }
}

#[test]
fn what_the_head_has_passed_is_not_live_even_before_it_is_swept() {
    let mut disk = Disk::new(1, 1_000, 4, 100);
    for n in 0..4 {
        disk.put(n, 100 + n * 10);
    }
    let live = |head| disk.log.live(LogPos(head));
    assert_eq!([500, 1_105, 1_125, 1_200].map(live), [4, 3, 1, 0]);
    assert_eq!(disk.log.entries(), 4);
    // Displaced and saved, they count until their generation tells.
    for n in 4..8 {
        disk.put(n, 900 + n);
    }
    disk.save();
    let live = |head| disk.log.live(LogPos(head));
    assert_eq!([910, 1_200, 1_905, 2_000].map(live), [8, 8, 6, 0]);
}

#[test]
fn what_is_displaced_is_found_among_unsaved_positions_then_in_the_checkpoint() {
    let mut disk = Disk::new(1, 10_000, 4, 100);
    for n in 0..8 {
        disk.put(n, n * 10);
    }
    let all_found = |disk: &mut Disk| (0..8).all(|n| disk.found(key(n), 80).contains(&(n * 10)));
    assert!(all_found(&mut disk));
    assert!((0..8).all(|n| !disk.is_displaced(key(n), 80)));
    assert_eq!(disk.log.unsaved(), 4);
    disk.save();
    assert_eq!(disk.log.unsaved(), 0);
    assert!(all_found(&mut disk));
    let displaced = (0..8).filter(|n| disk.is_displaced(key(*n), 80)).count();
    assert_eq!(displaced, 4);
    // Once more: now they are in the checkpoint before.
    disk.save();
    assert!(all_found(&mut disk));
}

#[test]
fn what_is_used_comes_back_into_memory_and_the_least_used_goes() {
    let mut disk = Disk::new(1, 10_000, 4, 100);
    for n in 0..8 {
        disk.put(n, n * 10);
    }
    disk.save();
    disk.log.touch(key(0), LogPos(0), LogPos(80));
    assert!(!disk.is_displaced(key(0), 80));
    assert_eq!(disk.found(key(0), 80), [0]);
    disk.put(8, 80);
    assert_eq!(disk.found(key(1), 81), [0; 0]);
    assert_eq!(disk.found(key(0), 81), [0]);
    assert_eq!(disk.log.early_evictions(), 1);
}

/// A displaced entry is known by its lap alone: to forget one of a tag is to forget the older ones
/// too.
#[test]
fn an_older_version_does_not_outlive_a_newer_one_that_is_taken_for_another_name() {
    // One row, of which one position is held.
    let mut disk = Disk::new(1, 1_000, 1, 100);
    let tag = key(0).tag(TAG_BITS);
    let same = (1..).find(|n| key(*n).tag(TAG_BITS) == tag).unwrap();
    let mut others = (same + 1..).filter(|n| key(*n).tag(TAG_BITS) != tag);
    let (one, two) = (others.next().unwrap(), others.next().unwrap());
    for (n, at) in [
        (0, 900),
        (0, 1_010),
        (same, 1_020),
        (one, 1_030),
        (two, 1_040),
    ] {
        disk.put(n, at);
    }
    disk.save();
    assert_eq!(disk.found(key(0), 1_041), [1_020, 1_010, 900]);
    let head = LogPos(1_051);
    disk.log
        .record(key(same), LogPos(1_050), Some(LogPos(1_020)), head);
    assert_eq!(disk.found(key(0), 1_051), [1_050]);
}

/// The run of what is put at `at`.
fn run_of(at: u64) -> u8 {
    (at % 255) as u8 + 1
}

/// 40 numbers of names; if they are `alike`, their keys have four tags in all.
fn forty(alike: bool) -> Vec<u64> {
    let is_one = |n: &u64| !alike || key(*n).tag(TAG_BITS) < 5;
    (0..).filter(is_one).take(40).collect()
}

/// Puts, uses and checkpoints at random; some of these are given up, and much happens while they
/// are written.
fn no_older_version_outlives_a_newer_one(held: usize, unsaved_max: usize, alike: bool) {
    let mut random = fastrand::Rng::with_seed(held as u64 * 100 + unsaved_max as u64);
    let names = forty(alike);
    let key_of = |n: usize| key(names[n]);
    let mut disk = Disk::grouped(3, 1 << 20, held, unsaved_max);
    let (mut newest, mut put_at) = ([0u64; 40], std::collections::HashMap::new());
    let mut at = 0u64;
    let mut hits = 0;
    let mut step = |disk: &mut Disk, random: &mut fastrand::Rng| {
        at += 1;
        let n = random.usize(..40);
        disk.put_with_run(names[n], at, run_of(at));
        newest[n] = at;
        put_at.insert(at, n);
        let asked = random.usize(..40);
        let located = disk.candidates(key_of(asked), at + 1);
        let candidates: Vec<u64> = located.as_slice().iter().map(|at| at.0).collect();
        for at in located.as_slice() {
            let run = located.run(*at);
            let exact = run_of(at.0);
            // None where a use came late; from a checkpoint it may be rounded.
            assert!(
                run == 0 || run == exact || run == saved_run(saved_code(exact)),
                "{run} for {exact}"
            );
        }
        let own = candidates.iter().find(|at| put_at[*at] == asked);
        if let Some(own) = own.copied() {
            assert_eq!(
                own, newest[asked],
                "name {asked} at {at}, {held} {unsaved_max}"
            );
            hits += 1;
            let head = LogPos(at + 1);
            let run = located.run(LogPos(own));
            disk.log.touch(key_of(asked), LogPos(own), head);
            disk.log.set_run(key_of(asked), LogPos(own), run, head);
            // A use that was under way for long: it may be gone, but there is no newer one.
            let late = random.usize(..40);
            if newest[late] > 0 {
                disk.log.touch(key_of(late), LogPos(newest[late]), head);
            }
        }
        if random.u8(..50) == 0 {
            let gone = random.usize(..40);
            disk.log.forget_all(key_of(gone), LogPos(at + 1));
            // A reader that read it before is not believed after it was removed.
            newest[gone] = 0;
            assert_eq!(disk.found(key_of(gone), at + 1), [0; 0]);
        }
    };
    for _ in 0..4_000 {
        (0..random.usize(..20)).for_each(|_| step(&mut disk, &mut random));
        let saved = disk.pass(|disk| (0..3).for_each(|_| step(disk, &mut random)));
        if random.bool() {
            disk.saved = saved;
            disk.log.save_counts();
        }
    }
    assert!(hits > 1_000, "{hits}");
}

const SHARES: [(usize, usize); 5] = [(4, 1000), (1, 1000), (7, 1000), (4, 3), (2, 0)];

#[test]
fn an_older_version_never_outlives_a_newer_one() {
    for (held, unsaved_max) in SHARES {
        no_older_version_outlives_a_newer_one(held, unsaved_max, false);
    }
}

#[test]
fn an_older_version_never_outlives_a_newer_one_whichever_names_have_equal_tags() {
    for (held, unsaved_max) in SHARES {
        no_older_version_outlives_a_newer_one(held, unsaved_max, true);
    }
}

/// One row of eight names, of which one position is held and seven are saved; the names are those
/// of the numbers from `first` on, put from `at` on.
fn row_of_eight(first: u64, at: u64) -> Disk {
    let mut disk = Disk::new(1, 1_000, 1, 100);
    (0..8).for_each(|n| disk.put(first + n, at + n * 10));
    disk.save();
    disk
}

#[test]
fn a_saved_position_is_that_of_the_entry_it_was_saved_for_and_of_no_other() {
    // The row again with names of the lap before, and with other names of the same lap.
    for (first, at) in [(0, 105), (100, 1_105)] {
        let mut disk = row_of_eight(0, 1_100);
        let head = 1_200;
        assert_eq!(disk.found(key(0), head), [1_100]);
        disk.saved = row_of_eight(first, at).saved;
        for n in 0..8 {
            let own = 1_100 + n * 10;
            let found = disk.found(key(n), head);
            assert!(
                found.iter().all(|it| *it == own),
                "{first} {at}: {n} at {found:?}"
            );
        }
        // An object that the row lacks is forgotten when the next checkpoint is made of the row.
        disk.save();
        assert_eq!(disk.log.entries(), 1, "{first} {at}");
        assert_eq!(disk.found(key(7), head), [1_170]);
    }
}

#[test]
fn where_the_checkpoint_is_lost_so_is_what_was_displaced_and_no_more() {
    let mut disk = Disk::new(1, 10_000, 4, 100);
    for n in 0..8 {
        disk.put(n, n * 10);
    }
    disk.save();
    disk.saved.clear();
    disk.save();
    assert!((0..4).all(|n| disk.found(key(n), 80).is_empty()));
    assert!((4..8).all(|n| disk.found(key(n), 80) == [n * 10]));
    assert_eq!(disk.log.entries(), 4);
}

#[test]
fn what_finds_no_room_to_wait_is_forgotten() {
    let mut disk = Disk::new(1, 10_000, 4, 2);
    for n in 0..8 {
        disk.put(n, n * 10);
    }
    let found = (0..8).filter(|n| disk.found(key(*n), 80) == [n * 10]);
    assert_eq!(Vec::from_iter(found), [0, 1, 4, 5, 6, 7]);
}

#[test]
fn saved_rows_come_back_and_leave_what_is_displaced_where_it_is() {
    let mut disk = Disk::new(64, 100_000, 4, 1000);
    for n in 0..450 {
        disk.put(n, n);
    }
    disk.save();
    let mut restored = Disk::new(64, 100_000, 4, 0);
    restored.saved.clone_from(&disk.saved);
    restored.log.restore(0, &disk.saved);
    for n in 0..450 {
        assert_eq!(restored.found(key(n), 450), disk.found(key(n), 450));
    }
    let displaced = (0..450).filter(|n| restored.is_displaced(key(*n), 450));
    assert!(displaced.count() > 100);
}

#[test]
fn another_share_of_positions_reads_the_same_checkpoint() {
    let mut disk = Disk::new(64, 100_000, 4, 1000);
    for n in 0..450 {
        disk.put(n, n);
    }
    disk.save();
    for held in 1..8 {
        let mut restored = Disk::new(64, 100_000, held, 0);
        restored.saved.clone_from(&disk.saved);
        restored.log.restore(0, &disk.saved);
        assert!((0..450).all(|n| restored.found(key(n), 450) == disk.found(key(n), 450)));
    }
}

#[test]
fn swept_every_lap_no_generation_ever_meets_itself() {
    let mut disk = Disk::new(2, 100, 2, 100);
    (0..10).for_each(|n| disk.put(n, n));
    disk.save();
    for lap in 1..40u64 {
        for part in 0..2u32 {
            let head = LogPos(lap * 100 + 50 * u64::from(part) + 11);
            disk.log.sweep(part..part + 1, head);
        }
        let head = lap * 100 + 99;
        for n in 0..10 {
            assert_eq!(disk.found(key(n), head), [0; 0], "lap {lap}");
        }
    }
    assert_eq!(disk.log.entries(), 0);
}

/// As for `log` with one row, though the order is that of use and some entries are only known to be
/// passed a lap late.
#[test]
fn it_reaches_86_percent_of_a_full_log_at_load_1() {
    let rows = 1_000;
    let live = u64::from(rows) * 8;
    let mut disk = Disk::new(rows, live, 4, rows as usize * 4);
    for n in 0..live * 4 {
        if n % (live / 50) == 0 {
            let part = u32::try_from(n / (live / 50) % 50).unwrap();
            disk.log
                .sweep(part * rows / 50..(part + 1) * rows / 50, LogPos(n));
        }
        if n % (live / 10) == 0 {
            disk.save();
        }
        disk.put(n, n);
    }
    let head = live * 4;
    let reached = (head - live + 1..head).filter(|n| disk.found(key(*n), head).contains(n));
    let share = reached.count() as f64 / live as f64;
    assert!((0.84..0.88).contains(&share), "{share}");
}

#[test]
fn a_replay_of_what_is_known_changes_nothing() {
    let mut disk = Disk::new(4, 10_000, 4, 100);
    (0..20).for_each(|n| disk.put(n, n * 10));
    disk.save();
    let found: Vec<_> = (0..20).map(|n| disk.found(key(n), 200)).collect();
    for n in 0..20 {
        let at = LogPos(n * 10);
        if disk.found(key(n), 200).contains(&at.0) {
            disk.log.record(key(n), at, Some(at), LogPos(200));
        }
    }
    for (n, found) in (0..20).zip(found) {
        assert_eq!(disk.found(key(n), 200), found, "{n}");
    }
}

#[test]
fn an_older_version_that_was_read_does_not_outlive_the_newer_one() {
    for touched in [10, 20] {
        let mut disk = Disk::new(1, 10_000, 7, 100);
        // Two versions of one name, of which the put of the second did not know the first.
        disk.put(1, 10);
        disk.put(1, 20);
        for n in 2..8 {
            disk.put(n, 10 * (n + 1));
        }
        assert_eq!(disk.found(key(1), 100), [20, 10]);
        for n in 8..30 {
            let head = LogPos(10 * (n + 1));
            disk.log.touch(key(1), LogPos(touched), head);
            disk.put(n, head.0);
            let found = disk.found(key(1), head.0 + 1);
            assert!(
                !found.contains(&10) || found.contains(&20),
                "{n}: {found:?}"
            );
        }
    }
}
