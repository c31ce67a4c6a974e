//! How current what caches serve is, and what that costs: section 4 of the Harvest paper
//! (Chankhunthod and others, "A Hierarchical Internet Object Cache", 1996), with the rules of
//! `hashcache-http`.
//!
//! Objects change at random (`objects`), and clients request them from the lowest caches of a
//! hierarchy (`hierarchy`). Each cache decides by the very functions that the proxy calls (module
//! `rules`): `storable` when a response arrives, `reuse` when it is requested, `confirmed_lifetime`
//! when it has proved unchanged. What differs between runs is the [`Scheme`].
//!
//! Invariant: equal settings give equal results. Objects change, and are requested, at the same
//! times under every scheme.

mod hierarchy;
mod objects;
mod rules;
mod scheme;
#[cfg(test)]
mod tests;

use hashcache_http::UnixTime;
use hashcache_workload::draw::{exponential, whole};

use hierarchy::Hierarchy;
pub use objects::Lifetimes;
use objects::Objects;
pub use scheme::Scheme;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Objects at all origins.
    pub objects: u32,
    /// Their sites.
    pub sites: u32,
    /// How long they live.
    pub lifetimes: Lifetimes,
    /// Caches below each cache, and below the origins.
    pub fan_out: u32,
    /// Levels of caches.
    pub levels: u32,
    /// Requests per day at each of the lowest caches.
    pub requests_per_day: f64,
    /// Exponent of the law of Zipf by which objects are popular; below 1.
    pub popularity: f64,
    /// Days that are counted.
    pub days: u32,
    /// Days before that, in which the caches fill.
    pub warm_up_days: u32,
    /// Seed of all of it.
    pub seed: u64,
}

impl Default for Settings {
    /// As many objects and sites, and as many days, as the paper has observed. The hierarchy and
    /// the requests are our choice: it does not state its own.
    fn default() -> Self {
        Self {
            objects: 4600,
            sites: 2000,
            lifetimes: Lifetimes::default(),
            fan_out: 4,
            levels: 3,
            requests_per_day: 100.0,
            popularity: 0.8,
            days: 90,
            warm_up_days: 30,
            seed: 1,
        }
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of clients.
    pub requests: u64,
    /// Those that were answered with an object that had changed at its origin.
    pub stale: u64,
    /// Those for which a client had to wait for another cache or an origin.
    pub waits: u64,
    /// Contents that were sent over a link between caches, or between a cache and an origin.
    pub transfers: u64,
    /// Validations over such a link that found the object unchanged.
    pub confirmed: u64,
    /// Messages to a cache that an object has changed.
    pub messages: u64,
    /// Requests that reached an origin.
    pub origin_requests: u64,
    /// Bytes over links, messages included.
    pub link_bytes: u64,
}

impl Counts {
    /// Share of the requests that were answered with an object that had changed.
    pub fn stale_share(&self) -> f64 {
        self.per_request(self.stale)
    }

    /// A count for each request.
    pub fn per_request(&self, count: u64) -> f64 {
        count as f64 / self.requests.max(1) as f64
    }
}

/// Runs one scheme.
pub fn simulate(settings: &Settings, scheme: Scheme) -> Counts {
    let mut random = fastrand::Rng::with_seed(settings.seed);
    let mut objects = Objects::new(settings, random.fork());
    let mut hierarchy = Hierarchy::new(settings, scheme, &objects);
    let leaves = hierarchy.leaves();
    let between = DAY / (settings.requests_per_day * leaves.len() as f64);
    let day = |days: u32| f64::from(days) * DAY;
    let (begin, end) = (
        day(settings.warm_up_days),
        day(settings.warm_up_days + settings.days),
    );
    let mut time = 0.0;
    let mut counts = Counts::default();
    while time < end {
        time += exponential(&mut random, between);
        let now = UnixTime(BEGIN + whole(time));
        while let Some(object) = objects.change_until(now) {
            hierarchy.changed(object, objects.get(object), &mut counts);
        }
        let leaf = random.usize(leaves.clone());
        let object = objects.popular(&mut random);
        hierarchy.request(leaf, object, now, &objects, &mut counts);
        if time < begin {
            counts = Counts::default();
        }
    }
    counts
}

/// Where a scheme with a lifetime costs as many bytes as another scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The lifetime, in days.
    pub days: f64,
    /// Share of the requests that are stale with it.
    pub stale_share: f64,
}

/// The lifetime at which `with_lifetime` costs as many bytes as `other`, between two of the
/// lifetimes that were run, ascending; `None` if that is at none of them.
pub fn crossing(with_lifetime: &[(f64, Counts)], other: &Counts) -> Option<Crossing> {
    let cost = |counts: &Counts| counts.per_request(counts.link_bytes);
    let wanted = cost(other);
    with_lifetime.windows(2).find_map(|two| {
        let [(short, dear), (long, cheap)] = two else {
            return None;
        };
        let (dear_cost, cheap_cost) = (cost(dear), cost(cheap));
        if dear_cost < wanted || cheap_cost > wanted || dear_cost <= cheap_cost {
            return None;
        }
        let part = (dear_cost - wanted) / (dear_cost - cheap_cost);
        let between = |from: f64, to: f64| from + (to - from) * part;
        Some(Crossing {
            days: between(*short, *long),
            stale_share: between(dear.stale_share(), cheap.stale_share()),
        })
    })
}

impl Settings {
    /// Caches of all levels.
    pub fn caches(&self) -> u64 {
        let levels = (1..=self.levels).map(|level| u64::from(self.fan_out).saturating_pow(level));
        levels.fold(0, u64::saturating_add)
    }
}

/// Seconds.
const DAY: f64 = 86_400.0;
/// When the simulation begins: long after 1970, so that objects may have changed before.
const BEGIN: u64 = 800_000_000;
