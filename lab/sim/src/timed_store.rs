//! A store whose batches are cut by the time of its disks, so that a run repeats exactly.
//!
//! The engine cuts a batch 250 ms after its first object was put. On a modelled disk that is a time
//! of the model, which goes on only while the disk works. So the engine's own delay is an hour
//! here, and the caller asks after each request to write what is due ([`TimedStore::write_due`]).
//! The writing threads are waited for each time, so reads and writes reach the disks in the same
//! order in every run.
//!
//! Called by the bench and by replays. Invariant: while requests are answered nothing is written.

use std::time::{Duration, Instant};

use hashcache::{Cache, Clock, Config, OpenError, Outcome, Put, PutError};

use crate::disks::{Count, Disks};

/// Whose time passes.
#[derive(Clone, Copy, Debug)]
pub enum Time {
    /// That of the modelled disks.
    OfDisks,
    /// That of the machine, since this moment. Then a run does not repeat exactly.
    Since(Instant),
}

/// See the module's head.
pub struct TimedStore {
    cache: Cache,
    disks: Disks,
    time: Time,
    /// When the first unwritten object was put, and the bytes of all unwritten objects.
    waiting: Option<(Duration, u64)>,
    written_at: Duration,
    writes: Writes,
}

/// What was put, and what the disks did to write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Objects.
    pub puts: u64,
    /// Names, metadata and content of those.
    pub bytes: u64,
    /// Reads and seeks while it was written.
    pub work: Count,
}

