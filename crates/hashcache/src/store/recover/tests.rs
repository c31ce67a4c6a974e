//! Cost of opening a store of a hundred gigabytes with each policy, on a modelled device:
//! superblocks, journal and checkpoints are kept as the engine wrote them; the headers and footers
//! of the log are generated when they are read, as a cache with 8 KiB objects would have left them.
//! The bytes between them are never read, nor is the Disk Table.
//!
//! In the log of a Disk Table there are tails (one object in four has a tail), and with `set-mem`
//! the slots, too. One lap of the log fills as many slots as there are.
//!
//! `HASHCACHE_TEST_GIGABYTES=100` sets the size; without it 4 GB are opened, and the limit of bytes
//! is scaled to that size. `docs/PAPER.md` has the figures.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::Cache;
use crate::Health;
use crate::config::{Config, PolicyKind};
use crate::device::{Device, DiskModel, Pace, ThrottleDevice, ThrottleFigures};
use crate::disk::write_superblock;
use crate::format::{
    BatchHeader, DurablePoint, Family, Footer, IO_BLOCK, KIND_SLOT, KIND_TAIL, Link, Listed,
    Superblock,
};
use crate::geometry::Geometry;
use crate::key::Secret;
use crate::object::Version;
use crate::store::device::{FoundSuperblock, front};

const GIGABYTE: u64 = 1_000_000_000;
const RECORD_BYTES: u32 = 8 << 10;
const BATCH_BYTES: u32 = 4 << 20;
/// Versions that each opening of a segment draws in the model: more than a segment has records.
const VERSIONS_PER_SEGMENT: u64 = 1 << 20;
/// Superblocks and the blocks beside them.
const FRONT_BYTES: u64 = 64 << 10;

