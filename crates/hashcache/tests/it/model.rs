//! Random operations against a map: a lookup yields the last put, or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Ban, Cache, PutError, Updated, Version};

use super::support::{
    Form, KIB, LABELS, MIB, Value, chosen, copy, label, open, quiet, read, rounds, seed,
};

/// The values that a name may yield: one value in a run, any of several after a kill.
#[derive(Default)]
struct Known {
    allowed: Vec<(Value, Version)>,
    /// The values after a kill: the value at the last flush, and all values since.
    since_flush: Vec<(Value, Version)>,
}

impl Known {
    fn is_now(&mut self, value: (Value, Version)) {
        self.allowed = vec![value];
        self.since_flush.push(value);
    }
}

struct Model {
    policy: Form,
    random: fastrand::Rng,
    device: Arc<MemoryDevice>,
    cache: Cache,
    known: BTreeMap<Vec<u8>, Known>,
    puts: u64,
    hits: u64,
}

impl Model {
    fn new(policy: Form, seed: u64) -> Self {
        let device = Arc::new(MemoryDevice::new(16 * MIB));
        Self {
            policy,
            random: fastrand::Rng::with_seed(seed),
            cache: open(quiet(device.clone(), policy)),
            device,
            known: BTreeMap::new(),
            puts: 0,
            hits: 0,
        }
    }

    fn name(&mut self) -> Vec<u8> {
        // Some names are drawn often, most seldom.
        let range = [20, 300, 5_000][self.random.usize(..3)];
        format!("name {}", self.random.u32(..range)).into_bytes()
    }

    fn length(&mut self) -> usize {
        match self.random.u32(..100) {
            0..5 => 0,
            5..90 => self.random.usize(1..9_000),
            90..99 => self.random.usize(9_000..64 * KIB),
            _ => self.random.usize(64 * KIB..600 * KIB),
        }
    }

    fn step(&mut self) {
        let name = self.name();
        match self.random.u32(..1000) {
            0..350 => self.put(&name),
            350..400 => self.update(&name),
            400..440 => {
                let remove = self.cache.remove(&name);
                if self.random.bool() {
                    remove.wait().unwrap();
                    self.known.remove(&name);
                } else {
                    // In force in this run; a kill may undo it.
                    self.known.entry(name.clone()).or_default();
                    assert!(self.cache.get(&name).wait().is_none());
                    remove.wait().unwrap();
                    self.known.remove(&name);
                }
            }
            440..448 => {
                assert!(self.cache.flush().wait());
                self.all_is_durable();
            }
            448 => self.purge_label(),
            449 => {
                // One name in ten or hundred, or none: `name 1` is what a tenth begins with.
                let removed = self.cache.remove_matching(&[Ban::prefix(&name)]);
                assert!(self.cache.get(&name).wait().is_none());
                removed.wait().unwrap();
                self.known.retain(|other, _| !other.starts_with(&name));
            }
            _ => self.look(&name),
        }
    }

    fn put(&mut self, name: &[u8]) {
        self.puts += 1;
        let value = Value::new(self.puts, self.length());
        let stored = self.store(value, name).or_else(|_| {
            assert!(self.cache.flush().wait());
            self.store(value, name)
        });
        let version = stored.expect("room after a flush");
        let known = self.known.entry(name.to_vec()).or_default();
        known.is_now((value, version));
    }

    fn store(&self, value: Value, name: &[u8]) -> Result<Version, PutError> {
        value.store_with(&self.cache, name, value.labels(&self.cache))
    }

    /// A purge by a label that puts have, not names: a name is removed with its newest version.
    fn purge_label(&mut self) {
        let drawn = self.random.u64(..LABELS);
        let ban = Ban::label(label(&self.cache, drawn));
        self.cache.remove_matching(&[ban]).wait().unwrap();
        let is_purged = |it: &(Value, Version)| it.0.label() == Some(drawn);
        self.known.retain(|_, known| {
            // Which of several it is nobody knows: each that has the label is gone, and those that
            // are older than one that had it may be.
            known.allowed.retain(|it| !is_purged(it));
            known.since_flush.retain(|it| !is_purged(it));
            !known.allowed.is_empty()
        });
    }

    /// After a kill nothing older than what is known now may answer.
    fn all_is_durable(&mut self) {
        for known in self.known.values_mut() {
            known.since_flush.clone_from(&known.allowed);
        }
    }

    fn update(&mut self, name: &[u8]) {
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        let &[(value, version)] = &known.allowed[..] else {
            return;
        };
        let value = Value {
            revision: value.revision + 1,
            ..value
        };
        match self
            .cache
            .update_metadata(name, version, value.metadata())
            .wait()
        {
            Updated::Done => known.is_now((value, version)),
            Updated::Gone => {}
            Updated::Refused => assert!(self.cache.flush().wait()),
        }
    }

    fn look(&mut self, name: &[u8]) {
        let Some(hit) = self.cache.get(name).wait() else {
            return;
        };
        let version = hit.version();
        let Some(value) = read(&hit, name) else {
            return;
        };
        self.hits += 1;
        let allowed = self
            .known
            .get(name)
            .map_or(&[][..], |known| &known.allowed[..]);
        assert!(
            allowed.contains(&(value, version)),
            "{value:?}, not {allowed:?}"
        );
    }

    fn reopen(&mut self) {
        let closed = open(quiet(Arc::new(MemoryDevice::new(16 * MIB)), self.policy));
        std::mem::replace(&mut self.cache, closed).close();
        self.all_is_durable();
        self.cache = open(quiet(self.device.clone(), self.policy));
    }

    /// The rest of a run is told to what nobody looks at: the next one goes on from a copy. What
    /// was put and not flushed may be there or not, and in its stead what was put since the last
    /// flush or was there by then; nothing that is older.
    fn kill(&mut self) {
        for known in self.known.values_mut() {
            known.allowed.clone_from(&known.since_flush);
        }
        self.device = copy(self.device.to_bytes());
        self.cache = open(quiet(self.device.clone(), self.policy));
    }
}

#[test]
fn a_look_up_yields_the_last_put_or_nothing() {
    for policy in chosen() {
        let mut model = Model::new(policy, 1 + seed());
        for step in 0..100_000 * rounds() {
            model.step();
            if step % 15_000 == 14_999 {
                model.reopen();
            }
        }
        assert!(model.hits > 5_000, "{}", model.hits);
        assert!(model.cache.stats().damaged == 0);
    }
}

#[test]
fn after_kills_a_look_up_yields_nothing_older_than_at_the_last_flush() {
    for policy in chosen() {
        for seed in (seed()..).take(4 * rounds() as usize) {
            let mut model = Model::new(policy, 100 + seed);
            for step in 0..3_000 {
                model.step();
                if step % 200 == 199 {
                    model.kill();
                    let names: Vec<_> = model.known.keys().cloned().collect();
                    for name in names {
                        model.look(&name);
                    }
                }
            }
            assert!(model.hits > 1_000, "{}", model.hits);
        }
    }
}
