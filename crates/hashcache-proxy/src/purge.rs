//! Purges: what is asked for, and what the engine is told.
//!
//! Called by `request` for the method PURGE and after unsafe methods, and by `admin` for
//! `POST /-/purge`; calls the engine and `collapse`.
//!
//! | what | becomes |
//! |---|---|
//! | a URL | a remove of its key; softly, a rule for this name and its variants |
//! | a prefix | a rule for keys that begin so, within the origin |
//! | a cache group | a rule for the group's label, within the origin |
//! | a label | a rule for the label, whatever the origin |
//! | everything | a rule for all keys |
//!
//! Invariant: from the moment a purge is in force nobody joins a fetch that began before it; the
//! answer is given when it will hold after a power cut too.
//! Cost: none that grows with what is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use hashcache::{Cache, Label, Remove, Rule};
use hashcache_http::{Space, Target, cache_groups, cache_key, labels, origin_key};
use http::HeaderMap;
use serde_json::{Value, json};

use crate::collapse::Collapse;

/// What is to be purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// One URL, with all its variants.
    Url(Target),
    /// Every URL that begins like this one.
    Prefix(Target),
    /// What the target's origin put into this group.
    Group(Target, Vec<u8>),
    /// What has this label.
    Label(Vec<u8>),
    /// All that is stored.
    Everything,
}

/// Kinds of purges, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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

impl Kind {
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

impl What {
    fn kind(&self) -> Kind {
        match self {
            Self::Url(_) => Kind::Url,
            Self::Prefix(_) => Kind::Prefix,
            Self::Group(..) => Kind::Group,
            Self::Label(_) => Kind::Label,
            Self::Everything => Kind::Everything,
        }
    }
}

/// Whether what is purged goes, or is asked about before it is served again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Hard,
    Soft,
}

/// How many purges of each kind were made, hard ones first.
#[derive(Debug, Default)]
pub(crate) struct Counts([[AtomicU64; 2]; Kind::ALL.len()]);

impl Counts {
    fn count(&self, kind: Kind, effect: Effect) {
        self.0[kind as usize][effect as usize].fetch_add(1, Relaxed);
    }

    /// For metrics: kind, and how many were hard and soft.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, [u64; 2])> + '_ {
        let values = |kind: Kind| self.0[kind as usize].each_ref().map(|it| it.load(Relaxed));
        Kind::ALL
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
}

/// Tells the engine what is purged.
#[derive(Clone)]
pub(crate) struct Purger {
    cache: Cache,
    collapse: Arc<Collapse>,
    space: Space,
    counts: Arc<Counts>,
}

impl Purger {
    pub(crate) fn new(
        cache: &Cache,
        collapse: &Arc<Collapse>,
        space: Space,
        counts: &Arc<Counts>,
    ) -> Self {
        Self {
            cache: cache.clone(),
            collapse: Arc::clone(collapse),
            space,
            counts: Arc::clone(counts),
        }
    }

    /// The same for resources of another space.
    pub(crate) fn within(&self, space: Space) -> Self {
        Self {
            space,
            ..self.clone()
        }
    }

