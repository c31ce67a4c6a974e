//! Times of the week, as rules have them: `Mon-Fri 08:00-15:30`.
//!
//! Read from the settings; `rules` compares them once a minute. Invariant: if the end of the hours
//! is not after their start, the end is on the next day, but the whole span belongs to the day on
//! which it starts.

use std::fmt;
use std::str::FromStr;

/// A minute in the local week; 0 is Monday, 00:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekMinute(u16);

impl WeekMinute {
    /// The minute of a local time, in seconds since the start of 1970 on local clocks.
    pub fn of_local(seconds: i64) -> Self {
        // 1970 started on a Thursday.
        let minute = seconds.div_euclid(60) + 3 * i64::from(DAY);
        let minute = minute.rem_euclid(7 * i64::from(DAY));
        Self(u16::try_from(minute).unwrap_or_default())
    }
}

impl fmt::Display for WeekMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (day, at) = (self.0 / DAY, self.0 % DAY);
        let day = DAYS.get(usize::from(day)).copied().unwrap_or_default();
        write!(f, "{day} {:02}:{:02}", at / 60, at % 60)
    }
}

/// Hours on some days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekSpan {
    /// Monday is the lowest bit.
    days: u8,
    /// Minutes of the day; `until` is not included.
    from: u16,
    until: u16,
}

/// Why a text is not a [`WeekSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected days, hours or both, as in `Mon-Fri 08:00-15:30`")]
pub struct WeekSpanError;

impl WeekSpan {
    /// Returns true if `minute` is within the span.
    pub fn contains(&self, WeekMinute(minute): WeekMinute) -> bool {
        let (day, at) = (minute / DAY, minute % DAY);
        let has = |day: u16| self.days & (1 << day) != 0;
        if self.from < self.until {
            return has(day) && (self.from..self.until).contains(&at);
        }
        (has(day) && at >= self.from) || (has((day + 6) % 7) && at < self.until)
    }
}

impl FromStr for WeekSpan {
    type Err = WeekSpanError;

    fn from_str(text: &str) -> Result<Self, WeekSpanError> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let begins_with_digit = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
        let (days, hours) = match words[..] {
            [hours] if begins_with_digit(hours) => (None, Some(hours)),
            [days] => (Some(days), None),
            [days, hours] => (Some(days), Some(hours)),
            _ => return Err(WeekSpanError),
        };
        let days = days.map_or(Some(EVERY_DAY), read_days);
        let hours = hours.map_or(Some((0, DAY)), read_hours);
        let ((from, until), days) = hours.zip(days).ok_or(WeekSpanError)?;
        Ok(Self { days, from, until })
    }
}

/// Days and ranges of days, separated by commas.
fn read_days(text: &str) -> Option<u8> {
    text.split(',').try_fold(0, |days, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (read_day(first)?, read_day(last)?);
        let mut range = 1 << day;
        while day != last {
            day = (day + 1) % 7;
            range |= 1 << day;
        }
        Some(days | range)
    })
}

fn read_day(text: &str) -> Option<u8> {
    let at = DAYS.iter().position(|day| text.eq_ignore_ascii_case(day))?;
    u8::try_from(at).ok()
}

/// `08:00-15:30`, in minutes.
fn read_hours(text: &str) -> Option<(u16, u16)> {
    let (from, until) = text.split_once('-')?;
    let (from, until) = (read_time(from)?, read_time(until)?);
    (from != until && from < DAY).then_some((from, until))
}

fn read_time(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !(1..=2).contains(&hour.len()) || minute.len() != 2 {
        return None;
    }
    if !is_number(hour) || !is_number(minute) {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    (minute < 60 && hour * 60 + minute <= DAY).then_some(hour * 60 + minute)
}

/// Minutes in a day.
const DAY: u16 = 24 * 60;
const EVERY_DAY: u8 = 0x7f;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u16, time: &str) -> WeekMinute {
        WeekMinute(day * DAY + read_time(time).unwrap())
    }

    #[test]
    fn the_week_begins_on_monday() {
        // 2026-11-23 was a Monday.
        assert_eq!(WeekMinute::of_local(1_795_392_000), WeekMinute(0));
        assert_eq!(WeekMinute::of_local(1_795_391_999), WeekMinute(7 * DAY - 1));
        assert_eq!(WeekMinute::of_local(0), WeekMinute(3 * DAY));
        assert_eq!(WeekMinute::of_local(-1), WeekMinute(3 * DAY - 1));
        assert_eq!(WeekMinute::of_local(-1).to_string(), "Wed 23:59");
    }

    #[test]
    fn a_span_has_its_first_minute_and_not_its_last() {
        let span: WeekSpan = "Mon-Fri 08:00-15:30".parse().unwrap();
        for (day, time, within) in [
            (0, "7:59", false),
            (0, "8:00", true),
            (4, "15:29", true),
            (4, "15:30", false),
            (5, "10:00", false),
        ] {
            assert_eq!(span.contains(at(day, time)), within, "{day} {time}");
        }
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        let span: WeekSpan = "sun 22:00-06:00".parse().unwrap();
        for (day, time, within) in [
            (6, "21:59", false),
            (6, "22:00", true),
            (0, "05:59", true),
            (0, "06:00", false),
            (6, "05:00", false),
        ] {
            assert_eq!(span.contains(at(day, time)), within, "{day} {time}");
        }
    }

    #[test]
    fn days_may_go_over_the_weekend_and_hours_may_stand_alone() {
        let days: WeekSpan = "Fri-Mon,Wed".parse().unwrap();
        let within: Vec<u16> = (0..7)
            .filter(|&day| days.contains(at(day, "12:00")))
            .collect();
        assert_eq!(within, [0, 2, 4, 5, 6]);
        let hours: WeekSpan = "00:00-24:00".parse().unwrap();
        assert!((0..7 * DAY).all(|minute| hours.contains(WeekMinute(minute))));
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in [
            "",
            "Mon-",
            "Monday",
            "08:00",
            "8-9",
            "08:00-08:00",
            "25:00-26:00",
            "08:60-09:00",
            "24:00-08:00",
            "Mon 08:00-09:00 x",
            "+8:00-09:00",
            "08:00-24:01",
            "Mon,,Tue",
        ] {
            assert_eq!(text.parse::<WeekSpan>(), Err(WeekSpanError), "{text}");
        }
    }
}
