//! A device as slow as a spinning disk: shows how a slow disk behaves on a fast machine.
//!
//! One arm serves the requests one after another, in arrival order; the caller chooses a good
//! order. A request that starts where the last request finished costs only the transfer; any other
//! request also costs a seek and part of a turn. This part is spread evenly, starting from a seed,
//! because the platter position is not modelled. Nor is a cache in the disk: a write takes the full
//! time at once, and a sync takes none.
//!
//! Time is either *modelled* (no call waits; [`ThrottleDevice::figures`] returns how long the disk
//! would have been busy) or *real* (calls return when the disk would have been done, to about 50
//! microseconds).
//!
//! Cost: one lock for each request, held for some arithmetic.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::Device;
use super::disk_model::DiskModel;
use crate::clock::Clock;

/// Selects if requests take their modelled time.
#[derive(Clone)]
pub enum Pace {
    /// Requests return at once; their times are only added up.
    Modelled,
    /// Requests take their time on this clock, which must advance by itself.
    Real(Clock),
}

/// Counters of a [`ThrottleDevice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleFigures {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that did not start where the last request had finished.
    pub seeks: u64,
    /// Time for which the disk was, or would have been, busy.
    pub busy: Duration,
}

struct Arm {
    pace: Pace,
    /// Offset at which the last request finished; `None` before the first.
    at: Option<u64>,
    /// Part of a turn that the next access waits for, in 1/2^32.
    turn_part: u32,
    /// Time at which all requests so far will be done.
    free_at: Duration,
    figures: ThrottleFigures,
}

/// See the module's head.
pub struct ThrottleDevice {
    inner: Arc<dyn Device>,
    model: DiskModel,
    arm: Mutex<Arm>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl ThrottleDevice {
    /// Wraps `inner`, with the first byte on the outermost track of the disk and the last byte on
    /// the innermost. Equal seeds and equal requests give equal times.
    pub fn new(inner: Arc<dyn Device>, model: DiskModel, pace: Pace, seed: u32) -> Self {
        let arm = Arm {
            pace,
            at: None,
            turn_part: seed,
            free_at: Duration::ZERO,
            figures: ThrottleFigures::default(),
        };
        Self {
            inner,
            model,
            arm: Mutex::new(arm),
        }
    }

    /// Sets the pace, starting with the next request.
    pub fn set_pace(&self, pace: Pace) {
        self.lock().pace = pace;
    }

    /// The counters so far.
    pub fn figures(&self) -> ThrottleFigures {
        self.lock().figures
    }

    /// Time for which the disk was, or would have been, busy.
    pub fn busy(&self) -> Duration {
        self.figures().busy
    }

    /// The disk that is modelled.
    pub fn model(&self) -> DiskModel {
        self.model
    }

    fn lock(&self) -> MutexGuard<'_, Arm> {
        self.arm.lock().expect("no holder of this lock panics")
    }

    /// Queues a request for the arm, runs `access` meanwhile, and returns when the arm would be
    /// done with it. The place in the queue is fixed on arrival, not when a sleeper takes the lock,
    /// so that no request overtakes another.
    fn serve(
        &self,
        offset: u64,
        length: usize,
        direction: Direction,
        access: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let size = self.inner.len();
        let mut arm = self.lock();
        let cost = arm.cost(&self.model, offset, length as u64, size);
        arm.figures.count(length as u64, direction, cost);
        match arm.pace.clone() {
            Pace::Modelled => {
                drop(arm);
                access()
            }
            Pace::Real(clock) => {
                let done_at = arm.queue(clock.monotone(), cost);
                drop(arm);
                let outcome = access();
                wait_until(done_at, || clock.monotone(), std::thread::sleep);
                outcome
            }
        }
    }
}

impl Arm {
    /// Access cost from the current position; moves the arm to where the access stops.
    fn cost(&mut self, model: &DiskModel, offset: u64, length: u64, size: u64) -> Duration {
        let mut cost = model.transfer_ns(offset, length, size);
        if self.at != Some(offset) {
            let distance = self.at.unwrap_or(0).abs_diff(offset);
            let turn = (u128::from(model.turn_ns()) * u128::from(self.turn_part)) >> 32;
            let turn = u64::try_from(turn).unwrap_or(u64::MAX);
            let seek = model.seek_ns(distance, size);
            cost = cost.saturating_add(seek).saturating_add(turn);
            // Steps by the golden ratio: evenly distributed even over few requests, unlike random
            // numbers.
            self.turn_part = self.turn_part.wrapping_add(0x9e37_79b9);
            self.figures.seeks += 1;
        }
        self.at = Some(offset.saturating_add(length));
        Duration::from_nanos(cost)
    }

