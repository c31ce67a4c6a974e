//! Days, weeks and months in the local calendar, as moments in Unix time.
//!
//! Called by `limiter`. Invariant: a period contains the moment that it was made for, also where
//! clocks change at midnight.

use hashcache_base::clock::zone::{Zone, date_of, month_of};

use super::settings::QuotaPeriod;

/// A period in seconds since 1970: `begins` is included and `ends` is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    pub begins: u64,
    pub ends: u64,
}

impl Period {
    pub fn contains(self, unix: u64) -> bool {
        (self.begins..self.ends).contains(&unix)
    }

    /// The period around this moment.
    pub fn around(unix: u64, period: QuotaPeriod, zone: &Zone) -> Self {
        let day = zone.local(signed(unix)).div_euclid(DAY);
        let (first, days) = match period {
            QuotaPeriod::Day => (day, 1),
            // The first day of 1970 was a Thursday.
            QuotaPeriod::Week => (day - (day + 3).rem_euclid(7), 7),
            QuotaPeriod::Month => {
                let (year, month, _) = date_of(day);
                month_of(year, month)
            }
        };
        Self {
            begins: beginning(first, zone).min(unix),
            ends: beginning(first + days, zone).max(unix + 1),
        }
    }
}

/// The moment at which a local day starts. This is not midnight if clocks skip midnight.
fn beginning(day: i64, zone: &Zone) -> u64 {
    let local = day * DAY;
    let offset = |unix: i64| zone.local(unix) - unix;
    // The offset at the wanted moment is found from a nearby moment.
    let near = local - offset(local);
    let mut unix = local - offset(near);
    for _ in 0..STEPS {
        if zone.local(unix) >= local {
            break;
        }
        unix += STEP;
    }
    u64::try_from(unix).unwrap_or(0)
}

/// A moment in the form for people: `Saturday 28 November, 00:00`.
pub fn local_text(unix: u64, zone: &Zone) -> String {
    let local = zone.local(signed(unix));
    let (day, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
    let (_, month, date) = date_of(day);
    let weekday = WEEKDAYS[usize::try_from((day + 3).rem_euclid(7)).unwrap_or(0)];
    let month = MONTHS[usize::from(month.clamp(1, 12)) - 1];
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{weekday} {date} {month}, {hour:02}:{minute:02}")
}

fn signed(unix: u64) -> i64 {
    i64::try_from(unix).unwrap_or(i64::MAX / 2)
}

const DAY: i64 = 24 * 3600;
/// Clocks skip at most two hours, in steps of half an hour.
const STEP: i64 = 1800;
const STEPS: usize = 4;

const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const DAY_SECONDS: u64 = 24 * HOUR;
    /// 2026-11-27, a Friday, 00:00 UTC.
    const FRIDAY: u64 = 1_795_737_600;

    #[test]
    fn days_weeks_and_months_begin_and_end_where_the_calendar_says() {
        let around = |unix, period| {
            let period = Period::around(unix, period, &Zone::default());
            (period.begins, period.ends)
        };
        let day = (FRIDAY, FRIDAY + DAY_SECONDS);
        assert_eq!(around(FRIDAY, QuotaPeriod::Day), day);
        assert_eq!(around(FRIDAY + DAY_SECONDS - 1, QuotaPeriod::Day), day);
        let monday = FRIDAY - 4 * DAY_SECONDS;
        let week = (monday, monday + 7 * DAY_SECONDS);
        assert_eq!(around(FRIDAY, QuotaPeriod::Week), week);
        assert_eq!(around(monday, QuotaPeriod::Week), week);
        let first = FRIDAY - 26 * DAY_SECONDS;
        let month = (first, first + 30 * DAY_SECONDS);
        assert_eq!(around(FRIDAY, QuotaPeriod::Month), month);
        let december = (month.1, month.1 + 31 * DAY_SECONDS);
        assert_eq!(around(month.1 + 5, QuotaPeriod::Month), december);
    }

    #[test]
    fn every_moment_of_a_year_is_in_its_period_and_periods_meet() {
        // Cuba changes its clocks at midnight: one day has no 00:30, another has it twice.
        let zone = Zone::of_rule("CST5CDT,M3.2.0/0,M11.1.0/1").unwrap();
        for period in QuotaPeriod::ALL.map(|(_, period)| period) {
            let mut unix = FRIDAY;
            let mut before: Option<Period> = None;
            while unix < FRIDAY + 366 * DAY_SECONDS {
                let now = Period::around(unix, period, &zone);
                assert!(now.contains(unix), "{unix}");
                if let Some(before) = before.filter(|before| *before != now) {
                    assert_eq!(before.ends, now.begins, "{unix}");
                }
                before = Some(now);
                unix += 1800;
            }
        }
    }

    #[test]
    fn a_moment_is_told_by_the_local_clock() {
        let zone = Zone::of_rule("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        assert_eq!(
            local_text(FRIDAY - HOUR, &zone),
            "Friday 27 November, 00:00"
        );
        assert_eq!(
            local_text(FRIDAY, &Zone::default()),
            "Friday 27 November, 00:00"
        );
    }
}
