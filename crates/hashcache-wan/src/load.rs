//! Measures the link rate, and the disk time for dictionaries.
//!
//! There is one [`LinkLoad`] per link. Sockets note the bytes that they move and the times at which
//! they have to wait; dictionary readers note the time for a read. Both sides call
//! [`LinkLoad::is_worth_reading`] before they use a dictionary.
//!
//! Both values are service times: the time for which the link or the disk is occupied, without the
//! queue in front of it. There is a queue with and without dictionaries: without them at the link,
//! with them at the disk. If the queue were included, a disk that could serve four times as much
//! would seem too slow as soon as many clients use it.
//!
//! Invariant: without measured traffic, or without reads, every dictionary is worth reading,
//! because this code is made for slow links. The exception is a dictionary more than 16 times as
//! long as the content.
//! Cost: one lock per read or write on a socket.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::shed::{Load, expected_saving, is_worth_reading, reads};
use crate::stretch::bytes_read;

/// Measurements of a link and of the disk that holds the dictionaries.
#[derive(Debug, Default)]
pub struct LinkLoad {
    rate: Mutex<Rate>,
    disk: Mutex<Disk>,
}

/// Link rate while the link is busy.
///
/// A socket is busy between two waits: a receiver waits when it has taken all bytes that have
/// arrived, a sender when its buffer is full. The bytes moved in that interval, divided by the
/// interval's length, are the link rate. If the socket had nothing to move for some time in the
/// interval, this rate is too low, so intervals with much less than the usual rate do not count.
#[derive(Debug, Default)]
struct Rate {
    /// When the last wait was.
    waited: Option<Instant>,
    /// Bytes since the last wait.
    moved: u64,
    /// Sums over the intervals that count.
    bytes: u64,
    busy: Duration,
    /// Bytes in intervals that do not count, since the last interval that counted.
    slow_bytes: u64,
}

/// The time for which a read occupies the disk.
#[derive(Debug, Default)]
struct Disk {
    mean: Duration,
    /// When the last read was finished.
    last: Option<Instant>,
    /// When a read was last made only to measure the disk.
    tried: Option<Instant>,
}

impl LinkLoad {
    /// Notes bytes that a socket has moved in the content direction.
    pub fn note_moved(&self, bytes: usize) {
        lock(&self.rate).moved += bytes as u64;
    }

    /// Notes that the socket has to wait before it can move more in the content direction.
    pub fn note_waits(&self, now: Instant) {
        lock(&self.rate).end_interval(now);
    }

    /// Notes that a dictionary read has finished after the time `took`.
    pub fn note_read(&self, took: Duration, now: Instant) {
        lock(&self.disk).note(took, now);
    }

    /// Returns true if a dictionary of `dictionary` bytes takes less time on the disk than it saves
    /// on the link, for content of `length` bytes, if known. Sometimes returns true in any case,
    /// because the disk may be less busy than before.
    pub fn is_worth_reading(&self, dictionary: u64, length: Option<u64>, now: Instant) -> bool {
        let length = length.unwrap_or(dictionary);
        if dictionary / LONGER_MAX > length {
            return false;
        }
        let rate = lock(&self.rate).bytes_per_second();
        let mut disk = lock(&self.disk);
        let load = Load {
            read_time: disk.mean,
            link_bytes_per_second: rate,
        };
        let reads = reads(bytes_read(dictionary, length));
        is_worth_reading(load, reads, expected_saving(dictionary.min(length)))
            || disk.is_to_be_tried(now)
    }
}

impl Rate {
    fn end_interval(&mut self, now: Instant) {
        if self.moved == 0 {
            // The interval continues; if there was no wait yet, it starts now.
            self.waited.get_or_insert(now);
            return;
        }
        let bytes = std::mem::take(&mut self.moved);
        let Some(begun) = self.waited.replace(now) else {
            return;
        };
        let took = now.saturating_duration_since(begun);
        let counts = match self.bytes_per_second() {
            0 => took <= PAUSE,
            usual => per_second(bytes, took) >= usual / SLOWER_MAX,
        };
        if !counts {
            self.slow_bytes += bytes;
            if self.slow_bytes >= SLOW_BYTES_MAX {
                // The link itself has become slower.
                *self = Self {
                    waited: self.waited,
                    ..Self::default()
                };
            }
            return;
        }
        self.slow_bytes = 0;
        self.bytes += bytes;
        self.busy += took;
        if self.busy >= WINDOW {
            self.bytes /= 2;
            self.busy /= 2;
        }
    }

