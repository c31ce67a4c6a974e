//! Reads by io_uring: one thread submits requests to the kernel and takes their completions.
//!
//! Called by `stripe` for a device that is a file. A caller queues a request and does not wait. All
//! requests queued since the last system call are submitted in the next, in their order, and the
//! same call returns completions.
//!
//! Invariants: a read's buffer belongs to the ring from the request to the completion, even if the
//! caller has gone by then. For every request the ring runs the callback, or returns the request at
//! once. Closing waits for all reads that are in the kernel. If the kernel refuses a ring (not
//! built in, turned off, or filtered by a container), `start` returns an error; nothing else fails.
//! Cost: a lock for each request, and a write that wakes the thread if it sleeps; 256 KiB of stack.
#![expect(
    unsafe_code,
    reason = "the kernel writes to buffers that requests name"
)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::memory::AlignedBuf;

/// Callback for a finished read. It runs on the ring's own thread, so it must be brief.
pub(crate) type ReadDone = Box<dyn FnOnce(io::Result<AlignedBuf>) + Send>;

/// Reads in the kernel at the same time: 32 keep a flash device busy, and the others make up for
/// reads that take long. Further requests wait in a queue.
const DEPTH: usize = 64;
/// Retries of a read that was interrupted, or that the kernel had no room for.
const TRIES_MAX: u32 = 100;
/// Pause before a retry when the kernel lacks memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(1);
const STACK_BYTES: usize = 256 << 10;
/// Tag for completions of wake-ups; reads have smaller tags.
const WAKE: u64 = u64::MAX;

/// A read request.
pub(crate) struct Request {
    pub(crate) offset: u64,
    pub(crate) buffer: AlignedBuf,
    /// Bytes already filled in the buffer; the read continues behind them, at `offset + filled`.
    pub(crate) filled: usize,
    pub(crate) done: ReadDone,
}

/// See the module's head.
pub(crate) struct Ring {
    shared: Arc<RingState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct RingState {
    inbox: Mutex<Inbox>,
    /// Event counter, written to wake the thread if it sleeps.
    wake: OwnedFd,
}

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Request>,
    asleep: bool,
    /// If true, new requests are returned to their callers.
    closed: bool,
}

impl RingState {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("no holder of this lock panics")
    }

    fn wake(&self) {
        // An eventfd takes any eight bytes as a number; it is read before it could overflow.
        let _ = rustix::io::write(&self.wake, &[1; 8]);
    }
}

impl Ring {
    /// A ring for reads of `file`.
    ///
    /// # Errors
    /// The kernel refuses a ring, or the ring cannot read this file.
    pub(crate) fn start(file: &File) -> io::Result<Self> {
        Self::start_with(file, build)
    }

    /// As [`Ring::start`], with a ring from `build`, which runs on the thread that will use the
    /// ring.
    fn start_with(
        file: &File,
        build: impl FnOnce() -> io::Result<IoUring> + Send + 'static,
    ) -> io::Result<Self> {
        let file = file.try_clone()?;
        let shared = Arc::new(RingState {
            inbox: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let (started, outcome) = sync_channel(1);
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("hc-ring".into())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(file, own, build, &started))?;
        let outcome = outcome.recv().unwrap_or_else(|_| Err(Errno::IO.into()));
        if let Err(error) = outcome {
            let _ = thread.join();
            return Err(error);
        }
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Queues `request`; returns it if the ring is closed.
    pub(crate) fn read(&self, request: Request) -> Result<(), Request> {
        let mut inbox = self.shared.lock();
        if inbox.closed {
            return Err(request);
        }
        inbox.requests.push_back(request);
        let asleep = std::mem::take(&mut inbox.asleep);
        drop(inbox);
        if asleep {
            self.shared.wake();
        }
        Ok(())
    }

    /// Refuses new requests, and waits until the requests in the ring are done.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.wake();
        let thread = {
            let mut thread = self.thread.lock().expect("no holder of this lock panics");
            thread.take()
        };
        // A callback may drop the last handle to the cache. Then this is the ring's own thread,
        // which must not join itself: it exits after the remaining callbacks.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close();
    }
}

/// Builds a ring for a single issuer thread; on kernels before 6.1, a ring without that limit.
fn build() -> io::Result<IoUring> {
    let entries = u32::try_from(DEPTH + 1).expect("few").next_power_of_two();
    let mut builder = IoUring::builder();
    builder.dontfork();
    let mut own = builder.clone();
    own.setup_single_issuer().setup_defer_taskrun();
    match own.build(entries) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            builder.build(entries)
        }
        built => built,
    }
}

