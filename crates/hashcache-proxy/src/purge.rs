//! Purges: what is asked for, and what the engine is told.
//!
//! Called by `request` for the method PURGE and after unsafe methods, and by `admin` for
//! `POST /-/purge`; calls the engine and `collapse`.
//!
//! | what | becomes |
//! |---|---|
//! | a URL | a remove of its key; softly, a rule for this name and its variants |
//! | a prefix | a rule for keys that begin so, within the origin |
//! | a cache group | a rule for the origin's group |
//! | a label of an origin | a rule for the origin's label |
//! | a label of any origin | a rule for the label |
//! | everything | a rule for all keys |
//!
//! A response is stored with two hashes of each label it was given: one with its origin, which
//! PURGE asks for, and one without, which the admin listener alone may ask for. Considered: a rule
//! of the engine that selects by label and prefix (one more word in each rule on disk, and a hash
//! of the name for each label), and to have the operator name all origins (he does not know them).
//! The price is that sixteen labels fit where there was room for thirty-two; a response with more
//! is stored with the label *many* of its origin, which every purge by label within the origin
//! takes along.
//!
//! Rules that are too many become wider in the engine, and in the end take everything. So nothing
//! is purged by a rule for which there is no room ([`BanQuota`]): the requester is told.
//!
//! Invariant: from the moment a purge is in force nobody joins a fetch that began before it; the
//! answer is given when it will hold after a power cut too.
//! Cost: none that grows with what is stored.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hashcache::{Ban, Cache, Label, Remove};
use hashcache_http::{Space, Target, cache_groups, cache_key, labels, origin_key};
use http::HeaderMap;
use serde_json::{Value, json};

use crate::collapse::Collapse;

/// What is to be purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PurgeTarget {
    /// One URL, with all its variants.
    Url(Target),
    /// Every URL that begins like this one.
    Prefix(Target),
    /// What the target's origin put into this group.
    Group(Target, Vec<u8>),
    /// What the target's origin gave this label.
    Label(Target, Vec<u8>),
    /// What has this label, whatever its origin.
    LabelAnywhere(Vec<u8>),
    /// All that is stored.
    Everything,
}

/// Kinds of purges, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeKind {
    Url,
    Prefix,
    Group,
    Label,
    Everything,
    /// A URL, or a group, that an unsafe method may have changed.
    Unsafe,
    /// A group that an unsafe method may have changed, and that there was no room to remember.
    Ignored,
}

impl PurgeKind {
    /// All, in the order of their numbers, with their names.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Url, "url"),
        (Self::Prefix, "prefix"),
        (Self::Group, "group"),
        (Self::Label, "label"),
        (Self::Everything, "everything"),
        (Self::Unsafe, "unsafe"),
        (Self::Ignored, "ignored"),
    ];
}

impl PurgeTarget {
    fn kind(&self) -> PurgeKind {
        match self {
            Self::Url(_) => PurgeKind::Url,
            Self::Prefix(_) => PurgeKind::Prefix,
            Self::Group(..) => PurgeKind::Group,
            Self::Label(..) | Self::LabelAnywhere(_) => PurgeKind::Label,
            Self::Everything => PurgeKind::Everything,
        }
    }
}

/// Whether what is purged goes, or is asked about before it is served again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeEffect {
    Hard,
    Soft,
}

/// How many purges of each kind were made, hard ones first.
#[derive(Debug, Default)]
pub(crate) struct PurgeCounts([[AtomicU64; 2]; PurgeKind::ALL.len()]);

impl PurgeCounts {
    fn count(&self, kind: PurgeKind, effect: PurgeEffect) {
        self.0[kind as usize][effect as usize].fetch_add(1, Relaxed);
    }

    /// For metrics: kind, and how many were hard and soft.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, [u64; 2])> + '_ {
        let values = |kind: PurgeKind| self.0[kind as usize].each_ref().map(|it| it.load(Relaxed));
        PurgeKind::ALL
            .into_iter()
            .map(move |(kind, name)| (name, values(kind)))
    }
}

/// Why a purge was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeError {
    /// A URL too long to be stored.
    TooLong,
    /// In force, but it may not hold after a power cut.
    NotDurable,
    /// There is no room for more rules.
    TooManyRules,
}

/// How much of the room for rules a requester may fill. What is left serves those of the next kind:
/// no origin can keep a client from purging, and no client the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BanQuota {
    /// Half: groups that origins invalidate.
    Origin,
    /// Three quarters: the method PURGE.
    Client,
    /// All of it: the admin listener, with its token.
    Operator,
}

impl BanQuota {
    const fn of(self, most: usize) -> usize {
        match self {
            Self::Origin => most / 2,
            Self::Client => most / 4 * 3,
            Self::Operator => most,
        }
    }
}

