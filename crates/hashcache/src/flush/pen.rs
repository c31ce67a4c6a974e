//! A write that is under way while the next batch is put together.
//!
//! Called by `flush/batch`. Putting a batch together (checksums, copies) takes about as long as a
//! flash device takes to write it, so one after the other would leave each idle half of the time.
//!
//! Invariants: at most one write is under way; the writing thread takes its outcome back before it
//! hands over the next, and before anything else of it that must come later.
//! Cost: a thread, and a buffer as large as a batch.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::memory::AlignedBuf;
use crate::stripe::Stripe;

/// Smaller writes are not worth a change of threads.
const WRITE_BYTES_MIN: usize = 1 << 20;
/// In small segments as many writes go through a pen as in large ones, so that tests see it.
const WRITES_PER_SEGMENT: usize = 16;
/// Enough for a system call.
const STACK_BYTES: usize = 128 << 10;

struct Job {
    offset: u64,
    bytes: usize,
    buffer: AlignedBuf,
}

/// See the module's head.
pub(crate) struct Pen {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<(AlignedBuf, io::Result<()>)>,
    /// The buffer that is not with the writing thread; `None` while a write is under way.
    spare: Option<AlignedBuf>,
    bytes_min: usize,
    thread: Option<JoinHandle<()>>,
}

impl Pen {
    /// A pen that writes to the device of `stripe` out of buffers like `spare`.
    pub(crate) fn new(stripe: &Arc<Stripe>, spare: AlignedBuf) -> io::Result<Self> {
        let (jobs, to_do) = sync_channel::<Job>(1);
        let (told, done) = sync_channel(1);
        let segment = usize::try_from(stripe.geometry.segment_bytes).unwrap_or(usize::MAX);
        let bytes_min = WRITE_BYTES_MIN.min(segment / WRITES_PER_SEGMENT);
        let stripe = Arc::clone(stripe);
        let thread = std::thread::Builder::new()
            .name("hc-pen".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                for job in to_do {
                    let outcome = stripe.write(job.offset, &job.buffer[..job.bytes]);
                    if told.send((job.buffer, outcome)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            spare: Some(spare),
            bytes_min,
            thread: Some(thread),
        })
    }

    /// Whether a write of `bytes` is worth it.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes >= self.bytes_min
    }

    /// Has the first `bytes` of `buffer` written at `offset`, and gives another in its place. No
    /// write is under way.
    pub(super) fn begin(&mut self, offset: u64, bytes: usize, buffer: &mut AlignedBuf) {
        let spare = self.spare.take().expect("the last write was waited for");
        let buffer = std::mem::replace(buffer, spare);
        let job = Job {
            offset,
            bytes,
            buffer,
        };
        let jobs = self.jobs.as_ref().expect("it is there until the pen goes");
        // A thread that is gone is told by `finish`.
        let _ = jobs.send(job);
    }

    /// Waits for the write that is under way.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let (buffer, outcome) = self
            .done
            .recv()
            .map_err(|_| io::Error::other("the thread that writes is gone"))?;
        self.spare = Some(buffer);
        outcome
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        self.jobs = None;
        // What it holds may be the last handle to the stripe, but not to this pen.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
