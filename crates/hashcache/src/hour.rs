//! Hours of Universal Time, in the short form that fits into the lists in the log.
//!
//! A list line has 16 bits for an hour, enough for 7.5 years. So it stores the hour modulo 65,536,
//! and a reader takes the hour nearest to now.
//!
//! Called by `cache` when it creates a record, and by `stripe/scan` and `observers` when they
//! return a line.
//!
//! Invariant: the hour read is never later than the hour stored, if the reader's clock is right and
//! within [`RANGE`] of that hour. An hour outside the range is stored as the farthest hour in
//! range.

/// 2020-01-01T00:00Z as Unix time, hours.
const EPOCH: i64 = 438_288;
/// Largest distance from now to a stored hour: three years. A reader accepts hours up to 3.7 years
/// from now, so an expired hour is still read correctly for that long.
const RANGE: i64 = 3 * 365 * 24;
/// Values in 16 bits.
const CYCLE: i64 = 1 << 16;
/// Value in a line without an hour.
const UNKNOWN: u16 = 0;

/// A full hour of Universal Time, in 2020 or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour {
    /// Hours since 2020-01-01T00:00Z; not 0.
    since_2020: u32,
}

impl Hour {
    /// The last full hour at or before this Unix time; `None` before 2020-01-01T01:00Z.
    pub fn from_unix_seconds(seconds: u64) -> Option<Self> {
        let hours = i64::try_from(seconds / 3600).ok()?;
        Self::since_2020(hours - EPOCH)
    }

    /// The hour's start, as Unix time.
    pub fn to_unix_seconds(self) -> u64 {
        (EPOCH.unsigned_abs() + u64::from(self.since_2020)) * 3600
    }

    fn since_2020(hours: i64) -> Option<Self> {
        let since_2020 = u32::try_from(hours).ok().filter(|hours| *hours > 0)?;
        Some(Self { since_2020 })
    }

    /// Encodes `hour` for a record and the list line.
    pub(crate) fn to_stored(hour: Option<Self>, unix_millis: u64) -> u16 {
        let Some(hour) = hour else {
            return UNKNOWN;
        };
        let now = hours_since_2020(unix_millis);
        let hours = i64::from(hour.since_2020).clamp(now - RANGE, now + RANGE);
        if hours <= 0 {
            return UNKNOWN;
        }
        // An hour with the code for unknown is stored as the hour before it.
        match u16::try_from(hours % CYCLE) {
            Ok(UNKNOWN) | Err(_) => u16::MAX,
            Ok(stored) => stored,
        }
    }

    /// The hour nearest to now with the code `stored`.
    pub(crate) fn from_stored(stored: u16, unix_millis: u64) -> Option<Self> {
        if stored == UNKNOWN {
            return None;
        }
        let now = hours_since_2020(unix_millis);
        let ahead = (i64::from(stored) - now).rem_euclid(CYCLE);
        let ahead = if ahead < CYCLE / 2 {
            ahead
        } else {
            ahead - CYCLE
        };
        Self::since_2020(now + ahead)
    }
}

/// Hours since 2020-01-01T00:00Z; negative before.
fn hours_since_2020(unix_millis: u64) -> i64 {
    i64::try_from(unix_millis / 3_600_000).unwrap_or(i64::MAX / 2) - EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2020-01-01T00:00Z.
    const IN_2020: u64 = 1_577_836_800;
    const HOUR: u64 = 3600;

    fn hour(since_2020: u64) -> Option<Hour> {
        Hour::from_unix_seconds(IN_2020 + since_2020 * HOUR)
    }

    /// `of` as it is read at the hour `read_at` when it was stored at `stored_at`.
    fn kept(of: u64, stored_at: u64, read_at: u64) -> Option<Hour> {
        let millis = |hours: u64| (IN_2020 + hours * HOUR) * 1000;
        let stored = Hour::to_stored(hour(of), millis(stored_at));
        Hour::from_stored(stored, millis(read_at))
    }

    #[test]
    fn an_hour_is_rounded_down_and_begins_in_2020() {
        let noon = Hour::from_unix_seconds(1_700_000_000).unwrap();
        assert_eq!(noon.to_unix_seconds(), 1_699_999_200);
        assert_eq!(Hour::from_unix_seconds(IN_2020 + HOUR - 1), None);
        assert_eq!(hour(1).unwrap().to_unix_seconds(), IN_2020 + HOUR);
        assert_eq!(Hour::from_unix_seconds(0), None);
        assert_eq!(Hour::from_unix_seconds(u64::MAX), None);
    }

    #[test]
    fn an_hour_is_read_as_it_was_stored_in_any_year() {
        // 16 bits are full for the first time in June 2027.
        for now in [1, 60_434, 65_500, 65_536, 65_537, 131_072, 1_000_000] {
            for ahead in [0, 1, 24, 3_000, 26_280] {
                for later in [0, 5, 30_000] {
                    let expected = match (now + ahead) % 65_536 {
                        0 => hour(now + ahead - 1),
                        _ => hour(now + ahead),
                    };
                    let read = kept(now + ahead, now, now + later);
                    assert_eq!(read, expected, "{now} {ahead} {later}");
                }
            }
        }
    }

    #[test]
    fn an_hour_out_of_range_is_never_read_as_a_later_one() {
        assert_eq!(kept(90_000, 60_000, 60_000), hour(86_280));
        // Over for long: read as over.
        assert_eq!(kept(10, 60_000, 60_000), hour(33_720));
    }

    #[test]
    fn what_is_not_known_stays_so_and_a_clock_that_was_never_set_stores_nothing() {
        assert_eq!(Hour::to_stored(None, 1_700_000_000_000), 0);
        assert_eq!(Hour::from_stored(0, 1_700_000_000_000), None);
        assert_eq!(Hour::to_stored(hour(60_000), 0), 0);
        assert_eq!(Hour::from_stored(60_000, 0), None);
        for stored in [1, 7, u16::MAX] {
            assert_eq!(Hour::from_stored(stored, u64::MAX), None);
        }
    }
}
