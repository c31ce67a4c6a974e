//! Bans: what was taken away, or made stale, without naming each object.
//!
//! A ban says: every object with this label, or with a name that begins so, is gone (or, softly,
//! stale) if it is older than this version. It is in force at once, because every answer is checked
//! against the bans: no object is searched for or overwritten. `cache` makes bans, `stripe` checks
//! them, `writer` has `disk/journal` write them and says when one can be forgotten.
//!
//! ```text
//! made ─▶ in force ─▶ drained ──────▶ settled ──────────▶ outlived ─▶ forgotten
//!                     puts that had   what was pending    nothing     in memory; on disk when
//!                     begun are over  then is on disk     older left  the next ban is written
//! ```
//!
//! A ban is *outlived* when no object older than it can be read any more. In a log that is when the
//! head has wrapped to where it stood when the ban was settled; the Disk Table has no head, so
//! `writer` reads it set by set and clears the objects that bans have removed.
//!
//! Too many bans become fewer and wider: those within one prefix become that prefix, as their
//! makers said, and when no two are within the same, all become one that takes everything.
//!
//! Invariants: bans are added in the order of their versions, so what is older than a ban is not
//! spared by a later one; a ban is forgotten only when it could bar nothing.
//! Cost: for what is newer than all bans, one load; else once for each record that stays in
//! memory, one lock that readers share, a look for each label, and a pass over the name.

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
/// Set in [`Record::judged`] when a record was made stale: the rest is the version below which it
/// must have been confirmed. Without it: no ban up to this version says anything of the record.
/// Versions are below 2^62.
const MADE_STALE: u64 = 1 << 63;
/// What a ban takes in memory, rounded up.
const BAN_BYTES: u64 = 256;
/// The label of an object that had more than there is room for: every label could be one of them.
pub(crate) const LABEL_ANY: u64 = 0;

/// What groups objects that are removed together. Opaque: keyed with the store's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(pub(crate) u64);

/// What [`crate::Cache::remove_matching`] takes away: objects with a label, or names that begin in
/// one way.
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
    /// Objects put with this label.
    pub fn label(label: Label) -> Self {
        Self::new(Selected::Label(label))
    }

    /// Objects whose names begin with `prefix`; all of them if it is empty. At most
    /// [`crate::MAX_NAME`] bytes count: no name is longer.
    pub fn prefix(prefix: &[u8]) -> Self {
        let prefix = &prefix[..prefix.len().min(crate::object::MAX_NAME)];
        Self::new(Selected::Prefix(prefix.to_vec()))
    }

    /// The object of this name, and objects whose names continue it with a zero byte.
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

    /// When there are too many bans, this one may become one for all names that begin with
    /// `prefix`, which must be those of all that it selects; without it, one for everything.
    #[must_use]
    pub fn within(mut self, prefix: &[u8]) -> Self {
        self.within = prefix[..prefix.len().min(crate::object::MAX_NAME)].to_vec();
        self
    }

    /// What matches becomes stale ([`crate::Hit::is_made_stale`]) instead of gone.
    #[must_use]
    pub fn softly(mut self) -> Self {
        self.soft = true;
        self
    }

    /// All that is older than `version` is gone.
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
            // A ban that is looked for where its names are not would never be found.
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

/// What a ban does to what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Gone,
    Stale,
}

/// What bans say of an object.
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

/// The stage of a ban on its way to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BanStage {
    InForce,
    /// Puts that had begun before it have ended. So many records had entered the queue by then: the
    /// older ones among them are still to be written.
    Drained(u64),
    /// They are written, as of this time; the segment of this stamp was open.
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
    /// For each prefix that bans are within, or are themselves: how long those bans are.
    inner: HashMap<Prefix, BTreeSet<u16>>,
    /// How long the keys of `inner` are, and how many are so long.
    lengths: BTreeMap<u16, usize>,
    /// Of all labels together.
    any_label: Limits,
}

/// The bans in force on one device.
pub(crate) struct Bans {
    /// The highest version of a ban there ever was. What is not older needs no look.
    newest: AtomicU64,
    table: RwLock<Table>,
    most: usize,
    secret: Secret,
}

