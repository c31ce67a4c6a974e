//! The system's time zone: the offset between UTC and the time on local clocks.
//!
//! Read from `/etc/localtime` (TZif, RFC 9636) at the start and at a reload; without that file
//! local time is UTC. The variable `TZ` is not read. Access rules with times of the week need the
//! zone.
//!
//! Invariant: a damaged file gives a wrong offset at worst, never a panic: every read is checked.

use std::io::{self, Read as _};
use std::path::Path;

use crate::state_file::{Link, open_regular};

/// The offsets from UTC at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Moments in seconds since 1970, in order, each with the offset from that moment on.
    changes: Vec<(i64, i32)>,
    /// The offset before the first change.
    first: i32,
    /// The rule after the last change.
    rest: Option<YearlyRule>,
}

impl Zone {
    /// The zone of this system.
    ///
    /// # Errors
    /// The file exists, but cannot be read or contains no zone.
    pub fn of_system() -> io::Result<Self> {
        let file = match open_regular(Path::new(LOCALTIME), Link::Followed) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Self::read(&bytes).ok_or_else(|| io::Error::other("not a time zone file (TZif)"))
    }

    /// Returns true if this system has a zone file, `/etc/localtime`.
    pub fn is_set() -> bool {
        Path::new(LOCALTIME).exists()
    }

    /// The local time at `unix` seconds, as seconds since the start of 1970 on local clocks.
    pub fn local(&self, unix: i64) -> i64 {
        unix.saturating_add(i64::from(self.offset(unix)))
    }

    /// A place with one rule for all years, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_rule(rule: &str) -> Option<Self> {
        let rest = Some(YearlyRule::read(rule)?);
        Some(Self {
            rest,
            ..Self::default()
        })
    }

    fn offset(&self, unix: i64) -> i32 {
        let before = self.changes.partition_point(|(at, _)| *at <= unix);
        if let (true, Some(rest)) = (before == self.changes.len(), &self.rest) {
            return rest.offset(unix);
        }
        let last = before.checked_sub(1).and_then(|at| self.changes.get(at));
        last.map_or(self.first, |(_, offset)| *offset)
    }

    /// Parses the zone in a file; `None` if the file contains no zone.
    pub fn read(file: &[u8]) -> Option<Self> {
        let counts = Counts::read(file)?;
        if file.get(4)? == &0 {
            return Self::read_block(file.get(HEADER..)?, &counts, 4).map(|(zone, _)| zone);
        }
        // From version 2 on, the file repeats the data with 64-bit moments, and adds the rule.
        let second = file.get(counts.block_bytes(4)?.checked_add(HEADER)?..)?;
        let counts = Counts::read(second)?;
        let (mut zone, footer) = Self::read_block(second.get(HEADER..)?, &counts, 8)?;
        let footer = footer.strip_prefix(b"\n")?;
        let end = footer.iter().position(|&byte| byte == b'\n')?;
        let rule = std::str::from_utf8(&footer[..end]).ok()?;
        zone.rest = match rule {
            "" => None,
            rule => Some(YearlyRule::read(rule)?),
        };
        Some(zone)
    }

    /// Reads the data block at the start of `block`, in which each moment takes `width` bytes.
    /// Returns the zone and the bytes behind the data block.
    fn read_block<'a>(block: &'a [u8], counts: &Counts, width: usize) -> Option<(Self, &'a [u8])> {
        let (moments, rest) = block.split_at_checked(counts.moments.checked_mul(width)?)?;
        let (kinds, rest) = rest.split_at_checked(counts.moments)?;
        let (offsets, _) = rest.split_at_checked(counts.kinds.checked_mul(KIND)?)?;
        let offset = |kind: usize| {
            let bytes = offsets.get(kind * KIND..kind * KIND + 4)?;
            Some(i32::from_be_bytes(bytes.try_into().ok()?))
        };
        let moment = |bytes: &[u8]| match width {
            4 => Some(i32::from_be_bytes(bytes.try_into().ok()?).into()),
            _ => Some(i64::from_be_bytes(bytes.try_into().ok()?)),
        };
        let changes = moments.chunks_exact(width).zip(kinds);
        let changes = changes.map(|(at, kind)| Some((moment(at)?, offset((*kind).into())?)));
        let changes: Vec<(i64, i32)> = changes.collect::<Option<_>>()?;
        if !changes.is_sorted_by_key(|(at, _)| *at) {
            return None;
        }
        let zone = Self {
            changes,
            first: offset(0)?,
            rest: None,
        };
        Some((zone, block.get(counts.block_bytes(width)?..)?))
    }
}

