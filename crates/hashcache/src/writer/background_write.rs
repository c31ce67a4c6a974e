//! A write that is under way while the next batch is put together.
//!
//! Called by `writer/batch`. Putting a batch together (checksums, copies) takes about as long as a
//! flash device takes to write it, so one after the other would leave each idle half of the time.
//!
//! What else is to be written between two batches (a footer, a part of a checkpoint) rides along
//! with the next one: the writing thread would have to wait for the device to take it, and only
//! then begin to put together the next batch.
//!
//! Invariants: at most one write is under way; the writing thread takes its outcome back before it
//! hands over the next, and before anything else of it that must come later. A rider is written
//! before the batch it rides with.
//! Cost: a thread, a buffer as large as a batch, and one as large as a rider can be.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::memory::AlignedBuf;
use crate::stripe::Stripe;

/// Smaller writes are not worth a change of threads.
const WRITE_BYTES_MIN: usize = 1 << 20;
/// In small segments as many writes go through a pen as in large ones, so that tests see it.
const WRITES_PER_SEGMENT: usize = 16;
/// Enough for a system call.
const STACK_BYTES: usize = 128 << 10;

struct Write {
    offset: u64,
    bytes: usize,
    buffer: AlignedBuf,
}

impl Write {
    /// How long it took.
    fn play(&self, stripe: &Stripe) -> io::Result<Duration> {
        let begun_at = stripe.medium.clock.monotone();
        stripe
            .medium
            .write(self.offset, &self.buffer[..self.bytes])?;
        Ok(stripe.medium.clock.monotone().saturating_sub(begun_at))
    }
}

struct Job {
    rider: Option<Write>,
    batch: Write,
}

impl Job {
    /// How long the rider took, if there is one.
    fn play(&self, stripe: &Stripe) -> io::Result<Option<Duration>> {
        let took = self.rider.as_ref().map(|it| it.play(stripe)).transpose()?;
        self.batch.play(stripe)?;
        Ok(took)
    }
}

/// See the module's head.
pub(crate) struct Pen {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<(Job, io::Result<Option<Duration>>)>,
    /// The buffer that is not with the writing thread; `None` while a write is under way.
    spare: Option<AlignedBuf>,
    /// The buffer for riders; `None` while one is under way.
    seat: Option<AlignedBuf>,
    /// Where what lies in it goes, and its length: it rides with the next write.
    rider: Option<(u64, usize)>,
    bytes_min: usize,
    thread: Option<JoinHandle<()>>,
}

impl Pen {
    /// A pen that writes to the device of `stripe` out of buffers like `spare`, and riders out of
    /// `seat`.
    pub(crate) fn new(
        stripe: &Arc<Stripe>,
        spare: AlignedBuf,
        seat: AlignedBuf,
    ) -> io::Result<Self> {
        let (jobs, to_do) = sync_channel::<Job>(1);
        let (told, done) = sync_channel(1);
        let segment = usize::try_from(stripe.medium.geometry.segment_bytes).unwrap_or(usize::MAX);
        let bytes_min = WRITE_BYTES_MIN.min(segment / WRITES_PER_SEGMENT);
        let stripe = Arc::clone(stripe);
        let thread = std::thread::Builder::new()
            .name("hc-pen".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                for job in to_do {
                    let outcome = job.play(&stripe);
                    if told.send((job, outcome)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            spare: Some(spare),
            seat: Some(seat),
            rider: None,
            bytes_min,
            thread: Some(thread),
        })
    }

    /// Whether a write of `bytes` is worth it.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes >= self.bytes_min
    }

    /// The buffer for what is to ride with the next write, while no other does.
    pub(super) fn seat(&mut self) -> Option<&mut AlignedBuf> {
        self.seat.as_mut().filter(|_| self.rider.is_none())
    }

    /// Has the first `bytes` of the seat written at `offset`, together with the next write.
    pub(super) fn carry(&mut self, offset: u64, bytes: usize) {
        self.rider = Some((offset, bytes));
    }

    /// Writes what would ride with the next write, for something else is written before that. No
    /// write is under way. How long it took, if there was a rider.
    pub(super) fn drop_off(&mut self, stripe: &Stripe) -> io::Result<Option<Duration>> {
        let Some(rider) = self.take_rider() else {
            return Ok(None);
        };
        let outcome = rider.play(stripe);
        self.seat = Some(rider.buffer);
        outcome.map(Some)
    }

    fn take_rider(&mut self) -> Option<Write> {
        let (offset, bytes) = self.rider.take()?;
        let buffer = self.seat.take()?;
        Some(Write {
            offset,
            bytes,
            buffer,
        })
    }

    /// Has the first `bytes` of `buffer` written at `offset`, and gives another in its place. No
    /// write is under way.
    pub(super) fn begin(&mut self, offset: u64, bytes: usize, buffer: &mut AlignedBuf) {
        let spare = self.spare.take().expect("the last write was waited for");
        let buffer = std::mem::replace(buffer, spare);
        let rider = self.take_rider();
        let batch = Write {
            offset,
            bytes,
            buffer,
        };
        let job = Job { rider, batch };
        let jobs = self.jobs.as_ref().expect("it is there until the pen goes");
        // A thread that is gone is told by `finish`.
        let _ = jobs.send(job);
    }

    /// Waits for the write that is under way. How long its rider took, if there was one.
    pub(super) fn finish(&mut self) -> io::Result<Option<Duration>> {
        let (job, outcome) = self
            .done
            .recv()
            .map_err(|_| io::Error::other("the thread that writes is gone"))?;
        self.spare = Some(job.batch.buffer);
        if let Some(rider) = job.rider {
            self.seat = Some(rider.buffer);
        }
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
