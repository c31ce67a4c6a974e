//! `hashcache report`: a proxy's savings in the last day, week, month or more, by site, client,
//! network and user.
//!
//! Called by `main`. Reads the history beside the cache, also while the proxy runs; `text`, `html`
//! and `csv` format the report.
//!
//! Invariant: names are from the network and are escaped in every format.

mod csv;
mod html;
mod networks;
mod section;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use hashcache_http::UnixTime;
use hashcache_proxy::{
    By, Counts, HISTORY_NAMES, HistoryRead, Hour, HourRecord, Kind, Table, Totals, read_history,
};
use hashcache_settings::Environment;
use hashcache_settings::fault::Fault;
use serde_json::{Map, Value, json};

use self::networks::Networks;
use self::section::{Lines, Section};
use crate::output::say;

/// Arguments for `hashcache report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The proxy writes its history beside the cache (cache.history): figures by hour for 400 days. The
current minute is not in it yet. Days are those of UTC.
Exit status: 0 done, 2 failed; damaged hours are left out and counted.")]
pub struct ReportArgs {
    /// The last 24 hours [default]
    #[arg(long, group = "period")]
    day: bool,
    /// The last 7 days
    #[arg(long, group = "period")]
    week: bool,
    /// The last 30 days
    #[arg(long, group = "period")]
    month: bool,
    /// The last N days, from 1 to 400
    #[arg(long, group = "period", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=400))]
    days: Option<u16>,
    /// Show these lines alone, and more of them
    #[arg(long, value_enum)]
    by: Option<Section>,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Configuration file of the proxy
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File of the history [default: beside the cache of the configuration]
    #[arg(value_name = "FILE")]
    history: Option<PathBuf>,
}

/// The forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Html,
    Csv,
    Json,
}

/// Prints the report.
pub fn run(args: &ReportArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let effective = hashcache_settings::load(args.config.as_deref(), vec![], environment)?;
    let path = args.history.clone();
    let path = path.or_else(|| effective.state_file("history"));
    let path = path.ok_or_else(|| Fault::new("the configuration names no cache"))?;
    #[expect(clippy::disallowed_methods, reason = "the command begins here")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let last = Hour::from_seconds(now.unwrap_or_default().as_secs());
    let networks = Networks::new(effective.networks);
    let report = Report::read(&path, args.period(), last, (args.by, &networks))?;
    say(&match args.format {
        Format::Text => text::render(&report),
        Format::Html => html::render(&report),
        Format::Csv => csv::render(&report),
        Format::Json => format!("{:#}\n", report.to_json()),
    });
    Ok(ExitCode::SUCCESS)
}

impl ReportArgs {
    fn period(&self) -> Period {
        match (self.week, self.month, self.days) {
            (true, ..) => Period::Days(7),
            (_, true, _) => Period::Days(30),
            (.., Some(days)) => Period::Days(days),
            _ => Period::Day,
        }
    }
}

/// The period for a report; the last hour is the current hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    /// 24 hours, hour by hour.
    Day,
    /// This number of days of 24 hours, day by day.
    Days(u16),
}

impl Period {
    fn hours(self) -> u32 {
        match self {
            Self::Day => 24,
            Self::Days(days) => u32::from(days) * 24,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Day | Self::Days(1) => "the last 24 hours".to_owned(),
            Self::Days(days) => format!("the last {days} days"),
        }
    }
}

/// The counts for a period.
#[derive(Clone, Debug)]
struct Report {
    period: Period,
    /// The first and the last hour.
    hours: (Hour, Hour),
    totals: Totals,
    /// For a day: the hours; otherwise the days in which anything was counted.
    steps: Vec<(String, Totals)>,
    /// The requested section, or all sections that have lines.
    sections: Vec<(Section, Lines)>,
    damaged: u64,
}

impl Report {
    fn read(
        path: &Path,
        period: Period,
        last: Hour,
        shown: (Option<Section>, &Networks),
    ) -> anyhow::Result<Self> {
        let first = Hour(last.0.saturating_sub(period.hours() - 1));
        let read = read_history(path, first, last).with_context(|| {
            let fault = Fault::new(format!("cannot read the history in {}", path.display()));
            fault.hint("only the user of the proxy and root can read it")
        })?;
        if read == HistoryRead::default() && !path.exists() {
            let fault = Fault::new(format!("there is no history in {}", path.display()));
            let hint = "a proxy writes it a minute after its first request; `--config` names the \
                        configuration of the proxy";
            return Err(fault.hint(hint).into());
        }
        Ok(Self::new(&read, period, (first, last), shown))
    }