/// The counts in the header of a block.
struct Counts {
    moments: usize,
    kinds: usize,
    name_bytes: usize,
    leap_seconds: usize,
    indicators: usize,
}

impl Counts {
    fn read(header: &[u8]) -> Option<Self> {
        if !header.starts_with(b"TZif") {
            return None;
        }
        let count = |at: usize| {
            let bytes = header.get(20 + 4 * at..24 + 4 * at)?;
            usize::try_from(u32::from_be_bytes(bytes.try_into().ok()?)).ok()
        };
        Some(Self {
            indicators: count(0)?.checked_add(count(1)?)?,
            leap_seconds: count(2)?,
            moments: count(3)?,
            kinds: count(4)?,
            name_bytes: count(5)?,
        })
    }

    /// Bytes in a data block with moments of `width` bytes.
    fn block_bytes(&self, width: usize) -> Option<usize> {
        let moments = self.moments.checked_mul(width + 1)?;
        let leap_seconds = self.leap_seconds.checked_mul(width + 4)?;
        let parts = [
            self.kinds.checked_mul(KIND)?,
            self.name_bytes,
            leap_seconds,
            self.indicators,
        ];
        parts.into_iter().try_fold(moments, usize::checked_add)
    }
}

/// The standard offset, and a second offset for a part of each year (POSIX, variable `TZ`).
#[derive(Clone, Debug, PartialEq, Eq)]
struct YearlyRule {
    standard: i32,
    summer: Option<Summer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Summer {
    offset: i32,
    from: YearlyMoment,
    until: YearlyMoment,
}

/// A moment that returns each year, on clocks that show the offset before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct YearlyMoment {
    day: YearlyDay,
    second: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum YearlyDay {
    /// Day of the year from 0; February 29 is counted.
    FromZero(u16),
    /// Day of the year from 1; February 29 is never counted.
    Julian(u16),
    /// `week` 5 is the last week; Sunday is day 0.
    OfMonth { month: u8, week: u8, day: u8 },
}

impl YearlyRule {
    fn offset(&self, unix: i64) -> i32 {
        let Some(summer) = &self.summer else {
            return self.standard;
        };
        let year = year_of(unix.saturating_add(self.standard.into()).div_euclid(DAY));
        let from = summer
            .from
            .in_year(year)
            .saturating_sub(self.standard.into());
        let until = summer
            .until
            .in_year(year)
            .saturating_sub(summer.offset.into());
        let is_summer = if from <= until {
            (from..until).contains(&unix)
        } else {
            // South of the equator, summer spans the turn of the year.
            !(until..from).contains(&unix)
        };
        if is_summer {
            summer.offset
        } else {
            self.standard
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (standard, text) = read_offset(skip_name(text)?)?;
        if text.is_empty() {
            return Some(Self {
                standard,
                summer: None,
            });
        }
        let text = skip_name(text)?;
        let (offset, text) = if text.starts_with(',') {
            (standard.checked_add(3600)?, text)
        } else {
            read_offset(text)?
        };
        let (from, until) = text.strip_prefix(',')?.split_once(',')?;
        let summer = Summer {
            offset,
            from: YearlyMoment::read(from)?,
            until: YearlyMoment::read(until)?,
        };
        Some(Self {
            standard,
            summer: Some(summer),
        })
    }
}

impl YearlyMoment {
    /// This moment in `year`, in seconds since 1970 on local clocks.
    fn in_year(&self, year: i64) -> i64 {
        let first = days_before(year);
        let day = match self.day {
            YearlyDay::FromZero(day) => first + i64::from(day),
            YearlyDay::Julian(day) => {
                let leap_day = is_leap(year) && day >= 60;
                first + i64::from(day) - 1 + i64::from(leap_day)
            }
            YearlyDay::OfMonth { month, week, day } => {
                let (begin, length) = month_of(year, month);
                // 1970 started on a Thursday.
                let weekday = (begin + 4).rem_euclid(7);
                let earliest = (i64::from(day) - weekday).rem_euclid(7);
                let wanted = earliest + 7 * (i64::from(week) - 1);
                begin + if wanted < length { wanted } else { wanted - 7 }
            }
        };
        // Moments beyond the range of 64 bits are clamped.
        day.saturating_mul(DAY).saturating_add(self.second.into())
    }

