//! Bans: objects that are removed, or made stale, without naming each object.
//!
//! A ban states: every object with this label, or with a name with this prefix, is gone (or, for a
//! soft ban, stale) if it is older than the version of the ban. It is in force at once, because
//! every answer is checked against the bans: no object is searched for or overwritten. `cache`
//! makes bans, `stripe` checks them, `writer` writes them with `disk/journal` and decides when a
//! ban can be forgotten.
//!
//! ```text
//! made ─▶ in force ─▶ drained ──────▶ settled ──────────▶ outlived ─▶ forgotten
//!                     puts that had   what was pending    nothing     in memory; on disk when
//!                     begun are over  then is on disk     older left  the next ban is written
//! ```
//!
//! A ban is *outlived* when no object older than it can be read any more. In a log that is when the
//! head has wrapped to the position that it had when the ban was settled; the Disk Table has no
//! head, so `writer` reads it set by set and clears the objects that bans have removed.
//!
//! Too many bans are merged into fewer and wider bans: bans within the same prefix become a ban on
//! that prefix, as their makers specified, and if no two bans are within the same prefix, all
//! become a single ban on everything.
//!
//! Invariants: bans are added in version order, so an object older than a ban is not spared by a
//! later ban; a ban is forgotten only when it could match nothing.
//! Cost: for records newer than all bans, a load; otherwise once for each record that stays in
//! memory, a lock that readers share, a lookup for each label, and a pass over the name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::format::{BanLine, Fields, Kind, Prefix, Select};
use crate::key::{PrefixHasher, Secret};
use crate::memory::{Budget, Marked, Reservation, marked};
use crate::object::Version;
use crate::record::Record;

/// Most bans in force.
pub const MAX_BANS: usize = 4096;
/// Set in [`Record::judged`] if a record was made stale: the other bits are the version below which
/// it must have been confirmed. If not set: no ban up to this version matches the record. Versions
/// are below 2^62.
const MADE_STALE: u64 = 1 << 63;
/// Memory for a ban, rounded up.
const BAN_BYTES: u64 = 256;
/// The label of an object with more labels than there is room for: every label could be among them.
pub(crate) const LABEL_ANY: u64 = 0;

/// Groups objects that are removed together. Opaque: keyed with the store secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(pub(crate) u64);

/// Selects the objects that [`crate::Cache::remove_matching`] removes: by a label, or by a name
/// prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    select: Selected,
    within: Vec<u8>,
    soft: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Selected {
    Label(Label),
    Prefix(Vec<u8>),
}

impl Ban {
    /// Objects that were put with this label.
    pub fn label(label: Label) -> Self {
        Self::new(Selected::Label(label))
    }

    /// Objects with names that start with `prefix`; all objects if it is empty. At most
    /// [`crate::MAX_NAME`] bytes count, because no name is longer.
    pub fn prefix(prefix: &[u8]) -> Self {
        let prefix = &prefix[..prefix.len().min(crate::object::MAX_NAME)];
        Self::new(Selected::Prefix(prefix.to_vec()))
    }

    /// The object with this name, and objects with names that continue it with a zero byte.
    pub fn name(name: &[u8]) -> Self {
        let mut prefix = name[..name.len().min(crate::object::MAX_NAME)].to_vec();
        prefix.push(0);
        Self::new(Selected::Prefix(prefix))
    }

    fn new(select: Selected) -> Self {
        Self {
            select,
            within: Vec::new(),
            soft: false,
        }
    }

    /// If there are too many bans, this ban may become a ban on all names with `prefix`, which must
    /// be a prefix of all names that it selects; without this call, a ban on everything.
    #[must_use]
    pub fn within(mut self, prefix: &[u8]) -> Self {
        self.within = prefix[..prefix.len().min(crate::object::MAX_NAME)].to_vec();
        self
    }

    /// Makes matching objects stale ([`crate::Hit::is_made_stale`]) instead of removing them.
    #[must_use]
    pub fn softly(mut self) -> Self {
        self.soft = true;
        self
    }

    /// A ban on everything older than `version`.
    pub(crate) fn everything(version: u64) -> BanLine {
        BanLine {
            select: Select::Prefix(EVERYTHING),
            within: EVERYTHING,
            soft: false,
            version,
        }
    }

