//! Observers: callbacks that report which marks were written, and when the log overwrites a
//! segment.
//!
//! `cache` adds and removes observers; `writer` reports to them. A summary of the stored objects (a
//! Bloom filter, for example) is built by a scan (`stripe/scan`) and kept current by these reports.
//!
//! Invariants: a sink is called without any lock of the engine. A batch is reported after the write
//! has returned and before the index has the entries, so a scan that finds an entry moved can rely
//! on the report of the new position.
//! Cost: one load a batch and one a segment as long as there is no observer; otherwise a line of
//! memory for each object in a batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::hour::Hour;

/// An object as the lists in the log describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkedObject {
    /// The mark that the object was put with; not 0.
    pub mark: u128,
    /// The hour that the object was put or last updated with.
    pub fresh_until: Option<Hour>,
    /// Bytes of the head on the device: metadata and the first 64 KiB of content.
    pub head_bytes: u64,
}

/// An event that is reported to a sink ([`crate::Cache::observe`]).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A batch was written. `objects` may include an object that was removed or replaced at that
    /// moment, and an object that is reported for the second time.
    Recorded {
        /// Number of the device, to distinguish the devices of a store.
        device: u16,
        /// The complete objects of the batch that have a mark.
        objects: &'a [MarkedObject],
    },
    /// The log starts to overwrite a segment: the oldest objects of this device are lost, unless
    /// they are reported as recorded once more.
    Reclaimed {
        /// Number of the device, to distinguish the devices of a store.
        device: u16,
        /// Bytes of the segment.
        segment_bytes: u64,
        /// Bytes of the device's log.
        log_bytes: u64,
    },
}

type Sink = dyn Fn(Event<'_>) + Send + Sync;

struct Registered {
    sink: Box<Sink>,
    /// Set when the sink has panicked.
    has_failed: AtomicBool,
}

/// The sinks of a store. See the module's head.
#[derive(Default)]
pub(crate) struct Observers {
    any: AtomicBool,
    sinks: Mutex<Vec<Arc<Registered>>>,
}

impl Observers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Registered>>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if there is at least one observer.
    ///
    /// Relaxed is enough for a scan that starts after the observer was added. It relies on reports
    /// of records that became pending after it looked through their shard, and of copies in
    /// segments that were opened after it noted the open segment. The locks on the shard and on the
    /// log's stamps order both after the observer.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Calls every sink. A sink that panics is not called again, so that the writer can continue.
    pub(crate) fn report(&self, event: Event<'_>) {
        let sinks = self.lock().clone();
        for registered in sinks {
            if registered.has_failed.load(Ordering::Relaxed) {
                continue;
            }
            let call = AssertUnwindSafe(|| (registered.sink)(event));
            if catch_unwind(call).is_err() {
                registered.has_failed.store(true, Ordering::Relaxed);
                tracing::error!("an observer of the cache panicked and is not called again");
            }
        }
    }

    pub(crate) fn add(
        self: &Arc<Self>,
        sink: impl Fn(Event<'_>) + Send + Sync + 'static,
    ) -> Observation {
        let registered = Arc::new(Registered {
            sink: Box::new(sink),
            has_failed: AtomicBool::new(false),
        });
        let mut sinks = self.lock();
        sinks.push(Arc::clone(&registered));
        self.any.store(true, Ordering::Relaxed);
        drop(sinks);
        Observation {
            observers: Arc::clone(self),
            registered,
        }
    }

    fn end(&self, ended: &Arc<Registered>) {
        let mut sinks = self.lock();
        sinks.retain(|it| !Arc::ptr_eq(it, ended));
        self.any.store(!sinks.is_empty(), Ordering::Relaxed);
    }
}

/// An observer of a cache, until this is dropped. A call that is running at that time is not
/// interrupted. Does not keep the cache open.
#[must_use = "the observer ends when this is dropped"]
pub struct Observation {
    observers: Arc<Observers>,
    registered: Arc<Registered>,
}

impl Observation {
    /// Returns true if the sink has panicked. In that case it is not called any more.
    pub fn has_failed(&self) -> bool {
        self.registered.has_failed.load(Ordering::Relaxed)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.observers.end(&self.registered);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const EVENT: Event<'_> = Event::Reclaimed {
        device: 0,
        segment_bytes: 1,
        log_bytes: 4,
    };

    #[test]
    fn a_sink_is_called_until_its_handle_is_dropped_and_others_go_on() {
        let observers = Arc::new(Observers::default());
        let calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let add = |n: usize| {
            let calls = Arc::clone(&calls);
            observers.add(move |_| _ = calls[n].fetch_add(1, Ordering::Relaxed))
        };
        assert!(!observers.any());
        let (first, second) = (add(0), add(1));
        observers.report(EVENT);
        drop(first);
        assert!(observers.any());
        observers.report(EVENT);
        drop(second);
        assert!(!observers.any());
        observers.report(EVENT);
        let calls = [0, 1].map(|n: usize| calls[n].load(Ordering::Relaxed));
        assert_eq!(calls, [1, 2]);
    }

    #[test]
    fn a_sink_that_panics_is_not_called_again_and_does_not_end_its_caller() {
        let observers = Arc::new(Observers::default());
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&calls);
        let observation = observers.add(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            panic!("planted by this test");
        });
        observers.report(EVENT);
        observers.report(EVENT);
        assert!(observation.has_failed());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_sink_may_end_itself_and_add_others() {
        let observers = Arc::new(Observers::default());
        let own = Arc::new(Mutex::new(None));
        let (slot, inner) = (Arc::clone(&own), Arc::clone(&observers));
        let observation = observers.add(move |_| {
            drop(slot.lock().unwrap().take());
            drop(inner.add(|_| {}));
        });
        *own.lock().unwrap() = Some(observation);
        observers.report(EVENT);
        assert!(!observers.any());
    }
}
