//! Access cost on a spinning disk: seek, rotation, transfer.
//!
//! A seek costs settling, which is most of the shortest seek, and travel. Travel grows with the
//! square root of the distance while the arm speeds up and slows down, and linearly beyond a third
//! of the stroke, where the arm coasts (Ruemmler and Wilkes, "An introduction to disk drive
//! modeling", 1994). Times are whole nanoseconds and distances whole numbers, so a model gives the
//! same figures on every machine.
//!
//! Called by `throttle`. Touches no device and reads no clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A spinning disk, built by name or from figures; see [`DiskModel::from_str`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskModel {
    settle_ns: u64,
    /// Mean over all position pairs, including settling.
    average_seek_ns: u64,
    rpm: u32,
    /// Transfer rate at the first and at the last position, bytes per second.
    outer_rate: u64,
    inner_rate: u64,
}

impl DiskModel {
    /// A desktop disk of 7,200 turns a minute: about 78 random reads a second.
    pub const HDD_7200: Self = Self {
        settle_ns: 800_000,
        average_seek_ns: 8_500_000,
        rpm: 7200,
        outer_rate: 210_000_000,
        inner_rate: 100_000_000,
    };

    /// A portable disk of 5,400 turns a minute: about 56 random reads a second.
    pub const HDD_5400: Self = Self {
        settle_ns: 1_500_000,
        average_seek_ns: 12_000_000,
        rpm: 5400,
        outer_rate: 130_000_000,
        inner_rate: 60_000_000,
    };

    /// A disk with `rate` random 16 KiB reads a second: [`DiskModel::HDD_7200`] with all mechanical
    /// times scaled. `None` outside 1 to 1,000.
    pub fn seeks_per_second(rate: u32) -> Option<Self> {
        if !(1..=SEEK_RATE_MAX).contains(&rate) {
            return None;
        }
        let base = Self::HDD_7200;
        let moving = SECOND / u64::from(rate) - base.mean_transfer_ns(USUAL_READ);
        let base_moving = base.average_seek_ns + base.turn_ns() / 2;
        let scaled = |time: u64| time * moving / base_moving;
        let rpm = MINUTE / scaled(base.turn_ns());
        let mut model = Self {
            settle_ns: in_micros(scaled(base.settle_ns)),
            rpm: u32::try_from(rpm).ok()?,
            ..base
        };
        // Rounding to whole rpm changes the turn time; the seek makes up for it, so that the sum is
        // as wanted.
        model.average_seek_ns = in_micros(moving - model.turn_ns() / 2);
        Some(model)
    }

    /// Returns the model of this disk with accesses spread over all of it, even if their offsets
    /// are near each other: every seek takes the mean time. Lets a small store stand for a store
    /// that fills the disk.
    pub fn spread(self) -> Self {
        Self {
            settle_ns: self.average_seek_ns,
            ..self
        }
    }

    /// Mean time to read `bytes` bytes at a random position.
    pub fn random_read(&self, bytes: u64) -> Duration {
        let moving = self.average_seek_ns + self.turn_ns() / 2;
        Duration::from_nanos(moving.saturating_add(self.mean_transfer_ns(bytes)))
    }

    /// Transfer rates on the outermost and on the innermost track, bytes per second.
    pub fn transfer_rates(&self) -> (u64, u64) {
        (self.outer_rate, self.inner_rate)
    }

    /// Time to seek over `distance` bytes on a disk of `size` bytes. Distance 0 also costs
    /// settling: the head has left the track's time slot, if not the track.
    pub(super) fn seek_ns(&self, distance: u64, size: u64) -> u64 {
        // In parts of 2^32 of the whole stroke.
        let part = (u128::from(distance) << 32) / u128::from(size.max(1));
        let part = u64::try_from(part).unwrap_or(u64::MAX).min(1 << 32);
        // In parts of 2^16 of a seek over a third of the stroke: sqrt(3 d), then (3 d + 1) / 2,
        // which continues with the same slope.
        let travel = match 3 * part {
            short if short <= 1 << 32 => short.isqrt(),
            long => ((1 << 32) + long) >> 17,
        };
        let travel = (u128::from(self.third_ns()) * u128::from(travel)) >> 16;
        self.settle_ns
            .saturating_add(u64::try_from(travel).unwrap_or(u64::MAX))
    }

    /// Travel time over a third of the stroke. The `seek_ns` curve's mean, over all position pairs,
    /// is 128/135 of it.
    fn third_ns(&self) -> u64 {
        (self.average_seek_ns - self.settle_ns) * 135 / 128
    }

    pub(super) fn turn_ns(&self) -> u64 {
        MINUTE / u64::from(self.rpm)
    }