/// Tells the engine what is purged.
#[derive(Clone)]
pub(crate) struct Purger {
    cache: Cache,
    collapse: Arc<Collapse>,
    space: Space,
    counts: Arc<PurgeCounts>,
    /// Held from the look at the room for rules until they are in force.
    turn: Arc<Mutex<()>>,
}

impl Purger {
    pub(crate) fn new(
        cache: &Cache,
        collapse: &Arc<Collapse>,
        space: Space,
        counts: &Arc<PurgeCounts>,
    ) -> Self {
        Self {
            cache: cache.clone(),
            collapse: Arc::clone(collapse),
            space,
            counts: Arc::clone(counts),
            turn: Arc::default(),
        }
    }

    /// The same for resources of another space.
    pub(crate) fn within(&self, space: Space) -> Self {
        Self {
            space,
            ..self.clone()
        }
    }

    /// Purges all of `what` at once, and waits until that is durable. Nothing is purged if there is
    /// no room for all of it.
    pub(crate) async fn purge(
        &self,
        what: &[PurgeTarget],
        effect: PurgeEffect,
        room: BanQuota,
    ) -> Result<(), PurgeError> {
        let mut rules = Vec::new();
        let mut removes: Vec<Remove> = Vec::new();
        let mut keys = Vec::new();
        for what in what {
            match (what, effect) {
                (PurgeTarget::Url(target), PurgeEffect::Hard) => keys.push(self.key(target)?),
                _ => self.rules(what, &mut rules)?,
            }
        }
        if !rules.is_empty() {
            if effect == PurgeEffect::Soft {
                rules = rules.into_iter().map(Ban::softly).collect();
            }
            removes.push(self.put_in_force(&rules, what, room)?);
        }
        removes.extend(keys.iter().map(|key| self.cache.remove(key)));
        for what in what {
            self.counts.count(what.kind(), effect);
            self.forget_fetches(what);
        }
        let mut durable = true;
        for remove in removes {
            durable &= remove.await.is_ok();
        }
        if durable {
            Ok(())
        } else {
            Err(PurgeError::NotDurable)
        }
    }

    fn key(&self, target: &Target) -> Result<Vec<u8>, PurgeError> {
        cache_key(self.space, target).ok_or(PurgeError::TooLong)
    }

    /// The rules, if there is room for them.
    fn put_in_force(
        &self,
        rules: &[Ban],
        what: &[PurgeTarget],
        room: BanQuota,
    ) -> Result<Remove, PurgeError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // What takes everything takes the place of all rules.
        if !what.contains(&PurgeTarget::Everything)
            && self.cache.bans() + rules.len() > room.of(self.cache.bans_max())
        {
            return Err(PurgeError::TooManyRules);
        }
        Ok(self.cache.remove_matching(rules))
    }

    fn rules(&self, what: &PurgeTarget, rules: &mut Vec<Ban>) -> Result<(), PurgeError> {
        match what {
            PurgeTarget::Url(target) => {
                rules.push(Ban::name(&self.key(target)?).within(&self.origin(target)));
            }
            PurgeTarget::Prefix(target) => {
                rules.push(Ban::prefix(&self.prefix(target)?).within(&self.origin(target)));
            }
            PurgeTarget::Group(target, group) => {
                let origin = self.origin(target);
                self.label_rules(group_of(&self.cache, &origin, group), &origin, rules);
            }
            PurgeTarget::Label(target, label) => {
                let origin = self.origin(target);
                self.label_rules(label_of(&self.cache, &origin, label), &origin, rules);
            }
            PurgeTarget::LabelAnywhere(label) => {
                self.label_rules(label_of(&self.cache, &[], label), &[], rules);
            }
            PurgeTarget::Everything => rules.push(Ban::prefix(b"")),
        }
        Ok(())
    }

    /// A rule for `label`, and one for what has more labels than there is room for.
    fn label_rules(&self, label: Label, origin: &[u8], rules: &mut Vec<Ban>) {
        let many = Ban::label(many_of(&self.cache, origin)).within(origin);
        if !rules.contains(&many) {
            rules.push(many);
        }
        rules.push(Ban::label(label).within(origin));
    }

    /// All of a site is its origin: so it takes in what was purged within it.
    fn prefix(&self, target: &Target) -> Result<Vec<u8>, PurgeError> {
        match &*target.path_and_query {
            "/" => Ok(self.origin(target)),
            _ => self.key(target),
        }
    }

    fn origin(&self, target: &Target) -> Vec<u8> {
        origin_key(self.space, target)
    }

    /// Nobody may join what began before the purge any more.
    fn forget_fetches(&self, what: &PurgeTarget) {
        match what {
            PurgeTarget::Url(target) => {
                if let Some(key) = cache_key(self.space, target) {
                    self.collapse.forget_where(|name| is_variant(name, &key));
                }
            }
            PurgeTarget::Prefix(target) => {
                if let Ok(prefix) = self.prefix(target) {
                    self.collapse.forget_where(|key| key.starts_with(&prefix));
                }
            }
            PurgeTarget::Group(target, _) | PurgeTarget::Label(target, _) => {
                let origin = self.origin(target);
                self.collapse.forget_where(|key| key.starts_with(&origin));
            }
            // Which labels a response will have is not known before it comes.
            PurgeTarget::LabelAnywhere(_) | PurgeTarget::Everything => {
                self.collapse.forget_where(|_| true);
            }
        }
    }

    /// Takes what an unsafe request to the first of `targets` may have changed out of the store: at
    /// once, and within a second durably.
    pub(crate) fn invalidate(&self, targets: &[Target], groups: &[Vec<u8>]) {
        for target in targets {
            if let Some(key) = cache_key(self.space, target) {
                self.counts.count(PurgeKind::Unsafe, PurgeEffect::Hard);
                self.cache.invalidate(&key);
                self.collapse.forget(&key);
            }
        }
        let Some(target) = targets.first().filter(|_| !groups.is_empty()) else {
            return;
        };
        // A cache may invalidate groups, it need not (RFC 9875, section 3).
        let group = |group: &Vec<u8>| PurgeTarget::Group(target.clone(), group.clone());
        let what: Vec<_> = groups.iter().map(group).collect();
        let mut rules = Vec::new();
        for what in &what {
            if self.rules(what, &mut rules).is_err() {
                return;
            }
        }
        match self.put_in_force(&rules, &what, BanQuota::Origin) {
            Ok(remove) => {
                drop(remove);
                for what in &what {
                    self.counts.count(PurgeKind::Unsafe, PurgeEffect::Hard);
                    self.forget_fetches(what);
                }
            }
            Err(_) => self.counts.count(PurgeKind::Ignored, PurgeEffect::Hard),
        }
    }
}

