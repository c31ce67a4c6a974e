//! The history: requests and saved bytes by hour, for 400 days; in total, and by site, client,
//! network and user.
//!
//! Each core counts in a [`Tally`] and adds the counts to [`History`] once a second. `History`
//! writes the record of the current hour once a minute (`file`), and keeps the last week in memory
//! for the dashboard. `hashcache report` reads the file.
//!
//! Invariants: memory is bounded and reserved in the budget; without room for it, all names are
//! counted in a single line. A killed process loses at most a minute. Bytes are taken from
//! `metrics`, so the dashboard, `/stats` and a report agree. With `log_anonymize`, neither memory
//! nor the file contains a user or the address of a client.

pub(crate) mod counts;
pub(crate) mod file;
pub(crate) mod name;
pub(crate) mod record;
pub(crate) mod tally;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_base::clock::Clock;
use tokio::time::Instant;
use tracing::warn;

use self::counts::{By, Table, Totals};
use self::name::{Name, Persons};
use self::record::{Hour, HourRecord, Lines};
use self::tally::Counted;
use crate::metrics::Metrics;

/// The process's history.
pub(crate) struct History {
    state: Mutex<State>,
    /// Locked during a write, so there is one writer at a time.
    path: Mutex<Option<PathBuf>>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    persons: Persons,
    /// Lines per table in memory; 0 if the memory was not available.
    lines_max: usize,
    _memory: Option<Reservation>,
}

/// Counts in memory.
struct State {
    hour: Hour,
    /// Totals for the current hour.
    totals: Totals,
    tables: Tables,
    /// True if the record of the current hour differs from the file.
    is_changed: bool,
    /// Earlier hours in the last week, the oldest first.
    week: VecDeque<(Hour, Totals)>,
    /// Lines for earlier hours in the last day.
    day: VecDeque<(Hour, [Lines; By::ALL.len()])>,
    /// Records of earlier hours that could not be written, the oldest first.
    unwritten: VecDeque<HourRecord>,
    since_start: Totals,
    /// `since_start` at the last two minutes, the older first.
    minutes: VecDeque<(Instant, Totals)>,
    /// Hours in the last week with a damaged record at the start.
    damaged: u64,
}

/// Counts for sites, clients, networks and users, in the order of [`By::ALL`].
type Tables = [Table<Name>; By::ALL.len()];

fn tables(lines_max: usize) -> Tables {
    By::ALL.map(|_| Table::new(lines_max))
}

/// Figures for the dashboard.
#[derive(Debug)]
pub(crate) struct Overview {
    /// Since the start of the process.
    pub(crate) since_start: Totals,
    /// Totals for the last minute or two, and how long that time is.
    pub(crate) recent: (Totals, Duration),
    /// Totals for the current hour and the 23 before it.
    pub(crate) day: Totals,
    /// Totals for the current hour and the 167 before it.
    pub(crate) week: Totals,
    /// Sites, clients, networks and users in the last day.
    tables: Tables,
    /// Hours in the week before the start with an unreadable record.
    pub(crate) damaged: u64,
}

impl Overview {
    /// Returns the sites, clients, networks or users in the last day.
    pub(crate) fn of(&self, by: By) -> &Table<Name> {
        &self.tables[by as usize]
    }
}

impl History {
    /// Loads the last week from the file at `path`.
    pub(crate) fn start(
        path: Option<PathBuf>,
        persons: Persons,
        (cache, workers): (&Cache, usize),
        (clock, metrics): (&Arc<Clock>, &Arc<Metrics>),
    ) -> Arc<Self> {
        let hour = Hour::from_seconds(clock.now().seconds());
        let workers = u64::try_from(workers).unwrap_or(u64::MAX);
        let bytes = BYTES.saturating_add(WORKER_BYTES.saturating_mul(workers));
        let memory = cache.reserve(bytes);
        let lines_max = if memory.is_some() { LINES } else { 0 };
        let mut state = State::new(hour, lines_max);
        if let Some(path) = &path {
            match file::read(path, Hour(hour.0.saturating_sub(WEEK - 1)), hour) {
                Ok(read) => state.load(read, persons, lines_max),
                Err(error) => warn!(%error, path = %path.display(), "history not read"),
            }
        }
        Arc::new(Self {
            state: Mutex::new(state),
            path: Mutex::new(path),
            clock: Arc::clone(clock),
            metrics: Arc::clone(metrics),
            persons,
            lines_max,
            _memory: memory,
        })
    }

