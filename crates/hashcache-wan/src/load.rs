//! How busy a link is, and how long its dictionaries wait for the disk.
//!
//! One for each link. Sockets note what they move, readers of dictionaries how long they waited;
//! both ends ask [`LinkLoad::is_worth_reading`] before they use a dictionary.
//!
//! Invariant: without a second of measured traffic, and without waits, every dictionary is worth
//! reading: links for which this is built are slow.
//! Cost: one lock per read or write of a socket.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::shed::{Load, expected_saving, is_worth_reading, reads};
use crate::stretch::bytes_read;

/// What is measured of a link and of the disk below its dictionaries.
#[derive(Debug, Default)]
pub struct LinkLoad {
    rate: Mutex<Rate>,
    wait: Mutex<Wait>,
}

/// What the link carries while it is busy.
#[derive(Debug, Default)]
struct Rate {
    last: Option<Instant>,
    bytes: u64,
    busy: Duration,
}

/// Mean time of a read.
#[derive(Debug, Default)]
struct Wait {
    mean: Duration,
    last: Option<Instant>,
}

impl LinkLoad {
    /// Notes bytes that a socket has moved in the direction of content.
    pub fn note_moved(&self, bytes: usize, now: Instant) {
        let mut rate = lock(&self.rate);
        let gap = rate.last.map(|last| now.saturating_duration_since(last));
        rate.last = Some(now);
        if let Some(gap) = gap.filter(|gap| *gap <= PAUSE) {
            rate.bytes += bytes as u64;
            rate.busy += gap;
        }
        if rate.busy >= WINDOW {
            rate.bytes /= 2;
            rate.busy /= 2;
        }
    }

    /// Notes how long one read of a dictionary took.
    pub fn note_read(&self, took: Duration, now: Instant) {
        let mut wait = lock(&self.wait);
        wait.mean = (wait.mean_at(now) * 7 + took) / 8;
        wait.last = Some(now);
    }

    /// Whether a dictionary of so many bytes takes less time on the disk than it saves on the link,
    /// for content of `length` bytes, if known.
    pub fn is_worth_reading(&self, dictionary: u64, length: Option<u64>, now: Instant) -> bool {
        let length = length.unwrap_or(dictionary);
        if dictionary / LONGER_MAX > length {
            return false;
        }
        let load = Load {
            read_wait: lock(&self.wait).mean_at(now),
            link_bytes_per_second: lock(&self.rate).bytes_per_second(),
        };
        let reads = reads(bytes_read(dictionary, length));
        is_worth_reading(load, reads, expected_saving(dictionary.min(length)))
    }
}

impl Rate {
    /// 0: not known.
    fn bytes_per_second(&self) -> u64 {
        let busy = u64::try_from(self.busy.as_millis()).unwrap_or(u64::MAX);
        match self.busy < MEASURED_MIN {
            true => 0,
            false => self.bytes.saturating_mul(1000) / busy,
        }
    }
}

impl Wait {
    /// The mean falls while nothing is read: whether the disk still is busy must be tried.
    fn mean_at(&self, now: Instant) -> Duration {
        let Some(last) = self.last else {
            return Duration::ZERO;
        };
        let halvings = now.saturating_duration_since(last).as_secs() / HALVED_SECONDS;
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        self.mean / 2_u32.checked_pow(halvings).unwrap_or(u32::MAX)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A dictionary that is so many times as long as the content costs more than it saves.
const LONGER_MAX: u64 = 16;
/// A link that moves nothing for longer is idle.
const PAUSE: Duration = Duration::from_millis(50);
/// Busy time that is looked at.
const WINDOW: Duration = Duration::from_secs(30);
/// Busy time without which the rate is not known.
const MEASURED_MIN: Duration = Duration::from_secs(1);
/// The mean of waits is halved in this time without a read.
const HALVED_SECONDS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "only the differences of times matter"
    )]
    fn now() -> Instant {
        Instant::now()
    }

    /// A link that moves `rate` bytes a second for two seconds, over a disk with this wait.
    fn load(rate: usize, wait: Duration) -> (LinkLoad, Instant) {
        let (load, mut now) = (LinkLoad::default(), now());
        for _ in 0..200 {
            now += Duration::from_millis(10);
            load.note_moved(rate / 100, now);
            load.note_read(wait, now);
        }
        (load, now)
    }

    #[test]
    fn a_slow_disk_is_spared_on_a_fast_link_only() {
        let wait = Duration::from_millis(100);
        for (rate, worth) in [(125_000, true), (1_250_000, false), (12_500_000, false)] {
            let (load, now) = load(rate, wait);
            assert_eq!(load.is_worth_reading(1 << 20, None, now), worth, "{rate}");
            // Later the disk may be less busy.
            let later = now + Duration::from_mins(5);
            assert!(load.is_worth_reading(1 << 20, None, later));
        }
        let (idle, now) = load(12_500_000, Duration::ZERO);
        assert!(idle.is_worth_reading(1 << 20, None, now));
        assert!(LinkLoad::default().is_worth_reading(1 << 20, None, now));
        assert!(
            !idle.is_worth_reading(1 << 20, Some(600), now),
            "short content"
        );
    }
}
