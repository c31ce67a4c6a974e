//! The ring of removes with random operations: whatever a power cut leaves of the last write, every
//! remove that was durable before, and that the superblock does not declare forgotten, is still in
//! the ring.

#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::device::Device;
use crate::device::hooked::{Call, Hooked};
use crate::key::KeyHash;
use crate::object::Version;
use crate::{Cache, Config};

/// A remove of the model.
struct Durable {
    removed: Removed,
    /// Serial of the last checkpoint that was started before the remove was written.
    begun: u64,
}

struct Model {
    device: Arc<Hooked>,
    /// Kept for its medium: it writes nothing.
    cache: Cache,
    journal: Journal,
    /// Offsets of the writes in the last call.
    written: Arc<Mutex<Vec<u64>>>,
    durable: Vec<Durable>,
    /// The value in the superblock.
    forgotten_below: u64,
    begun: u64,
    completed: u64,
    version: u64,
}

impl Model {
    fn new() -> Self {
        let device = Hooked::new(vec![0; 16 << 20]);
        let hour = Duration::from_secs(3600);
        let cache = Cache::open(Config {
            segment_bytes: Some(1 << 20),
            memory_bytes: 16 << 20,
            batch_delay: hour,
            sync_interval: hour,
            open_patience: hour,
            ..Config::on_device(Arc::clone(&device) as _)
        })
        .unwrap();
        let geometry = &cache.first_stripe().medium.geometry;
        let mut journal = Journal::new(geometry, 0);
        journal.read(&cache.first_stripe().medium, 0, 0, true);
        let written = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&written);
        device.watch(move |call| {
            if let Call::Write(at, length) = call {
                assert_eq!(length, JOURNAL_BLOCK);
                noted.lock().unwrap().push(at);
            }
        });
        Self {
            device,
            cache,
            journal,
            written,
            durable: Vec::new(),
            forgotten_below: 0,
            begun: 0,
            completed: 0,
            version: 1,
        }
    }

    /// Removes of other names, with newer versions than all before.
    fn removes(&mut self, count: usize) -> Vec<Removed> {
        let remove = |version| Removed {
            key: KeyHash {
                high: version,
                low: 0,
            },
            version: Version(version),
        };
        let first = self.version;
        self.version += count as u64;
        (first..self.version).map(remove).collect()
    }

    /// Writes `some` removes as the writer does, then syncs.
    fn write(&mut self, some: &[Removed]) {
        if let Some(below) = self.journal.forgets(some.len()) {
            while self.journal.needs_checkpoint(self.completed) {
                self.checkpoint();
            }
            self.forgotten_below = below;
            self.journal.forgot(below);
            for it in self
                .durable
                .iter()
                .filter(|it| it.removed.version.0 < below)
            {
                // Whichever of the last two checkpoints an open finds, it holds the remove.
                assert!(it.begun + 2 <= self.completed, "{:?}", it.removed);
            }
        }
        self.written.lock().unwrap().clear();
        let medium = &self.cache.first_stripe().medium;
        self.journal.write(medium, some).unwrap();
        self.check_after_a_power_cut();
        let begun = self.begun;
        let durable = some.iter().map(|removed| Durable {
            removed: *removed,
            begun,
        });
        self.durable.extend(durable);
        self.durable
            .retain(|it| it.removed.version.0 >= self.forgotten_below);
        self.check();
    }

    fn checkpoint(&mut self) {
        self.begun += 1;
        self.journal.checkpoint_began(self.begun);
        self.completed = self.begun;
    }

    /// Checks that a power cut which leaves garbage in the blocks of the last call loses no durable
    /// remove.
    fn check_after_a_power_cut(&self) {
        let written = std::mem::take(&mut *self.written.lock().unwrap());
        let mut whole = Vec::new();
        for at in written {
            let mut before = vec![0; JOURNAL_BLOCK];
            self.device.inner.read_at(at, &mut before).unwrap();
            self.device
                .inner
                .write_at(at, &[0xa5; JOURNAL_BLOCK])
                .unwrap();
            whole.push((at, before));
        }
        self.check();
        for (at, before) in whole.into_iter().rev() {
            self.device.inner.write_at(at, &before).unwrap();
        }
    }

    /// All removes that are durable and not declared forgotten are in the journal, and none is
    /// reported lost.
    fn check(&self) {
        let medium = &self.cache.first_stripe().medium;
        let mut opened = Journal::new(&medium.geometry, 0);
        let content = opened.read(medium, self.completed, self.forgotten_below, false);
        assert_eq!(content.lost, JournalLoss::default());
        let versions: BTreeSet<u64> = content.removed.iter().map(|it| it.version.0).collect();
        for it in &self.durable {
            let version = it.removed.version.0;
            let counts = version >= self.forgotten_below;
            assert!(
                !counts || versions.contains(&version),
                "{:?} is gone",
                it.removed
            );
        }
    }

    /// Opens the journal again; it continues behind the blocks that it has read.
    fn reopen(&mut self) {
        let medium = &self.cache.first_stripe().medium;
        self.journal = Journal::new(&medium.geometry, 0);
        self.journal
            .read(medium, self.completed, self.forgotten_below, false);
        self.begun = self.completed;
    }
}

#[test]
fn no_remove_that_was_durable_is_lost_by_a_write_that_a_power_cut_tears() {
    for (seed, many) in [(1, 0), (2, 30), (3, 500)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model::new();
        for _ in 0..200 {
            match random.u32(..100) {
                0..3 => model.reopen(),
                3..15 => model.checkpoint(),
                _ => {
                    let count = 1 + random.usize(..=many);
                    let removes = model.removes(count);
                    for some in removes.chunks(model.journal.removes_at_once()) {
                        model.write(some);
                    }
                }
            }
        }
        assert!(model.version > 150);
        model.device.watch_no_more();
    }
}
