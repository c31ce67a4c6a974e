//! Purges: translates the requested targets for the engine.
//!
//! Called by `request` in the proxy for the method PURGE and after unsafe methods, and by `admin`
//! in the proxy for `POST /-/purge`; calls the engine and `collapse`.
//!
//! | target | in the engine |
//! |---|---|
//! | a URL | a remove of the key; if soft, a ban on this name and its variants |
//! | a prefix | a ban on keys with this prefix, within the origin |
//! | a cache group | a ban on the origin's group |
//! | a label of an origin | a ban on the origin's label |
//! | a label of any origin | a ban on the label |
//! | everything | a ban on all keys |
//!
//! A response is stored with two hashes per label: a hash with the origin, for PURGE, and a hash
//! without the origin, by which only the admin listener may purge. Two alternatives were
//! considered: a ban that selects by label and prefix (this needs an extra word in each ban on
//! disk, and a name hash for each label), and a list with all origins from the operator (operators
//! do not know them). The price is that only sixteen labels fit into the room for thirty-two. A
//! response with more labels gets the origin's label *many*, and every purge by label within the
//! origin includes that label.
//!
//! If there are too many bans, the engine merges them into wider bans and in the end hides
//! everything. Therefore a purge is refused if there is no room for its ban ([`BanQuota`]). Bans
//! from unsafe requests have shares (`Invalidators`): an origin with many bans gets a single ban on
//! all responses, and a client's requests cause bans only for a limited number of origins.
//!
//! Invariants: once a purge is in force, no request joins a fetch that started before it. The
//! response is sent when the purge is durable.
//! Cost: independent of the number of stored objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hashcache::{Ban, Cache, Label, Remove};
use hashcache_base::share::Network;
use hashcache_base::task::spawn_local;
use hashcache_http::{Scheme, Space, Target, cache_groups, cache_key, labels, origin_key};
use http::HeaderMap;
use serde_json::{Value, json};

use crate::collapse::Collapse;
use unsettled::{PER_CLIENT, PER_PEER, Unsettled};

/// The target of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurgeTarget {
    /// A URL, with all its variants.
    Url(Target),
    /// Every URL with this prefix.
    Prefix(Target),
    /// Responses from the target's origin in this group.
    Group(Target, Vec<u8>),
    /// Responses from the target's origin with this label.
    Label(Target, Vec<u8>),
    /// Responses from any origin with this label.
    LabelAnywhere(Vec<u8>),
    /// All stored responses.
    Everything,
}

/// Kinds of purges in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeKind {
    Url,
    Prefix,
    Group,
    Label,
    Everything,
    /// A URL, or a group, that an unsafe method may have changed.
    Unsafe,
    /// A group that an unsafe method may have changed, but there was no room for a ban.
    Ignored,
}

impl PurgeKind {
    /// All kinds with their names, in numerical order.
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

/// Effect of a purge on the stored responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeEffect {
    /// The responses are removed.
    Hard,
    /// The responses are validated before they are served again.
    Soft,
}

impl PurgeEffect {
    /// The effect that a client has requested.
    pub fn from_soft(soft: bool) -> Self {
        if soft { Self::Soft } else { Self::Hard }
    }
}

/// Purge counts by kind, hard purges first.
#[derive(Debug, Default)]
pub struct PurgeCounts([[AtomicU64; 2]; PurgeKind::ALL.len()]);

impl PurgeCounts {
    fn count(&self, kind: PurgeKind, effect: PurgeEffect) {
        self.0[kind as usize][effect as usize].fetch_add(1, Relaxed);
    }

    /// For metrics: each kind with the counts for hard and soft purges.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, [u64; 2])> + '_ {
        let values = |kind: PurgeKind| self.0[kind as usize].each_ref().map(|it| it.load(Relaxed));
        PurgeKind::ALL
            .into_iter()
            .map(move |(kind, name)| (name, values(kind)))
    }
}

