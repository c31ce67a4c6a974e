//! Reads by io_uring: one thread submits requests to the kernel and takes their completions.
//!
//! Called by `stripe` for a device that is a file. A caller queues a request and does not wait. The
//! requests that were queued meanwhile are submitted in one system call, in their order, and the
//! same call returns completions.
//!
//! Invariants: the buffer of a read belongs to the ring from the request to its completion, even if
//! the caller is gone by then; every request is called back, or returned at once. Closing waits for
//! what the kernel has. Where the kernel refuses a ring (none in it, turned off, or filtered away
//! in a container), starting one is an error and nothing else.
//! Cost: a lock a request, and a write that wakes the thread if it sleeps; 256 KiB of stack.
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

/// What is called when a read is done, on the ring's own thread: it must be brief.
pub(crate) type ReadDone = Box<dyn FnOnce(io::Result<AlignedBuf>) + Send>;

/// Reads that the kernel has at once: where 32 keep a flash device busy, some more for those that
/// take long. The rest waits.
const DEPTH: usize = 64;
/// How often a read is tried that was interrupted, or for which the kernel had no room.
const TRIES_MAX: u32 = 100;
/// Until it is tried again when the kernel is short of memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(1);
const STACK_BYTES: usize = 256 << 10;
/// What tells completions of wake-ups from those of reads.
const WAKE: u64 = u64::MAX;

/// Bytes that are wanted.
pub(crate) struct Request {
    pub(crate) offset: u64,
    pub(crate) buffer: AlignedBuf,
    /// So much of the buffer is filled already; the read continues behind it, at `offset` plus
    /// this.
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
    /// Written to when there is something for a thread that sleeps.
    wake: OwnedFd,
}

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Request>,
    asleep: bool,
    /// Requests are given back.
    closed: bool,
}

impl RingState {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("no holder of this lock panics")
    }

    fn wake(&self) {
        // An event counter takes any eight bytes as a number; it is read before it could be full.
        let _ = rustix::io::write(&self.wake, &[1; 8]);
    }
}

impl Ring {
    /// A ring for reads of `file`.
    ///
    /// # Errors
    /// The kernel has none for us, or it does not read this file.
    pub(crate) fn start(file: &File) -> io::Result<Self> {
        Self::start_with(file, build)
    }

    /// The same with a ring that `build` makes, on the thread that will use it.
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

    /// Has `request` read; gives it back when the ring is closed.
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

    /// Takes no more requests, and waits for those it has.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.wake();
        let thread = {
            let mut thread = self.thread.lock().expect("no holder of this lock panics");
            thread.take()
        };
        // What is called back may hold the last handle to the cache: then this is the ring's own
        // thread, which ends by itself when it has called back the others.
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

/// A ring that only its thread uses; on kernels before 6.1 one that any could.
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

/// A read that the kernel has.
struct KernelRead {
    request: Request,
    tries: u32,
}

struct Worker {
    ring: IoUring,
    file: File,
    shared: Arc<RingState>,
    /// By the number that the kernel knows a read by.
    under_way: Vec<Option<KernelRead>>,
    free: Vec<usize>,
    waiting: VecDeque<Request>,
    /// Where the kernel writes what it read of `RingState::wake`.
    wakes: Box<[u8; 8]>,
    /// Whether the kernel has a read of `RingState::wake`.
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

    /// Reads the first bytes of the file: a filter that forbids the ring shows here at the latest.
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

    /// Takes over queued requests, as far as there are free numbers. Returns whether the ring is
    /// closed and the queue is empty.
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

    /// Whether there is nothing to do but to wait. From then on a new request wakes this thread.
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
        // SAFETY: the eight bytes are the worker's, which does not look at them and outlives the
        // ring (`Drop`); the descriptor is `shared`'s.
        unsafe { self.push(&read.build().user_data(WAKE)) };
    }

    /// Hands a read to the kernel with the next `enter`. There is a free number.
    fn submit(&mut self, mut read: KernelRead) {
        let Some(number) = self.free.pop() else {
            return self.waiting.push_front(read.request);
        };
        let request = &mut read.request;
        let rest = &mut request.buffer[request.filled..];
        // The kernel returns a longer read in parts, as with any system call.
        let length = u32::try_from(rest.len()).unwrap_or(1 << 30);
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::Read::new(fd, rest.as_mut_ptr(), length)
            .offset(request.offset + request.filled as u64)
            .build()
            .user_data(number as u64);
        self.under_way[number] = Some(read);
        // SAFETY: the buffer's memory stays where it is while `under_way` holds it, no other code
        // touches it there, and it is taken out only after its completion or, if the ring has
        // failed, never freed (`give_up`). The descriptor is open as long as the worker.
        unsafe { self.push(&entry) };
    }

    /// # Safety
    /// What `entry` names must stay valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: as the caller says.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // There is one entry more than there are numbers.
        debug_assert!(pushed.is_ok());
    }

    /// Hands over what was pushed. An error is met again by the next `enter`.
    fn hand_over(&mut self) {
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
    }

    /// Hands over what was pushed, and waits for `wants` completions.
    fn enter(&mut self, wants: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wants) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // What was not handed over is, the next time.
                Some(Errno::INTR) => Ok(()),
                Some(Errno::AGAIN | Errno::BUSY) => {
                    std::thread::sleep(SHORTAGE_PAUSE);
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Calls back completed reads. Requests that are queued meanwhile are submitted between two
    /// callbacks: a caller that has its answer often asks for more, and the device should not be
    /// idle until all others have theirs.
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

    /// One part of a read came to `result`: a number of bytes, or an error below zero.
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

    /// The ring has failed: every waiting request is returned.
    fn give_up(&mut self, error: &io::Error) {
        let mut inbox = self.shared.lock();
        inbox.closed = true;
        self.waiting.append(&mut inbox.requests);
        drop(inbox);
        let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        for read in self.under_way.iter_mut().filter_map(Option::take) {
            // The kernel may still write to it.
            std::mem::forget(read.request.buffer);
            call(read.request.done, Err(again(error)));
        }
        for request in self.waiting.drain(..) {
            call(request.done, Err(again(error)));
        }
    }
}

/// The kernel may have the read of `wake` still, and stops writing only some time after the ring is
/// closed: the eight bytes stay.
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
    // What is called does not panic; if it did, the others must still be called.
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!("a read panicked; its caller gets a miss");
    }
}
