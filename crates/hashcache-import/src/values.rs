//! Sizes and times in Squid's syntax: `64 MB`, `1 minute`.

use std::time::Duration;

use super::lines::Word;

/// Parses a number and a unit as bytes; the default unit is bytes.
pub fn size(words: &[Word]) -> Option<u64> {
    let (number, unit) = number_and_unit(words)?;
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" | "byte" | "bytes" => 1,
        "k" | "kb" | "kbytes" => 1 << 10,
        "m" | "mb" | "mbytes" => 1 << 20,
        "g" | "gb" | "gbytes" => 1 << 30,
        _ => return None,
    };
    let bytes = number * unit as f64;
    (bytes <= SIZE_MAX).then(|| whole(bytes))
}

/// Parses a number and a unit as a time; the default unit is seconds.
pub fn time(words: &[Word]) -> Option<Duration> {
    let (number, unit) = number_and_unit(words)?;
    let seconds = match unit.to_ascii_lowercase().trim_end_matches('s') {
        "millisecond" => 0.001,
        "" | "second" => 1.0,
        "minute" => 60.0,
        "hour" => 3600.0,
        "day" => 86400.0,
        "week" => 604_800.0,
        "fortnight" => 1_209_600.0,
        "month" => 2_592_000.0,
        "year" => 31_536_000.0,
        _ => return None,
    };
    let ms = number * seconds * 1000.0;
    (ms <= TIME_MAX_MS).then(|| Duration::from_millis(whole(ms)))
}

/// Cuts the fraction off; the number is neither negative nor large.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the callers compare with a limit"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Splits `64 MB`, also written as `64MB`.
fn number_and_unit(words: &[Word]) -> Option<(f64, String)> {
    let first = &words.first()?.text;
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = first.find(|c| !is_number(c)).unwrap_or(first.len());
    let (number, unit) = first.split_at(end);
    let number: f64 = number.parse().ok()?;
    let unit = match (unit.is_empty(), words.get(1)) {
        (true, Some(unit)) => unit.text.clone(),
        _ => unit.to_owned(),
    };
    Some((number, unit))
}

/// A PiB: floats are exact up to here, and no real size is larger.
const SIZE_MAX: f64 = (1_u64 << 50) as f64;
/// A hundred years.
const TIME_MAX_MS: f64 = 100.0 * 365.0 * 86_400_000.0;

#[cfg(test)]
mod tests {
    use super::super::lines::words;
    use super::*;

    #[test]
    fn sizes_count_in_1024_and_times_in_units() {
        for (text, bytes) in [
            ("64 MB", Some(64 << 20)),
            ("8KB", Some(8 << 10)),
            ("1.5 GB", Some(3 << 29)),
            ("4096", Some(4096)),
            ("none", None),
            ("-1", None),
            ("4 miles", None),
            ("99999999999999999999 GB", None),
            ("", None),
        ] {
            assert_eq!(size(&words(text)), bytes, "{text}");
        }
        for (text, seconds) in [
            ("1 minute", Some(60)),
            ("2 hours", Some(7200)),
            ("30", Some(30)),
            ("1e9 years", None),
            ("soon", None),
        ] {
            assert_eq!(
                time(&words(text)),
                seconds.map(Duration::from_secs),
                "{text}"
            );
        }
    }
}