    /// Time in which `bytes` at `offset` pass under the head. Outer tracks hold more.
    pub(super) fn transfer_ns(&self, offset: u64, bytes: u64, size: u64) -> u64 {
        let (outer, inner) = (u128::from(self.outer_rate), u128::from(self.inner_rate));
        let (size, offset) = (u128::from(size.max(1)), u128::from(offset.min(size)));
        // Rates are bounded, so the result is a rate too, and not zero.
        let rate = (outer * (size - offset) + inner * offset) / size;
        let time = u128::from(bytes) * u128::from(SECOND) / rate.max(1);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    fn mean_transfer_ns(&self, bytes: u64) -> u64 {
        self.transfer_ns(1, bytes, 2)
    }

    fn checked(self) -> Result<Self, DiskModelError> {
        let right = [
            ("settle", self.settle_ns <= self.average_seek_ns),
            ("seek", self.average_seek_ns <= SEEK_MAX),
            ("rpm", (1..=RPM_MAX).contains(&self.rpm)),
            ("rate", (1..=RATE_MAX).contains(&self.outer_rate)),
            ("inner", (1..=self.outer_rate).contains(&self.inner_rate)),
        ];
        match right.into_iter().find(|(_, right)| !right) {
            Some((key, _)) => Err(DiskModelError::Impossible { key }),
            None => Ok(self),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), DiskModelError> {
        let bad = || DiskModelError::Value {
            key: key.into(),
            value: value.into(),
        };
        match key {
            "seek" => self.average_seek_ns = time(value).ok_or_else(bad)?,
            "settle" => self.settle_ns = time(value).ok_or_else(bad)?,
            "rpm" => self.rpm = value.parse().map_err(|_| bad())?,
            "rate" => {
                self.outer_rate = rate(value).ok_or_else(bad)?;
                self.inner_rate = self.outer_rate;
            }
            "inner" => self.inner_rate = rate(value).ok_or_else(bad)?,
            _ => return Err(DiskModelError::Unknown { word: key.into() }),
        }
        Ok(())
    }
}

/// Reason why a text is not a disk model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskModelError {
    /// Neither a name nor a key.
    #[error(
        "no disk and no figure `{word}`; there are a number of seeks per second, `hdd-7200`, \
         `hdd-5400`, and `seek=`, `settle=`, `rpm=`, `rate=`, `inner=`"
    )]
    Unknown {
        /// The unknown word.
        word: String,
    },
    /// The value of a key cannot be read.
    #[error("`{value}` is not a value for `{key}`")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
    },
    /// No disk has such figures.
    #[error("`{key}` is out of range for a disk")]
    Impossible {
        /// Key for the figure that is too small, too large, or does not fit the others.
        key: &'static str,
    },
}

impl FromStr for DiskModel {
    type Err = DiskModelError;

    /// Parses `70` (seeks per second), `hdd-7200`, `hdd-5400`, or the figures in which a disk
    /// differs from the named disk, `hdd-7200` by default: `seek=8.5ms,rpm=7200,rate=120MB/s`,
    /// `hdd-5400,inner=50MB/s`. `seek` is the mean; `rate` holds for the whole disk unless `inner`
    /// follows it.
    fn from_str(text: &str) -> Result<Self, DiskModelError> {
        let mut words = text.split(',').map(str::trim).peekable();
        let first = words.peek().copied().unwrap_or_default();
        let named = match first {
            "hdd-7200" => Some(Self::HDD_7200),
            "hdd-5400" => Some(Self::HDD_5400),
            _ => match first.parse() {
                Ok(rate) => Some(
                    Self::seeks_per_second(rate)
                        .ok_or(DiskModelError::Impossible { key: "seek" })?,
                ),
                Err(_) => None,
            },
        };
        if named.is_some() {
            words.next();
        }
        let mut model = named.unwrap_or(Self::HDD_7200);
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(DiskModelError::Unknown { word: word.into() });
            };
            model.set(key.trim(), value.trim())?;
        }
        model.checked()
    }
}

/// Prints the figures in a form that parses to the same disk.
impl fmt::Display for DiskModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seek, settle) = (self.average_seek_ns, self.settle_ns);
        let (rpm, outer, inner) = (self.rpm, self.outer_rate, self.inner_rate);
        write!(
            f,
            "seek={seek}ns,settle={settle}ns,rpm={rpm},rate={outer}B/s,inner={inner}B/s"
        )
    }
}

fn time(text: &str) -> Option<u64> {
    let units = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    in_unit(text, &units)
}

fn rate(text: &str) -> Option<u64> {
    let units = [
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("B", 1),
    ];
    in_unit(text.strip_suffix("/s")?, &units)
}

/// Parses a decimal number with a suffix from `units`, rounded down.
fn in_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / u128::from(scale);
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    whole.checked_add(u64::try_from(fraction).ok()?)
}

