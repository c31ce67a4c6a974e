//! The history: what was requested and saved, by hour, for 400 days; in all, and by site, client,
//! network and user.
//!
//! Each core counts in a [`Tally`] of its own and adds that to [`History`] once a second. `History`
//! writes the record of the current hour once a minute (`file`), and has the last week in memory
//! for the dashboard. `hashcache report` reads the file.
//!
//! Invariants: memory is bounded and reserved in the budget; without room for it, all names are
//! counted in one line. A killed process loses at most a minute. Bytes are those of `metrics`, so
//! that the dashboard, `/stats` and a report agree. With `log_anonymize`, neither memory nor the
//! file has a user or the address of a client.

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

/// The history of the process.
pub(crate) struct History {
    state: Mutex<State>,
    /// One writer at a time.
    path: Mutex<Option<PathBuf>>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    persons: Persons,
    /// Lines of a table in memory; 0 without memory for them.
    lines_max: usize,
    _memory: Option<Reservation>,
}

/// What is known in memory.
struct State {
    hour: Hour,
    /// Of the current hour.
    totals: Totals,
    tables: Tables,
    /// Whether the record of the current hour differs from the file.
    is_changed: bool,
    /// Earlier hours of the last week, the oldest first.
    week: VecDeque<(Hour, Totals)>,
    /// Lines of earlier hours of the last day.
    day: VecDeque<(Hour, [Lines; By::ALL.len()])>,
    /// Records of earlier hours that could not be written, the oldest first.
    unwritten: VecDeque<HourRecord>,
    since_start: Totals,
    /// `since_start` at the last two minutes, the older first.
    minutes: VecDeque<(Instant, Totals)>,
    /// Hours of the last week whose record was damaged at the start.
    damaged: u64,
}

/// The counts of sites, clients, networks and users, in the order of [`By::ALL`].
type Tables = [Table<Name>; By::ALL.len()];

fn tables(lines_max: usize) -> Tables {
    By::ALL.map(|_| Table::new(lines_max))
}

/// Figures for the dashboard.
#[derive(Debug)]
pub(crate) struct Overview {
    /// Since the start of the process.
    pub(crate) since_start: Totals,
    /// Of the last minute or two, and how long that is.
    pub(crate) recent: (Totals, Duration),
    /// Of the current hour and the 23 before it.
    pub(crate) day: Totals,
    /// Of the current hour and the 167 before it.
    pub(crate) week: Totals,
    /// Sites, clients, networks and users of the last day.
    tables: Tables,
    /// Hours of the week before the start that could not be read.
    pub(crate) damaged: u64,
}

impl Overview {
    /// Sites, clients, networks or users of the last day.
    pub(crate) fn of(&self, by: By) -> &Table<Name> {
        &self.tables[by as usize]
    }
}

impl History {
    /// Starts with what the file at `path` has of the last week.
    pub(crate) fn start(
        path: Option<PathBuf>,
        persons: Persons,
        (cache, workers): (&Cache, usize),
        (clock, metrics): (&Arc<Clock>, &Arc<Metrics>),
    ) -> Arc<Self> {
        let hour = Hour::of(clock.now().seconds());
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

    /// Takes what a core has counted.
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

    /// Writes the record of the hour each minute; never ends.
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
            // Once per series of failures: a full disk stays full for a while.
            if let (Some(error), false) = (&error, failing) {
                warn!(%error, "history not saved");
            }
            failing = error.is_some();
        }
    }

    /// Writes the record of the hour, if anything was counted.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn persist(&self) -> io::Result<()> {
        self.persist_at(Hour::of(self.clock.now().seconds()))
    }

    fn persist_at(&self, now: Hour) -> io::Result<()> {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = self.state().hour != now;
        // The clock may have been set back, into an hour that has a record. Read without the lock:
        // cores do not wait for the disk.
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

    /// The figures of now.
    pub(crate) fn overview(&self) -> Overview {
        let mut state = self.state();
        self.add_traffic(&mut state);
        state.overview(Instant::now())
    }

    /// Adds the bytes since the last call.
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

    /// Takes the hours of the file, of which the last one may be the current one.
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

    /// Continues the current hour.
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

    /// The current hour is over, and `now` begins, of which `known` is in the file.
    fn begin(&mut self, now: Hour, known: Option<HourRecord>, lines_max: usize) {
        let over = std::mem::take(&mut self.is_changed).then(|| self.record());
        if !self.totals.is_empty() {
            self.keep_past(self.record(), lines_max);
        }
        // The clock may have been set back into an hour whose record was not written.
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

    /// Keeps a record for the next attempt; without a disk for a long time, the oldest is lost.
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
            lines: self.tables.each_ref().map(Lines::of),
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

/// The record of one hour, if it is in the file.
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
/// Sites of the current hour that are counted one by one; as many clients, networks and users.
const LINES: usize = 200;
/// Hours that wait for a disk that can be written to again.
const UNWRITTEN: usize = 24;
/// Memory of the four tables (256 places of 113 bytes each), of their copies in two overviews, of
/// 24 hours with 128 lines of 112 bytes each, and of as many that wait to be written.
const BYTES: u64 = 1 << 20;
/// Memory of the three tables of a core, with 128 places each.
const WORKER_BYTES: u64 = 48 << 10;

#[cfg(test)]
mod tests;