/// Whether what is stored under `name` is what `key` names, or a variant of it.
fn is_variant(name: &[u8], key: &[u8]) -> bool {
    let behind = name.strip_prefix(key);
    behind.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
}

/// What a response is labelled with: its cache groups, and the labels it was given, with its origin
/// and without.
pub(crate) fn labels_of(
    cache: &Cache,
    space: Space,
    target: &Target,
    response: &HeaderMap,
) -> Vec<Label> {
    let groups = cache_groups(response);
    let own = labels(response);
    if groups.is_empty() && own.is_empty() {
        return Vec::new();
    }
    let origin = origin_key(space, target);
    // The engine would take the last ones for any label, of any origin.
    if groups.len() + 2 * own.len() > LABELS_MAX {
        return vec![many_of(cache, &origin), many_of(cache, &[])];
    }
    let groups = groups.iter().map(|group| group_of(cache, &origin, group));
    let bound = own.iter().map(|label| label_of(cache, &origin, label));
    let free = own.iter().map(|label| label_of(cache, &[], label));
    groups.chain(bound).chain(free).collect()
}

/// Labels that the engine keeps of an object.
const LABELS_MAX: usize = 32;

// An origin ends in its port, and no origin begins like another kind of label: no label of one is
// a label of another. Without an origin it is one of all.

fn group_of(cache: &Cache, origin: &[u8], group: &[u8]) -> Label {
    cache.label(&[b"group", origin, group].concat())
}

fn label_of(cache: &Cache, origin: &[u8], label: &[u8]) -> Label {
    let kind: &[u8] = if origin.is_empty() {
        b"label"
    } else {
        b"bound"
    };
    cache.label(&[kind, origin, label].concat())
}

/// The label of what has more labels than there is room for.
fn many_of(cache: &Cache, origin: &[u8]) -> Label {
    cache.label(&[b"many", origin].concat())
}

/// What was purged, for people and programs.
pub(crate) fn report(what: &[PurgeTarget], effect: PurgeEffect) -> Bytes {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let origin = |target: &Target| {
        let (scheme, authority) = (target.scheme, &target.authority);
        format!("{scheme}://{}", authority.display(scheme))
    };
    let one = |what: &PurgeTarget| -> Value {
        match what {
            PurgeTarget::Url(target) => json!({ "url": target.to_string() }),
            PurgeTarget::Prefix(target) => json!({ "prefix": target.to_string() }),
            PurgeTarget::Group(target, group) => json!({
                "group": text(group),
                "origin": origin(target),
            }),
            PurgeTarget::Label(target, label) => json!({
                "label": text(label),
                "origin": origin(target),
            }),
            PurgeTarget::LabelAnywhere(label) => json!({ "label": text(label) }),
            PurgeTarget::Everything => json!({ "everything": true }),
        }
    };
    let purged: Vec<Value> = what.iter().map(one).collect();
    let report = json!({ "purged": purged, "soft": effect == PurgeEffect::Soft, "durable": true });
    format!("{report}\n").into()
}

#[cfg(test)]
mod tests;