    pub(crate) fn line(&self, secret: &Secret, version: Version) -> BanLine {
        let (select, within) = match &self.select {
            Selected::Label(label) => (Select::Label(label.0), &self.within[..]),
            // A ban with a wrong `within` prefix would never be found for the names, so ignore the
            // prefix.
            Selected::Prefix(prefix) => (
                Select::Prefix(hashed(secret, prefix)),
                if prefix.starts_with(&self.within) {
                    &self.within[..]
                } else {
                    &[]
                },
            ),
        };
        BanLine {
            select,
            within: hashed(secret, within),
            soft: self.soft,
            version: version.0,
        }
    }
}

fn hashed(secret: &Secret, bytes: &[u8]) -> Prefix {
    let mut hasher = secret.prefix_hasher();
    hasher.write(bytes);
    let length = u16::try_from(bytes.len()).expect("cut to the longest name and one");
    prefix(length, hasher.finish())
}

/// Effect of a ban on matching objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Gone,
    Stale,
}

/// Result of checking an object against the bans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BanVerdict {
    pub(crate) gone: bool,
    /// Made stale, and not confirmed since.
    pub(crate) stale: bool,
}

impl BanVerdict {
    pub(crate) fn is_barred(self) -> bool {
        self.gone || self.stale
    }
}

/// Versions below these are gone, or stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limits {
    gone: u64,
    stale: u64,
}

impl Limits {
    fn raise(&mut self, other: Self) {
        self.gone = self.gone.max(other.gone);
        self.stale = self.stale.max(other.stale);
    }
}

/// The stage of a ban until it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BanStage {
    InForce,
    /// Puts that had started before the ban have finished. The value is the number of records
    /// queued by then: the older records among them are still to be written.
    Drained(u64),
    /// These records are written, as of this time; the segment with this stamp was open.
    Settled(u64, Duration),
}

struct BanState {
    version: u64,
    within: Prefix,
    stage: BanStage,
    _reservation: Option<Reservation>,
}

type LineKey = (Select, bool);

#[derive(Default)]
struct Table {
    lines: HashMap<LineKey, BanState>,
    /// For each prefix that bans have as `within` or as their own: the lengths of those bans.
    inner: HashMap<Prefix, BTreeSet<u16>>,
    /// The lengths of the keys in `inner`, and how many keys have each length.
    lengths: BTreeMap<u16, usize>,
    /// The limits over all labels.
    any_label: Limits,
}

/// The bans in force on a device.
pub(crate) struct Bans {
    /// The highest version of any ban so far. Records that are not older need no check.
    newest: AtomicU64,
    table: RwLock<Table>,
    most: usize,
    secret: Secret,
}

impl Bans {
    /// Holds at most `most` bans.
    pub(crate) fn new(secret: &Secret, most: usize) -> Self {
        Self {
            newest: AtomicU64::new(0),
            table: RwLock::default(),
            // Room for the widest bans and a few others.
            most: most.max(8),
            secret: secret.clone(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().expect("no holder of this lock panics")
    }

    /// Forgetting bans releases memory, which wakes callers that wait for memory: this must not
    /// happen under the lock, because each lookup takes it.
    fn write(&self) -> Marked<RwLockWriteGuard<'_, Table>> {
        marked(self.table.write().expect("no holder of this lock panics"))
    }

    /// Most bans before they are merged.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any() || self.read().lines.is_empty()
    }

    /// Bans in force.
    pub(crate) fn count(&self) -> usize {
        self.read().lines.len()
    }

    /// Bans in force within each of `prefixes`, as their makers specified ([`Ban::within`]).
    pub(crate) fn count_within(&self, prefixes: &[&[u8]]) -> Vec<usize> {
        let mut counts: HashMap<Prefix, usize> = HashMap::new();
        for ((select, _), state) in &self.read().lines {
            let own = match select {
                // A ban on a whole prefix is within that prefix.
                Select::Prefix(prefix) if state.within.length == 0 => *prefix,
                _ => state.within,
            };
            *counts.entry(own).or_default() += 1;
        }
        let count = |bytes: &&[u8]| counts.get(&hashed(&self.secret, bytes)).copied();
        prefixes.iter().map(|it| count(it).unwrap_or(0)).collect()
    }

    /// Returns true if there was ever a ban.
    pub(crate) fn any(&self) -> bool {
        self.newest.load(Ordering::Acquire) > 0
    }

    // -- judging -------------------------------------------------------------------------------