    /// Adds a core's counts, and clears them there.
    fn take(&self, counted: &mut Counted) {
        let totals = std::mem::take(&mut counted.totals);
        if totals.is_empty() {
            return;
        }
        let mut state = self.state();
        state.add(&totals);
        let [by_site, by_client, by_network, by_user] = &mut state.tables;
        let (sites, rest) = counted.sites.drain();
        sites.for_each(|(site, counts)| by_site.count(site, &counts));
        by_site.add_rest(&rest);
        let (users, rest) = counted.users.drain();
        users.for_each(|(user, counts)| by_user.count(user, &counts));
        by_user.add_rest(&rest);
        let (clients, rest) = counted.clients.drain();
        by_network.add_rest(&rest);
        if self.persons == Persons::Named {
            by_client.add_rest(&rest);
        }
        for (client, counts) in clients {
            by_network.count(client.network().name(), &counts);
            if self.persons == Persons::Named {
                by_client.count(client.name(), &counts);
            }
        }
    }

    /// Writes the record of the hour each minute; never returns.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut failing = false;
        loop {
            let into_minute = self.clock.now().0 % MINUTE_MS;
            tokio::time::sleep(Duration::from_millis(MINUTE_MS - into_minute)).await;
            let history = Arc::clone(&self);
            let written = tokio::task::spawn_blocking(move || history.persist()).await;
            let error = match written {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(error) => Some(io::Error::other(error)),
            };
            // Logged once per series of failures: a full disk stays full for a while.
            if let (Some(error), false) = (&error, failing) {
                warn!(%error, "history not saved");
            }
            failing = error.is_some();
        }
    }

    /// Writes the record of the hour, if it has changed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn persist(&self) -> io::Result<()> {
        self.persist_at(Hour::from_seconds(self.clock.now().seconds()))
    }

    fn persist_at(&self, now: Hour) -> io::Result<()> {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = self.state().hour != now;
        // The clock may have been set back, into an hour that has a record. Read the record without
        // the lock, because cores must not wait for the disk.
        let known = path.as_deref().filter(|_| is_over);
        let known = known.and_then(|path| read_one(path, now, self.persons));
        let records = {
            let mut state = self.state();
            self.add_traffic(&mut state);
            state.note_minute(Instant::now());
            if is_over {
                state.begin(now, known, self.lines_max);
            }
            state.changed()
        };
        let Some(path) = &*path else {
            return Ok(());
        };
        let mut records = records.into_iter();
        let written = records.try_for_each(|record| {
            file::write(path, &record).inspect_err(|_| self.state().not_written(record))
        });
        records.for_each(|record| self.state().not_written(record));
        written
    }

    /// Returns the current figures.
    pub(crate) fn overview(&self) -> Overview {
        let mut state = self.state();
        self.add_traffic(&mut state);
        state.overview(Instant::now())
    }

    /// Adds the bytes that were transferred since the last call.
    fn add_traffic(&self, state: &mut State) {
        let (client_bytes, origin_bytes) = self.metrics.traffic();
        let more = Totals {
            client_bytes: client_bytes.saturating_sub(state.since_start.client_bytes),
            origin_bytes: origin_bytes.saturating_sub(state.since_start.origin_bytes),
            ..Totals::default()
        };
        if !more.is_empty() {
            state.add(&more);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl State {
    fn new(hour: Hour, lines_max: usize) -> Self {
        Self {
            hour,
            totals: Totals::default(),
            tables: tables(lines_max),
            is_changed: false,
            week: VecDeque::new(),
            day: VecDeque::new(),
            unwritten: VecDeque::new(),
            since_start: Totals::default(),
            minutes: [(Instant::now(), Totals::default())].into(),
            damaged: 0,
        }
    }

    /// Loads the hours in the file; the last may be the current hour.
    fn load(&mut self, read: file::Read, persons: Persons, lines_max: usize) {
        self.damaged = read.damaged;
        for mut record in read.hours {
            if persons == Persons::LeftOut {
                record.forget_persons();
            }
            let hour = record.hour;
            if hour == self.hour {
                self.resume(&record);
            } else {
                self.keep_past(record, lines_max);
            }
        }
        self.forget_past();
    }

    /// Continues the current hour with the counts from a record.
    fn resume(&mut self, record: &HourRecord) {
        self.totals = self.totals.plus(&record.totals);
        for (lines, table) in record.lines.iter().zip(&mut self.tables) {
            lines.add_to(table);
        }
    }

    fn keep_past(&mut self, record: HourRecord, lines_max: usize) {
        self.week.push_back((record.hour, record.totals));
        if lines_max > 0 {
            self.day.push_back((record.hour, record.lines));
        }
    }

    /// Drops hours that are too old, or later than now because the clock was set back.
    fn forget_past(&mut self) {
        let now = self.hour.0;
        let is_within = |hour: Hour, hours: u32| hour.0 < now && now - hour.0 < hours;
        self.week.retain(|(hour, _)| is_within(*hour, WEEK));
        self.day.retain(|(hour, _)| is_within(*hour, DAY));
    }

    /// Closes the current hour and starts the hour `now`. `known` is the record that the file has
    /// of it.
    fn begin(&mut self, now: Hour, known: Option<HourRecord>, lines_max: usize) {
        let over = std::mem::take(&mut self.is_changed).then(|| self.record());
        if !self.totals.is_empty() {
            self.keep_past(self.record(), lines_max);
        }
        // The clock may have been set back into an hour with an unwritten record.
        let unwritten = self.unwritten.iter().position(|record| record.hour == now);
        let unwritten = unwritten.and_then(|at| self.unwritten.remove(at));
        self.is_changed = unwritten.is_some();
        self.hour = now;
        self.totals = Totals::default();
        self.tables = tables(lines_max);
        self.forget_past();
        if let Some(over) = over {
            self.not_written(over);
        }
        if let Some(known) = unwritten.or(known) {
            self.resume(&known);
        }
    }

    /// Takes the records that differ from the file, the oldest first.
    fn changed(&mut self) -> VecDeque<HourRecord> {
        let mut records = std::mem::take(&mut self.unwritten);
        if std::mem::take(&mut self.is_changed) {
            records.push_back(self.record());
        }
        records
    }

    /// Keeps a record for the next attempt. If the disk fails for a long time, the oldest record is
    /// lost.
    fn not_written(&mut self, record: HourRecord) {
        if record.hour == self.hour {
            self.is_changed = true;
            return;
        }
        self.unwritten.push_back(record);
        while self.unwritten.len() > UNWRITTEN {
            self.unwritten.pop_front();
        }
    }

    fn add(&mut self, more: &Totals) {
        self.totals = self.totals.plus(more);
        self.since_start = self.since_start.plus(more);
        self.is_changed = true;
    }

    fn note_minute(&mut self, now: Instant) {
        self.minutes.push_back((now, self.since_start));
        while self.minutes.len() > 2 {
            self.minutes.pop_front();
        }
    }

    fn record(&self) -> HourRecord {
        HourRecord {
            hour: self.hour,
            totals: self.totals,
            lines: self.tables.each_ref().map(Lines::from_table),
        }
    }

    fn overview(&self, now: Instant) -> Overview {
        let (begun, earlier) = self
            .minutes
            .front()
            .copied()
            .unwrap_or((now, self.since_start));
        let is_of_day = |hour: Hour| self.hour.0.saturating_sub(hour.0) < DAY;
        let (mut day, mut week) = (self.totals, self.totals);
        for (hour, totals) in &self.week {
            week = week.plus(totals);
            if is_of_day(*hour) {
                day = day.plus(totals);
            }
        }
        let mut tables = self.tables.clone();
        for (_, hour) in &self.day {
            for (lines, table) in hour.iter().zip(&mut tables) {
                lines.add_to(table);
            }
        }
        Overview {
            since_start: self.since_start,
            recent: (self.since_start.since(&earlier), now - begun),
            day,
            week,
            tables,
            damaged: self.damaged,
        }
    }
}

/// Reads an hour's record, if the file has it.
fn read_one(path: &Path, hour: Hour, persons: Persons) -> Option<HourRecord> {
    let read = file::read(path, hour, hour).ok()?;
    let mut record = read.hours.into_iter().next()?;
    if persons == Persons::LeftOut {
        record.forget_persons();
    }
    Some(record)
}

const MINUTE_MS: u64 = 60_000;
const DAY: u32 = 24;
const WEEK: u32 = 7 * 24;
/// Maximum lines per table for the current hour: sites, clients, networks and users each.
const LINES: usize = 200;
/// Hours that may wait until the disk can be written again.
const UNWRITTEN: usize = 24;
/// Memory of the four tables (256 places of 113 bytes each), their copies in two overviews, 24
/// hours with 128 lines of 112 bytes each, and as many hours that wait to be written.
const BYTES: u64 = 1 << 20;
/// Memory for a core's three tables, with 128 places each.
const WORKER_BYTES: u64 = 48 << 10;

#[cfg(test)]
mod tests;
