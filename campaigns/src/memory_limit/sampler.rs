//! The memory of a cgroup, looked at every 20 ms.
//!
//! Used by `memory_limit`. Invariant: peaks are those of one look each, never sums of peaks.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow};

use super::mib;
use crate::proxy_process::MemoryCgroup;

/// Memory of a cgroup at one time, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Of no file.
    pub anonymous: u64,
    /// Of files in memory alone.
    pub shared: u64,
}

impl Memory {
    fn of(group: &MemoryCgroup) -> anyhow::Result<Self> {
        Ok(Self {
            anonymous: group.count("memory.stat", "total_rss ")?,
            shared: group.count("memory.stat", "total_shmem ")?,
        })
    }

    /// What the bar is about.
    pub fn sum(self) -> u64 {
        self.anonymous + self.shared
    }

    /// The larger one, whole.
    pub fn max(self, other: Self) -> Self {
        if other.sum() > self.sum() {
            other
        } else {
            self
        }
    }

    /// For people.
    pub fn show(self) -> String {
        format!(
            "{} ({} anonymous, {} shared)",
            mib(self.sum()),
            mib(self.anonymous),
            mib(self.shared)
        )
    }
}

/// Looks at the memory of a cgroup all the time, on a thread of its own.
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
    /// Begins to look.
    pub fn start(group: Arc<MemoryCgroup>) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        *shared.lock() = Memory::of(&group)?;
        let kept = shared.clone();
        let thread = thread::spawn(move || {
            while !kept.stop.load(Relaxed) {
                let now = Memory::of(&group)?;
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

    /// The peak since this was asked last.
    pub fn take_peak(&self) -> Memory {
        std::mem::take(&mut *self.shared.lock())
    }

    /// Ends it; an error if it could not look.
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
        // What it has to say was asked for by `stop`, or an earlier error is told already.
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