    /// Checks `record` against the bans; if no ban matches, the result is cached in the record.
    ///
    /// The record remembers that it was made stale. A caller that holds it may check again, or
    /// write new metadata for it, after the ban was forgotten: then nothing else would tell that it
    /// is not fresh.
    pub(crate) fn judge(&self, record: &Record) -> BanVerdict {
        let newest = self.newest.load(Ordering::Acquire);
        let fields = &record.fields;
        let known = record.judged.load(Ordering::Relaxed);
        let (asked_upto, made_stale_below) = match known & MADE_STALE {
            0 => (known, 0),
            _ => (0, known & !MADE_STALE),
        };
        if fields.version.0 >= newest || asked_upto >= newest {
            return BanVerdict::default();
        }
        let limits = self.limits(fields, &record.name);
        let stale_below = limits.stale.max(made_stale_below);
        let judged = BanVerdict {
            gone: fields.version.0 < limits.gone,
            stale: fields.confirmed.0 < stale_below,
        };
        if judged.stale {
            let judged = stale_below | MADE_STALE;
            record.judged.store(judged, Ordering::Relaxed);
        } else if !judged.gone {
            record.judged.store(newest, Ordering::Relaxed);
        }
        judged
    }

    fn limits(&self, fields: &Fields, name: &[u8]) -> Limits {
        // Spans count if their head does.
        if fields.kind == Kind::Span {
            return Limits::default();
        }
        let table = self.read();
        let mut limits = table.of_name(&self.secret, name);
        for label in &fields.labels {
            limits.raise(table.of_label(*label));
        }
        limits
    }

    /// Checks only the labels of `record`. If a ban matches by name, all older versions of that
    /// name match, too; with a label, older versions need not have it.
    pub(crate) fn judge_labels(&self, record: &Record) -> BanVerdict {
        let fields = &record.fields;
        if fields.labels.is_empty() || fields.version.0 >= self.newest.load(Ordering::Acquire) {
            return BanVerdict::default();
        }
        let table = self.read();
        let of_name = table.of_name(&self.secret, &record.name);
        let mut of_labels = Limits::default();
        for label in &fields.labels {
            of_labels.raise(table.of_label(*label));
        }
        let between = |version: Version, name: u64, label: u64| (name..label).contains(&version.0);
        BanVerdict {
            gone: between(fields.version, of_name.gone, of_labels.gone),
            stale: between(fields.confirmed, of_name.stale, of_labels.stale),
        }
    }

    /// Returns true if a ban may hide a put of `name` that starts at `version`, with labels that
    /// are not known yet.
    pub(crate) fn may_bar(&self, name: &[u8], version: Version) -> bool {
        if version.0 >= self.newest.load(Ordering::Acquire) {
            return false;
        }
        let table = self.read();
        let mut limits = table.of_name(&self.secret, name);
        limits.raise(table.any_label);
        version.0 < limits.gone.max(limits.stale)
    }

    /// Returns true if a ban removes everything with this version, whatever the name and labels.
    pub(crate) fn take_all(&self, version: Version) -> bool {
        if version.0 >= self.newest.load(Ordering::Acquire) {
            return false;
        }
        version.0 < self.read().of(Select::Prefix(EVERYTHING)).gone
    }

    // -- changing ------------------------------------------------------------------------------

    /// Puts `lines` in force.
    pub(crate) fn add(&self, lines: &[BanLine], budget: &Budget) {
        self.add_with(lines, reserve(lines.len(), budget));
    }

    /// As [`Bans::add`], with memory that was reserved before ([`reserve`]), for a caller that
    /// holds a lock.
    pub(crate) fn add_with(&self, lines: &[BanLine], reserved: Vec<Option<Reservation>>) {
        let mut table = self.write();
        for (line, reservation) in lines.iter().zip(reserved) {
            table.add(*line, reservation);
        }
        while table.lines.len() > self.most {
            table.widen();
        }
        let newest = lines.iter().map(|line| line.version).max().unwrap_or(0);
        self.newest.fetch_max(newest, Ordering::AcqRel);
    }

    /// Advances the stage of bans: puts in progress are not older than `begun`, `come` records have
    /// been queued, all records with numbers below `taken` are written, and the segment with
    /// `stamp` is open.
    pub(crate) fn settle(
        &self,
        begun: Version,
        come: u64,
        taken: u64,
        (stamp, now): (u64, Duration),
    ) {
        let next = |state: &BanState| match state.stage {
            BanStage::InForce if state.version > begun.0 => None,
            BanStage::InForce if come > taken => Some(BanStage::Drained(come)),
            BanStage::InForce => Some(BanStage::Settled(stamp, now)),
            BanStage::Drained(come) if come <= taken => Some(BanStage::Settled(stamp, now)),
            _ => None,
        };
        if !self.read().lines.values().any(|it| next(it).is_some()) {
            return;
        }
        for state in self.write().lines.values_mut() {
            state.stage = next(state).unwrap_or(state.stage);
        }
    }

