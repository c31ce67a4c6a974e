//! Walks: names and metadata of all stored objects, at the caller's pace.
//!
//! Calls `stripe/walk` device by device.
//!
//! Invariant and cost: see `stripe/walk`.

use bytes::Bytes;

use super::Cache;
use crate::memory::RecordHandle;
use crate::stripe::{StripeWalk, WalkPlace};

/// An object that a [`Walk`] has found.
#[derive(Clone, Debug)]
pub struct WalkedObject {
    /// Name of the object.
    pub name: Bytes,
    /// Metadata of the object.
    pub metadata: Bytes,
    /// Length of the whole content, bytes, if known.
    pub content_len: Option<u64>,
    /// True if all content was stored when the head was written.
    pub is_complete: bool,
    /// True if a ban made the object stale.
    pub is_made_stale: bool,
    /// The number of the device, in the order of [`crate::Config`].
    pub device: usize,
}

/// Result of a [`Walk`] step.
#[derive(Clone, Debug)]
pub struct WalkStep {
    /// Objects that are stored; a step may find none.
    pub objects: Vec<WalkedObject>,
    /// Approximate number of bytes that the step read from the device.
    pub read_bytes: u64,
}

/// A walk through a cache ([`Cache::walk`]): an iterator in which every step reads a record, a set
/// or a list of records.
///
/// The caller decides when to take the next step, and may continue later, from [`Walk::position`],
/// with another walk. Between steps the walk holds only the memory for the list of one log segment;
/// hot objects may have to make room for it. Otherwise a walk has no side effects, as
/// [`Cache::peek`].
pub struct Walk {
    cache: Cache,
    device: usize,
    stripe_walk: StripeWalk,
}

impl Cache {
    /// Starts a walk through all objects.
    ///
    /// The walk returns every object that is stored during the whole walk. An object that is put,
    /// moved or removed meanwhile may be returned or not, or twice. Objects that are kept only in
    /// memory ([`crate::Storage::Memory`]) are left out.
    ///
    /// ```
    /// # use hashcache::{Cache, Config, Put};
    /// # let device = hashcache::device::MemoryDevice::new(16 << 20);
    /// # let mut config = Config::on_device(std::sync::Arc::new(device));
    /// # config.memory_bytes = 16 << 20;
    /// # let cache = Cache::open(config)?;
    /// cache.put(b"name", Put::metadata("text/plain"), b"content")?;
    /// let names: Vec<_> = cache.walk().flat_map(|step| step.objects).map(|it| it.name).collect();
    /// assert_eq!(names, ["name"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn walk(&self) -> Walk {
        Walk {
            cache: self.clone(),
            device: 0,
            stripe_walk: StripeWalk::new(),
        }
    }

    /// A walk that continues at a position from [`Walk::position`]; `None` if the position is not
    /// valid in this cache.
    pub fn walk_from(&self, position: &str) -> Option<Walk> {
        let mut parts = position.split('.');
        let device: usize = parts.next()?.parse().ok()?;
        let kind = parts.next()?;
        let numbers: Vec<u64> = parts
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|numbers: &Vec<u64>| numbers.len() <= 4)?;
        let place = match (kind, &numbers[..]) {
            ("pending", [shard]) => WalkPlace::Pending(usize::try_from(*shard).ok()?),
            ("log", [segment, lap, begun, line]) => WalkPlace::Log {
                open: (*segment, *lap),
                begun: *begun,
                line: *line,
            },
            ("set", [set]) => WalkPlace::Set(*set),
            ("over", []) => WalkPlace::Over,
            _ => return None,
        };
        let stripe = self.inner.stripes.get(device)?;
        Some(Walk {
            stripe_walk: StripeWalk::at(stripe, place)?,
            cache: self.clone(),
            device,
        })
    }
}

impl Walk {
    /// Position of the next step, for [`Cache::walk_from`].
    pub fn position(&self) -> String {
        let device = self.device;
        match self.stripe_walk.place() {
            WalkPlace::Pending(shard) => format!("{device}.pending.{shard}"),
            WalkPlace::Log { open, begun, line } => {
                format!("{device}.log.{}.{}.{begun}.{line}", open.0, open.1)
            }
            WalkPlace::Set(set) => format!("{device}.set.{set}"),
            WalkPlace::Over => format!("{device}.over"),
        }
    }

    /// The share of the store that was walked through, in thousandths. All devices have the same
    /// weight, and so have the segments or sets within a device.
    pub fn done_permille(&self) -> u64 {
        let stripes = &self.cache.inner.stripes;
        let here = stripes.get(self.device);
        let here = here.map_or(1000, |stripe| self.stripe_walk.done_permille(stripe));
        (1000 * self.device as u64 + here) / (stripes.len() as u64).max(1)
    }

    fn object(&self, record: &RecordHandle) -> WalkedObject {
        let stripe = &self.cache.inner.stripes[self.device];
        WalkedObject {
            name: record.name.clone(),
            metadata: record.metadata.clone(),
            content_len: record.fields.total,
            is_complete: !record.fields.incomplete,
            is_made_stale: stripe.bans.judge(record).stale,
            device: self.device,
        }
    }
}

impl Iterator for Walk {
    type Item = WalkStep;

    fn next(&mut self) -> Option<WalkStep> {
        while let Some(stripe) = self.cache.inner.stripes.get(self.device) {
            if let Some(piece) = self.stripe_walk.step(stripe) {
                return Some(WalkStep {
                    objects: piece.records.iter().map(|it| self.object(it)).collect(),
                    read_bytes: piece.read_bytes,
                });
            }
            if self.device + 1 == self.cache.inner.stripes.len() {
                return None;
            }
            self.device += 1;
            self.stripe_walk = StripeWalk::new();
        }
        None
    }
}