    fn read(text: &str) -> Option<Self> {
        let (day, time) = match text.split_once('/') {
            Some((day, time)) => (day, Some(time)),
            None => (text, None),
        };
        let second = match time.map(read_time) {
            None => 2 * 3600,
            Some(read) => read.filter(|(_, rest)| rest.is_empty())?.0,
        };
        let number = |text: &str, most: u16| text.parse().ok().filter(|number| *number <= most);
        let day = match (day.strip_prefix('M'), day.strip_prefix('J')) {
            (Some(parts), _) => {
                let mut parts = parts.split('.').map(|part| part.parse::<u8>().ok());
                let mut part =
                    |least, most| parts.next()?.filter(|part| (least..=most).contains(part));
                YearlyDay::OfMonth {
                    month: part(1, 12)?,
                    week: part(1, 5)?,
                    day: part(0, 6)?,
                }
            }
            (_, Some(day)) => YearlyDay::Julian(number(day, 365).filter(|day| *day > 0)?),
            _ => YearlyDay::FromZero(number(day, 365)?),
        };
        Some(Self { day, second })
    }
}

/// Skips the name of an offset: letters, or any text in `<>`.
fn skip_name(text: &str) -> Option<&str> {
    if let Some(quoted) = text.strip_prefix('<') {
        return quoted.split_once('>').map(|(_, rest)| rest);
    }
    let rest = text.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    (text.len() - rest.len() >= 3).then_some(rest)
}

/// An offset as POSIX writes it: hours west of Greenwich are positive.
fn read_offset(text: &str) -> Option<(i32, &str)> {
    read_time(text).map(|(seconds, rest)| (-seconds, rest))
}

/// `[+-]hours[:minutes[:seconds]]`, in seconds.
fn read_time(text: &str) -> Option<(i32, &str)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != ':');
    let (digits, rest) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let mut seconds = 0;
    for (part, unit) in digits.splitn(3, ':').zip([3600, 60, 1]) {
        let part = part.parse::<i32>().ok().filter(|part| *part <= HOURS_MAX)?;
        seconds += part * unit;
    }
    Some((
        if text.starts_with('-') {
            -seconds
        } else {
            seconds
        },
        rest,
    ))
}

/// The year that contains a day, counted from the start of 1970.
fn year_of(day: i64) -> i64 {
    // 400 years have 146,097 days; the estimate is wrong by one year at most.
    let year = 1970 + (day * 400).div_euclid(146_097);
    match day {
        day if day < days_before(year) => year - 1,
        day if day >= days_before(year + 1) => year + 1,
        _ => year,
    }
}

/// Days from the start of 1970 to the start of `year`.
fn days_before(year: i64) -> i64 {
    let last = year - 1;
    let leap_days = last.div_euclid(4) - last.div_euclid(100) + last.div_euclid(400);
    (year - 1970) * 365 + leap_days - 477
}

fn is_leap(year: i64) -> bool {
    days_before(year + 1) - days_before(year) == 366
}

/// The year, month and day of month for a day that is counted from the start of 1970.
pub fn date_of(day: i64) -> (i64, u8, i64) {
    let year = year_of(day);
    let mut months = (1..=12).rev().map(|month| (month, month_of(year, month)));
    // The last month that starts on or before this day; January always does.
    let begun = months.find(|(_, (first, _))| *first <= day);
    let (month, (first, _)) = begun.unwrap_or((1, (day, 31)));
    (year, month, day - first + 1)
}

/// The first day of a month, counted from the start of 1970, and the month's length in days.
pub fn month_of(year: i64, month: u8) -> (i64, i64) {
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::from(month).clamp(1, 12) - 1;
    let before: i64 = lengths[..month].iter().sum();
    (days_before(year) + before, lengths[month])
}

