//! Times of the week in Squid's `time` and in our rules.
//!
//! Minutes of the week are counted from Monday, 00:00. A span in Squid includes its last minute:
//! 08:00-15:30 is over when 15:31 starts. A span in our rules excludes its last time, so the same
//! span is written as 08:00-15:31.

use super::condition::MINUTE_MAX;
use super::ranges::Ranges;

/// Parses the minutes in an `acl … time` line. As in Squid, days apply only to the next hours;
/// hours without days before them apply to every day, and days without hours after them are whole
/// days. `None`: Squid refuses the values, or warns and uses another meaning.
pub fn read(words: &[&str]) -> Option<Ranges> {
    let mut spans = Vec::new();
    let mut days = 0_u8;
    for word in words {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let (from, until) = word.split_once('-')?;
            let (from, until) = (minute(from)?, minute(until)?);
            // Squid refuses hours that pass midnight.
            let is_span = from <= until && from < DAY;
            spans.extend(of_days(days, is_span.then_some((from, until))?));
            days = 0;
        } else {
            for letter in word.chars().filter(|c| *c != '-') {
                days |= day(letter)?;
            }
        }
    }
    if days != 0 {
        spans.extend(of_days(days, (0, DAY)));
    }
    (!spans.is_empty()).then(|| Ranges::new(spans))
}

/// Returns a span of minutes, including both ends, on each of these days; no days mean every day.
fn of_days(days: u8, (from, until): (u128, u128)) -> impl Iterator<Item = (u128, u128)> {
    let days = if days == 0 { EVERY_DAY } else { days };
    let days = (0..7_u128).filter(move |day| days & (1 << day) != 0);
    days.map(move |day| (day * DAY + from, day * DAY + until.min(DAY - 1)))
}

/// Formats the minutes for our rules: each span of hours, with its days.
pub fn written(minutes: &Ranges) -> Vec<String> {
    let mut spans = Vec::<((u128, u128), Vec<usize>)>::new();
    for day in 0..7_usize {
        let start = day as u128 * DAY;
        let of_day = minutes.intersection(&Ranges::new([(start, start + DAY - 1)]));
        for (first, last) in of_day.iter() {
            let hours = (first - start, last - start + 1);
            match spans.iter_mut().find(|(known, _)| *known == hours) {
                Some((_, days)) => days.push(day),
                None => spans.push((hours, vec![day])),
            }
        }
    }
    let spans = spans.into_iter().map(|((from, until), days)| {
        let hours = format!("{}-{}", clock(from), clock(until));
        match (days.len(), (from, until) == (0, DAY)) {
            (7, _) => hours,
            (_, true) => days_text(&days),
            (_, false) => format!("{} {hours}", days_text(&days)),
        }
    });
    spans.collect()
}

/// Returns true if the set has every minute in the week.
pub fn is_always(minutes: &Ranges) -> bool {
    *minutes == Ranges::new([(0, MINUTE_MAX)])
}

/// Formats days as `Mon-Fri`, or with commas.
fn days_text(days: &[usize]) -> String {
    let mut texts = Vec::new();
    for run in days.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., last] => texts.push(format!("{}-{}", DAYS[*first], DAYS[*last])),
            [day] => texts.push(DAYS[*day].to_owned()),
            [] => {}
        }
    }
    texts.join(",")
}

fn clock(minute: u128) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

/// The days for a letter, Monday in the lowest bit.
fn day(letter: char) -> Option<u8> {
    Some(match letter {
        'M' => 1,
        'T' => 2,
        'W' => 4,
        'H' => 8,
        'F' => 16,
        'A' => 32,
        'S' => 64,
        'D' => 31,
        _ => return None,
    })
}

/// Parses `8:00` as a minute of the day; 24:00 is the end of the day.
fn minute(text: &str) -> Option<u128> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minute = u128::from(hours) * 60 + u128::from(minutes);
    (minutes < 60 && minute <= DAY).then_some(minute)
}

const DAY: u128 = 24 * 60;
const EVERY_DAY: u8 = 0x7f;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

#[cfg(test)]
mod tests {
    use super::*;

    fn both(words: &[&str]) -> Vec<String> {
        let times = written(&read(words).unwrap());
        // Our own reader takes what is written.
        for time in &times {
            assert!(time.parse::<hashcache_proxy::WeekSpan>().is_ok(), "{time}");
        }
        times
    }

    #[test]
    fn times_of_squid_become_times_of_rules() {
        assert_eq!(both(&["MTWHF", "08:00-15:30"]), ["Mon-Fri 08:00-15:31"]);
        assert_eq!(both(&["M-F", "23:00-23:59"]), ["Mon,Fri 23:00-24:00"]);
        assert_eq!(both(&["08:00-08:00"]), ["08:00-08:01"]);
        assert_eq!(
            both(&["MTWHF", "08:00-12:00", "13:00-16:00", "S"]),
            ["Mon-Fri 08:00-12:01", "Mon-Sat 13:00-16:01", "Sun"]
        );
        assert_eq!(both(&["D"]), ["Mon-Fri"]);
        assert_eq!(both(&["9:00-24:00"]), ["09:00-24:00"]);
        assert_eq!(both(&["SA"]), ["Sat-Sun"]);
        assert_eq!(both(&["MWS"]), ["Mon,Wed,Sun"]);
        for wrong in [
            &["X"][..],
            &["22:00-06:00"],
            &["8-9"],
            &["08:00-24:01"],
            &["8:60-9:00"],
            &["MX", "08:00-12:00"],
            &["24:00-24:00"],
            &[],
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
