//! Scans and observers: which marked objects are stored, without reading any of the objects.
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

/// Result of a [`Scan`] step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanStep {
    /// Objects that are stored; a step may find none.
    pub objects: Vec<MarkedObject>,
    /// Bytes that the step read from the device, for callers that pace a scan.
    pub read_bytes: u64,
}

/// A scan of a cache ([`Cache::scan`]): an iterator in which every step reads a piece of the lists.
///
/// The caller decides when to take the next step. A step blocks for one read, seldom two: the list
/// of a whole segment (up to 64 MiB of the log), 56 bytes an object; or 256 KiB if a segment has no
/// list, which is true for the segment that is being written and for another segment after each
/// crash. A step that only looks through pending objects reads nothing. Between steps the scan
/// holds only the memory for the longest list so far, about three times its bytes.
///
/// If a device fails meanwhile, the scan of that device stops, because nothing on it counts any
/// more.
///
/// Keeps the cache open, as clones of it do.
pub struct Scan {
    cache: Cache,
    device: usize,
    stripe_scan: StripeScan,
    unread_segments: u64,
}

impl Cache {
    /// Starts a scan for the marks of all complete objects ([`Put::mark`](crate::Put::mark) other
    /// than 0), from the lists in the log. Only with the policies `log` and `log-lru`.
    ///
    /// The scan returns an object if the index still points to it. So objects that were removed,
    /// replaced or evicted are left out, also objects that are only left in memory. Some of the
    /// returned objects may not be stored:
    /// - objects that a ban of a prefix or label hides: the lists have neither names nor labels;
    /// - the older version of a name, if the put that replaced it did not name it
    ///   ([`Intent::replacing`](crate::Intent::replacing)), or if the index was rebuilt after a
    ///   crash; the older version is returned before the newer one;
    /// - with `log-lru`, where a position is on disk, an object if another object has the same tag
    ///   and lap (about one in 25);
    /// - an object that is removed after the scan has returned it.
    ///
    /// An object can be returned more than once. Some objects may not be returned:
    /// - Without an observer, an object that moves during the scan: it is put anew, or the log
    ///   keeps it for another lap because it is in use.
    /// - With an observer that was added before the scan started ([`Cache::observe`]): only objects
    ///   in segments that [`Scan::unread_segments`] counts, and objects that were put since the
    ///   scan started and are still to be written, which will be reported. A name that is stored
    ///   under the same mark during the whole scan is returned, or was reported before the scan is
    ///   over.
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

    /// Calls `sink` for each batch that is written and each segment that is overwritten, until the
    /// handle is dropped. Only with the policies `log` and `log-lru`.
    ///
    /// The threads that write call the sink, several at the same time if there are several devices.
    /// So the sink must be quick and must not wait: not for a lock that is held for long, and above
    /// all not for the cache ([`Cache::flush`] in a sink would never return). The sink may call
    /// [`Cache::get`] without waiting for the answer. A sink that queues events and finds its queue
    /// full drops them and notes that a new [`Cache::scan`] is needed. No lock of the engine is
    /// held meanwhile. A sink that panics is not called again.
    ///
    /// Evicted objects are not reported one by one, because the index does not know their marks.
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
        // All devices of a store have the same policy.
        match self.inner.stripes.first() {
            Some(stripe) if stripe.medium.geometry.family == Family::Table => Err(NoLists {
                policy: stripe.index.id.policy.kind.name(),
            }),
            _ => Ok(()),
        }
    }
}

impl Scan {
    /// Number of segments so far with lists that could not be read, all or some: the device or the
    /// memory refused, or a damaged list had no second copy. Objects in them may be missing.
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
