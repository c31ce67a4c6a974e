//! The limits for a request: requests, bytes from origins, bytes per second.
//!
//! Made by `limiter`; called by `permission`, `request` and `connect` in the proxy, and by
//! `throttle` for each piece of content.
//!
//! Invariant: it holds references to the counters, so a reload or a forgotten client changes
//! nothing for a running request. Cost: one lock for each limit and call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hashcache_base::clock::Clock;
use hashcache_base::clock::zone::Zone;
use hashcache_base::failure::{Failure, QuotaDenial, RequestRateDenial};
use hashcache_base::share::Network;
use tokio::time::Instant;

use super::bucket::Bucket;
use super::period::local_text;
use super::settings::{LimitSettings, Quota, QuotaEnd, Rate};
use super::usage::Usage;

/// The limits in a configuration.
#[derive(Debug, Default)]
pub struct LimitPlan {
    /// The limits.
    pub limits: Vec<LimitSettings>,
    /// The time zone for days, weeks and months.
    pub zone: Zone,
    /// The contact for questions, for pages that refuse.
    pub contact: Option<Box<str>>,
}

/// The usage of a limit by a client or user.
#[derive(Debug, Default)]
pub(super) struct SubjectState {
    usage: Mutex<Usage>,
    bandwidth: OnceLock<Arc<Bucket>>,
    requests: OnceLock<Arc<Bucket>>,
    /// For content from origins when the quota is used up.
    slow: OnceLock<Arc<Bucket>>,
}

/// Counts for a limit, for operators.
#[derive(Debug, Default)]
pub(super) struct LimitCounts {
    pub(super) bytes: AtomicU64,
    pub(super) quota_refusals: AtomicU64,
    pub(super) request_refusals: AtomicU64,
}

/// A limit that applies to a request.
#[derive(Debug)]
pub(super) struct Used {
    /// The number of the limit in the plan.
    pub(super) number: usize,
    /// The sender's usage of the limit.
    pub(super) state: Arc<SubjectState>,
    pub(super) counts: Arc<LimitCounts>,
}

/// State that all requests share for counting.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Arc<Clock>,
    /// True if the file differs from memory.
    pub(super) is_changed: AtomicBool,
}

/// The limits for a request.
#[derive(Clone, Debug)]
pub struct RequestLimits(Arc<LimitsInner>);

#[derive(Debug)]
struct LimitsInner {
    shared: Arc<Shared>,
    plan: Arc<LimitPlan>,
    client: Network,
    used: Box<[Used]>,
}

/// The source of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFrom {
    /// The store: uses no quota.
    Store,
    /// An origin.
    Origin,
}

impl SubjectState {
    pub(super) fn with_usage(usage: Usage) -> Self {
        Self {
            usage: Mutex::new(usage),
            ..Self::default()
        }
    }

    pub(super) fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitPlan {
    /// The limits with these numbers, one bit each.
    pub fn numbered(&self, numbers: u64) -> impl Iterator<Item = (usize, &LimitSettings)> {
        let limits = self.limits.iter().enumerate();
        limits.filter(move |(number, _)| *number < 64 && numbers >> number & 1 == 1)
    }
}

impl RequestLimits {
    pub(super) fn new(
        shared: Arc<Shared>,
        plan: Arc<LimitPlan>,
        client: Network,
        used: Box<[Used]>,
    ) -> Self {
        Self(Arc::new(LimitsInner {
            shared,
            plan,
            client,
            used,
        }))
    }

    /// Counts the request, in all limits or in none.
    ///
    /// # Errors
    /// There were too many requests.
    pub fn take_request(&self, now: Instant) -> Result<(), Failure> {
        let mut taken: Vec<Arc<Bucket>> = Vec::new();
        for (limit, used) in self.used() {
            let Some(rate) = limit.requests else { continue };
            let bucket = bucket(&used.state.requests, rate, now);
            if let Err(wait) = bucket.take_one(now) {
                for other in taken {
                    other.give_back(1);
                }
                used.counts.request_refusals.fetch_add(1, Relaxed);
                return Err(Failure::TooManyRequests(Box::new(RequestRateDenial {
                    limit: limit.name.as_str().into(),
                    per_second: rate.per_second,
                    wait,
                    contact: self.0.plan.contact.clone(),
                })));
            }
            taken.push(bucket);
        }
        Ok(())
    }

    /// Checks that a request may be sent to an origin.
    ///
    /// # Errors
    /// A quota is used up.
    pub fn check_quota(&self) -> Result<(), Failure> {
        self.find_used_up(0)
            .inspect_err(|(_, counts)| {
                counts.quota_refusals.fetch_add(1, Relaxed);
            })
            .map_err(|(failure, _)| failure)
    }

