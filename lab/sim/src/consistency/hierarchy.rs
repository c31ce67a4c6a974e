//! A tree of caches below the origins, and what goes over its links.
//!
//! A cache that has no usable copy asks the one above it; the topmost ones ask the origin. It asks
//! with its copy's validator if it has one, and the answer says that the copy is current, or has
//! the content. Caches are never full, so a cache that has a copy has told the one above it.

use std::ops::Range;

use hashcache_http::UnixTime;

use super::objects::{Object, Objects};
use super::rules::{Answer, Rules, Stored, Use};
use super::scheme::Scheme;
use super::{Counts, Settings};

pub struct Hierarchy {
    scheme: Scheme,
    rules: Rules,
    /// Level by level, the topmost first.
    caches: Vec<Cache>,
    leaves: Range<usize>,
    /// The objects of each site.
    objects_of: Vec<Vec<u32>>,
}

struct Cache {
    /// `None`: the origins.
    above: Option<usize>,
    copies: Vec<Option<Stored>>,
}

impl Hierarchy {
    pub fn new(settings: &Settings, scheme: Scheme, objects: &Objects) -> Self {
        let new = |above| Cache {
            above,
            copies: vec![None; settings.objects as usize],
        };
        let mut caches: Vec<Cache> = (0..settings.fan_out).map(|_| new(None)).collect();
        let mut leaves = 0..caches.len();
        for _ in 1..settings.levels {
            for above in leaves.clone() {
                caches.extend((0..settings.fan_out).map(|_| new(Some(above))));
            }
            leaves = leaves.end..caches.len();
        }
        let mut objects_of = vec![vec![]; settings.sites as usize];
        for number in 0..settings.objects {
            objects_of[objects.get(number).site as usize].push(number);
        }
        Self {
            scheme,
            rules: Rules::new(scheme),
            caches,
            leaves,
            objects_of,
        }
    }

    /// The caches that clients ask.
    pub fn leaves(&self) -> Range<usize> {
        self.leaves.clone()
    }

    /// A request of a client.
    pub fn request(
        &mut self,
        leaf: usize,
        number: u32,
        now: UnixTime,
        objects: &Objects,
        counts: &mut Counts,
    ) {
        let mut request = Request {
            hierarchy: self,
            number,
            now,
            object: objects.get(number),
            counts,
        };
        request.counts.requests += 1;
        let had_to_wait = request.must_ask(leaf);
        let answer = request.answer(leaf);
        counts.waits += u64::from(had_to_wait);
        counts.stale += u64::from(answer.version != objects.get(number).version);
    }

    /// An object has changed at its origin.
    pub fn changed(&mut self, number: u32, object: &Object, counts: &mut Counts) {
        match self.scheme {
            Scheme::Invalidation => {
                for cache in &mut self.caches {
                    let had_it = cache.copies[number as usize].take().is_some();
                    counts.messages += u64::from(had_it);
                    counts.link_bytes += MESSAGE_BYTES * u64::from(had_it);
                }
            }
            Scheme::GroupPurge => {
                for cache in &mut self.caches {
                    counts.messages += 1;
                    counts.link_bytes += MESSAGE_BYTES;
                    for &member in &self.objects_of[object.site as usize] {
                        cache.copies[member as usize] = None;
                    }
                }
            }
            Scheme::Fixed(_)
            | Scheme::Validated(_)
            | Scheme::WhileRevalidating(_)
            | Scheme::Doubling(_)
            | Scheme::Heuristic(_) => {}
        }
    }
}

/// A request for one object on its way up the tree.
struct Request<'a> {
    hierarchy: &'a mut Hierarchy,
    number: u32,
    now: UnixTime,
    object: &'a Object,
    counts: &'a mut Counts,
}

impl Request<'_> {
    fn copy(&mut self, cache: usize) -> &mut Option<Stored> {
        &mut self.hierarchy.caches[cache].copies[self.number as usize]
    }

    fn use_of_copy(&mut self, cache: usize) -> Use {
        let now = self.now;
        let copy = *self.copy(cache);
        copy.map_or(Use::Ask, |copy| self.hierarchy.rules.use_of(&copy, now))
    }

    fn must_ask(&mut self, cache: usize) -> bool {
        self.use_of_copy(cache) == Use::Ask
    }

    /// What `cache` answers with. Each level of the tree is one call.
    fn answer(&mut self, cache: usize) -> Answer {
        let now = self.now;
        let usage = self.use_of_copy(cache);
        let copy = *self.copy(cache);
        match (usage, copy) {
            (Use::Serve, Some(copy)) => copy.answer(now),
            (Use::ServeAndRevalidate, Some(copy)) => {
                self.ask_above(cache);
                copy.answer(now)
            }
            (Use::Ask, _) | (_, None) => self.ask_above(cache),
        }
    }

    /// Has `cache` ask the cache above it, or the origin, and store the answer.
    fn ask_above(&mut self, cache: usize) -> Answer {
        let answer = match self.hierarchy.caches[cache].above {
            Some(above) => self.answer(above),
            None => self.answer_of_origin(),
        };
        let discards = self.hierarchy.scheme.discards();
        let held = self.copy(cache).filter(|_| !discards);
        let confirmed = held.filter(|held| held.version == answer.version);
        self.counts.link_bytes += REQUEST_BYTES + HEAD_BYTES;
        if confirmed.is_some() {
            self.counts.confirmed += 1;
        } else {
            self.counts.transfers += 1;
            self.counts.link_bytes += self.object.bytes;
        }
        let rules = &self.hierarchy.rules;
        let stored = rules.store(&answer, confirmed.as_ref(), self.now);
        *self.copy(cache) = stored;
        answer
    }

    fn answer_of_origin(&mut self) -> Answer {
        self.counts.origin_requests += 1;
        Answer {
            version: self.object.version,
            changed_at: self.object.changed_at,
            date: self.now,
            age: 0,
        }
    }
}

/// Head of a request and of a response. Today's are larger; those of 1996 were like this.
const REQUEST_BYTES: u64 = 300;
const HEAD_BYTES: u64 = 200;
/// A datagram with an URL.
const MESSAGE_BYTES: u64 = 100;