const LOCALTIME: &str = "/etc/localtime";
/// The largest zone in the IANA database has 3.5 kB.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Bytes in a header, and in one local time type.
const HEADER: usize = 44;
const KIND: usize = 6;
const DAY: i64 = 24 * 3600;
/// POSIX allows a week, for rules that count from another day.
const HOURS_MAX: i32 = 167;

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of version 2 with these changes and this rule.
    fn file(changes: &[(i64, u8)], offsets: &[i32], rule: &str) -> Vec<u8> {
        let header = |moments: usize| {
            let mut header = b"TZif2".to_vec();
            header.resize(20, 0);
            for count in [0, 0, 0, moments, offsets.len(), 4] {
                header.extend(u32::try_from(count).unwrap().to_be_bytes());
            }
            header
        };
        let kinds = offsets.iter().flat_map(|offset| {
            let mut kind = offset.to_be_bytes().to_vec();
            kind.extend([0, 0]);
            kind
        });
        let kinds: Vec<u8> = kinds.chain(*b"ABC\0").collect();
        let mut file = [header(0), kinds.clone(), header(changes.len())].concat();
        file.extend(changes.iter().flat_map(|(at, _)| at.to_be_bytes()));
        file.extend(changes.iter().map(|(_, kind)| *kind));
        file.extend(kinds);
        file.extend(format!("\n{rule}\n").bytes());
        file
    }

    #[test]
    fn changes_come_from_the_file_and_later_ones_from_its_rule() {
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        let file = file(&[(0, 1), (1000, 0)], &[3600, 7200], berlin);
        let zone = Zone::read(&file).unwrap();
        assert_eq!(
            [-1, 0, 999, 1000].map(|at| zone.offset(at)),
            [3600, 7200, 7200, 3600]
        );
        // 2026-03-29 01:00 UTC and 2026-10-25 01:00 UTC.
        for (at, offset) in [
            (1_774_745_999, 3600),
            (1_774_746_000, 7200),
            (1_792_889_999, 7200),
            (1_792_890_000, 3600),
        ] {
            assert_eq!(zone.offset(at), offset, "{at}");
        }
        assert_eq!(zone.local(1_792_890_000), 1_792_893_600);
    }

    #[test]
    fn rules_of_every_form_are_read() {
        let rule = |text: &str| YearlyRule::read(text).unwrap();
        assert_eq!(rule("UTC0").offset(5), 0);
        assert_eq!(rule("<+0545>-5:45").offset(5), 5 * 3600 + 45 * 60);
        // Sydney: summer over the turn of the year.
        let sydney = rule("AEST-10AEDT,M10.1.0,M4.1.0/3");
        assert_eq!(sydney.offset(1_767_225_600), 11 * 3600);
        assert_eq!(sydney.offset(1_782_864_000), 10 * 3600);
        // 2024-03-01 is day 60 of Julian days, and 60 from zero with February 29.
        let julian = rule("AAA0BBB,J60/0,J61/0");
        let zero = rule("AAA0BBB,60/0,61/0");
        for at in [1_709_251_200 - 1, 1_709_251_200] {
            assert_eq!(julian.offset(at), zero.offset(at));
        }
        assert_eq!(julian.offset(1_709_251_200), 3600);
        for text in [
            "",
            "AB0",
            "CET",
            "CET-1CEST",
            "CET-1CEST,M13.1.0,M4.1.0",
            "<A0",
            "AAA168",
        ] {
            assert_eq!(YearlyRule::read(text), None, "{text}");
        }
    }

    #[test]
    fn moments_at_the_ends_of_time_have_one_of_the_two_offsets() {
        for text in ["CET-1CEST,M3.5.0,M10.5.0/3", "AAA0BBB,J60/0,300/0"] {
            let rule = YearlyRule::read(text).unwrap();
            let offsets = [rule.standard, rule.summer.clone().unwrap().offset];
            for at in [i64::MIN, i64::MIN + DAY, i64::MAX - DAY, i64::MAX] {
                assert!(offsets.contains(&rule.offset(at)), "{text} {at}");
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_does_no_harm() {
        let whole = file(
            &[(0, 1), (1000, 0)],
            &[3600, 7200],
            "CET-1CEST,M3.5.0,M10.5.0/3",
        );
        for end in 0..whole.len() {
            assert_eq!(Zone::read(&whole[..end]), None, "{end}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                if let Some(zone) = Zone::read(&changed) {
                    zone.local(i64::MAX);
                    zone.local(1_792_890_000);
                }
            }
        }
    }
}