/// Why a purge failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeError {
    /// The URL is too long to be stored.
    TooLong,
    /// The purge is in force, but may be lost in a power cut.
    NotDurable,
    /// There is no room for more bans.
    TooManyRules,
}

/// How much room for bans a requester may use. The rest is for the next class: no origin can keep
/// clients from purging, and no client can keep the operator from purging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanQuota {
    /// Half: cache groups that origins invalidate.
    Origin,
    /// Three quarters: the method PURGE.
    Client,
    /// All: the admin listener, with its token.
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

/// The URL with the other scheme; a default port becomes the other scheme's default port.
fn twin(target: &Target) -> Target {
    let scheme = match target.scheme {
        Scheme::Http => Scheme::Https,
        Scheme::Https => Scheme::Http,
        Scheme::Ftp | Scheme::Gopher => target.scheme,
    };
    let mut authority = target.authority.clone();
    if authority.port == target.scheme.default_port() {
        authority.port = scheme.default_port();
    }
    Target {
        scheme,
        authority,
        path_and_query: target.path_and_query.clone(),
    }
}

/// Translates purges for the engine.
#[derive(Clone)]
pub struct Purger {
    cache: Cache,
    collapse: Arc<Collapse>,
    space: Space,
    counts: Arc<PurgeCounts>,
    /// Held from the check for room until the bans are in force.
    turn: Arc<Mutex<Invalidators>>,
    unsettled: Unsettled,
}

/// The origins with bans from unsafe requests, by the client that sent the first such request.
///
/// Invariants: a client fills at most a quarter of the room for such bans, however many origins it
/// uses, and an origin at most 1/32. An origin is listed only once, and only after the first ban is
/// in force, so there are at most twice as many entries as such bans.
#[derive(Debug)]
struct Invalidators {
    clients: HashMap<Network, Vec<Box<[u8]>>>,
    /// When there are this many clients, the clients without bans are forgotten.
    prune_at: usize,
}

impl Default for Invalidators {
    fn default() -> Self {
        Self {
            clients: HashMap::new(),
            prune_at: CLIENTS_KEPT,
        }
    }
}

/// The bans that an unsafe request may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BanShare {
    /// A ban for each group.
    Groups,
    /// A single ban on all responses of the origin, which replaces the other bans of the origin.
    Origin,
    /// None: the client has used up its share.
    Nothing,
}

impl Invalidators {
    /// Returns the share of `origin` for a request by `client` that needs `bans`, and true if the
    /// origin has no bans yet.
    fn share(
        &mut self,
        cache: &Cache,
        client: Network,
        origin: &[u8],
        bans: usize,
    ) -> (BanShare, bool) {
        let most = BanQuota::Origin.of(cache.bans_max());
        let origins = self.clients.entry(client).or_default();
        let mut all = forget_without_bans(cache, origins);
        let of_origin = cache.bans_within(&[origin])[0];
        let is_own = origins.iter().any(|it| **it == *origin);
        let count = origins.len();
        if origins.is_empty() {
            self.clients.remove(&client);
        }
        if of_origin == 0 && count >= most / ORIGINS_PART {
            return (BanShare::Nothing, true);
        }
        if of_origin > 0 && !is_own {
            // Another client was first for this origin: the bans count for that client.
            all = 0;
        }
        let is_over =
            of_origin + bans > (most / ORIGIN_PART).max(2) || all + bans > most / CLIENT_PART;
        let share = if is_over {
            BanShare::Origin
        } else {
            BanShare::Groups
        };
        (share, of_origin == 0)
    }

    /// Notes that the first ban on `origin` is in force, because `client` sent a request.
    fn enter(&mut self, cache: &Cache, client: Network, origin: &[u8]) {
        if self.clients.len() >= self.prune_at {
            self.clients
                .retain(|_, origins| forget_without_bans(cache, origins) > 0);
            // This spreads the cost over as many new clients as there are old clients.
            self.prune_at = CLIENTS_KEPT.max(2 * self.clients.len());
        }
        self.clients.entry(client).or_default().push(origin.into());
    }
}

