//! Random walks of one shard beside the truth: whatever is put, replaced, removed, damaged, saved
//! and recovered, a lookup finds the current record of a name or none.
//!
//! Names have few tags and few rows, and windows have several records: what happens once in a
//! thousand laps of a large store happens at every step here.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const UNITS: u64 = 4;
const WINDOWS: u64 = 64;
const SEGMENT_WINDOWS: u64 = 8;
const ROWS: u32 = 4;
const NAMES: u64 = 24;

/// One of two tags, and rows as they come.
fn clashing(name: u64) -> KeyHash {
    let hash = key(name);
    KeyHash {
        high: hash.high << 6 >> 6 & !0x1ff | (1 + name % 2),
        low: hash.low,
    }
}

/// A record on the modelled disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Put {
    name: u64,
    version: u64,
    at: u64,
}

/// A checkpoint: rows, each as it was saved, and the head and version when it began.
#[derive(Clone, Default)]
struct Saved {
    head: u64,
    version: u64,
    rows: Vec<Vec<u8>>,
}

struct Walk {
    log: Log,
    random: fastrand::Rng,
    /// In windows.
    head: u64,
    version: u64,
    /// The puts in each window, in order; the lists name them in the same way.
    disk: BTreeMap<u64, Vec<Put>>,
    damaged: BTreeSet<u64>,
    /// Windows whose lists cannot be read any more.
    unlisted: BTreeSet<u64>,
    current: BTreeMap<u64, Put>,
    removed: BTreeMap<u64, u64>,
    /// Names of which a newer record is pending.
    replacing: BTreeSet<u64>,
    saving: Option<Saved>,
    saved: Option<Saved>,
    tells_what_does_not_count: bool,
    found: u64,
    lies: u64,
}

impl Walk {
    fn new(seed: u64, tells_what_does_not_count: bool) -> Self {
        let windows = Windows {
            units: UNITS,
            count: WINDOWS,
        };
        Self {
            log: Log::new(PLAIN, ROWS, windows),
            random: fastrand::Rng::with_seed(seed),
            head: 0,
            version: 0,
            disk: BTreeMap::new(),
            damaged: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            current: BTreeMap::new(),
            removed: BTreeMap::new(),
            replacing: BTreeSet::new(),
            saving: None,
            saved: None,
            tells_what_does_not_count,
            found: 0,
            lies: 0,
        }
    }

    fn position(&self) -> LogPos {
        LogPos(self.head * UNITS)
    }

    /// A batch of a few windows. When it is recorded, some of its records do not count any more: of
    /// two of a name the first, and those that were removed or are being replaced.
    fn write(&mut self) {
        let mut batch: Vec<Put> = Vec::new();
        let mut names = std::mem::take(&mut self.replacing);
        for window in self.head..self.head + self.random.u64(1..=2) {
            for unit in 0..self.random.u64(1..=UNITS) {
                self.version += 1;
                let name = names.pop_first();
                let name = name.unwrap_or_else(|| self.random.u64(..NAMES));
                batch.push(Put {
                    name,
                    version: self.version,
                    at: window * UNITS + unit,
                });
            }
            self.sweep(window);
            self.head = window + 1;
        }
        self.replacing = names;
        let overwritten = self.head.saturating_sub(WINDOWS);
        self.disk.retain(|window, _| *window >= overwritten);
        self.damaged.retain(|at| *at / UNITS >= overwritten);
        self.unlisted.retain(|window| *window >= overwritten);
        let (mut counting, mut others) = (Vec::new(), Vec::new());
        for (n, put) in batch.iter().enumerate() {
            self.disk.entry(put.at / UNITS).or_default().push(*put);
            let is_replaced = batch[n + 1..].iter().any(|it| it.name == put.name);
            match self.random.u8(..8) {
                _ if is_replaced => others.push(*put),
                0 => {
                    self.remove(put.name);
                    others.push(*put);
                }
                1 => {
                    self.replacing.insert(put.name);
                    others.push(*put);
                }
                _ => counting.push(*put),
            }
        }
        self.record(&counting, &others);
    }

    fn record(&mut self, counting: &[Put], others: &[Put]) {
        let head = self.position();
        for put in counting {
            let old = self.current.insert(put.name, *put);
            let knows_old = self.random.bool();
            let replaces = old.filter(|_| knows_old).map(|old| LogPos(old.at));
            let key = clashing(put.name);
            self.log.record(key, LogPos(put.at), replaces, head);
        }
        for put in others.iter().filter(|_| self.tells_what_does_not_count) {
            let key = clashing(put.name);
            self.log.leave_out(key, LogPos(put.at), head);
        }
    }

