//! The engine's own threads for calls that block on the device.
//!
//! Called by `stripe`. A fixed thread count bounds both the memory and the device's queue depth.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
struct PoolState {
    jobs: Mutex<Jobs>,
    come: Condvar,
}

/// Threads that run jobs in arrival order.
pub(crate) struct Pool {
    shared: Arc<PoolState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Enough to read and verify a record; the default, 8 MiB, would waste address space.
const STACK_BYTES: usize = 256 << 10;

impl Pool {
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(PoolState::default());
        let spawn = |n| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("hc-read-{n}"))
                .stack_size(STACK_BYTES)
                .spawn(move || serve(&shared))
        };
        let threads = (0..threads).map(spawn).collect::<io::Result<_>>()?;
        Ok(Self {
            shared,
            threads: Mutex::new(threads),
        })
    }

    /// Queues `job` for a thread; drops it if the pool is closed.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self
            .shared
            .jobs
            .lock()
            .expect("no holder of this lock panics");
        if !jobs.closed {
            jobs.waiting.push_back(Box::new(job));
            drop(jobs);
            self.shared.come.notify_one();
        }
    }

    /// Runs all waiting jobs on the caller's thread.
    #[cfg(all(test, loom))]
    pub(crate) fn run_waiting(&self) {
        let next = || self.shared.jobs.lock().unwrap().waiting.pop_front();
        while let Some(job) = next() {
            job();
        }
    }

    /// Drops waiting jobs and joins the threads.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut jobs = self
                .shared
                .jobs
                .lock()
                .expect("no holder of this lock panics");
            jobs.closed = true;
            std::mem::take(&mut jobs.waiting)
        };
        drop(waiting);
        self.shared.come.notify_all();
        let mut threads = self.threads.lock().expect("no holder of this lock panics");
        for thread in threads.drain(..) {
            // A job may drop the last handle to the cache. Then this is a pool thread, which must
            // not join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn serve(shared: &PoolState) {
    loop {
        let job = {
            let mut jobs = shared.jobs.lock().expect("no holder of this lock panics");
            loop {
                if let Some(job) = jobs.waiting.pop_front() {
                    break job;
                }
                if jobs.closed {
                    return;
                }
                jobs = shared
                    .come
                    .wait(jobs)
                    .expect("no holder of this lock panics");
            }
        };
        // Jobs do not panic; if one did, the others must still run.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a read panicked; its caller gets a miss");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::promise;

    #[test]
    fn every_job_is_run_even_after_one_that_panics() {
        let pool = Pool::new(2).unwrap();
        let outcomes: Vec<_> = (0..10)
            .map(|n| {
                let (promise, outcome) = promise::<Option<u32>>();
                pool.run(move || {
                    assert!(n != 3, "on purpose");
                    promise.set(Some(n));
                });
                outcome
            })
            .collect();
        for (n, outcome) in (0..10).zip(outcomes) {
            assert_eq!(outcome.wait(), Some(n).filter(|n| *n != 3));
        }
        pool.close();
    }
}