    /// 0: unknown.
    fn bytes_per_second(&self) -> u64 {
        if self.busy < MEASURED_MIN {
            0
        } else {
            per_second(self.bytes, self.busy)
        }
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    let rate = u128::from(bytes) * 1_000_000_000 / nanos;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

impl Disk {
    fn note(&mut self, took: Duration, now: Instant) {
        let since_last = self.last.map(|last| now.saturating_duration_since(last));
        // While another read was being served, this read was in the queue.
        let served = since_last.map_or(took, |since| took.min(since));
        self.mean = if since_last.is_none_or(|since| since >= TRIED_AGAIN) {
            (self.mean + served) / 2
        } else {
            (self.mean * 7 + served) / 8
        };
        self.last = Some(now);
    }

    /// Returns true if it is time for a read only to measure the disk.
    fn is_to_be_tried(&mut self, now: Instant) -> bool {
        let latest = self.last.max(self.tried);
        let is_due =
            latest.is_none_or(|latest| now.saturating_duration_since(latest) >= TRIED_AGAIN);
        if is_due {
            self.tried = Some(now);
        }
        is_due
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A dictionary that is this many times as long as the content costs more than it saves.
const LONGER_MAX: u64 = 16;
/// While the usual rate is unknown, a longer interval is assumed to contain a pause.
const PAUSE: Duration = Duration::from_millis(50);
/// An interval with less than the usual rate divided by this number is assumed to contain a pause.
const SLOWER_MAX: u64 = 4;
/// After this many bytes in only slow intervals, the link has a new rate.
const SLOW_BYTES_MAX: u64 = 1 << 20;
/// Busy time after which old measurements lose half their weight.
const WINDOW: Duration = Duration::from_secs(30);
/// Minimum busy time for a known rate.
const MEASURED_MIN: Duration = Duration::from_millis(250);
/// Time without reads after which a dictionary is read to measure the disk.
const TRIED_AGAIN: Duration = Duration::from_secs(10);

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

    /// Moves `rate` bytes a second for two seconds, without a pause.
    fn play(load: &LinkLoad, rate: usize, now: &mut Instant) {
        for _ in 0..2_000 {
            *now += Duration::from_millis(1);
            load.note_moved(rate / 1_000);
            load.note_waits(*now);
        }
    }

    fn rate(load: &LinkLoad) -> u64 {
        lock(&load.rate).bytes_per_second()
    }

    #[test]
    fn a_slow_disk_is_spared_on_a_fast_link_only() {
        for (megabits, worth) in [(1, true), (10, true), (100, false)] {
            let (load, mut now) = (LinkLoad::default(), now());
            play(&load, megabits * 125_000, &mut now);
            // Eight wait at a time: each read takes 80 ms, 70 of them in the queue.
            for _ in 0..100 {
                now += Duration::from_millis(10);
                load.note_read(Duration::from_millis(80), now);
            }
            let is_worth = |at| load.is_worth_reading(1 << 20, None, at);
            assert_eq!(is_worth(now), worth, "{megabits}");
            // Later the disk may be less busy: one dictionary finds it out.
            let later = now + Duration::from_secs(5 * 60);
            assert!(is_worth(later));
            assert_eq!(is_worth(later), worth, "{megabits}");
        }
        let (idle, mut now) = (LinkLoad::default(), now());
        play(&idle, 12_500_000, &mut now);
        idle.note_read(Duration::ZERO, now);
        assert!(idle.is_worth_reading(1 << 20, None, now));
        assert!(LinkLoad::default().is_worth_reading(1 << 20, None, now));
        assert!(
            !idle.is_worth_reading(1 << 20, Some(600), now),
            "short content"
        );
    }

    #[test]
    fn a_disk_that_was_busy_is_used_again_after_some_tries() {
        let (load, mut now) = (LinkLoad::default(), now());
        play(&load, 12_500_000, &mut now);
        load.note_read(Duration::from_secs(1), now);
        let mut tries = 0;
        while !load.is_worth_reading(1 << 20, None, now) || tries == 0 {
            now += TRIED_AGAIN;
            assert!(load.is_worth_reading(1 << 20, None, now), "a try");
            now += Duration::from_millis(1);
            load.note_read(Duration::from_millis(1), now);
            tries += 1;
        }
        assert!(tries <= 8, "{tries}");
    }

    #[test]
    fn pauses_do_not_make_a_link_slow() {
        let (load, mut now) = (LinkLoad::default(), now());
        // 20 kB at 100 Mbit/s, in packets of 1,250 bytes, every 40 ms.
        for _ in 0..1_000 {
            now += Duration::from_millis(40);
            for _ in 0..16 {
                now += Duration::from_micros(100);
                load.note_moved(1_250);
                load.note_waits(now);
            }
        }
        assert!(rate(&load) > 10_000_000, "{}", rate(&load));
    }

    #[test]
    fn a_link_that_becomes_slower_is_measured_again() {
        let (load, mut now) = (LinkLoad::default(), now());
        for bytes_per_second in [12_500_000, 1_000_000, 12_500_000] {
            for _ in 0..20 {
                play(&load, bytes_per_second, &mut now);
            }
            let is = rate(&load) as f64 / bytes_per_second as f64;
            assert!((0.5..1.5).contains(&is), "{is} of {bytes_per_second}");
        }
    }
}