    fn sweep(&mut self, window: u64) {
        if window.is_multiple_of(SEGMENT_WINDOWS) {
            self.sweep_rows_of(window / SEGMENT_WINDOWS, LogPos(window * UNITS));
        }
    }

    /// The rows that a segment has, of all the segments of a lap.
    fn sweep_rows_of(&mut self, segment: u64, head: LogPos) {
        let segments = WINDOWS / SEGMENT_WINDOWS;
        let row = |part: u64| u32::try_from(u64::from(ROWS) * part / segments).unwrap();
        let part = segment % segments;
        self.log.sweep(row(part)..row(part + 1), head);
    }

    fn remove(&mut self, name: u64) {
        self.replacing.remove(&name);
        self.version += 1;
        self.removed.insert(name, self.version);
        self.current.remove(&name);
        self.log.forget_all(clashing(name), self.position());
    }

    /// A header of a batch is damaged: what lies behind it in its segment is not listed any more.
    fn damage_list(&mut self) {
        let windows: Vec<u64> = self.disk.keys().copied().collect();
        if !windows.is_empty() {
            let first = windows[self.random.usize(..windows.len())];
            let end = (first / SEGMENT_WINDOWS + 1) * SEGMENT_WINDOWS;
            self.unlisted.extend(first..end);
        }
    }

    fn damage(&mut self) {
        let all: Vec<Put> = self.disk.values().flatten().copied().collect();
        if !all.is_empty() {
            self.damaged.insert(all[self.random.usize(..all.len())].at);
        }
    }

    /// As `stripe/lookup` and `stripe/read` do it.
    fn look_up(&mut self, name: u64) {
        if self.replacing.contains(&name) {
            // The pending record answers.
            return;
        }
        let (own, head) = (clashing(name), self.position());
        let candidates = self.log.candidates(own, head);
        for window in candidates.as_slice() {
            let there = self.disk.get(&(window.0 / UNITS)).into_iter().flatten();
            let intact: Vec<Put> = there
                .filter(|put| !self.damaged.contains(&put.at))
                .copied()
                .collect();
            // Should there be several, any could be taken.
            let found: Vec<Put> = intact
                .iter()
                .filter(|it| it.name == name)
                .copied()
                .collect();
            if !found.is_empty() {
                let is_current = |put: &Put| self.is_current(put);
                self.lies += u64::from(!found.iter().all(is_current));
                self.found += 1;
                return;
            }
            let others: Vec<KeyHash> = intact.iter().map(|it| clashing(it.name)).collect();
            if !self.log.explains(own, *window, &others, head) {
                let all = candidates.as_slice().iter();
                all.for_each(|at| self.log.forget(own, *at, head));
                return;
            }
        }
    }

    /// Returns true if `put` is the current record of its name, or one that a recovery knew from a
    /// row, but from no list, and that is newer than what the lists say.
    fn is_current(&self, put: &Put) -> bool {
        let listed = self.current.get(&put.name);
        let newest = listed.map_or(0, |it| it.version);
        let removed = self.removed.get(&put.name).copied().unwrap_or(0);
        let is_unlisted = self.unlisted.contains(&(put.at / UNITS));
        listed == Some(put) || is_unlisted && put.version > newest.max(removed)
    }

    fn save_some(&mut self) {
        let saving = self.saving.get_or_insert_with(|| Saved {
            head: self.head,
            version: self.version,
            rows: Vec::new(),
        });
        let row = u32::try_from(saving.rows.len()).unwrap();
        let mut bytes = Vec::new();
        self.log.save(row..row + 1, &[], &mut bytes);
        saving.rows.push(bytes);
        if row + 1 == ROWS {
            self.saved = self.saving.take();
        }
    }

    /// A crash, and recovery as `store/recover` does it. What it recovers is the truth from then
    /// on.
    fn crash(&mut self) {
        while !self.replacing.is_empty() {
            self.write();
        }
        self.saving = None;
        let end = self.head;
        let saved = self.saved.clone();
        let saved = saved.filter(|it| it.head > 0 && end - it.head < WINDOWS - SEGMENT_WINDOWS);
        let from = match &saved {
            Some(saved) => {
                for (row, bytes) in (0..ROWS).zip(&saved.rows) {
                    self.log.restore(row, bytes);
                }
                self.head = saved.head;
                for (name, version) in &self.removed {
                    if *version > saved.version {
                        self.log
                            .forget_all(clashing(*name), LogPos(saved.head * UNITS));
                    }
                }
                saved.head
            }
            None => {
                LogPolicy::clear(&mut self.log);
                end.saturating_sub(WINDOWS)
            }
        };
        for segment in from / SEGMENT_WINDOWS..=end / SEGMENT_WINDOWS {
            let first = (segment * SEGMENT_WINDOWS).max(from);
            // A list that cannot be read ends the segment.
            let listed_end = (first..end.min((segment + 1) * SEGMENT_WINDOWS))
                .take_while(|window| !self.unlisted.contains(window))
                .last();
            self.head = listed_end.map_or(first, |window| window + 1);
            (first..self.head).for_each(|window| self.replay(window));
        }
        self.log.sweep(0..ROWS, self.position());
        let is_listed = |window: &u64| !self.unlisted.contains(window);
        let listed = self.disk.iter().filter(|(window, _)| is_listed(window));
        let listed = listed.flat_map(|(_, puts)| puts);
        let is_removed = |put: &&Put| {
            self.removed
                .get(&put.name)
                .is_some_and(|it| put.version < *it)
        };
        let listed = listed.filter(|put| !is_removed(put));
        self.current = listed.map(|put| (put.name, *put)).collect();
        // No segment goes on behind a crash.
        self.head = (end / SEGMENT_WINDOWS + 1) * SEGMENT_WINDOWS;
        self.sweep(self.head);
    }