    /// Returns true if any ban is not settled, so that it is worth collecting the arguments for
    /// `settle`.
    pub(crate) fn any_unsettled(&self) -> bool {
        let is_settled = |it: &BanState| matches!(it.stage, BanStage::Settled(..));
        !self.read().lines.values().all(is_settled)
    }

    /// Returns true if a log with `oldest` as the stamp of the oldest segment has outlived any ban.
    pub(crate) fn any_outlived(&self, oldest: u64) -> bool {
        self.read().lines.values().any(|it| is_outlived(it, oldest))
    }

    /// Forgets the bans that a log with `oldest` as the stamp of the oldest segment has outlived.
    pub(crate) fn forget_outlived(&self, oldest: u64) {
        let mut table = self.write();
        table.lines.retain(|_, state| !is_outlived(state, oldest));
        table.index();
    }

    /// The version up to which all bans were settled at `before` or earlier; 0 if there is no such
    /// ban.
    pub(crate) fn settled(&self, effect: Effect, before: Option<Duration>) -> Version {
        let soft = effect == Effect::Stale;
        let is_settled = |it: &BanState| {
            let BanStage::Settled(_, at) = it.stage else {
                return false;
            };
            before.is_some_and(|before| at <= before)
        };
        let table = self.read();
        let lines = || {
            table
                .lines
                .iter()
                .filter(|((_, it), _)| *it == soft)
                .map(|it| it.1)
        };
        let unsettled = lines()
            .filter(|it| !is_settled(it))
            .map(|it| it.version)
            .min();
        let below = unsettled.unwrap_or(u64::MAX);
        let settled = lines()
            .map(|it| it.version)
            .filter(|version| *version < below);
        Version(settled.max().unwrap_or(0))
    }

    /// Returns true if a record is gone, or was made stale by a ban up to `stale_upto`.
    pub(crate) fn clears(&self, fields: &Fields, name: &[u8], stale_upto: Version) -> bool {
        let limits = self.limits(fields, name);
        let stale = fields.confirmed.0 < limits.stale && limits.stale <= stale_upto.0;
        fields.version.0 < limits.gone || stale
    }

    /// Forgets bans up to these versions, because no matching object is left.
    pub(crate) fn forget(&self, gone_upto: Version, stale_upto: Version) {
        let upto = |soft: bool| if soft { stale_upto.0 } else { gone_upto.0 };
        let mut table = self.write();
        table
            .lines
            .retain(|(_, soft), state| state.version > upto(*soft));
        table.index();
    }

    /// All bans in force, in a fixed order.
    pub(crate) fn lines(&self) -> Vec<BanLine> {
        let table = self.read();
        let line = |((select, soft), state): (&LineKey, &BanState)| BanLine {
            select: *select,
            within: state.within,
            soft: *soft,
            version: state.version,
        };
        let mut lines: Vec<_> = table.lines.iter().map(line).collect();
        lines.sort_unstable_by_key(|line| (line.version, *line));
        lines
    }
}

/// Memory for `bans` bans, as far as available; hot objects make room.
pub(crate) fn reserve(bans: usize, budget: &Budget) -> Vec<Option<Reservation>> {
    (0..bans).map(|_| budget.reserve(BAN_BYTES)).collect()
}

fn is_outlived(state: &BanState, oldest: u64) -> bool {
    matches!(state.stage, BanStage::Settled(stamp, _) if oldest > stamp)
}

impl Table {
    fn of(&self, select: Select) -> Limits {
        let version = |soft| self.lines.get(&(select, soft)).map_or(0, |it| it.version);
        Limits {
            gone: version(false),
            stale: version(true),
        }
    }

    fn of_label(&self, label: u64) -> Limits {
        if label == LABEL_ANY {
            self.any_label
        } else {
            self.of(Select::Label(label))
        }
    }

    fn of_name(&self, secret: &Secret, name: &[u8]) -> Limits {
        let mut limits = Limits::default();
        let mut outer = NamePrefixes::new(secret, name);
        for length in self.lengths.keys() {
            let Some(prefix) = outer.to(*length) else {
                break;
            };
            let Some(inner) = self.inner.get(&prefix) else {
                continue;
            };
            let mut walk = outer.clone();
            for length in inner {
                let Some(prefix) = walk.to(*length) else {
                    break;
                };
                limits.raise(self.of(Select::Prefix(prefix)));
            }
        }
        limits
    }