impl TimedStore {
    /// Opens the store of `config` on `disks`.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn open(config: Config, disks: Disks, time: Time) -> Result<Self, OpenError> {
        let clock = match time {
            Time::OfDisks => disks.clock(),
            Time::Since(_) => Clock::system(),
        };
        let cache = Cache::open(Config {
            devices: disks.devices(),
            // Batches are cut here.
            batch_delay: Duration::from_secs(3600),
            clock,
            ..config
        })?;
        let mut store = Self {
            cache,
            disks,
            time,
            waiting: None,
            written_at: Duration::ZERO,
            writes: Writes::default(),
        };
        store.flush();
        Ok(store)
    }

    /// To look objects up.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Its disks.
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// Time since the run began.
    pub fn now(&self) -> Duration {
        match self.time {
            Time::Since(started) => started.elapsed(),
            Time::OfDisks => self.disks.now(),
        }
    }

    /// All clients are ready for their first request.
    pub fn start(&mut self) {
        self.disks.start();
    }

    /// Ends the current request. Returns what the disks did for it.
    pub fn answered(&mut self) -> Count {
        self.disks.answered()
    }

    /// What was put and written since the last call.
    pub fn take_writes(&mut self) -> Writes {
        std::mem::take(&mut self.writes)
    }

    /// Puts an object.
    ///
    /// # Errors
    /// Those of the engine. There is memory for what waits to be written, unless the budget is
    /// below some batches.
    pub fn put(&mut self, name: &[u8], put: Put, content: &[u8]) -> Result<(), PutError> {
        let metadata_bytes = put.metadata.len();
        let record_bytes = (content.len() + metadata_bytes + RECORD_REST_BYTES)
            .next_multiple_of(UNIT_BYTES)
            + LISTED_BYTES;
        if record_bytes as u64 > BATCH_BYTES {
            self.put_in_pieces(name, put, content)?;
        } else {
            self.make_room(record_bytes as u64);
            match self.cache.put(name, put.clone(), content) {
                Err(PutError::Full) => {
                    self.wait_for_memory();
                    self.cache.put(name, put, content)?;
                }
                done => drop(done?),
            }
            self.wait(record_bytes as u64);
        }
        self.writes.bytes += (name.len() + metadata_bytes + content.len()) as u64;
        self.writes.puts += 1;
        Ok(())
    }

    /// Puts an object that is larger than a batch.
    fn put_in_pieces(&mut self, name: &[u8], put: Put, content: &[u8]) -> Result<(), PutError> {
        let mut writer = self.cache.intend(name)?.writer(Put {
            length: Some(content.len() as u64),
            ..put
        })?;
        for piece in content.chunks(PIECE_BYTES) {
            self.make_room(piece.len() as u64);
            match writer.write(piece) {
                Err(PutError::Full) => {
                    self.wait_for_memory();
                    writer.write(piece)?;
                }
                done => done?,
            }
            self.wait(piece.len() as u64);
        }
        writer.commit().map(|_| ())
    }

    /// Writes what waits if `bytes` more would not fit the batch.
    fn make_room(&mut self, bytes: u64) {
        if self.waiting_bytes() + bytes > BATCH_BYTES {
            self.write(Cache::cut_batch);
        }
    }

    fn wait_for_memory(&mut self) {
        self.disks.run_clock();
        self.cache.flush().wait();
        self.writes.work += self.disks.written();
    }

    fn wait(&mut self, bytes: u64) {
        let now = self.now();
        let (_, waiting) = self.waiting.get_or_insert((now, 0));
        *waiting += bytes;
    }

    fn waiting_bytes(&self) -> u64 {
        self.waiting.map_or(0, |(_, bytes)| bytes)
    }

    /// Cuts the batch when its delay is over. Without a batch the store is called just as often, so
    /// that its clock advances.
    pub fn write_due(&mut self) {
        let since = self.waiting.map_or(self.written_at, |(since, _)| since);
        if self.now() >= since + BATCH_DELAY {
            self.write(Cache::cut_batch);
        }
    }

    /// Writes all that waits.
    pub fn flush(&mut self) {
        self.write(Cache::flush);
    }

    fn write(&mut self, write: fn(&Cache) -> Outcome<bool>) {
        let mut busy = self.disks.total().busy;
        self.disks.run_clock();
        write(&self.cache).wait();
        self.write_rest();
        // The time that each disk took has passed for the others too: groups and parts of
        // checkpoints may be due on them.
        while self.disks.total().busy != busy {
            busy = self.disks.total().busy;
            self.disks.run_clock();
            self.write_rest();
        }
        self.writes.work += self.disks.written();
        self.disks.stop_clock();
        self.waiting = None;
        self.written_at = self.now();
    }

    /// Waits until the writing threads have nothing left to do at this time. A batch may end early
    /// where a segment does, groups become due while it is written, and a writing thread writes
    /// parts of a checkpoint after it has answered: before the caller looks or after that. So
    /// nothing may be written from one answer to the next but one.
    fn write_rest(&self) {
        let (mut busy, mut idle) = (self.disks.total().busy, 0);
        while idle < 2 {
            self.cache.cut_batch().wait();
            let before = std::mem::replace(&mut busy, self.disks.total().busy);
            idle = if busy == before { idle + 1 } else { 0 };
        }
    }
}

/// Segments of a store of `size` bytes: small beside it, as segments are beside a disk, because
/// opening a segment loses what is in it. Two batches fit, so that the writing thread never finds a
/// batch full before it is cut here.
pub fn segment_bytes(size: u64) -> u32 {
    let wanted = (size / 256).clamp(2 * BATCH_BYTES + (512 << 10), 16 << 20);
    u32::try_from(wanted).expect("at most 16 MiB")
}

/// A secret of a store whose names hash alike in every run with this seed. No client can reach such
/// a store.
pub fn name_secret(seed: u64) -> [u8; 16] {
    let mut secret = [0; 16];
    fastrand::Rng::with_seed(seed).fill(&mut secret);
    secret
}

/// The engine's own default.
const BATCH_DELAY: Duration = Duration::from_millis(250);
/// More than the largest object of a benchmark.
const BATCH_BYTES: u64 = 1200 << 10;
/// A span of content.
const PIECE_BYTES: usize = 256 << 10;
/// Header and name of a record, about.
const RECORD_REST_BYTES: usize = 200;
/// Entries of a record in the lists of its batch and its segment.
const LISTED_BYTES: usize = 2 * 56;
const UNIT_BYTES: usize = 512;