    fn new(
        read: &HistoryRead,
        period: Period,
        hours: (Hour, Hour),
        (wanted, networks): (Option<Section>, &Networks),
    ) -> Self {
        let mut totals = Totals::default();
        let mut steps: Vec<(String, Totals)> = Vec::new();
        // As large as the number of names in these hours, so that no table is ever full: a full
        // table searches its smallest line for each new name.
        let names = period.hours() as usize * HISTORY_NAMES;
        let mut tables = By::ALL.map(|_| Table::new(names));
        for record in &read.hours {
            totals = totals.plus(&record.totals);
            let step = step(period, record);
            match steps.last_mut().filter(|(name, _)| *name == step) {
                Some((_, sum)) => *sum = sum.plus(&record.totals),
                None => steps.push((step, record.totals)),
            }
            for (lines, table) in record.lines.iter().zip(&mut tables) {
                lines.add_to(table);
            }
        }
        let sections = Section::ALL.into_iter();
        let sections = sections
            .filter(|section| wanted.is_none_or(|wanted| wanted == *section))
            .map(|section| (section, Lines::new(section, wanted, &tables, networks)))
            .filter(|(_, lines)| wanted.is_some() || !lines.is_empty());
        Self {
            period,
            hours,
            totals,
            steps,
            sections: sections.collect(),
            damaged: read.damaged,
        }
    }

    /// Formats the period as "2026-11-26 14:00 to 2026-11-27 14:00 UTC".
    fn span(&self) -> String {
        let (first, last) = self.hours;
        let end = Hour(last.0.saturating_add(1));
        format!("{} to {} UTC", hour_text(first), hour_text(end))
    }

    fn to_json(&self) -> Value {
        let steps = self.steps.iter().map(|(name, totals)| {
            let mut step = totals_json(totals);
            step.insert("begin".to_owned(), name.as_str().into());
            Value::Object(step)
        });
        let mut report = totals_json(&self.totals);
        let (first, last) = self.hours;
        let end = Hour(last.0.saturating_add(1));
        let kinds = Kind::ALL.iter().map(|(kind, name)| {
            let counts = self.totals.of(*kind);
            let counts = json!({ "requests": counts.requests, "bytes": counts.bytes });
            ((*name).to_owned(), counts)
        });
        let more = [
            ("begin_seconds", first.start_seconds().into()),
            ("end_seconds", end.start_seconds().into()),
            ("damaged_hours", self.damaged.into()),
            ("kinds", Value::Object(kinds.collect())),
            ("steps", steps.collect()),
        ];
        report.extend(more.map(|(name, value)| (name.to_owned(), value)));
        for (section, lines) in &self.sections {
            report.extend(lines.to_json(*section));
        }
        Value::Object(report)
    }
}

fn totals_json(totals: &Totals) -> Map<String, Value> {
    let all = [
        ("requests", totals.requests()),
        ("hits", totals.hits()),
        ("client_bytes", totals.served_bytes()),
        ("origin_bytes", totals.origin_bytes),
        ("saved_bytes", totals.saved_bytes()),
        ("own_page_bytes", totals.own_page_bytes()),
        ("tunnel_bytes", totals.of(Kind::Tunnel).bytes),
    ];
    all.map(|(name, value)| (name.to_owned(), value.into()))
        .into_iter()
        .collect()
}

fn counts_json(counts: &Counts) -> Map<String, Value> {
    let all = [
        ("requests", counts.requests),
        ("hits", counts.hits),
        ("client_bytes", counts.client_bytes),
        ("origin_bytes", counts.origin_bytes),
        ("saved_bytes", counts.saved_bytes()),
        ("failures", counts.failures),
    ];
    all.map(|(name, value)| (name.to_owned(), value.into()))
        .into_iter()
        .collect()
}

/// Converts totals to the counts in a row. Failures are requests that failed or were refused.
fn row_of(totals: &Totals) -> Counts {
    Counts {
        requests: totals.requests(),
        hits: totals.hits(),
        client_bytes: totals.served_bytes(),
        origin_bytes: totals.origin_bytes,
        failures: totals.of(Kind::Failed).requests,
        ..Counts::default()
    }
}

/// The name of the row for an hour in a table of steps.
fn step(period: Period, record: &HourRecord) -> String {
    let text = hour_text(record.hour);
    match (period, text.split_once(' ')) {
        (Period::Days(_), Some((day, _))) => day.to_owned(),
        _ => text,
    }
}

/// Formats an hour as "2026-11-27 14:00", in UTC.
fn hour_text(hour: Hour) -> String {
    let ([year, month, day], [hour, ..]) = UnixTime(u64::from(hour.0) * 3600).to_utc();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:00")
}

/// Formats 1234567 as "1,234,567".
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_have_the_date_of_their_day() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_799, "2000-02-29 23:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_795_744_800, "2026-11-27 02:00"),
            (1_798_761_599, "2026-12-31 23:00"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(hour_text(Hour::from_seconds(seconds)), text);
        }
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