    fn add(&mut self, line: BanLine, reservation: Option<Reservation>) {
        if let Select::Prefix(all) = line.select
            && (all.length == 0 || self.inner.contains_key(&all))
        {
            // Drop the bans that the new ban includes.
            let says = |(select, soft): &LineKey, state: &BanState| {
                let is_within = all.length == 0 || state.within == all || *select == line.select;
                is_within && (!line.soft || *soft) && state.version <= line.version
            };
            self.lines.retain(|key, state| !says(key, state));
            self.index();
        }
        let state = BanState {
            version: line.version,
            within: line.within,
            stage: BanStage::InForce,
            _reservation: reservation,
        };
        let key = (line.select, line.soft);
        let old = self.lines.get(&key).map_or(0, |old| old.version);
        if old < line.version {
            self.lines.insert(key, state);
            self.note(line.select, line.within, line.soft, line.version);
        }
    }

    /// Adds a ban to the derived tables.
    fn note(&mut self, select: Select, within: Prefix, soft: bool, version: u64) {
        match select {
            Select::Label(_) if soft => self.any_label.stale = self.any_label.stale.max(version),
            Select::Label(_) => self.any_label.gone = self.any_label.gone.max(version),
            Select::Prefix(prefix) => {
                let outer = outer(prefix, within);
                if !self.inner.contains_key(&outer) {
                    *self.lengths.entry(outer.length).or_default() += 1;
                }
                self.inner.entry(outer).or_default().insert(prefix.length);
            }
        }
    }

    fn index(&mut self) {
        self.inner.clear();
        self.lengths.clear();
        self.any_label = Limits::default();
        let all: Vec<_> = self
            .lines
            .iter()
            .map(|((select, soft), state)| (*select, state.within, *soft, state.version))
            .collect();
        for (select, within, soft, version) in all {
            self.note(select, within, soft, version);
        }
    }

    /// Merges some bans into a ban that matches at least the same objects.
    fn widen(&mut self) {
        let mut counts: HashMap<(Prefix, bool), usize> = HashMap::new();
        for ((_, soft), state) in self.lines.iter().filter(|(_, it)| it.within.length > 0) {
            *counts.entry((state.within, *soft)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(key, count)| (*count, *key));
        let (wide, soft) = match most {
            Some((key, 2..)) => key,
            // Soft bans first, because a stale object is only revalidated.
            _ => {
                let everything = Select::Prefix(EVERYTHING);
                let soft = |key: &&LineKey| key.1 && key.0 != everything;
                (EVERYTHING, self.lines.keys().filter(soft).count() > 1)
            }
        };
        let belongs = |key: &LineKey, state: &BanState| {
            key.1 == soft && (wide.length == 0 || state.within == wide)
        };
        let joined = self.lines.iter().filter(|(key, it)| belongs(key, it));
        let version = joined.map(|(_, it)| it.version).max().unwrap_or(0);
        self.lines.retain(|key, state| !belongs(key, state));
        self.index();
        self.add(
            BanLine {
                select: Select::Prefix(wide),
                within: EVERYTHING,
                soft,
                version,
            },
            None,
        );
    }
}

/// The prefix of all names.
const EVERYTHING: Prefix = Prefix { length: 0, hash: 0 };

/// The prefix under which a ban for `prefix` is indexed.
fn outer(prefix: Prefix, within: Prefix) -> Prefix {
    if within.length < prefix.length {
        within
    } else {
        prefix
    }
}

/// Prefixes of a name, from short to long, in one pass.
#[derive(Clone)]
struct NamePrefixes<'a> {
    hasher: PrefixHasher,
    name: &'a [u8],
    at: usize,
}

impl<'a> NamePrefixes<'a> {
    fn new(secret: &Secret, name: &'a [u8]) -> Self {
        Self {
            hasher: secret.prefix_hasher(),
            name,
            at: 0,
        }
    }

    /// The prefix of `length` bytes, no fewer than last time; `None` beyond the zero byte that
    /// follows the name.
    fn to(&mut self, length: u16) -> Option<Prefix> {
        let end = usize::from(length);
        let in_name = end.min(self.name.len());
        if end > self.name.len() + 1 {
            return None;
        }
        self.hasher
            .write(self.name.get(self.at..in_name).unwrap_or_default());
        if end > self.name.len() && self.at <= self.name.len() {
            self.hasher.write(&[0]);
        }
        self.at = end;
        Some(prefix(length, self.hasher.finish()))
    }
}

/// The prefix without bytes is the same in all stores.
fn prefix(length: u16, hash: u64) -> Prefix {
    match length {
        0 => EVERYTHING,
        _ => Prefix { length, hash },
    }
}

#[cfg(test)]
mod tests;
