//! Fields that several formats have: numbers, times, methods with a status.

use hashcache_http::UnixTime;

/// A number without sign.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Seconds with a fraction, as microseconds; further digits are dropped.
pub fn micros(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b"0"[..]),
    };
    let fraction = &fraction[..fraction.len().min(6)];
    let scale = 10u64.pow(6 - u32::try_from(fraction.len()).ok()?);
    let fraction = number(fraction)? * scale;
    number(whole)?.checked_mul(1_000_000)?.checked_add(fraction)
}

/// A status of three digits.
pub fn status(text: &[u8]) -> Option<u16> {
    if text.len() != 3 {
        return None;
    }
    u16::try_from(number(text)?).ok()
}

/// Whether a cache may store the response to such a request, as far as these two say: RFC 9110,
/// section 15.1 has the statuses. What was not modified is stored already.
pub fn is_storable(method: &[u8], status: u16) -> bool {
    method == b"GET" && matches!(status, 200 | 203 | 300 | 301 | 304 | 308 | 404 | 410)
}

/// Microseconds since 1970 of a date (year, month, day) and a time of day (hour, minute, second) as
/// clocks show them so many seconds east of UTC.
pub fn micros_since_1970(date: [u64; 3], clock: [u64; 3], east: i64) -> Option<u64> {
    let UnixTime(seconds) = UnixTime::of_utc(date, clock)?;
    seconds.checked_add_signed(-east)?.checked_mul(1_000_000)
}

/// An offset from UTC, `+` or `-` with two digits of hours and two of minutes.
pub fn seconds_east(sign: u8, hours: &[u8], minutes: &[u8]) -> Option<i64> {
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// The client's copy was not modified: the response has no content.
pub const NOT_MODIFIED: u16 = 304;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_read_exactly_or_not_at_all() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for text in ["", "18446744073709551616", "-1", "1.5", " 1"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
        assert_eq!(micros(b"785433179.434793"), Some(785_433_179_434_793));
        assert_eq!(micros(b"12.5"), Some(12_500_000));
        assert_eq!(micros(b"12"), Some(12_000_000));
        assert_eq!(micros(b"1.1234569"), Some(1_123_456));
        for text in ["", ".5", "5.", "1e3", "99999999999999999999"] {
            assert_eq!(micros(text.as_bytes()), None, "{text}");
        }
        assert_eq!(status(b"304"), Some(304));
        assert_eq!(status(b"0304"), None);
    }

    #[test]
    fn a_date_with_an_offset_is_a_moment_or_refused() {
        let of = |date, clock, east| micros_since_1970(date, clock, east);
        assert_eq!(of([1970, 1, 1], [0, 0, 0], 0), Some(0));
        assert_eq!(of([2000, 3, 1], [0, 0, 0], 0), Some(951_868_800_000_000));
        assert_eq!(of([1970, 1, 2], [0, 0, 0], 7200), Some(79_200_000_000));
        assert_eq!(of([1970, 1, 1], [0, 0, 0], -7200), Some(7_200_000_000));
        assert_eq!(of([1970, 1, 1], [0, 0, 0], 7200), None);
        for (date, clock) in [
            ([2015, 13, 1], [0, 0, 0]),
            ([2015, 2, 29], [0, 0, 0]),
            ([1969, 12, 31], [0, 0, 0]),
            ([2015, 5, 17], [24, 0, 0]),
            ([2015, 5, 17], [0, 60, 0]),
        ] {
            assert_eq!(of(date, clock, 0), None, "{date:?} {clock:?}");
        }
        assert_eq!(seconds_east(b'-', b"03", b"30"), Some(-12_600));
        for (sign, hours, minutes) in [(b'+', "24", "00"), (b'-', "00", "60"), (b' ', "00", "00")] {
            let east = seconds_east(sign, hours.as_bytes(), minutes.as_bytes());
            assert_eq!(east, None, "{sign} {hours} {minutes}");
        }
    }
}
