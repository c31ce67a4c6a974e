//! Samples the memory of a cgroup every 20 ms.
//!
//! Used by `memory_limit`. Invariant: a peak is one whole sample, never a sum of peaks of parts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow};

use super::mib;
use crate::cgroup::Cgroup;

/// Memory of a cgroup at one time, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous memory.
    pub anonymous: u64,
    /// Shared memory (tmpfs and the like).
    pub shared: u64,
}

impl Memory {
    fn new(group: &Cgroup) -> anyhow::Result<Self> {
        Ok(Self {
            anonymous: group.count("memory.stat", "total_rss ")?,
            shared: group.count("memory.stat", "total_shmem ")?,
        })
    }

    /// The amount that the bar limits.
    pub fn sum(self) -> u64 {
        self.anonymous + self.shared
    }

    /// The sample with the larger sum.
    pub fn max(self, other: Self) -> Self {
        if other.sum() > self.sum() {
            other
        } else {
            self
        }
    }

    /// The sample as it is printed.
    pub fn show(self) -> String {
        format!(
            "{} ({} anonymous, {} shared)",
            mib(self.sum()),
            mib(self.anonymous),
            mib(self.shared)
        )
    }
}

/// Samples the memory of a cgroup on a thread of its own.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    peak: Mutex<Memory>,
}

impl Sampler {
    /// Starts the thread.
    pub fn start(group: Arc<Cgroup>) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        *shared.lock() = Memory::new(&group)?;
        let kept = shared.clone();
        let thread = thread::spawn(move || {
            while !kept.stop.load(Relaxed) {
                let now = Memory::new(&group)?;
                let mut peak = kept.lock();
                *peak = peak.max(now);
                drop(peak);
                thread::sleep(LOOK_TIME);
            }
            Ok(())
        });
        let thread = Some(thread);
        Ok(Self { shared, thread })
    }

    /// The peak since the last call.
    pub fn take_peak(&self) -> Memory {
        std::mem::take(&mut *self.shared.lock())
    }

    /// Stops the thread; an error if a sample could not be read.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let looked = thread.join().map_err(|_| anyhow!("the sampler panicked"))?;
        looked.context("memory could not be looked at")
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // `stop` has returned the result already, or an earlier error was reported instead.
        let _ = self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.peak.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LOOK_TIME: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_looks_at_memory_the_larger_sum_is_kept_whole() {
        let small = Memory {
            anonymous: 10,
            shared: 5,
        };
        let large = Memory {
            anonymous: 4,
            shared: 20,
        };
        assert_eq!(small.max(large), large);
        assert_eq!(large.max(small), large);
        assert_eq!(mib(24 << 20), "24.0 MiB");
    }
}
