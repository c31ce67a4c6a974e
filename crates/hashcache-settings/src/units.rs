//! Sizes and times in the form that people write: `64MiB`, `1GB`, `5m`, `250ms`; shares in per
//! cent.
//!
//! Called by `keys` in both directions, by `report` and `top`. Invariant: `parse_size`
//! and `parse_time` read the output of `show_size` and `show_time` back as the same number, so the
//! output of `config show` is a configuration file.

use std::time::Duration;

use crate::fault::Fault;

/// Size units, largest first: `show_size` takes the first that is exact.
///
/// A letter without `B` or `iB` counts in 1024, as in nginx, Squid, docker and systemd.
const SIZES: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
];

/// Time units, largest first.
const TIMES: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Formats `part` of `all` in per cent.
pub fn show_percent(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        _ => format!("{:.0} %", part as f64 * 100.0 / all as f64),
    }
}

/// Parses a size in bytes: digits, an optional fraction, an optional unit.
pub fn parse_size(text: &str) -> Result<u64, Fault> {
    let wrong = || {
        Fault::new(format!("`{text}` is not a size"))
            .hint("write a size as 64MiB, 20GiB, 1GB or a number of bytes")
    };
    let (number, unit) = split_number(text.trim());
    let unit_bytes = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        upper => SIZES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(upper))
            .map(|&(_, bytes)| bytes)
            .ok_or_else(wrong)?,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // With nine digits of fraction, the product with the largest unit is far below 128 bits.
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > 9 {
        return Err(wrong());
    }
    if number.contains('.') && unit_bytes == 1 {
        return Err(wrong());
    }
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    let scale = fraction.bytes().fold(1_u128, |scale, _| scale * 10);
    let fraction: u128 = fraction.parse().map_err(|_| wrong())?;
    let unit_bytes = u128::from(unit_bytes);
    let bytes = whole
        .checked_mul(unit_bytes)
        .and_then(|bytes| bytes.checked_add(fraction * unit_bytes / scale))
        .and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| Fault::new(format!("`{text}` is too large")))
}

/// The length of a store is a multiple of this: the engine rounds a size down.
const STORE_UNIT: u64 = 4096;

/// Longest size that `brief_size` shows exactly, in characters.
const BRIEF_CHARS: usize = 8;

