//! The engine's only source of time, given by the program that opens a cache.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A monotone clock and the Unix time.
#[derive(Clone)]
pub struct Clock {
    monotone: Arc<dyn Fn() -> Duration + Send + Sync>,
    unix: Arc<dyn Fn() -> Duration + Send + Sync>,
    is_manual: bool,
}

impl Clock {
    /// The system's clocks.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where the engine's time comes from"
    )]
    pub fn system() -> Self {
        let start = Instant::now();
        Self::new(
            move || start.elapsed(),
            || {
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
            },
        )
    }

    /// Clocks supplied by the caller: monotonic time since an arbitrary moment, and Unix time.
    pub fn new(
        monotone: impl Fn() -> Duration + Send + Sync + 'static,
        unix: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        Self {
            monotone: Arc::new(monotone),
            unix: Arc::new(unix),
            is_manual: false,
        }
    }

    /// As [`Clock::new`], for time that passes only when the caller advances it, as in a
    /// simulation. The writing threads write pending objects only on request, by
    /// [`Cache::cut_batch`](crate::Cache::cut_batch), [`Cache::flush`](crate::Cache::flush) or a
    /// purge, so that the result does not depend on how fast the threads run. The threads do not
    /// sleep until a checkpoint or a sync is due by such a clock: they check it when they have
    /// other work. Removes become durable at once, however long the last removes took. If there are
    /// several devices, they write one after the other, and `flush` and `cut_batch` wait for all of
    /// them.
    pub fn manual(
        monotone: impl Fn() -> Duration + Send + Sync + 'static,
        unix: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        Self {
            is_manual: true,
            ..Self::new(monotone, unix)
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.is_manual
    }

    pub(crate) fn monotone(&self) -> Duration {
        (self.monotone)()
    }

    pub(crate) fn unix_millis(&self) -> u64 {
        u64::try_from((self.unix)().as_millis()).unwrap_or(u64::MAX)
    }
}