    /// Returns true if [`Self::check_quota`] would refuse; counts nothing.
    pub fn refuses_origins(&self) -> bool {
        self.find_used_up(0).is_err()
    }

    /// Checks that a running transfer from an origin may continue: the quota is not used up, or is
    /// exceeded by less than `more`.
    ///
    /// # Errors
    /// A quota is used up.
    pub(super) fn check_transfer(&self, more: u64) -> Result<(), Failure> {
        self.find_used_up(more).map_err(|(failure, _)| failure)
    }

    /// # Errors
    /// A quota is used up, and is exceeded by at least `more`.
    fn find_used_up(&self, more: u64) -> Result<(), (Failure, &LimitCounts)> {
        let unix = self.0.shared.clock.now().seconds();
        for (limit, used) in self.used() {
            let Some(quota) = limit.quota else { continue };
            let usage = self.usage(&used.state, &quota, unix);
            if quota.end == QuotaEnd::Refuse && usage.bytes >= quota.bytes.saturating_add(more) {
                let ends = usage.period.ends;
                let failure = Failure::QuotaUsed(Box::new(QuotaDenial {
                    limit: limit.name.as_str().into(),
                    bytes: quota.bytes,
                    period: quota.period.as_str(),
                    ends: local_text(ends, &self.0.plan.zone).into(),
                    wait: Duration::from_secs(ends.saturating_sub(unix)),
                    contact: self.0.plan.contact.clone(),
                }));
                return Err((failure, &used.counts));
            }
        }
        Ok(())
    }

    /// Counts bytes from an origin.
    pub fn charge(&self, bytes: u64) {
        let unix = self.0.shared.clock.now().seconds();
        for (limit, used) in self.used() {
            let Some(quota) = limit.quota else { continue };
            let mut usage = used.state.usage();
            usage.roll(unix, &quota, &self.0.plan.zone);
            usage.bytes = usage.bytes.saturating_add(bytes);
            used.counts.bytes.fetch_add(bytes, Relaxed);
            self.0.shared.is_changed.store(true, Relaxed);
        }
    }

    /// Returns true if a quota can stop transfers from origins.
    pub(super) fn can_refuse(&self) -> bool {
        let mut quotas = self.used().filter_map(|(limit, _)| limit.quota);
        quotas.any(|quota| quota.end == QuotaEnd::Refuse)
    }

    /// The buckets from which content with this source takes. If there is a number, the bucket
    /// counts only if the quota with that number is used up.
    pub(super) fn buckets(&self, from: ContentFrom) -> Vec<(Arc<Bucket>, Option<usize>)> {
        let now = Instant::now();
        let mut buckets = Vec::new();
        for (at, (limit, Used { state, .. })) in self.used().enumerate() {
            if let Some(rate) = limit.bandwidth {
                buckets.push((bucket(&state.bandwidth, rate, now), None));
            }
            if let (Some(QuotaEnd::Slow(per_second)), ContentFrom::Origin) =
                (limit.quota.map(|quota| quota.end), from)
            {
                // No burst: it would be a small extra quota after each pause.
                let rate = Rate {
                    per_second,
                    burst: 1,
                };
                buckets.push((bucket(&state.slow, rate, now), Some(at)));
            }
        }
        buckets
    }

    pub(super) fn client(&self) -> Network {
        self.0.client
    }

    /// Returns true if any quota is used up, even if the quota does not refuse requests.
    pub fn is_any_used_up(&self) -> bool {
        (0..self.0.used.len()).any(|at| self.is_used_up(at))
    }

    /// Returns true if the quota at this index in the request's limits is used up.
    pub(super) fn is_used_up(&self, at: usize) -> bool {
        let unix = self.0.shared.clock.now().seconds();
        let Some((limit, used)) = self.used().nth(at) else {
            return false;
        };
        let is_over = |quota: Quota| self.usage(&used.state, &quota, unix).bytes >= quota.bytes;
        limit.quota.is_some_and(is_over)
    }

    fn usage(&self, state: &SubjectState, quota: &Quota, unix: u64) -> Usage {
        let mut usage = state.usage();
        usage.roll(unix, quota, &self.0.plan.zone);
        *usage
    }

    fn used(&self) -> impl Iterator<Item = (&LimitSettings, &Used)> {
        let used = self.0.used.iter();
        used.map(|used| (&self.0.plan.limits[used.number], used))
    }
}

/// The bucket in this place, with this rate.
fn bucket(place: &OnceLock<Arc<Bucket>>, rate: Rate, now: Instant) -> Arc<Bucket> {
    let bucket = place.get_or_init(|| Arc::new(Bucket::new(rate, now)));
    bucket.set_rate(rate, now);
    Arc::clone(bucket)
}