fn serve(
    file: File,
    shared: Arc<RingState>,
    build: impl FnOnce() -> io::Result<IoUring>,
    started: &SyncSender<io::Result<()>>,
) {
    let mut worker = match build().and_then(|ring| Worker::new(ring, file, shared)) {
        Ok(worker) => worker,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let tried = worker.try_out();
    let works = tried.is_ok();
    let _ = started.send(tried);
    if works {
        worker.work();
    }
}

/// A read that is in the kernel.
struct KernelRead {
    request: Request,
    tries: u32,
}

struct Worker {
    ring: IoUring,
    file: File,
    shared: Arc<RingState>,
    /// Indexed by the read's tag in the kernel.
    under_way: Vec<Option<KernelRead>>,
    free: Vec<usize>,
    waiting: VecDeque<Request>,
    /// Buffer into which the kernel reads `RingState::wake`.
    wakes: Box<[u8; 8]>,
    /// True if a read on `RingState::wake` is in the kernel.
    wake_asked: bool,
    completions: Vec<(u64, i32)>,
}

impl Worker {
    fn new(ring: IoUring, file: File, shared: Arc<RingState>) -> io::Result<Self> {
        Ok(Self {
            ring,
            file,
            shared,
            under_way: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            waiting: VecDeque::new(),
            wakes: Box::new([0; 8]),
            wake_asked: false,
            completions: Vec::with_capacity(DEPTH + 1),
        })
    }

    /// Reads the file's first bytes: a filter that forbids the ring shows up here at the latest.
    fn try_out(&mut self) -> io::Result<()> {
        let (said, outcome) = sync_channel(1);
        self.submit(KernelRead {
            request: Request {
                offset: 0,
                buffer: AlignedBuf::zeroed(4096),
                filled: 0,
                done: Box::new(move |read| drop(said.send(read.map(drop)))),
            },
            tries: 0,
        });
        while self.is_busy() {
            self.enter(1)?;
            self.reap();
        }
        outcome.try_recv().unwrap_or_else(|_| Err(Errno::IO.into()))
    }

    fn work(&mut self) {
        loop {
            let closed = self.take_in();
            if closed && !self.is_busy() && self.waiting.is_empty() {
                return;
            }
            if !closed {
                self.ask_for_wakes();
            }
            let wants = usize::from(self.may_sleep());
            if let Err(error) = self.enter(wants) {
                tracing::error!(%error, "io_uring failed: reading by threads from now on");
                self.give_up(&error);
                return;
            }
            self.reap();
        }
    }

    /// Takes requests from the queue and submits them while there are free tags. Returns true if
    /// the ring is closed.
    fn take_in(&mut self) -> bool {
        let mut inbox = self.shared.lock();
        self.waiting.append(&mut inbox.requests);
        inbox.asleep = false;
        let closed = inbox.closed;
        drop(inbox);
        while let Some(request) = self.next() {
            self.submit(KernelRead { request, tries: 0 });
        }
        closed
    }

    /// Returns true if no request is queued. After that a new request wakes this thread.
    fn may_sleep(&self) -> bool {
        let mut inbox = self.shared.lock();
        inbox.asleep = inbox.requests.is_empty();
        inbox.asleep
    }

    fn next(&mut self) -> Option<Request> {
        if self.free.is_empty() {
            return None;
        }
        self.waiting.pop_front()
    }

    fn is_busy(&self) -> bool {
        self.free.len() < DEPTH
    }

    fn ask_for_wakes(&mut self) {
        if std::mem::replace(&mut self.wake_asked, true) {
            return;
        }
        let into = self.wakes.as_mut_ptr();
        let read = opcode::Read::new(types::Fd(self.shared.wake.as_raw_fd()), into, 8);
        // SAFETY: the eight bytes belong to the worker, which does not read them and outlives the
        // ring (`Drop`); the descriptor belongs to `shared`.
        unsafe { self.push(&read.build().user_data(WAKE)) };
    }

    /// Gives a read to the kernel with the next `enter`. There is a free tag.
    fn submit(&mut self, mut read: KernelRead) {
        let Some(number) = self.free.pop() else {
            return self.waiting.push_front(read.request);
        };
        let request = &mut read.request;
        let rest = &mut request.buffer[request.filled..];
        // The kernel returns a longer read in parts, as with any read system call.
        let length = u32::try_from(rest.len()).unwrap_or(1 << 30);
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::Read::new(fd, rest.as_mut_ptr(), length)
            .offset(request.offset + request.filled as u64)
            .build()
            .user_data(number as u64);
        self.under_way[number] = Some(read);
        // SAFETY: the buffer's memory does not move while `under_way` holds it, and no other code
        // touches it there. It is taken out only after completion or, if the ring has failed, never
        // freed (`give_up`). The descriptor is open as long as the worker exists.
        unsafe { self.push(&entry) };
    }

    /// # Safety
    /// All memory and descriptors in `entry` must stay valid until completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: guaranteed by the caller.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // The ring has one entry more than there are tags.
        debug_assert!(pushed.is_ok());
    }

    /// Submits pushed entries. If that fails, the next `enter` gets the error again.
    fn hand_over(&mut self) {
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
    }

    /// Submits pushed entries, and waits for `wants` completions.
    fn enter(&mut self, wants: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wants) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // Entries that were not submitted now are submitted by the next call.
                Some(Errno::INTR) => Ok(()),
                Some(Errno::AGAIN | Errno::BUSY) => {
                    std::thread::sleep(SHORTAGE_PAUSE);
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Runs the callbacks for completed reads. New requests are submitted between two callbacks: a
    /// caller often reads again after a result, and the device should not be idle until all
    /// callbacks have run.
    fn reap(&mut self) {
        let completed = |entry: cqueue::Entry| (entry.user_data(), entry.result());
        let mut completions = std::mem::take(&mut self.completions);
        completions.extend(self.ring.completion().map(completed));
        for (number, result) in completions.drain(..) {
            if number == WAKE {
                self.wake_asked = false;
                continue;
            }
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            if let Some(read) = self.under_way.get_mut(number).and_then(Option::take) {
                self.free.push(number);
                self.complete(read, result);
                self.take_in();
                self.hand_over();
            }
        }
        self.completions = completions;
    }

    /// Handles the `result` of a read or a part of it: a byte count, or a negative error code.
    fn complete(&mut self, mut read: KernelRead, result: i32) {
        let request = &mut read.request;
        let outcome = match u32::try_from(result) {
            Ok(0) if request.filled < request.buffer.len() => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Ok(bytes) => {
                request.filled += bytes as usize;
                if request.filled < request.buffer.len() {
                    return self.submit(read);
                }
                Ok(())
            }
            Err(_) => {
                let errno = Errno::from_raw_os_error(result.saturating_neg());
                let again = matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED);
                if again && read.tries < TRIES_MAX {
                    read.tries += 1;
                    return self.submit(read);
                }
                Err(errno.into())
            }
        };
        let Request { buffer, done, .. } = read.request;
        call(done, outcome.map(|()| buffer));
    }

    /// The ring has failed: returns an error for every request.
    fn give_up(&mut self, error: &io::Error) {
        let mut inbox = self.shared.lock();
        inbox.closed = true;
        self.waiting.append(&mut inbox.requests);
        drop(inbox);
        let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        for read in self.under_way.iter_mut().filter_map(Option::take) {
            // The kernel may still write to the buffer, so it must never be freed.
            std::mem::forget(read.request.buffer);
            call(read.request.done, Err(again(error)));
        }
        for request in self.waiting.drain(..) {
            call(request.done, Err(again(error)));
        }
    }
}

/// The kernel may still have a read on `wake`, and stops writing only some time after the ring is
/// closed. So the eight bytes are leaked.
impl Drop for Worker {
    fn drop(&mut self) {
        if self.wake_asked {
            std::mem::forget(std::mem::take(&mut self.wakes));
        }
        for read in self.under_way.drain(..) {
            std::mem::forget(read);
        }
    }
}

fn call(done: ReadDone, outcome: io::Result<AlignedBuf>) {
    // Callbacks do not panic; if one did, the others must still run.
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!("a read panicked; its caller gets a miss");
    }
}
