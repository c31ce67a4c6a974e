//! A clock that a test sets.

use super::*;

/// Boot time and wall time, as the test sets them.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) boot_ms: AtomicU64,
    pub(super) wall_ms: AtomicU64,
}

impl Clock {
    /// A clock for a machine that has just started with this system time, seconds since 1970.
    pub fn of_test(seconds: u64) -> Self {
        clock(&script(seconds * 1000))
    }

    /// Lets time pass on a clock from [`Clock::of_test`].
    pub fn pass(&self, seconds: u64) {
        if let TimeSource::Scripted(script) = &self.source {
            script.pass(seconds * 1000);
        }
    }
}

impl Script {
    pub(super) fn pass(&self, ms: u64) {
        self.boot_ms.fetch_add(ms, Relaxed);
        self.wall_ms.fetch_add(ms, Relaxed);
    }
}

pub(super) fn script(wall_ms: u64) -> Arc<Script> {
    Arc::new(Script {
        boot_ms: AtomicU64::new(5_000),
        wall_ms: AtomicU64::new(wall_ms),
    })
}

pub(super) fn clock(script: &Arc<Script>) -> Clock {
    Clock::with_source(TimeSource::Scripted(Arc::clone(script)), None)
}
