//! The disks of a store under test, and the time that they take.
//!
//! Clients take turns, one request each. A client sends its next request when it has the answer to
//! its last one. Each disk serves reads and writes one after another, in the order of the turns,
//! and waits while no client asks for what lies on it. One disk never waits: there the time is how
//! long it was busy.
//!
//! Called by `timed_store`. Invariant: the time follows from what the disks did, not from the
//! machine. Of several disks each writing thread sees only the progress of its own one, whatever
//! the others have done by then.

use std::cell::Cell;
use std::io;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashcache::Clock;
use hashcache::device::{Device, DiskModel, Pace, ThrottleDevice, ThrottleFigures};
use serde::Serialize;

/// What the disks did for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Read requests.
    pub reads: u64,
    /// Requests, reads and writes, that did not begin where the last one had ended.
    pub seeks: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.seeks += other.seeks;
    }
}

/// See the module's head.
pub struct Disks {
    disks: Arc<Time>,
    /// What each disk had done at the last call.
    seen: Vec<ThrottleFigures>,
    /// When each client had its last answer.
    clients: Vec<Duration>,
    /// The client whose turn it is.
    turn: usize,
}

/// The store's clock: the time of the disks.
///
/// It runs only while the caller waits for the writing threads. If it always ran, a writing thread
/// could find a checkpoint due in the middle of the caller's reads, at a moment that depends on the
/// speed of the machine. While it runs, a writing thread sees how long its own disk has worked
/// since the clock was started. If it saw the other disks work, what it finds due would depend on
/// how far their threads have come.
struct Time {
    disks: Vec<Disk>,
    since: Mutex<Since>,
}

/// When the clock was last started or stopped.
struct Since {
    at: Duration,
    /// When each disk was done with its requests then; empty while the clock is stopped.
    free_at: Vec<Duration>,
}