    fn replay(&mut self, window: u64) {
        let lines = self.disk.get(&window).cloned().unwrap_or_default();
        let counts = |n: usize, put: &Put| {
            let is_removed = self
                .removed
                .get(&put.name)
                .is_some_and(|it| put.version < *it);
            !is_removed && lines[n + 1..].iter().all(|it| it.name != put.name)
        };
        let (counting, others): (Vec<_>, Vec<_>) = lines
            .iter()
            .enumerate()
            .partition(|(n, put)| counts(*n, put));
        let head = self.position();
        for (_, put) in counting {
            let at = LogPos(put.at);
            self.log.record(clashing(put.name), at, Some(at), head);
        }
        for (_, put) in others {
            self.log.leave_out(clashing(put.name), LogPos(put.at), head);
        }
    }

    fn step(&mut self) {
        match self.random.u16(..1000) {
            0..300 => self.write(),
            300..360 => {
                let name = self.random.u64(..NAMES);
                self.remove(name);
            }
            360..368 => self.damage(),
            368..370 => self.damage_list(),
            370..500 => self.save_some(),
            500..505 => self.crash(),
            _ => {
                let name = self.random.u64(..NAMES);
                self.look_up(name);
            }
        }
    }
}

/// Lookups that found a record, and those of them that found another one than the current.
fn walks(tells_what_does_not_count: bool) -> (u64, u64) {
    let walk = |seed| {
        let mut walk = Walk::new(seed, tells_what_does_not_count);
        for step in 0..3_000 {
            walk.step();
            let is_honest = !tells_what_does_not_count || walk.lies == 0;
            assert!(is_honest, "seed {seed}, step {step}");
        }
        (walk.found, walk.lies)
    };
    let all = (0..300).map(walk);
    all.fold((0, 0), |(found, lies), it| (found + it.0, lies + it.1))
}

#[test]
fn a_lookup_finds_the_current_record_or_none_and_a_dead_one_if_what_does_not_count_is_not_told() {
    let (found, lies) = walks(true);
    assert!(found > 10_000 && lies == 0, "{found} found, {lies} lies");
    let (_, lies) = walks(false);
    assert!(lies > 100, "{lies} lies");
}

#[test]
fn of_two_names_that_share_an_entry_neither_has_an_older_one() {
    let windows = Windows {
        units: UNITS,
        count: WINDOWS,
    };
    let mut log = Log::new(PLAIN, 1, windows);
    let (one, other) = (clashing(0), clashing(2));
    log.record(one, LogPos(1), None, LogPos(4));
    log.record(other, LogPos(9), None, LogPos(12));
    log.record(one, LogPos(10), None, LogPos(12));
    assert_eq!(found(&log, one, 12), [8]);
    assert_eq!(found(&log, other, 12), [8]);
    assert_eq!(log.entries(), 1);
    // So no older version of one is found if its newest record cannot be read.
    log.forget(one, LogPos(8), LogPos(12));
    assert_eq!(log.entries(), 0);
}

#[test]
fn an_entry_leads_to_its_window_from_any_position_in_it() {
    let windows = Windows {
        units: UNITS,
        count: WINDOWS,
    };
    let mut log = Log::new(PLAIN, 4, windows);
    log.record(key(1), LogPos(6), None, LogPos(8));
    assert_eq!(found(&log, key(1), 8), [4]);
    assert!((4..8).all(|at| log.points_to(key(1), LogPos(at), LogPos(8))));
    assert!(!log.points_to(key(1), LogPos(3), LogPos(8)));
    // The window that begins at the head is the next to be overwritten.
    let lap = WINDOWS * UNITS;
    assert_eq!(found(&log, key(1), lap), [4]);
    assert_eq!(found(&log, key(1), lap + 4), [0; 0]);
}
