//! Times: seconds since 1970, time spans, and the three formats of an HTTP-date.
//!
//! Every rule that compares times uses this module; the caller passes the current time. `httpdate`
//! prints dates. It does not parse them, because it rejects a wrong weekday, a leap second and
//! years before 1970, all of which origins send.
//!
//! Invariant: arithmetic saturates; no field value can make a time wrap or a subtraction panic.
//! Cost: a parse looks at each byte once, a print allocates 29 bytes.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::HeaderValue;

use crate::fields::{digits, trim};

/// A point in time: whole seconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

/// A time span in whole seconds, at most [`Seconds::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(u32);

impl Seconds {
    /// Zero seconds.
    pub const ZERO: Seconds = Seconds(0);
    /// 2^31 seconds, the value that RFC 9111 1.2.2 assigns to every larger number.
    pub const MAX: Seconds = Seconds(1 << 31);
    /// One day.
    pub const DAY: Seconds = Seconds(86_400);
    /// 365 days.
    pub const YEAR: Seconds = Seconds(365 * 86_400);

    /// A span; numbers above [`Seconds::MAX`] become `MAX`.
    pub const fn new(seconds: u64) -> Seconds {
        if seconds >= Seconds::MAX.0 as u64 {
            Seconds::MAX
        } else {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "below 2^31 by the test above"
            )]
            Seconds(seconds as u32)
        }
    }

    /// The number of seconds.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The sum, at most [`Seconds::MAX`].
    pub fn plus(self, other: Seconds) -> Seconds {
        Seconds::new(u64::from(self.0) + u64::from(other.0))
    }

    /// The difference to a shorter span, or zero if `other` is longer.
    pub fn beyond(self, other: Seconds) -> Seconds {
        Seconds(self.0.saturating_sub(other.0))
    }

    /// `percent` hundredths of the span, rounded down.
    pub fn percent(self, percent: u32) -> Seconds {
        Seconds::new(u64::from(self.0) * u64::from(percent) / 100)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of seconds as text for people, in the two largest units: `55 s`, `1 h 30 min`, `7
/// days`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanText(pub u64);

impl fmt::Display for SpanText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (365 * 86_400, "year"),
            (86_400, "day"),
            (3_600, "h"),
            (60, "min"),
            (1, "s"),
        ];
        let Self(mut left) = *self;
        let Some(first) = UNITS.iter().position(|(seconds, _)| left >= *seconds) else {
            return f.write_str("0 s");
        };
        for (at, (seconds, unit)) in UNITS.iter().enumerate().skip(first).take(2) {
            let count = left / seconds;
            left %= seconds;
            if count > 0 {
                let blank = if at > first { " " } else { "" };
                let plural = if *seconds >= 86_400 && count > 1 {
                    "s"
                } else {
                    ""
                };
                write!(f, "{blank}{count} {unit}{plural}")?;
            }
        }
        Ok(())
    }
}

/// For people: `2026-11-27 08:30:00 UTC`.
impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([year, month, day], [hour, minute, second]) = self.to_utc();
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
        )
    }
}

impl UnixTime {
    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: UnixTime) -> Seconds {
        Seconds::new(self.0.saturating_sub(earlier.0))
    }

    /// A date (year, month, day) and a time of day (hour, minute, second) in UTC; `None` if there
    /// is no such time, or if it is before 1970 or after 9999. A leap second is read as the next
    /// second.
    pub fn of_utc([year, month, day]: [u64; 3], [hour, minute, second]: [u64; 3]) -> Option<Self> {
        let is_date = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in_month(year, month)).contains(&day);
        if !is_date || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let days = days_from_civil(year, month, day)?;
        Some(Self(days * 86_400 + hour * 3600 + minute * 60 + second))
    }

    /// The date (year, month, day) and the time of day (hour, minute, second) in UTC.
    pub fn to_utc(self) -> ([u64; 3], [u64; 3]) {
        let Self(seconds) = self;
        let time = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
        (civil_from_days(seconds / 86_400), time)
    }

    /// The time `span` later.
    pub fn after(self, span: Seconds) -> UnixTime {
        UnixTime(self.0.saturating_add(u64::from(span.get())))
    }
}