fn in_micros(nanos: u64) -> u64 {
    (nanos + 500) / 1000 * 1000
}

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
/// Read size for a seek rate: a record's first read, and nearly that for a set.
const USUAL_READ: u64 = 16 << 10;
/// Limits: a larger figure is a typing error, and products could exceed 64 bits.
const SEEK_RATE_MAX: u32 = 1000;
const SEEK_MAX: u64 = 10 * SECOND;
const RPM_MAX: u32 = 1_000_000;
const RATE_MAX: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;

    #[test]
    fn the_mean_over_all_pairs_of_places_is_the_average_seek() {
        for model in [DiskModel::HDD_7200, DiskModel::HDD_5400] {
            let steps = 500;
            let place = |step: u64| SIZE / steps * step + SIZE / steps / 2;
            let (mut sum, mut pairs) = (0, 0);
            for from in 0..steps {
                for to in 0..steps {
                    sum += model.seek_ns(place(from).abs_diff(place(to)), SIZE);
                    pairs += 1;
                }
            }
            let off = (sum / pairs).abs_diff(model.average_seek_ns);
            assert!(off < model.average_seek_ns / 200, "{off} ns off in {model}");
        }
    }

    #[test]
    fn a_longer_seek_costs_more_and_the_first_bytes_of_it_the_most() {
        let seek = |part: u64| DiskModel::HDD_7200.seek_ns(SIZE / 1000 * part, SIZE);
        for part in 0..1000 {
            assert!(seek(part) < seek(part + 1), "at {part} / 1000");
        }
        assert_eq!(seek(0), DiskModel::HDD_7200.settle_ns);
        // Square root: four times as far, twice the travel.
        let travel = |part| seek(part) - seek(0);
        assert!(travel(40).abs_diff(2 * travel(10)) < 100_000);
        // No step where the root ends.
        assert!(seek(334) - seek(333) < seek(332) - seek(330));
        assert_eq!(
            DiskModel::HDD_7200.seek_ns(u64::MAX, SIZE),
            DiskModel::HDD_7200.seek_ns(SIZE, SIZE)
        );
    }

    #[test]
    fn on_a_disk_that_is_spread_every_seek_takes_the_mean() {
        let model = DiskModel::HDD_7200.spread();
        for part in [0, 1, 500, 1000] {
            assert_eq!(
                model.seek_ns(SIZE / 1000 * part, SIZE),
                model.average_seek_ns
            );
        }
    }

    #[test]
    fn a_rate_of_seeks_is_what_random_reads_come_to() {
        for rate in [1, 20, 67, 70, 95, 200, 1000] {
            let model = DiskModel::seeks_per_second(rate).unwrap();
            let mean = model.random_read(16 << 10);
            let wanted = Duration::from_secs(1) / rate;
            assert!(mean.abs_diff(wanted) < wanted / 1000, "{rate}: {mean:?}");
        }
        assert_eq!(DiskModel::seeks_per_second(0), None);
        assert_eq!(DiskModel::seeks_per_second(1001), None);
    }

    #[test]
    fn names_and_figures_are_read() {
        let figures: DiskModel = "seek=8.5ms,rpm=7200,rate=120MB/s".parse().unwrap();
        let wanted = DiskModel {
            outer_rate: 120_000_000,
            inner_rate: 120_000_000,
            ..DiskModel::HDD_7200
        };
        assert_eq!(figures, wanted);
        assert_eq!("hdd-7200".parse(), Ok(DiskModel::HDD_7200));
        let slower: DiskModel = "hdd-5400, inner=1.5MiB/s".parse().unwrap();
        assert_eq!(slower.inner_rate, 3 << 19);
        assert_eq!(slower.rpm, 5400);
        assert_eq!(
            "70".parse().ok(),
            DiskModel::seeks_per_second(70),
            "a bare number counts seeks"
        );
    }

    #[test]
    fn a_disk_reads_back_from_its_own_text() {
        for text in [
            "70",
            "95",
            "hdd-5400",
            "seek=3.25ms,settle=400us,rate=1GB/s",
        ] {
            let model: DiskModel = text.parse().unwrap();
            assert_eq!(model.to_string().parse(), Ok(model));
        }
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        let unknown = |word: &str| DiskModelError::Unknown { word: word.into() };
        let impossible = |key| DiskModelError::Impossible { key };
        let value = |key: &str, value: &str| DiskModelError::Value {
            key: key.into(),
            value: value.into(),
        };
        let cases = [
            ("", unknown("")),
            ("ssd", unknown("ssd")),
            ("70,hdd-7200", unknown("hdd-7200")),
            ("speed=9ms", unknown("speed")),
            ("0", impossible("seek")),
            ("2000", impossible("seek")),
            ("seek=8", value("seek", "8")),
            ("seek=-8ms", value("seek", "-8ms")),
            ("seek=.5ms", value("seek", ".5ms")),
            ("rate=120MB", value("rate", "120MB")),
            ("rpm=fast", value("rpm", "fast")),
            ("rpm=0", impossible("rpm")),
            ("rate=0B/s", impossible("rate")),
            ("seek=1ms,settle=2ms", impossible("settle")),
            ("seek=11s", impossible("seek")),
            ("rate=50MB/s,inner=60MB/s", impossible("inner")),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<DiskModel>(), Err(error), "{text}");
        }
    }
}