    /// Time at which a request that arrives at `now` and costs `cost` is done, after all requests
    /// that arrived before it.
    fn queue(&mut self, now: Duration, cost: Duration) -> Duration {
        self.free_at = self.free_at.max(now).saturating_add(cost);
        self.free_at
    }
}

impl ThrottleFigures {
    fn count(&mut self, bytes: u64, direction: Direction, cost: Duration) {
        let (requests, sum) = match direction {
            Direction::Read => (&mut self.reads, &mut self.read_bytes),
            Direction::Write => (&mut self.writes, &mut self.written_bytes),
        };
        *requests += 1;
        *sum += bytes;
        self.busy = self.busy.saturating_add(cost);
    }
}

/// Sleeps while the sleep is sure to return in time, then polls the clock until `time`.
fn wait_until(time: Duration, now: impl Fn() -> Duration, sleep: impl Fn(Duration)) {
    loop {
        let left = time.saturating_sub(now());
        if left.is_zero() {
            return;
        }
        if left > OVERSLEEP {
            sleep(left - OVERSLEEP);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Delay with which Linux may wake a sleeper: 50 microseconds of timer slack, and the context
/// switch.
const OVERSLEEP: Duration = Duration::from_micros(100);

impl Device for ThrottleDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.serve(offset, buffer.len(), Direction::Read, || {
            self.inner.read_at(offset, buffer)
        })
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.serve(offset, buffer.len(), Direction::Write, || {
            self.inner.write_at(offset, buffer)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::device::MemoryDevice;

    const MIB: usize = 1 << 20;

    fn modelled(model: &str, bytes: usize) -> ThrottleDevice {
        let model = model.parse().unwrap();
        let inner = Arc::new(MemoryDevice::new(bytes));
        ThrottleDevice::new(inner, model, Pace::Modelled, 1)
    }

    /// Time of `count` random reads of 16 KiB.
    fn random_reads(device: &ThrottleDevice, count: u64, random: &mut fastrand::Rng) -> Duration {
        let before = device.busy();
        let mut buffer = vec![0; 16 << 10];
        for _ in 0..count {
            let place = random.u64(..device.len() / 16384);
            device.read_at(place * 16384, &mut buffer).unwrap();
        }
        device.busy() - before
    }

    #[test]
    fn seventy_random_reads_of_a_disk_of_seventy_take_a_second() {
        // Seventy distances by themselves spread by 3.5 %: hence the mean of twenty such seconds.
        let mean = |seed: u64| {
            let device = modelled("70", 64 * MIB);
            let mut random = fastrand::Rng::with_seed(seed);
            random_reads(&device, 20 * 70, &mut random).as_secs_f64() / 20.0
        };
        for seed in 0..20 {
            let time = mean(seed);
            assert!((0.97..=1.03).contains(&time), "{time} s, seed {seed}");
        }
        let all = (0..20).map(mean).sum::<f64>() / 20.0;
        assert!((0.99..=1.01).contains(&all), "{all} s");
    }

    #[test]
    fn what_follows_on_costs_its_size_by_the_rate_and_no_seek() {
        let device = modelled("seek=8ms,rate=100MB/s", 128 * MIB);
        let mut buffer = vec![0; MIB];
        // The first access finds the arm somewhere else.
        device.read_at(0, &mut buffer).unwrap();
        let (busy, seeks) = (device.busy(), device.figures().seeks);
        for n in 1..=64 {
            device.read_at(n * MIB as u64, &mut buffer).unwrap();
        }
        let wanted = (64 * MIB) as f64 / 100e6;
        let time = (device.busy() - busy).as_secs_f64();
        assert!((time - wanted).abs() < 1e-6, "{time} s, not {wanted} s");
        assert_eq!(device.figures().seeks, seeks);
    }

    #[test]
    fn outer_tracks_are_faster_than_inner_ones() {
        let device = modelled("rate=200MB/s,inner=100MB/s", 64 * MIB);
        let time_of = |from: usize| {
            let mut buffer = vec![0; MIB];
            device.read_at((from * MIB) as u64, &mut buffer).unwrap();
            let before = device.busy();
            device
                .read_at(((from + 1) * MIB) as u64, &mut buffer)
                .unwrap();
            (device.busy() - before).as_secs_f64()
        };
        let ratio = time_of(62) / time_of(0);
        assert!((1.9..2.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_short_seek_costs_less_than_a_long_one() {
        // Without rotation: what is left is the arm.
        let device = modelled("70,rpm=1000000", 1024 * MIB);
        let seek_to = |offset: usize| {
            let before = device.busy();
            device.read_at(offset as u64, &mut [0; 512]).unwrap();
            device.busy() - before
        };
        seek_to(0);
        let (short, long) = (seek_to(MIB), seek_to(1000 * MIB));
        assert!(4 * short < long, "{short:?}, {long:?}");
    }

    #[test]
    fn requests_are_counted_and_go_through() {
        let device = modelled("70", MIB);
        device.write_at(4096, &[7; 512]).unwrap();
        device.write_at(4608, &[8; 1024]).unwrap();
        let mut back = [0; 1536];
        device.read_at(4096, &mut back).unwrap();
        device.sync().unwrap();
        assert_eq!(back[511..514], [7, 8, 8]);
        assert!(device.read_at(u64::MAX - 100, &mut back).is_err());
        let wanted = ThrottleFigures {
            reads: 2,
            read_bytes: 3072,
            writes: 2,
            written_bytes: 1536,
            seeks: 3,
            busy: device.busy(),
        };
        assert_eq!(device.figures(), wanted);
    }

    #[test]
    fn equal_requests_take_equal_times() {
        let time = || {
            let device = modelled("hdd-7200", 64 * MIB);
            random_reads(&device, 100, &mut fastrand::Rng::with_seed(5))
        };
        assert_eq!(time(), time());
    }

    #[test]
    fn one_arm_serves_one_request_after_another() {
        let mut arm = modelled("70", MIB).arm.into_inner().unwrap();
        let ms = Duration::from_millis;
        assert_eq!(arm.queue(ms(5), ms(10)), ms(15));
        assert_eq!(arm.queue(ms(5), ms(10)), ms(25));
        // An idle disk does not save up its time.
        assert_eq!(arm.queue(ms(100), ms(10)), ms(110));
    }

    #[test]
    fn a_request_in_real_time_ends_when_the_disk_would_be_done_and_not_before() {
        let time = Cell::new(Duration::from_secs(1));
        let go_on = |by| time.set(time.get() + by);
        let now = || {
            go_on(Duration::from_micros(1));
            time.get()
        };
        // A sleeper that wakes as late as Linux wakes it.
        let sleep = |by| go_on(by + Duration::from_micros(55));
        let due = Duration::from_micros(1_014_285);
        wait_until(due, now, sleep);
        assert!(time.get() >= due);
        assert!(time.get() - due <= Duration::from_micros(2));
    }

    #[test]
    fn in_real_time_a_reading_clock_has_gone_on_by_the_time_of_the_request() {
        // Each look at this clock is a millisecond later than the last, so nothing sleeps for long.
        let ticks = std::sync::atomic::AtomicU64::new(0);
        let tick = move || {
            let tick = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Duration::from_millis(tick)
        };
        let clock = Clock::new(tick, || Duration::ZERO);
        let pace = Pace::Real(clock.clone());
        let model = "seek=100us,settle=10us,rpm=1000000".parse().unwrap();
        let device = ThrottleDevice::new(Arc::new(MemoryDevice::new(MIB)), model, pace, 0);
        let before = clock.monotone();
        device.read_at(MIB as u64 / 2, &mut [0; 512]).unwrap();
        assert!(clock.monotone() - before >= device.busy());

        device.set_pace(Pace::Modelled);
        let (before, busy) = (clock.monotone(), device.busy());
        device.read_at(0, &mut [0; 512]).unwrap();
        assert!(device.busy() > busy);
        assert_eq!(clock.monotone() - before, Duration::from_millis(1));
    }
}
