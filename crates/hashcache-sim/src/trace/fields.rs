//! Fields that several formats have: numbers, times, methods with a status.

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

/// Microseconds since 1970 of a moment that is `offset` seconds east of UTC.
pub fn since_1970(date: Date, seconds_of_day: u64, offset: i64) -> Option<u64> {
    let seconds = date.days_since_1970()? * 86_400 + i64::try_from(seconds_of_day).ok()? - offset;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000)
}

/// A day of the Gregorian calendar.
#[derive(Clone, Copy)]
pub struct Date {
    /// From 0.
    pub year: u64,
    /// From 1.
    pub month: u64,
    /// From 1.
    pub day: u64,
}

impl Date {
    /// `None` if there is no such day, or not within the years that logs can have.
    fn days_since_1970(self) -> Option<i64> {
        let fits = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day);
        if !fits {
            return None;
        }
        // Years that begin in March, so that the leap day is the last day of one.
        let year = if self.month <= 2 {
            self.year - 1
        } else {
            self.year
        };
        let month = (self.month + 9) % 12;
        let days = year * 365 + year / 4 - year / 100 + year / 400;
        let days = days + (month * 153 + 2) / 5 + self.day - 1;
        i64::try_from(days).ok().map(|days| days - DAYS_TO_1970)
    }
}

/// From the first of March of the year 0.
const DAYS_TO_1970: i64 = 719_468;

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
    fn days_are_counted_over_leap_years() {
        let of = |year, month, day| since_1970(Date { year, month, day }, 0, 0);
        assert_eq!(of(1970, 1, 1), Some(0));
        assert_eq!(of(2000, 3, 1), Some(951_868_800_000_000));
        assert_eq!(of(2015, 5, 17), Some(1_431_820_800_000_000));
        assert_eq!(of(2015, 13, 1), None);
        assert_eq!(of(1969, 12, 31), None);
        let east = since_1970(
            Date {
                year: 1970,
                month: 1,
                day: 2,
            },
            0,
            7200,
        );
        assert_eq!(east, Some(79_200_000_000));
    }
}