thread_local! {
    /// The disk that this thread writes to.
    static WRITES_TO: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A disk as the store has it: notes which thread writes to it.
struct Attached {
    n: usize,
    device: Arc<ThrottleDevice>,
}

impl Device for Attached {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn alignment(&self) -> usize {
        self.device.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        WRITES_TO.set(Some(self.n));
        self.device.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

struct Disk {
    device: Arc<ThrottleDevice>,
    /// How long it has waited for requests, nanoseconds.
    idle: AtomicU64,
}

impl Disk {
    fn idle(&self) -> Duration {
        Duration::from_nanos(self.idle.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.idle.fetch_add(nanos, Ordering::Relaxed);
    }

    /// When it is done with all requests so far.
    fn free_at(&self) -> Duration {
        self.idle() + self.device.busy()
    }
}

impl Time {
    fn now(&self) -> Duration {
        let free = self.disks.iter().map(Disk::free_at);
        free.max().unwrap_or_default()
    }

    fn shown(&self) -> Duration {
        let since = self.lock();
        let own = WRITES_TO.get().and_then(|n| {
            let worked = self.disks[n].free_at() - *since.free_at.get(n)?;
            Some(since.at + worked)
        });
        own.unwrap_or(since.at)
    }

    fn lock(&self) -> MutexGuard<'_, Since> {
        self.since.lock().expect("no holder of this lock panics")
    }
}

impl Disks {
    /// Disks of this model with their contents on `devices`, for so many clients.
    pub fn new(devices: Vec<Arc<dyn Device>>, model: DiskModel, seed: u64, clients: usize) -> Self {
        let disk = |(n, inner)| {
            let seed = seed.wrapping_add(n) % (1 << 32);
            let seed = u32::try_from(seed).expect("below 2^32");
            Disk {
                device: Arc::new(ThrottleDevice::new(inner, model, Pace::Modelled, seed)),
                idle: AtomicU64::new(0),
            }
        };
        let disks: Vec<Disk> = (0..).zip(devices).map(disk).collect();
        Self {
            seen: vec![ThrottleFigures::default(); disks.len()],
            disks: Arc::new(Time {
                disks,
                since: Mutex::new(Since {
                    at: Duration::ZERO,
                    free_at: Vec::new(),
                }),
            }),
            clients: vec![Duration::ZERO; clients],
            turn: 0,
        }
    }

    fn all(&self) -> &[Disk] {
        &self.disks.disks
    }

    /// For the store.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let disks = self.all().iter().enumerate();
        let attached = |(n, disk): (usize, &Disk)| {
            let device = Arc::clone(&disk.device);
            Arc::new(Attached { n, device }) as Arc<dyn Device>
        };
        disks.map(attached).collect()
    }

    /// For the store.
    pub fn clock(&self) -> Clock {
        let time = Arc::clone(&self.disks);
        Clock::manual(move || time.shown(), || Duration::ZERO)
    }

    /// Starts the clock, or sets it to the time of the disk that has come furthest. Called while
    /// nothing is written.
    pub fn run_clock(&self) {
        // This thread has written the first superblocks.
        WRITES_TO.set(None);
        *self.disks.lock() = Since {
            at: self.now(),
            free_at: self.all().iter().map(Disk::free_at).collect(),
        };
    }

    /// Nothing is due from now on.
    pub fn stop_clock(&self) {
        *self.disks.lock() = Since {
            at: self.now(),
            free_at: Vec::new(),
        };
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.all().len()).expect("a store has at most 16 devices")
    }

    /// When all disks are done with all requests so far.
    pub fn now(&self) -> Duration {
        self.disks.now()
    }

    /// What all disks together have done so far.
    pub fn total(&self) -> ThrottleFigures {
        let mut total = ThrottleFigures::default();
        for figures in self.all().iter().map(|disk| disk.device.figures()) {
            total.reads += figures.reads;
            total.read_bytes += figures.read_bytes;
            total.writes += figures.writes;
            total.written_bytes += figures.written_bytes;
            total.seeks += figures.seeks;
            total.busy += figures.busy;
        }
        total
    }

    /// All clients are ready for their first request.
    pub fn start(&mut self) {
        let now = self.now();
        self.clients.fill(now);
    }

    /// The client has its answer, for which the disks did what they did since the last call. The
    /// next client has its turn.
    pub fn answered(&mut self) -> Count {
        let (count, done_at) = self.worked();
        self.clients[self.turn] = done_at;
        self.turn = (self.turn + 1) % self.clients.len();
        count
    }

    /// The store has written, which no client waits for.
    pub fn written(&mut self) -> Count {
        self.worked().0
    }

    /// What the disks did since the last call, and when they are done: they began when the client
    /// whose turn it is sent its request, or later.
    fn worked(&mut self) -> (Count, Duration) {
        let asked_at = self.clients[self.turn];
        let (mut count, mut done_at) = (Count::default(), asked_at);
        for (disk, seen) in self.disks.disks.iter().zip(&mut self.seen) {
            let after = disk.device.figures();
            let before = std::mem::replace(seen, after);
            if after == before {
                continue;
            }
            count.reads += after.reads - before.reads;
            count.seeks += after.seeks - before.seeks;
            disk.wait(asked_at.saturating_sub(disk.idle() + before.busy));
            done_at = done_at.max(disk.free_at());
        }
        (count, done_at)
    }
}

#[cfg(test)]
mod tests {
    use hashcache::device::MemoryDevice;

    use super::*;

    fn disks(count: usize, clients: usize) -> Disks {
        let device = |_| Arc::new(MemoryDevice::new(1 << 20)) as Arc<dyn Device>;
        let devices = (0..count).map(device).collect();
        Disks::new(devices, DiskModel::HDD_7200, 1, clients)
    }

    /// The client whose turn it is reads from disk `n`.
    fn read(disks: &mut Disks, n: usize) {
        disks.devices()[n].read_at(8192, &mut [0; 4096]).unwrap();
        let count = disks.answered();
        assert_eq!(count.reads, 1);
    }

    #[test]
    fn a_disk_waits_while_no_client_asks_it() {
        let mut disks = disks(2, 1);
        read(&mut disks, 0);
        read(&mut disks, 1);
        // The only client had to wait for the first disk.
        assert_eq!(disks.now(), disks.total().busy);
        assert_eq!(disks.all()[1].idle(), disks.all()[0].device.busy());
    }

    #[test]
    fn disks_work_at_the_same_time_for_several_clients() {
        let mut disks = disks(2, 2);
        read(&mut disks, 0);
        read(&mut disks, 1);
        let busy: Vec<Duration> = disks.all().iter().map(|it| it.device.busy()).collect();
        assert_eq!(disks.now(), busy[0].max(busy[1]));
        assert_eq!(disks.all()[1].idle(), Duration::ZERO);
    }

    #[test]
    fn one_disk_never_waits() {
        let mut disks = disks(1, 3);
        for n in 0..10 {
            read(&mut disks, 0);
            if n % 3 == 0 {
                disks.devices()[0].write_at(0, &[0; 4096]).unwrap();
                assert_eq!(disks.written().reads, 0);
            }
        }
        assert_eq!(disks.now(), disks.total().busy);
    }

    #[test]
    fn the_clock_stands_still_while_it_is_stopped() {
        let disks = disks(1, 1);
        disks.stop_clock();
        disks.devices()[0].write_at(0, &[0; 4096]).unwrap();
        assert_eq!(disks.disks.shown(), Duration::ZERO);
        disks.run_clock();
        assert_eq!(disks.disks.shown(), disks.now());
        assert!(disks.now() > Duration::ZERO);
    }

    #[test]
    fn a_thread_sees_its_own_disk_work_and_no_other() {
        let disks = disks(2, 1);
        disks.run_clock();
        let devices = disks.devices();
        let write = |n: usize| devices[n].write_at(0, &[0; 1 << 16]).unwrap();
        let shown = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                write(1);
                disks.disks.shown()
            });
            thread.join().unwrap()
        });
        write(0);
        write(0);
        assert_eq!(shown, disks.all()[1].free_at());
        assert_eq!(disks.disks.shown(), disks.all()[0].free_at());
        assert!(disks.disks.shown() > shown);
        disks.run_clock();
        assert_eq!(disks.disks.shown(), disks.all()[0].free_at());
        write(1);
        let both = disks.all()[0].free_at() + (disks.all()[1].free_at() - shown);
        assert_eq!(disks.disks.shown(), both);
    }
}