fn gigabytes() -> u64 {
    let asked = std::env::var("HASHCACHE_TEST_GIGABYTES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// The log of the model: how often segments were opened and sealed since the store was created.
struct Written {
    geometry: Geometry,
    form: Form,
    secret: Secret,
    openings: u64,
}

/// A policy, and whether it groups.
#[derive(Clone, Copy, Debug)]
struct Form {
    policy: PolicyKind,
    grouped: bool,
}

impl Written {
    /// The last opening of `segment`.
    fn opening(&self, segment: u64) -> Option<u64> {
        let laps = (self.openings + self.geometry.segments - 1 - segment) / self.geometry.segments;
        Some(laps.checked_sub(1)? * self.geometry.segments + segment)
    }

    fn stamp(opening: u64) -> u64 {
        (opening + 1) * VERSIONS_PER_SEGMENT
    }

    /// Lines in a footer.
    fn records(&self) -> u32 {
        if self.form.policy.family() == Family::Table {
            // Four slots and a tail, repeated.
            let lines = self.geometry.slots() * 5 / 4 / self.geometry.segments;
            return u32::try_from(lines).unwrap();
        }
        let lines = self.geometry.segment_bytes / RECORD_BYTES * 64;
        (self.geometry.segment_bytes - lines - BATCH_BYTES / 8) / RECORD_BYTES
    }

    fn name(opening: u64, record: u32) -> [u8; 16] {
        (u128::from(opening) << 64 | u128::from(record)).to_le_bytes()
    }

    fn list(&self, opening: u64, records: u32) -> Vec<Listed> {
        let unit = self.geometry.unit_bytes;
        let listed = |n: u32| Listed {
            key: self.secret.name(&Self::name(opening, n)),
            version: Version(Self::stamp(opening) + 1 + u64::from(n)),
            revision: 0,
            mark: 0,
            fresh_until: 0,
            offset: (64 << 10) / unit + n * (RECORD_BYTES / unit),
            length: RECORD_BYTES / unit,
            run: if self.form.grouped { 5 } else { 0 },
            kind: 1,
        };
        let in_table = |n: u32| {
            let listed = listed(n);
            let kind = if n % 5 == 4 { KIND_TAIL } else { KIND_SLOT };
            Listed {
                // Batches of 512.
                offset: n / 512 * (BATCH_BYTES / unit),
                length: u32::try_from(listed.key.low % u64::from(self.geometry.ways)).unwrap(),
                kind,
                ..listed
            }
        };
        match self.form.policy {
            PolicyKind::Log | PolicyKind::LogLru => (0..records).map(listed).collect(),
            PolicyKind::SetMem => (0..records).map(in_table).collect(),
            _ => (0..records)
                .map(in_table)
                .filter(|it| it.kind == KIND_TAIL)
                .collect(),
        }
    }

    /// The link in a header: the previous opening has one batch, as far as headers tell, and is
    /// durable.
    fn link(&self, opening: u64) -> Link {
        Link {
            previous: opening.checked_sub(1).map_or(0, Self::stamp),
            previous_batches: opening.min(1) as u32,
            durable: Some(DurablePoint {
                openings_back: u16::from(opening > 0),
                batches: opening.min(1) as u32,
            }),
        }
    }

    /// The first header of an opening, and its footer.
    fn ends(&self, opening: u64) -> (Vec<u8>, Vec<u8>) {
        let lap = opening / self.geometry.segments;
        let stamp = Self::stamp(opening);
        let header = BatchHeader {
            device: 0,
            stamp,
            lap,
            ordinal: 0,
            batch_bytes: BATCH_BYTES,
            link: self.link(opening),
            list: self.list(
                opening,
                (BATCH_BYTES / RECORD_BYTES - 8).min(self.records()),
            ),
        };
        let footer = Footer {
            device: 0,
            stamp,
            lap,
            list: self.list(opening, self.records()),
        };
        let mut first = vec![0; BatchHeader::bytes(header.list.len())];
        header.encode(&mut first, &self.secret);
        let mut last = vec![0; Footer::bytes(footer.list.len())];
        footer.encode(&mut last, &self.secret);
        (first, last)
    }
}

#[derive(Default)]
struct Log {
    written: Option<Written>,
    /// The opening that was read last, with its header and footer.
    made: Option<(u64, Vec<u8>, Vec<u8>)>,
}

/// The modelled device.
struct Model {
    len: u64,
    form: Form,
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
    log: Mutex<Log>,
    /// True if reads behind the superblocks wait.
    shut: Mutex<bool>,
    opened: Condvar,
    front_calls: AtomicU64,
    calls_behind: AtomicU64,
}

impl Model {
    fn new(len: u64, form: Form) -> Self {
        Self {
            len,
            form,
            blocks: Mutex::default(),
            log: Mutex::default(),
            shut: Mutex::default(),
            opened: Condvar::new(),
            front_calls: AtomicU64::new(0),
            calls_behind: AtomicU64::new(0),
        }
    }

    fn superblock(&self) -> Superblock {
        match front(self).unwrap() {
            FoundSuperblock::Superblock(superblock) => *superblock,
            FoundSuperblock::Blank | FoundSuperblock::Not(_) => panic!("no superblock"),
        }
    }

    /// Sets how often segments were opened in the log, each filled and sealed.
    fn openings(&self, openings: u64) -> u64 {
        let superblock = self.superblock();
        let geometry = Geometry::from_superblock(&superblock).unwrap();
        let segments = geometry.segments;
        *self.log.lock().unwrap() = Log {
            written: Some(Written {
                form: self.form,
                geometry,
                secret: Secret::from_bytes(superblock.secret),
                openings,
            }),
            made: None,
        };
        segments
    }

    /// Leaves the superblocks as a kill would.
    fn kill(&self) {
        let mut superblock = self.superblock();
        superblock.clean = false;
        for _ in 0..2 {
            write_superblock(self, &mut superblock).unwrap();
        }
    }

    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }

    /// Copies the header and footer bytes of a segment in the range; ranges never cross segments.
    fn read_log(&self, offset: u64, buffer: &mut [u8]) {
        let mut log = self.log.lock().unwrap();
        let Log { written, made } = &mut *log;
        let Some(written) = written else { return };
        let geometry = &written.geometry;
        let segment_bytes = u64::from(geometry.segment_bytes);
        let Some(within) = offset.checked_sub(geometry.log_offset) else {
            return;
        };
        let segment = within / segment_bytes;
        if segment >= geometry.segments {
            return;
        }
        let Some(opening) = written.opening(segment) else {
            return;
        };
        if made.as_ref().is_none_or(|(made, ..)| *made != opening) {
            let (first, last) = written.ends(opening);
            *made = Some((opening, first, last));
        }
        let Some((_, first, last)) = made else { return };
        let start = geometry.log_offset + segment * segment_bytes;
        overlay(offset, buffer, start, first);
        overlay(
            offset,
            buffer,
            start + segment_bytes - last.len() as u64,
            last,
        );
    }
}

/// Copies the part of `bytes`, which are stored at `at`, that is in the range of the buffer.
fn overlay(offset: u64, buffer: &mut [u8], at: u64, bytes: &[u8]) {
    let from = offset.max(at);
    let to = (offset + buffer.len() as u64).min(at + bytes.len() as u64);
    if from < to {
        let within = |start: u64| {
            usize::try_from(from - start).unwrap()..usize::try_from(to - start).unwrap()
        };
        buffer[within(offset)].copy_from_slice(&bytes[within(at)]);
    }
}

impl Device for Model {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset < FRONT_BYTES {
            self.front_calls.fetch_add(1, Ordering::Relaxed);
        } else {
            let shut = self.shut.lock().unwrap();
            drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
            self.calls_behind.fetch_add(1, Ordering::Relaxed);
        }
        buffer.fill(0);
        self.read_log(offset, buffer);
        let blocks = self.blocks.lock().unwrap();
        for (n, part) in buffer.chunks_mut(IO_BLOCK).enumerate() {
            if let Some(block) = blocks.get(&(offset / IO_BLOCK as u64 + n as u64)) {
                let within = usize::try_from(offset % IO_BLOCK as u64).unwrap();
                part.copy_from_slice(&block[within..within + part.len()]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(IO_BLOCK as u64) && buffer.len().is_multiple_of(IO_BLOCK));
        if offset < FRONT_BYTES {
            self.front_calls.fetch_add(1, Ordering::Relaxed);
        }
        let mut blocks = self.blocks.lock().unwrap();
        for (n, part) in buffer.chunks(IO_BLOCK).enumerate() {
            blocks.insert(offset / IO_BLOCK as u64 + n as u64, part.to_vec());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads of an open until the index was complete, and the calls that had to return before it did.
struct Opening {
    cache: Cache,
    figures: ThrottleFigures,
    calls_before: u64,
}

/// Opens the store, with nothing behind the superblocks readable until the open has returned: with
/// no patience, it waits only for reads that it cannot do without.
fn open(model: &Arc<Model>) -> Opening {
    let inner: Arc<dyn Device> = model.clone();
    let disk = ThrottleDevice::new(inner, DiskModel::HDD_7200, Pace::Modelled, 1);
    let disk = Arc::new(disk);
    model.front_calls.store(0, Ordering::Relaxed);
    model.calls_behind.store(0, Ordering::Relaxed);
    model.shut(true);
    let cache = Cache::open(Config {
        open_patience: Duration::ZERO,
        ..config(disk.clone(), model.form)
    })
    .unwrap();
    let calls_before = model.front_calls.load(Ordering::Relaxed);
    assert_eq!(model.calls_behind.load(Ordering::Relaxed), 0);
    assert_eq!(cache.health(), Health::Recovering);
    model.shut(false);
    // Answered by the writer thread, when it has recovered.
    assert!(cache.flush().wait());
    assert_eq!(cache.health(), Health::InService);
    Opening {
        cache,
        figures: disk.figures(),
        calls_before,
    }
}

fn config(device: Arc<dyn Device>, form: Form) -> Config {
    Config {
        policy: form.policy,
        grouped: form.grouped,
        memory_bytes: (128 << 20) + (gigabytes() << 20),
        // Only some names are looked up: how many of them are known depends on the secret.
        name_secret: Some([1; 16]),
        ..Config::on_device(device)
    }
}

/// Share of the records in the last lap that memory knows. If memory has no index, nothing has to
/// be known for an object to be found.
fn known(model: &Model, cache: &Cache) -> f64 {
    let log = model.log.lock().unwrap();
    let written = log.written.as_ref().unwrap();
    let (openings, segments) = (written.openings, written.geometry.segments);
    let (mut found, mut all, mut in_vain) = (0, 0, 0);
    for opening in openings - segments..openings {
        for record in (0..written.records()).step_by(197).filter(|n| n % 5 != 4) {
            all += 1;
            found += u32::from(cache.contains_hint(&Written::name(opening, record)));
            in_vain += u32::from(cache.contains_hint(&Written::name(opening, !record)));
        }
    }
    if model.form.policy.has_index() {
        assert!(
            f64::from(in_vain) < 0.08 * f64::from(all),
            "{in_vain} of {all}"
        );
    }
    f64::from(found) / f64::from(all)
}

/// For a full log with objects of the size for which the index is made.
fn known_at_least(policy: PolicyKind) -> f64 {
    match policy {
        PolicyKind::Log => 0.93,
        // One row.
        PolicyKind::LogLru => 0.84,
        // Objects that took a slot later have evicted the others: (1 - 1/e) of a lap are still
        // there.
        PolicyKind::SetMem => 0.6,
        PolicyKind::Basic | PolicyKind::Set | PolicyKind::SetMemLru => 1.0,
    }
}

impl PolicyKind {
    fn has_index(self) -> bool {
        matches!(self, Self::Log | Self::LogLru | Self::SetMem)
    }
}

#[test]
fn a_large_store_of_any_policy_is_known_again_by_reading_little() {
    let plain = PolicyKind::ALL.map(|policy| (policy, false));
    let grouped = [PolicyKind::Log, PolicyKind::LogLru].map(|policy| (policy, true));
    for (policy, grouped) in plain.into_iter().chain(grouped) {
        known_again(Form { policy, grouped });
    }
}

fn known_again(form: Form) {
    let gigabytes = gigabytes();
    let model = Arc::new(Model::new(gigabytes * GIGABYTE, form));
    // Create the store: that reads the whole blank device.
    Cache::open(config(model.clone(), form)).unwrap().close();
    let segments = model.openings(0);
    model.openings(segments);

    // Neither checkpoint can be read, which is the worst case: every list of the log.
    let scan = open(&model);
    let scanned = known(&model, &scan.cache);
    assert!(
        scanned >= known_at_least(form.policy),
        "{form:?}: {scanned}"
    );
    tell(form, "no checkpoint", &scan);
    scan.cache.close();

    let clean = open(&model);
    assert!(known(&model, &clean.cache) > scanned - 0.01);
    tell(form, "clean stop", &clean);
    little(&clean);
    clean.cache.close();

    // A checkpoint starts after this many segments and takes a tenth of the device time.
    let geometry = Geometry::from_superblock(&model.superblock()).unwrap();
    let meanwhile = 10 * geometry.checkpoint_bytes / u64::from(geometry.segment_bytes) + 1;
    let behind = (segments / 8).clamp(2, 200) + meanwhile;
    model.openings(segments + behind);
    model.kill();
    let killed = open(&model);
    let again = known(&model, &killed.cache);
    // Sets that the kill left unwritten are learned again over time.
    assert!(again > scanned - 0.03, "{form:?}: {again} of {scanned}");
    tell(form, "kill", &killed);
    little(&killed);
}

/// Less than 5 s at 100 MB/s for 100 GB, plus the seeks of a desktop disk, and hardly any read
/// before the open has returned.
fn little(opening: &Opening) {
    // The part that does not shrink with the store is at most 1 MB.
    let bar = gigabytes() * 5 * 1_000_000 + (1 << 20);
    let bytes = opening.figures.read_bytes + opening.figures.written_bytes;
    assert!(bytes < bar, "{:?}", opening.figures);
    assert!(opening.figures.busy < Duration::from_secs(5));
    // A seek and a turn each, 17 ms: far below a second.
    assert!(opening.calls_before <= 8, "{}", opening.calls_before);
}

fn tell(form: Form, what: &str, opening: &Opening) {
    let (calls, figures) = (opening.calls_before, opening.figures);
    println!("{form:?}, {what}: {calls} calls before, {figures:?}");
}