/// Parses an HTTP-date in any of the three formats (RFC 9110 5.6.7).
///
/// Names match in any letter case, as RFC 9111 4.2 requires from caches. `UTC` is accepted for
/// `GMT`, because many origins write it in Last-Modified (but not in Expires: see `freshness`).
/// Everything else is strict: other zones, missing commas or one-digit hours make a date invalid,
/// and an invalid `Expires` counts as past. Times before 1970 become 1970. `now` decides the
/// century for a two-digit year: a year more than 50 years ahead is in the past.
pub fn parse_http_date(value: &[u8], now: UnixTime) -> Option<UnixTime> {
    let value = trim(value);
    let comma = value.iter().position(|&b| b == b',');
    match comma {
        Some(3) => imf_fixdate(value),
        Some(at) => rfc850_date(&value[..at], &value[at + 1..], now),
        None => asctime_date(value),
    }
}

/// Prints a time as IMF-fixdate: `Sun, 06 Nov 1994 08:49:37 GMT`. Times after the year 9999 are
/// printed as the last second in 9999.
pub fn http_date(time: UnixTime) -> HeaderValue {
    let text = imf_text(time);
    HeaderValue::try_from(text).expect("letters, digits, blanks, comma and colons only")
}

fn imf_text(time: UnixTime) -> String {
    let seconds = Duration::from_secs(time.0.min(LAST_SECOND_OF_9999));
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + seconds)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn imf_fixdate(v: &[u8]) -> Option<UnixTime> {
    if v.len() != 29 || v[3..5] != *b", " || v[7] != b' ' || v[11] != b' ' || v[16] != b' ' {
        return None;
    }
    weekday(&v[..3])?;
    zone(&v[25..])?;
    let date = Date {
        year: number(&v[12..16])?,
        month: month(&v[8..11])?,
        day: number(&v[5..7])?,
    };
    date.at(&v[17..25])
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`
fn rfc850_date(day_name: &[u8], rest: &[u8], now: UnixTime) -> Option<UnixTime> {
    let known = WEEKDAYS
        .iter()
        .any(|name| name.as_bytes().eq_ignore_ascii_case(day_name));
    if !known || rest.len() != 23 || rest[0] != b' ' {
        return None;
    }
    if rest[3] != b'-' || rest[7] != b'-' || rest[10] != b' ' {
        return None;
    }
    zone(&rest[19..])?;
    let this_year = number(&imf_text(now).as_bytes()[12..16])?;
    let mut year = this_year / 100 * 100 + number(&rest[8..10])?;
    if year > this_year + 50 {
        year -= 100;
    }
    let date = Date {
        year,
        month: month(&rest[4..7])?,
        day: number(&rest[1..3])?,
    };
    date.at(&rest[11..19])
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime_date(v: &[u8]) -> Option<UnixTime> {
    if v.len() != 24 || v[3] != b' ' || v[7] != b' ' || v[10] != b' ' || v[19] != b' ' {
        return None;
    }
    weekday(&v[..3])?;
    let day = match v[8] {
        b' ' => number(&v[9..10])?,
        _ => number(&v[8..10])?,
    };
    let date = Date {
        year: number(&v[20..24])?,
        month: month(&v[4..7])?,
        day,
    };
    date.at(&v[11..19])
}

struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// This date at the time of day `hh:mm:ss`.
    fn at(&self, time: &[u8]) -> Option<UnixTime> {
        if time.len() != 8 || time[2] != b':' || time[5] != b':' {
            return None;
        }
        let (hour, minute) = (number(&time[..2])?, number(&time[3..5])?);
        let second = number(&time[6..8])?;
        let in_range = hour < 24 && minute < 60 && second <= 60;
        if !in_range || self.day == 0 || self.day > days_in_month(self.year, self.month) {
            return None;
        }
        // A leap second is read as the preceding second: for Expires, an earlier time is safe.
        let second_of_day = hour * 3_600 + minute * 60 + second.min(59);
        match days_from_civil(self.year, self.month, self.day) {
            Some(days) => Some(UnixTime(days * 86_400 + second_of_day)),
            None => Some(UnixTime(0)),
        }
    }
}

fn weekday(name: &[u8]) -> Option<()> {
    let is = |day: &str| day.as_bytes()[..3].eq_ignore_ascii_case(name);
    WEEKDAYS.iter().any(|day| is(day)).then_some(())
}

/// The month's number, January = 1.
fn month(name: &[u8]) -> Option<u64> {
    let at = MONTHS
        .iter()
        .position(|month| month.as_bytes().eq_ignore_ascii_case(name))?;
    u64::try_from(at + 1).ok()
}

fn zone(text: &[u8]) -> Option<()> {
    (text.eq_ignore_ascii_case(b" GMT") || text.eq_ignore_ascii_case(b" UTC")).then_some(())
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |n, b| {
        b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0'))
    })
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date, or `None` for earlier dates. The year starts in March so that
/// the leap day is the last day in a year (Howard Hinnant's `days_from_civil`).
fn days_from_civil(year: u64, month: u64, day: u64) -> Option<u64> {
    let shifted_year = if month <= 2 {
        year.checked_sub(1)?
    } else {
        year
    };
    let (era, year_of_era) = (shifted_year / 400, shifted_year % 400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(DAYS_TO_1970)
}

/// The date `days` after 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil_from_days(days: u64) -> [u64; 3] {
    let shifted = days + DAYS_TO_1970;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    [era * 400 + year_of_era + u64::from(month <= 2), month, day]
}

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: u64 = 719_468;

/// 9999-12-31 23:59:59, the last time with a four-digit year.
const LAST_SECOND_OF_9999: u64 = 253_402_300_799;

/// `delta-seconds` (RFC 9111 1.2.2): digits only; large numbers are capped.
pub(crate) fn delta_seconds(value: &[u8]) -> Option<Seconds> {
    digits(value).map(Seconds::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_790_000_000); // 2026-09-21

    fn parse(text: &str) -> Option<u64> {
        parse_http_date(text.as_bytes(), NOW).map(|time| time.0)
    }

    #[test]
    fn the_three_spellings_of_rfc_9110_name_one_second() {
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse("Sun Nov  6 08:49:37 1994"), Some(784_111_777));
    }

    #[test]
    fn case_and_utc_are_forgiven() {
        assert_eq!(parse("sUN, 06 nOV 1994 08:49:37 gmt"), Some(784_111_777));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 UTC"), Some(784_111_777));
    }

    #[test]
    fn a_two_digit_year_is_at_most_fifty_years_ahead() {
        assert_eq!(
            parse("Thursday, 18-Aug-50 02:01:18 GMT"),
            parse("Thu, 18 Aug 2050 02:01:18 GMT")
        );
        assert_eq!(
            parse("Thursday, 18-Aug-76 02:01:18 GMT"),
            parse("Thu, 18 Aug 2076 02:01:18 GMT")
        );
        assert_eq!(
            parse("Thursday, 18-Aug-77 02:01:18 GMT"),
            parse("Thu, 18 Aug 1977 02:01:18 GMT")
        );
    }

    #[test]
    fn what_is_nearly_a_date_is_none() {
        for text in [
            "",
            "0",
            "-1",
            "Thu, 18 Aug 2050 02:01:18 AEST",
            "Thu, 18 Aug 2050 02:01:18 EST",
            "Thu 18 Aug 2050 02:01:18 GMT",
            "Thu, 18-Aug-2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 02.01.18 GMT",
            "Thu, 18 Aug 2050 2:01:18 GMT",
            "Thu, 18 Aug 2050 24:01:18 GMT",
            "Thu, 30 Feb 2050 02:01:18 GMT",
            "Thu, 00 Feb 2050 02:01:18 GMT",
            "Thu, 18 Aug 50 02:01:18 GMT",
            "Thu, 18 Aug 2050 02:01:18",
            "Xyz, 18 Aug 2050 02:01:18 GMT",
            "Thu, 18 Aug +050 02:01:18 GMT",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn times_before_1970_read_as_1970() {
        assert_eq!(parse("Thu, 18 Aug 1950 02:01:18 GMT"), Some(0));
        assert_eq!(parse("Sat, 01 Jan 0000 00:00:00 GMT"), Some(0));
    }

    #[test]
    fn leap_days_and_leap_seconds_are_read() {
        assert_eq!(parse("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(parse("Sun, 29 Feb 2100 00:00:00 GMT"), None);
        assert_eq!(
            parse("Sat, 31 Dec 2016 23:59:60 GMT"),
            parse("Sat, 31 Dec 2016 23:59:59 GMT")
        );
    }

    #[test]
    fn prints_the_example_of_the_rfc() {
        assert_eq!(
            http_date(UnixTime(784_111_777)),
            "Sun, 06 Nov 1994 08:49:37 GMT"
        );
        assert_eq!(http_date(UnixTime(0)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(
            http_date(UnixTime(u64::MAX)),
            "Fri, 31 Dec 9999 23:59:59 GMT"
        );
    }

    #[test]
    fn the_dates_of_all_days_until_9999_are_those_of_which_they_are_made() {
        for day in 0..=LAST_SECOND_OF_9999 / 86_400 {
            let time = UnixTime(day * 86_400 + day % 86_400);
            let (date, clock) = time.to_utc();
            assert_eq!(UnixTime::of_utc(date, clock), Some(time), "{date:?}");
        }
        let last = ([9999, 12, 31], [23, 59, 59]);
        assert_eq!(UnixTime(LAST_SECOND_OF_9999).to_utc(), last);
        // Not a date, but no panic.
        assert_eq!(UnixTime(u64::MAX).to_utc().1, [7, 0, 15]);
    }

    #[test]
    fn a_time_of_utc_exists_or_is_refused() {
        let at = |date, clock| UnixTime::of_utc(date, clock).map(|time| time.0);
        assert_eq!(at([1970, 1, 1], [0, 0, 0]), Some(0));
        assert_eq!(at([1994, 11, 6], [8, 49, 37]), Some(784_111_777));
        assert_eq!(at([2000, 2, 29], [23, 59, 60]), Some(951_868_800));
        assert_eq!(at([2001, 2, 29], [0, 0, 0]), None);
        assert_eq!(at([1969, 12, 31], [0, 0, 0]), None);
        assert_eq!(at([2001, 13, 1], [0, 0, 0]), None);
        assert_eq!(at([2001, 1, 0], [0, 0, 0]), None);
        assert_eq!(at([2001, 1, 1], [24, 0, 0]), None);
    }

    #[test]
    fn seconds_saturate_at_two_to_the_31() {
        assert_eq!(Seconds::new(u64::MAX), Seconds::MAX);
        assert_eq!(Seconds::MAX.plus(Seconds::new(1)), Seconds::MAX);
        assert_eq!(Seconds::new(2_147_483_648).get(), 2_147_483_648);
        assert_eq!(UnixTime(5).since(UnixTime(9)), Seconds::ZERO);
    }

    #[test]
    fn people_read_lengths_of_time_in_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (55, "55 s"),
            (60, "1 min"),
            (125, "2 min 5 s"),
            (3_600, "1 h"),
            (3_601, "1 h"),
            (5_400, "1 h 30 min"),
            (86_400, "1 day"),
            (90_000, "1 day 1 h"),
            (7 * 86_400, "7 days"),
            (365 * 86_400 + 2 * 86_400, "1 year 2 days"),
            (730 * 86_400, "2 years"),
        ] {
            assert_eq!(SpanText(seconds).to_string(), text);
        }
        assert_eq!(
            UnixTime(1_795_768_200).to_string(),
            "2026-11-27 08:30:00 UTC"
        );
    }
}
