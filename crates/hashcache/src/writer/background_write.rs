//! Writes a batch on a separate thread while the writer thread builds the next batch.
//!
//! Called by `writer/batch`. To build a batch (checksums, copies) takes about as long as a flash
//! device takes to write it. Without this thread, the processor and the device would each be idle
//! half of the time.
//!
//! A *side write* is data that must be written between two batches: a footer, a part of a
//! checkpoint. It is queued and written just before the next batch. If it were written at once, the
//! writer thread would have to wait for the device before it could start the next batch.
//!
//! Invariants: at most one write is in flight. The writer thread takes the outcome back before it
//! hands over the next write, and before any other write that must be later. A side write is
//! written before the batch that it was queued with.
//! Cost: a thread, a buffer as large as a batch, and a buffer as large as the largest side write.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::memory::AlignedBuf;
use crate::stripe::Stripe;

/// Smaller writes are not worth a thread switch.
const WRITE_BYTES_MIN: usize = 1 << 20;
/// Small segments get as many background writes as large segments, so that tests cover them.
const WRITES_PER_SEGMENT: usize = 16;
/// Enough for a system call.
const STACK_BYTES: usize = 128 << 10;

struct Write {
    offset: u64,
    bytes: usize,
    buffer: AlignedBuf,
}

impl Write {
    /// Writes. Returns how long it took.
    fn write_to(&self, stripe: &Stripe) -> io::Result<Duration> {
        let begun_at = stripe.medium.clock.monotone();
        stripe
            .medium
            .write(self.offset, &self.buffer[..self.bytes])?;
        Ok(stripe.medium.clock.monotone().saturating_sub(begun_at))
    }
}

struct Job {
    side_write: Option<Write>,
    batch: Write,
}

impl Job {
    /// Writes both. Returns how long the side write took, if there is one.
    fn write_to(&self, stripe: &Stripe) -> io::Result<Option<Duration>> {
        let took = self
            .side_write
            .as_ref()
            .map(|it| it.write_to(stripe))
            .transpose()?;
        self.batch.write_to(stripe)?;
        Ok(took)
    }
}

/// See the module head.
pub(crate) struct BackgroundWrite {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<(Job, io::Result<Option<Duration>>)>,
    /// The buffer that the writer thread does not use; `None` while a write is in flight.
    spare: Option<AlignedBuf>,
    /// The buffer for side writes; `None` while a side write is in flight.
    side_buffer: Option<AlignedBuf>,
    /// Offset and length of the side write that is queued in `side_buffer`.
    side_write: Option<(u64, usize)>,
    bytes_min: usize,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundWrite {
    /// Starts the thread. It writes batches to the device of `stripe` out of buffers like `spare`,
    /// and side writes out of `side_buffer`.
    pub(crate) fn new(
        stripe: &Arc<Stripe>,
        spare: AlignedBuf,
        side_buffer: AlignedBuf,
    ) -> io::Result<Self> {
        let (jobs, to_do) = sync_channel::<Job>(1);
        let (told, done) = sync_channel(1);
        let segment = usize::try_from(stripe.medium.geometry.segment_bytes).unwrap_or(usize::MAX);
        let bytes_min = WRITE_BYTES_MIN.min(segment / WRITES_PER_SEGMENT);
        let stripe = Arc::clone(stripe);
        let thread = std::thread::Builder::new()
            .name("hc-background".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                for job in to_do {
                    let outcome = job.write_to(&stripe);
                    if told.send((job, outcome)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            spare: Some(spare),
            side_buffer: Some(side_buffer),
            side_write: None,
            bytes_min,
            thread: Some(thread),
        })
    }

    /// Returns true if a write of `bytes` is worth the thread switch.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes >= self.bytes_min
    }

    /// The buffer for the next side write; `None` while a side write is queued or in flight.
    pub(super) fn side_buffer(&mut self) -> Option<&mut AlignedBuf> {
        self.side_buffer
            .as_mut()
            .filter(|_| self.side_write.is_none())
    }

    /// Queues the first `bytes` of the side buffer to be written at `offset`, just before the next
    /// batch.
    pub(super) fn queue_side_write(&mut self, offset: u64, bytes: usize) {
        self.side_write = Some((offset, bytes));
    }

    /// Writes the queued side write now, because something else is written before the next batch.
    /// No write is in flight. Returns how long it took, if a side write was queued.
    pub(super) fn write_side(&mut self, stripe: &Stripe) -> io::Result<Option<Duration>> {
        let Some(side_write) = self.take_side_write() else {
            return Ok(None);
        };
        let outcome = side_write.write_to(stripe);
        self.side_buffer = Some(side_write.buffer);
        outcome.map(Some)
    }

    fn take_side_write(&mut self) -> Option<Write> {
        let (offset, bytes) = self.side_write.take()?;
        let buffer = self.side_buffer.take()?;
        Some(Write {
            offset,
            bytes,
            buffer,
        })
    }

    /// Starts to write the first `bytes` of `buffer` at `offset`, and puts another buffer in place
    /// of it. No write is in flight.
    pub(super) fn begin(&mut self, offset: u64, bytes: usize, buffer: &mut AlignedBuf) {
        let spare = self.spare.take().expect("the last write was waited for");
        let buffer = std::mem::replace(buffer, spare);
        let side_write = self.take_side_write();
        let batch = Write {
            offset,
            bytes,
            buffer,
        };
        let job = Job { side_write, batch };
        let jobs = self
            .jobs
            .as_ref()
            .expect("the channel is there until the drop");
        // If the thread is gone, `finish` returns an error.
        let _ = jobs.send(job);
    }

    /// Waits for the write in flight. Returns how long the side write took, if there was one.
    pub(super) fn finish(&mut self) -> io::Result<Option<Duration>> {
        let (job, outcome) = self
            .done
            .recv()
            .map_err(|_| io::Error::other("the thread that writes is gone"))?;
        self.spare = Some(job.batch.buffer);
        if let Some(side_write) = job.side_write {
            self.side_buffer = Some(side_write.buffer);
        }
        outcome
    }
}

impl Drop for BackgroundWrite {
    fn drop(&mut self) {
        self.jobs = None;
        // The thread may hold the last handle to the stripe, but no handle to this.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