    /// Purges all of `what` at once, and waits until that is durable.
    pub(crate) async fn purge(&self, what: &[What], effect: Effect) -> Result<(), PurgeError> {
        let mut rules = Vec::new();
        let mut removes: Vec<Remove> = Vec::new();
        let mut keys = Vec::new();
        for what in what {
            match (what, effect) {
                (What::Url(target), Effect::Hard) => keys.push(self.key(target)?),
                _ => rules.push(self.rule(what)?),
            }
        }
        removes.extend(keys.iter().map(|key| self.cache.remove(key)));
        if !rules.is_empty() {
            let rules: Vec<_> = match effect {
                Effect::Hard => rules,
                Effect::Soft => rules.into_iter().map(Rule::softly).collect(),
            };
            removes.push(self.cache.remove_matching(&rules));
        }
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

    fn rule(&self, what: &What) -> Result<Rule, PurgeError> {
        Ok(match what {
            What::Url(target) => Rule::name(&self.key(target)?).within(&self.origin(target)),
            What::Prefix(target) => {
                Rule::prefix(&self.prefix(target)?).within(&self.origin(target))
            }
            What::Group(target, group) => {
                Rule::label(self.group(target, group)).within(&self.origin(target))
            }
            What::Label(label) => Rule::label(label_of(&self.cache, label)),
            What::Everything => Rule::prefix(b""),
        })
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

    fn group(&self, target: &Target, group: &[u8]) -> Label {
        group_of(&self.cache, &self.origin(target), group)
    }

    /// Nobody may join what began before the purge any more.
    fn forget_fetches(&self, what: &What) {
        match what {
            What::Url(target) => {
                if let Some(key) = cache_key(self.space, target) {
                    self.collapse.forget_where(|name| is_variant(name, &key));
                }
            }
            What::Prefix(target) => {
                if let Ok(prefix) = self.prefix(target) {
                    self.collapse.forget_where(|key| key.starts_with(&prefix));
                }
            }
            What::Group(target, _) => {
                let origin = self.origin(target);
                self.collapse.forget_where(|key| key.starts_with(&origin));
            }
            // Which labels a response will have is not known before it comes.
            What::Label(_) | What::Everything => self.collapse.forget_where(|_| true),
        }
    }

    /// Takes what an unsafe request to the first of `targets` may have changed out of the store: at
    /// once, and within a second durably.
    pub(crate) fn invalidate(&self, targets: &[Target], groups: &[Vec<u8>]) {
        for target in targets {
            if let Some(key) = cache_key(self.space, target) {
                self.counts.count(Kind::Unsafe, Effect::Hard);
                self.cache.invalidate(&key);
                self.collapse.forget(&key);
            }
        }
        let Some(target) = targets.first().filter(|_| !groups.is_empty()) else {
            return;
        };
        // Rules that become too many become wider, and in the end take everything. Who serves many
        // names must not bring that about; a cache may invalidate groups, it need not.
        let room = (self.cache.rules_max() / 2).saturating_sub(self.cache.rules());
        let (taken, ignored) = groups.split_at(groups.len().min(room));
        if !ignored.is_empty() {
            self.counts.count(Kind::Ignored, Effect::Hard);
        }
        let rule = |group: &Vec<u8>| {
            self.counts.count(Kind::Unsafe, Effect::Hard);
            Rule::label(self.group(target, group)).within(&self.origin(target))
        };
        let rules: Vec<_> = taken.iter().map(rule).collect();
        if !rules.is_empty() {
            drop(self.cache.remove_matching(&rules));
            self.forget_fetches(&What::Group(target.clone(), Vec::new()));
        }
    }
}

/// Whether what is stored under `name` is what `key` names, or a variant of it.
fn is_variant(name: &[u8], key: &[u8]) -> bool {
    let behind = name.strip_prefix(key);
    behind.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
}

/// What a response is labelled with: its cache groups, which are its origin's own, and the labels
/// it was given.
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
    let groups = groups.iter().map(|group| group_of(cache, &origin, group));
    let own = own.iter().map(|label| label_of(cache, label));
    groups.chain(own).collect()
}

fn group_of(cache: &Cache, origin: &[u8], group: &[u8]) -> Label {
    // The origin ends in its port: no group of one is a group of another.
    cache.label(&[b"group", origin, group].concat())
}

fn label_of(cache: &Cache, label: &[u8]) -> Label {
    cache.label(&[b"label", label].concat())
}

/// What was purged, for people and programs.
pub(crate) fn report(what: &[What], effect: Effect) -> Bytes {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let origin = |target: &Target| {
        let (scheme, authority) = (target.scheme, &target.authority);
        format!("{scheme}://{}", authority.display(scheme))
    };
    let one = |what: &What| -> Value {
        match what {
            What::Url(target) => json!({ "url": target.to_string() }),
            What::Prefix(target) => json!({ "prefix": target.to_string() }),
            What::Group(target, group) => json!({
                "group": text(group),
                "origin": origin(target),
            }),
            What::Label(label) => json!({ "label": text(label) }),
            What::Everything => json!({ "everything": true }),
        }
    };
    let purged: Vec<Value> = what.iter().map(one).collect();
    let report = json!({ "purged": purged, "soft": effect == Effect::Soft, "durable": true });
    format!("{report}\n").into()
}

#[cfg(test)]
mod tests;
