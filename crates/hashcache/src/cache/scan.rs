//! Scans and observers: which marked objects are stored, without a read of any of them.
//!
//! Calls `stripe/scan` device by device, and `observers`.
//!
//! Invariant and cost: see `stripe/scan`.

use super::Cache;
use crate::error::{NoLists, ScanError};
use crate::format::Family;
use crate::observers::{Event, MarkedObject, Observation};
use crate::stats::Health;
use crate::stripe::StripeScan;

/// What one step of a [`Scan`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanStep {
    /// Objects that are stored; none of them may have been found in this step.
    pub objects: Vec<MarkedObject>,
    /// Bytes that it read from the device, for callers that pace a scan.
    pub read_bytes: u64,
}

/// A scan of a cache ([`Cache::scan`]): an iterator whose every step reads a piece of the lists.
///
/// The caller decides when to take the next step. A step blocks for one read, seldom two: of the
/// list of a whole segment (up to 64 MiB of the log), 56 bytes an object; or of 256 KiB where a
/// segment has no list of its own, which is the one that is being written and one for each crash.
/// A step that only looks through pending objects reads nothing. Between steps nothing is held but
/// memory for the longest list so far, about three times its bytes.
///
/// Where a device fails meanwhile, its part of the scan ends: nothing on it counts any more.
///
/// Keeps the cache open, as clones of it do.
pub struct Scan {
    cache: Cache,
    device: usize,
    stripe_scan: StripeScan,
    unread_segments: u64,
}

impl Cache {
    /// Begins a scan of the marks of all complete objects ([`Put::mark`](crate::Put::mark) other
    /// than 0), from the lists in the log. Only with the policies `log` and `log-lru`.
    ///
    /// An object is given out if the index still points to it. So objects that were removed,
    /// replaced or evicted are left out, also those that are only left in memory. Some that are not
    /// stored can be among the others:
    /// - objects that a ban of a prefix or label hides: the lists have neither names nor labels;
    /// - the older version of a name, if the put that replaced it did not say so
    ///   ([`Intent::replacing`](crate::Intent::replacing)), or if the index was made anew after a
    ///   crash; it is given out before the newer one;
    /// - with `log-lru`, where a position is on disk, an object whose tag and lap another one has
    ///   (about one in 25);
    /// - what is removed after the scan has given it out.
    ///
    /// An object can be given out more than once. What may not be given out:
    /// - Without an observer, an object that moves while the scan is under way: it is put anew, or
    ///   the log keeps it for another lap because it is in use.
    /// - With an observer that was there before the scan began ([`Cache::observe`]): only objects
    ///   of segments that [`Scan::unread_segments`] counts, and what was put since the scan began
    ///   and is still to be written, which will be reported. A name that is stored from the begin
    ///   of the scan to its end under one mark is given out, or was reported before the end.
    ///
    /// ```
    /// # use hashcache::{Cache, Config, Put};
    /// # let device = hashcache::device::MemoryDevice::new(16 << 20);
    /// # let mut config = Config::on_device(std::sync::Arc::new(device));
    /// # config.memory_bytes = 16 << 20;
    /// # let cache = Cache::open(config)?;
    /// let put = Put { mark: 7, ..Put::metadata("text/plain") };
    /// cache.put(b"name", put, b"content")?;
    /// let mut marks = Vec::new();
    /// for step in cache.scan()? {
    ///     marks.extend(step.objects.iter().map(|object| object.mark));
    ///     // Here a caller that leaves the disk to others waits, in proportion to `read_bytes`.
    /// }
    /// assert_eq!(marks, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`ScanError`].
    pub fn scan(&self) -> Result<Scan, ScanError> {
        self.has_lists()?;
        match self.health() {
            Health::InService => Ok(Scan {
                cache: self.clone(),
                device: 0,
                stripe_scan: StripeScan::new(),
                unread_segments: 0,
            }),
            Health::Recovering => Err(ScanError::Recovering),
            Health::OutOfService => Err(ScanError::OutOfService),
        }
    }

    /// Has `sink` called for each batch that is written and each segment that is overwritten, until
    /// the handle is dropped. Only with the policies `log` and `log-lru`.
    ///
    /// The threads that write call the sink, several at the same time when there are several
    /// devices. So it must be quick and must not wait: not for a lock that is held for long, and
    /// above all not for the cache ([`Cache::flush`] in a sink would never return). It may call
    /// [`Cache::get`] without waiting for the answer. A sink that queues events and finds its queue
    /// full drops them and notes that a new [`Cache::scan`] is needed. No lock of the engine is
    /// held meanwhile. A sink that panics is not called again.
    ///
    /// Objects that are evicted are not reported one by one: the index does not know their marks.
    ///
    /// # Errors
    /// [`NoLists`] with a policy that keeps objects in the Disk Table.
    pub fn observe(
        &self,
        sink: impl Fn(Event<'_>) + Send + Sync + 'static,
    ) -> Result<Observation, NoLists> {
        self.has_lists()?;
        Ok(self.shared().observers.add(sink))
    }

    fn has_lists(&self) -> Result<(), NoLists> {
        // All devices of a store have one policy.
        match self.inner.stripes.first() {
            Some(stripe) if stripe.medium.geometry.family == Family::Table => Err(NoLists {
                policy: stripe.index.id.policy.kind.name(),
            }),
            _ => Ok(()),
        }
    }
}

impl Scan {
    /// Segments so far whose lists could not be read, all or some: the device or the memory
    /// refused, or a list is damaged that had no second copy. Objects in them may be missing.
    pub fn unread_segments(&self) -> u64 {
        self.unread_segments
    }
}

impl Iterator for Scan {
    type Item = ScanStep;

    fn next(&mut self) -> Option<ScanStep> {
        while let Some(stripe) = self.cache.inner.stripes.get(self.device) {
            if let Some(piece) = self.stripe_scan.step(stripe) {
                self.unread_segments += u64::from(piece.is_unread);
                return Some(ScanStep {
                    objects: piece.objects,
                    read_bytes: piece.read_bytes,
                });
            }
            self.device += 1;
            self.stripe_scan = StripeScan::new();
        }
        None
    }
}