/// Formats `bytes` in the largest unit that is exact.
pub fn show_size(bytes: u64) -> String {
    match SIZES
        .iter()
        .find(|&&(_, unit)| bytes >= unit && bytes.is_multiple_of(unit))
    {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Returns the configured size of a store of `bytes`: a store made with `60GB` has 2,048 bytes
/// less, which no large unit shows.
pub fn show_store_size(bytes: u64) -> String {
    let last = bytes.saturating_add(STORE_UNIT - 1);
    let fitting = SIZES.iter().find_map(|&(_, unit)| {
        let size = bytes.div_ceil(unit).checked_mul(unit)?;
        (size <= last).then_some(size)
    });
    show_size(fitting.unwrap_or(bytes))
}

/// Formats `bytes` for a person: exactly if that is short, otherwise with three digits.
pub fn brief_size(bytes: u64) -> String {
    let exact = show_size(bytes);
    if exact.len() <= BRIEF_CHARS && (exact.ends_with('B') || bytes < 10_000) {
        return exact;
    }
    let about = about_size(bytes);
    for zeros in [".00", ".0"] {
        if let Some((whole, unit)) = about.split_once(zeros)
            && unit.starts_with(char::is_alphabetic)
        {
            return format!("{whole}{unit}");
        }
    }
    about
}

/// Formats `bytes` with three or four digits, in the units by which disks are sold.
pub fn about_size(bytes: u64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
    let (mut amount, mut unit) = (bytes as f64, 0);
    while amount >= 999.5 && unit + 1 < units.len() {
        amount /= 1000.0;
        unit += 1;
    }
    let digits = match amount {
        _ if unit == 0 || amount >= 99.95 => 0,
        _ if amount >= 9.995 => 1,
        _ => 2,
    };
    if bytes == 0 {
        return "0".to_owned();
    }
    format!("{amount:.digits$}{}", units[unit])
}

/// Parses a time: one or more numbers, each with a unit, as in `1h30m`.
pub fn parse_time(text: &str) -> Result<Duration, Fault> {
    let wrong = || {
        Fault::new(format!("`{text}` is not a time"))
            .hint("write a time as 10s, 5m, 250ms or 1h30m")
    };
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if is_digits(rest) {
        return Err(Fault::new(format!("the time `{text}` has no unit"))
            .hint(format!("did you mean `{rest}s`?")));
    }
    let mut total_ms: u64 = 0;
    let mut last_unit_ms = u64::MAX;
    while !rest.is_empty() {
        let (number, tail) = split_number(rest);
        let unit_len = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_len);
        let unit_ms = TIMES
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?
            .1;
        // Units must decrease: `5m1h` and `5m5m` are more likely mistakes than sums.
        if !is_digits(number) || unit_ms >= last_unit_ms {
            return Err(wrong());
        }
        let number: u64 = number.parse().map_err(|_| wrong())?;
        total_ms = number
            .checked_mul(unit_ms)
            .and_then(|part_ms| total_ms.checked_add(part_ms))
            .ok_or_else(wrong)?;
        last_unit_ms = unit_ms;
        rest = next;
    }
    if last_unit_ms == u64::MAX {
        Err(wrong())
    } else {
        Ok(Duration::from_millis(total_ms))
    }
}

/// Formats `time` in the largest unit that is exact; fractions of a millisecond are cut off.
pub fn show_time(time: Duration) -> String {
    let ms = time.as_millis();
    match TIMES
        .iter()
        .find(|&&(_, unit)| ms >= u128::from(unit) && ms.is_multiple_of(unit.into()))
    {
        Some((name, unit)) => format!("{}{name}", ms / u128::from(*unit)),
        None => format!("{ms}s"),
    }
}

/// Splits `text` after the leading digits and dots; a space may stand before a unit.
fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.strip_prefix(' ').unwrap_or(unit))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_nothing_has_no_percentage() {
        assert_eq!(show_percent(0, 0), "-");
        assert_eq!(show_percent(1, 3), "33 %");
    }

    #[test]
    fn sizes_are_read_in_binary_decimal_and_plain_bytes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17B", 17),
            ("64MiB", 64 << 20),
            ("1GB", 1_000_000_000),
            ("20GiB", 20 << 30),
            ("20 gib", 20 << 30),
            ("8K", 8 << 10),
            ("1.5GiB", 3 << 29),
            ("2TB", 2_000_000_000_000),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "MiB",
            "-1",
            "1.5",
            "1..5GiB",
            "1.GiB",
            "12XB",
            "1GiB2",
            "0x10",
            "99999999TiB",
            "1 GB s",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_shown_size_reads_back_as_itself() {
        for bytes in [
            0,
            1,
            1000,
            1023,
            1024,
            1025,
            64 << 20,
            1_000_000_000,
            (1 << 30) + 1,
            u64::MAX,
        ] {
            assert_eq!(parse_size(&show_size(bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn a_size_is_shown_in_the_largest_unit_that_is_exact() {
        for (bytes, text) in [
            (64 << 20, "64MiB"),
            (1_000_000_000, "1GB"),
            (60_000_000_000, "60GB"),
            (2_000_000_000_000, "2TB"),
            (3 << 29, "1536MiB"),
            (1_024_000, "1000KiB"),
            (4097, "4097"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn the_size_of_a_store_is_shown_as_it_was_asked_for() {
        for asked in [60_000_000_000, 1_000_000_000, 64 << 20, 200 << 30, 4096] {
            let made = asked / STORE_UNIT * STORE_UNIT;
            assert_eq!(show_store_size(made), show_size(asked));
        }
        // Nothing rounder is near.
        assert_eq!(show_store_size((1 << 30) + 4096), "1048580KiB");
    }

    #[test]
    fn a_long_size_is_shown_in_three_digits() {
        assert_eq!(brief_size(58_593_749 << 10), "60GB");
        assert_eq!(brief_size(1_234_567), "1.23MB");
        assert_eq!(brief_size(123_456_789), "123MB");
        assert_eq!(brief_size(64 << 20), "64MiB");
    }

    #[test]
    fn times_are_read_alone_and_in_falling_sums() {
        for (text, ms) in [
            ("250ms", 250),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("3d", 259_200_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_time(text).unwrap(),
                Duration::from_millis(ms),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "s",
            "10",
            "5m1h",
            "5m5m",
            "1.5s",
            "-1s",
            "10 parsecs",
            "99999999999999999d",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_without_unit_is_told_to_take_one() {
        let fault = parse_time("10").unwrap_err();
        assert_eq!(fault.hint.as_deref(), Some("did you mean `10s`?"));
    }

    #[test]
    fn a_shown_time_reads_back_as_itself() {
        for ms in [0, 1, 250, 1000, 1500, 60_000, 90_000, 86_400_000] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse_time(&show_time(time)).unwrap(), time);
        }
    }
}
