//! Objects that change: how long each version lives, how large and how popular an object is.
//!
//! The paper has sampled 4,600 objects of 2,000 sites for three months: they live 44 days on
//! average, over 28 % of them change at least every 10 days, and 1 % are made at each request. No
//! cache stores the latter, so they are left out. The mean lifetimes of the others are log-normal
//! with these figures. The versions of one object have exponentially distributed lifetimes: the
//! paper found that those vary, too (Figure 9).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashcache_http::UnixTime;
use hashcache_workload::draw::{exponential, normal, whole, zipf};

use super::{BEGIN, DAY, Settings};

/// How long objects live.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lifetimes {
    /// Median of the mean lifetimes of objects, days.
    pub median_days: f64,
    /// Standard deviation of their logarithms.
    pub sigma: f64,
}

impl Default for Lifetimes {
    /// A mean of 44 days, and 27 of 99 objects below 10 days.
    fn default() -> Self {
        Self {
            median_days: 20.9,
            sigma: 1.22,
        }
    }
}

pub struct Objects {
    random: fastrand::Rng,
    objects: Vec<Object>,
    /// When which object changes next.
    changes: BinaryHeap<Reverse<(u64, u32)>>,
    popularity: f64,
}

/// An object at its origin.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    pub version: u32,
    pub changed_at: UnixTime,
    pub bytes: u64,
    pub site: u32,
    mean_life: f64,
}

impl Objects {
    pub fn new(settings: &Settings, mut random: fastrand::Rng) -> Self {
        let objects = (0..settings.objects)
            .map(|_| Object::new(settings, &mut random))
            .collect();
        let mut all = Self {
            random,
            objects,
            changes: BinaryHeap::new(),
            popularity: settings.popularity,
        };
        for number in 0..settings.objects {
            all.plan(number, BEGIN);
        }
        all
    }

    pub fn get(&self, number: u32) -> &Object {
        &self.objects[number as usize]
    }

    /// The object that changes next, if that is not after `now`; it has changed when this returns.
    pub fn change_until(&mut self, now: UnixTime) -> Option<u32> {
        let &Reverse((time, number)) = self.changes.peek()?;
        if time > now.0 {
            return None;
        }
        self.changes.pop();
        let object = &mut self.objects[number as usize];
        object.version += 1;
        object.changed_at = UnixTime(time);
        self.plan(number, time);
        Some(number)
    }

    /// An object that a client requests.
    pub fn popular(&self, random: &mut fastrand::Rng) -> u32 {
        let place = zipf(random, self.objects.len() as u64, self.popularity);
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    /// Mean lifetimes in days, ascending.
    #[cfg(test)]
    pub fn mean_days(&self) -> Vec<f64> {
        let mut days: Vec<f64> = self.objects.iter().map(|it| it.mean_life / DAY).collect();
        days.sort_by(f64::total_cmp);
        days
    }

    fn plan(&mut self, number: u32, from: u64) {
        let life = exponential(&mut self.random, self.objects[number as usize].mean_life);
        self.changes
            .push(Reverse((from + whole(life).max(1), number)));
    }
}

impl Object {
    fn new(settings: &Settings, random: &mut fastrand::Rng) -> Self {
        let Lifetimes { median_days, sigma } = settings.lifetimes;
        let mean_life = median_days * DAY * (sigma * normal(random)).exp();
        let before = exponential(random, mean_life);
        Self {
            version: 0,
            changed_at: UnixTime(BEGIN.saturating_sub(whole(before))),
            bytes: whole(MEDIAN_BYTES * (BYTES_SIGMA * normal(random)).exp()).clamp(1, BYTES_MAX),
            site: random.u32(..settings.sites),
            mean_life,
        }
    }
}

/// Sizes as in the workload `pages` of the bench: a mean of 9 KB.
const MEDIAN_BYTES: f64 = 3000.0;
const BYTES_SIGMA: f64 = 1.5;
const BYTES_MAX: u64 = 10 << 20;
