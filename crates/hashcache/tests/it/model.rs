//! Random operations against a map: a look-up yields the last put, or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Rule, Updated, Version};

use super::support::{Form, KIB, MIB, Value, chosen, copy, open, quiet, read, rounds, seed};

/// What a name may yield: one value in a run, any of several after a kill.
#[derive(Default)]
struct Known {
    allowed: Vec<(Value, Version)>,
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
        // Some names come often, most seldom.
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
            440..449 => assert!(self.cache.flush().wait()),
            449 => {
                // One name in ten or hundred, or none: `name 1` is what a tenth begins with.
                let removed = self.cache.remove_matching(&[Rule::prefix(&name)]);
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
        let stored = value.store(&self.cache, name).or_else(|_| {
            assert!(self.cache.flush().wait());
            value.store(&self.cache, name)
        });
        let version = stored.expect("room after a flush");
        self.known.insert(
            name.to_vec(),
            Known {
                allowed: vec![(value, version)],
            },
        );
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
            Updated::Done => known.allowed = vec![(value, version)],
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
        self.cache = open(quiet(self.device.clone(), self.policy));
    }

    /// The rest of a run is told to what nobody looks at: the next one goes on from a copy. What
    /// was put and not flushed may be there or not, and an older value in its stead.
    fn kill(&mut self, history: &mut BTreeMap<Vec<u8>, Vec<(Value, Version)>>) {
        for (name, known) in &mut self.known {
            let older = history.entry(name.clone()).or_default();
            for value in &known.allowed {
                if !older.contains(value) {
                    older.push(*value);
                }
            }
            known.allowed.clone_from(older);
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
fn after_kills_a_look_up_yields_what_was_put_once_and_not_removed_since() {
    for policy in chosen() {
        for seed in (seed()..).take(4 * rounds() as usize) {
            let mut model = Model::new(policy, 100 + seed);
            // Every value a name had since it was last removed.
            let mut history: BTreeMap<Vec<u8>, Vec<(Value, Version)>> = BTreeMap::new();
            for step in 0..3_000 {
                model.step();
                history.retain(|name, _| model.known.contains_key(name));
                for (name, known) in &model.known {
                    if let [value] = known.allowed[..] {
                        let all = history.entry(name.clone()).or_default();
                        if all.last() != Some(&value) {
                            all.push(value);
                        }
                    }
                }
                if step % 200 == 199 {
                    model.kill(&mut history);
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