/// Keeps only the origins that have bans; returns how many bans they have. The engine forgets bans
/// as the store is rewritten, and their origins then no longer count.
fn forget_without_bans(cache: &Cache, origins: &mut Vec<Box<[u8]>>) -> usize {
    let known: Vec<&[u8]> = origins.iter().map(|it| &**it).collect();
    let counts = cache.bans_within(&known);
    let all = counts.iter().sum();
    let mut counts = counts.into_iter();
    origins.retain(|_| counts.next() != Some(0));
    all
}

/// Clients that are remembered before the first check for clients without bans.
const CLIENTS_KEPT: usize = 256;

/// An origin may have 1/`ORIGIN_PART` of the bans that all origins may have: 64 of 2048.
const ORIGIN_PART: usize = 32;
/// A client's origins together may have 1/`CLIENT_PART` of the bans that all origins may have.
/// Beyond that, each origin gets a single ban that replaces all its others.
const CLIENT_PART: usize = 8;
/// A client may be the first for N/`ORIGINS_PART` origins, if all origins together may have N bans.
const ORIGINS_PART: usize = 8;

impl Purger {
    /// Purges responses in `cache` and fetches in `collapse`.
    pub fn new(
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
            unsettled: Unsettled::default(),
        }
    }

    /// A purger for another key space, with the same state.
    pub fn within(&self, space: Space) -> Self {
        Self {
            space,
            ..self.clone()
        }
    }

    /// Purges all targets at once and waits until the purge is durable. Nothing is purged if there
    /// is not enough room for all targets.
    pub async fn purge(
        &self,
        what: &[PurgeTarget],
        effect: PurgeEffect,
        room: BanQuota,
    ) -> Result<(), PurgeError> {
        let mut rules = Vec::new();
        let mut removes: Vec<Remove> = Vec::new();
        let mut keys = Vec::new();
        let asked = what;
        let what = &self.with_both_schemes(what)[..];
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
        for what in asked {
            self.counts.count(what.kind(), effect);
        }
        for what in what {
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

    /// Adds, in front of a site, the targets under the other scheme: responses are stored under the
    /// URLs that clients use, and a purge of a page is meant for both schemes.
    fn with_both_schemes(&self, what: &[PurgeTarget]) -> Vec<PurgeTarget> {
        let mut both = what.to_vec();
        if !matches!(self.space, Space::Site(_)) {
            return both;
        }
        both.extend(what.iter().filter_map(|what| match what {
            PurgeTarget::Url(target) => Some(PurgeTarget::Url(twin(target))),
            PurgeTarget::Prefix(target) => Some(PurgeTarget::Prefix(twin(target))),
            PurgeTarget::Group(target, group) => {
                Some(PurgeTarget::Group(twin(target), group.clone()))
            }
            PurgeTarget::Label(target, label) => {
                Some(PurgeTarget::Label(twin(target), label.clone()))
            }
            PurgeTarget::LabelAnywhere(_) | PurgeTarget::Everything => None,
        }));
        both
    }

    fn key(&self, target: &Target) -> Result<Vec<u8>, PurgeError> {
        cache_key(self.space, target).ok_or(PurgeError::TooLong)
    }

    /// Puts the bans in force if there is room for them.
    fn put_in_force(
        &self,
        rules: &[Ban],
        what: &[PurgeTarget],
        room: BanQuota,
    ) -> Result<Remove, PurgeError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.put_in_force_now(rules, what, room)
    }

    /// As [`Self::put_in_force`], for a caller that holds `turn`.
    fn put_in_force_now(
        &self,
        rules: &[Ban],
        what: &[PurgeTarget],
        room: BanQuota,
    ) -> Result<Remove, PurgeError> {
        // A ban on everything replaces all other bans.
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

    /// Adds a ban on `label`, and a ban on the label for responses with too many labels.
    fn label_rules(&self, label: Label, origin: &[u8], rules: &mut Vec<Ban>) {
        let many = Ban::label(many_of(&self.cache, origin)).within(origin);
        if !rules.contains(&many) {
            rules.push(many);
        }
        rules.push(Ban::label(label).within(origin));
    }

    /// A whole site's prefix is the origin key, so the new ban covers earlier bans within the
    /// origin.
    fn prefix(&self, target: &Target) -> Result<Vec<u8>, PurgeError> {
        match &*target.path_and_query {
            "/" => Ok(self.origin(target)),
            _ => self.key(target),
        }
    }

    fn origin(&self, target: &Target) -> Vec<u8> {
        origin_key(self.space, target)
    }

    /// Prevents requests from joining fetches that started before the purge.
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
            // A response's labels are not known before it arrives.
            PurgeTarget::LabelAnywhere(_) | PurgeTarget::Everything => {
                self.collapse.forget_where(|_| true);
            }
        }
    }

    /// Invalidates the responses that an unsafe request by `client` to the first target may have
    /// changed. If the client has too many invalidations under way, first waits for a turn, for a
    /// bounded time (see `unsettled`). On return the invalidations are in force, and they are
    /// durable soon.
    ///
    /// Waits in a separate task: a client that disconnects before the response must not stop its
    /// request from having an effect.
    pub async fn invalidate_in_turn(
        self,
        client: Network,
        targets: Vec<Target>,
        groups: Vec<Vec<u8>>,
    ) {
        let cache = self.cache.clone();
        if self.unsettled.has_turn(client, PER_CLIENT) {
            self.invalidate(client, &targets, &groups);
        } else {
            let due = Due {
                purger: self,
                client,
                targets,
                groups,
            };
            // Error: the runtime is shutting down and has dropped `due`.
            let _ = spawn_local(async move {
                due.purger.unsettled.turn(client).await;
                drop(due);
            })
            .await;
        }
        if cache.is_closed() {
            // The next run may not know about the invalidation, so the client must not get the
            // response. Only a core that has not stopped in time gets here; it stops with the
            // process.
            std::future::pending::<()>().await;
        }
    }

    /// Invalidates `target` for a peer. A peer's message cannot wait, so this returns false (the
    /// effect is then uncertain) if the peer has too many invalidations under way or the store is
    /// closing.
    pub fn invalidate_for_peer(&self, peer: Network, target: Target) -> bool {
        let has_turn = self.unsettled.has_turn(peer, PER_PEER);
        if has_turn {
            self.invalidate(peer, &[target], &[]);
        }
        has_turn && !self.cache.is_closed()
    }

    /// Invalidates without waiting for a turn.
    fn invalidate(&self, client: Network, targets: &[Target], groups: &[Vec<u8>]) {
        let removes = self.removes(targets);
        self.unsettled.add(client, removes);
        self.invalidate_groups(client, targets, groups);
    }

    /// Removes the responses to `targets`. Returns the removes that are not durable yet.
    fn removes(&self, targets: &[Target]) -> Vec<Remove> {
        let mut removes = Vec::new();
        for target in targets {
            if let Some(key) = cache_key(self.space, target) {
                self.counts.count(PurgeKind::Unsafe, PurgeEffect::Hard);
                removes.extend(self.cache.invalidation(&key));
                if matches!(self.space, Space::Site(_))
                    && let Some(twin) = cache_key(self.space, &twin(target))
                {
                    removes.extend(self.cache.invalidation(&twin));
                    self.collapse.forget(&twin);
                }
                self.collapse.forget(&key);
            }
        }
        removes
    }

    fn invalidate_groups(&self, client: Network, targets: &[Target], groups: &[Vec<u8>]) {
        let Some(target) = targets.first().filter(|_| !groups.is_empty()) else {
            return;
        };
        // A cache may ignore group invalidation (RFC 9875, section 3).
        let group = |group: &Vec<u8>| PurgeTarget::Group(target.clone(), group.clone());
        let what: Vec<_> = groups.iter().map(group).collect();
        let mut rules = Vec::new();
        for what in &what {
            if self.rules(what, &mut rules).is_err() {
                return;
            }
        }
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let origin = self.origin(target);
        let (share, is_first) = turn.share(&self.cache, client, &origin, rules.len());
        match share {
            BanShare::Groups => {}
            // This invalidates more than the request has changed, but a cache may forget a response
            // at any time.
            BanShare::Origin => rules = vec![Ban::prefix(&origin).within(&origin)],
            BanShare::Nothing => {
                self.counts.count(PurgeKind::Ignored, PurgeEffect::Hard);
                return;
            }
        }
        let put = self.put_in_force_now(&rules, &what, BanQuota::Origin);
        if is_first && put.is_ok() {
            turn.enter(&self.cache, client, &origin);
        }
        drop(turn);
        match put {
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

/// Invalidations for an unsafe request. They are done on drop: either after the client's turn, or
/// when the proxy stops before that.
struct Due {
    purger: Purger,
    client: Network,
    targets: Vec<Target>,
    groups: Vec<Vec<u8>>,
}

impl Drop for Due {
    fn drop(&mut self) {
        self.purger
            .invalidate(self.client, &self.targets, &self.groups);
    }
}

/// Returns true if `name` is the object under `key` or a variant of it.
fn is_variant(name: &[u8], key: &[u8]) -> bool {
    let behind = name.strip_prefix(key);
    behind.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
}

/// A response's labels for the engine: the cache groups, and the labels with and without the
/// origin.
pub fn labels_of(cache: &Cache, space: Space, target: &Target, response: &HeaderMap) -> Vec<Label> {
    let groups = cache_groups(response);
    let own = labels(response);
    if groups.is_empty() && own.is_empty() {
        return Vec::new();
    }
    let origin = origin_key(space, target);
    // Otherwise the engine would drop the last labels, and a purge by a dropped label would miss
    // the response.
    if groups.len() + 2 * own.len() > LABELS_MAX {
        return vec![many_of(cache, &origin), many_of(cache, &[])];
    }
    let groups = groups.iter().map(|group| group_of(cache, &origin, group));
    let bound = own.iter().map(|label| label_of(cache, &origin, label));
    let free = own.iter().map(|label| label_of(cache, &[], label));
    groups.chain(bound).chain(free).collect()
}

/// Label limit per object in the engine.
const LABELS_MAX: usize = 32;

// The kind is first and an origin key has the port last, so labels with different kinds or origins
// never have the same bytes. A label without an origin applies to all origins.

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

/// The label for responses with too many labels.
fn many_of(cache: &Cache, origin: &[u8]) -> Label {
    cache.label(&[b"many", origin].concat())
}

/// A cluster member's answer to a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPurge {
    /// The member's name.
    pub name: String,
    /// The error; `None`: the member has purged.
    pub fault: Option<String>,
}

/// A purge report, for people and programs. `members` have received the same purge.
pub fn report(what: &[PurgeTarget], effect: PurgeEffect, members: &[MemberPurge]) -> Bytes {
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
    let soft = effect == PurgeEffect::Soft;
    let mut report = json!({ "purged": purged, "soft": soft, "durable": true });
    if !members.is_empty() {
        let said = |member: &MemberPurge| {
            let said = member.fault.as_deref().unwrap_or("purged");
            (member.name.clone(), Value::from(said))
        };
        report["members"] = members.iter().map(said).collect();
    }
    format!("{report}\n").into()
}

#[cfg(test)]
mod tests;
mod unsettled;
