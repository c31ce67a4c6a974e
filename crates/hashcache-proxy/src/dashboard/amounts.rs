//! Formats amounts for people.

/// Bytes in three digits, with decimal units, as for lines and disks.
pub(super) fn size(bytes: u64) -> String {
    rate(bytes as f64)
}

pub(super) fn rate(bytes: f64) -> String {
    let (mut amount, mut unit) = (bytes, 0);
    while amount >= 999.5 && unit + 1 < UNITS.len() {
        amount /= 1000.0;
        unit += 1;
    }
    let digits = match amount {
        _ if unit == 0 || amount >= 99.95 => 0,
        _ if amount >= 9.995 => 1,
        _ => 2,
    };
    format!("{amount:.digits$} {}", UNITS[unit])
}

/// A count with its thousands separated.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

pub(super) fn decimal(number: f64) -> String {
    if number < 9.95 {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    }
}

pub(super) fn percent(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        _ => format!("{:.0} %", part as f64 * 100.0 / all as f64),
    }
}

/// "3 d 4 h", "4 h 12 min" or "12 min".
pub(super) fn time(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min"),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 KB"),
            (99_949, "99.9 KB"),
            (999_600, "1.00 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(999), "999");
        assert_eq!((percent(1, 3), percent(0, 0)), ("33 %".into(), "-".into()));
        assert_eq!(time(59), "0 min");
        assert_eq!(time(3_600 * 25 + 61), "1 d 1 h");
        assert_eq!(time(3_600 * 2 + 61), "2 h 1 min");
    }
}