impl Bans {
    /// At most `most` bans.
    pub(crate) fn new(secret: &Secret, most: usize) -> Self {
        Self {
            newest: AtomicU64::new(0),
            table: RwLock::default(),
            // Room for the widest and some beside.
            most: most.max(8),
            secret: secret.clone(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().expect("no holder of this lock panics")
    }

    /// Bans that go release memory, which wakes callers that wait for it: not under the lock,
    /// which each lookup takes.
    fn write(&self) -> Marked<RwLockWriteGuard<'_, Table>> {
        marked(self.table.write().expect("no holder of this lock panics"))
    }

    /// Most bans before they become wider.
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

    /// Bans in force within each of `prefixes`, as their makers said ([`Ban::within`]).
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

    /// Whether there was ever any.
    pub(crate) fn any(&self) -> bool {
        self.newest.load(Ordering::Acquire) > 0
    }

    // -- judging -------------------------------------------------------------------------------

    /// What bans say of `record`; where that is nothing it is not asked again.
    ///
    /// The record remembers that it was made stale. A caller that holds it may ask again, or write
    /// new metadata for it, after the ban was forgotten: then nothing else would say that it is not
    /// fresh.
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
        // Spans count when the head does that leads to them.
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

    /// What bans say of the labels of `record` alone. Where a ban says it of the name, all older
    /// versions of that name are barred with it; they need not have had the label.
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

    /// Whether a ban may hide a put of `name` that begins as of `version`, with labels that are not
    /// known yet.
    pub(crate) fn may_bar(&self, name: &[u8], version: Version) -> bool {
        if version.0 >= self.newest.load(Ordering::Acquire) {
            return false;
        }
        let table = self.read();
        let mut limits = table.of_name(&self.secret, name);
        limits.raise(table.any_label);
        version.0 < limits.gone.max(limits.stale)
    }

    /// Whether a ban takes everything of this version away, whatever its name and labels.
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

    /// The same with memory that was set aside for them ([`reserve`]), by a caller that holds a
    /// lock.
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

    /// Puts that have not ended are not older than `begun`, `come` records have entered the queue,
    /// all records numbered below `taken` are written, and the segment of `stamp` is open.
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

    /// Whether any ban is not settled, so that it is worth collecting the arguments of `settle`.
    pub(crate) fn any_unsettled(&self) -> bool {
        let is_settled = |it: &BanState| matches!(it.stage, BanStage::Settled(..));
        !self.read().lines.values().all(is_settled)
    }

    /// Whether a log whose oldest segment has the stamp `oldest` has outlived any.
    pub(crate) fn any_outlived(&self, oldest: u64) -> bool {
        self.read().lines.values().any(|it| is_outlived(it, oldest))
    }

    /// Forgets those that a log whose oldest segment has the stamp `oldest` has outlived.
    pub(crate) fn forget_outlived(&self, oldest: u64) {
        let mut table = self.write();
        table.lines.retain(|_, state| !is_outlived(state, oldest));
        table.index();
    }

    /// The version up to which all bans are settled, since `before` or earlier; 0 when none is.
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

    /// Whether a record is gone, or was made stale by a ban up to `stale_upto`.
    pub(crate) fn clears(&self, fields: &Fields, name: &[u8], stale_upto: Version) -> bool {
        let limits = self.limits(fields, name);
        let stale = fields.confirmed.0 < limits.stale && limits.stale <= stale_upto.0;
        fields.version.0 < limits.gone || stale
    }

    /// Forgets bans up to these versions: what they bar is nowhere any more.
    pub(crate) fn forget(&self, gone_upto: Version, stale_upto: Version) {
        let upto = |soft: bool| if soft { stale_upto.0 } else { gone_upto.0 };
        let mut table = self.write();
        table
            .lines
            .retain(|(_, soft), state| state.version > upto(*soft));
        table.index();
    }

    /// All bans in force, in one order.
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

/// Memory for `bans` bans, as far as there is some; hot objects make room.
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
            // Those that it says too, and more.
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

    /// Takes a ban into what is derived from them.
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

    /// Makes some bans one that takes at least what they took.
    fn widen(&mut self) {
        let mut counts: HashMap<(Prefix, bool), usize> = HashMap::new();
        for ((_, soft), state) in self.lines.iter().filter(|(_, it)| it.within.length > 0) {
            *counts.entry((state.within, *soft)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(key, count)| (*count, *key));
        let (wide, soft) = match most {
            Some((key, 2..)) => key,
            // Soft ones first: what they make stale is only asked about.
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

/// What all names begin with.
const EVERYTHING: Prefix = Prefix { length: 0, hash: 0 };

/// Under which prefix a ban for `prefix` is looked for.
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

    /// The first `length` bytes, no fewer than last time; `None` beyond the zero byte that ends the
    /// name.
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

/// That of no bytes is the same in all stores.
fn prefix(length: u16, hash: u64) -> Prefix {
    match length {
        0 => EVERYTHING,
        _ => Prefix { length, hash },
    }
}

#[cfg(test)]
mod tests;
