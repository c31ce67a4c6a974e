//! Devices that join, leave, grow and are cut off in any order, against a model.
//!
//! The rule: as long as each run has a device of the last one that gave versions out, no name ever
//! answers with what was replaced or removed before a flush or remove that had returned, nor with
//! what was never put under it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Config, OpenError};

use super::devices::Joint;
use super::support::{Form, KIB, MIB, Value, chosen, copy, get, memory, quiet, rounds, seed};

const NAMES: usize = 40;
const DEVICES: usize = 4;

fn name(n: usize) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

/// The puts that are known for a name.
#[derive(Default)]
struct Known {
    /// All values that were ever put.
    put: HashSet<Value>,
    /// Nothing older may answer.
    oldest: u64,
    /// The last that was put or removed in this run, by its number.
    last: u64,
}

struct Attack {
    form: Form,
    random: fastrand::Rng,
    devices: Vec<Arc<MemoryDevice>>,
    names: Vec<Known>,
    /// Devices of the last run that gave out a version.
    last_run: Vec<usize>,
    steps: u64,
    answers: usize,
    seed: u64,
}

impl Attack {
    fn new(form: Form, seed: u64) -> Self {
        // Of different sizes: what a device can grow to.
        let devices = [20, 28, 36, 44].map(|mib| memory(mib * MIB));
        Self {
            form,
            random: fastrand::Rng::with_seed(seed),
            devices: devices.to_vec(),
            names: (0..NAMES).map(|_| Known::default()).collect(),
            last_run: Vec::new(),
            steps: 0,
            answers: 0,
            seed,
        }
    }

    fn present(&mut self) -> Vec<usize> {
        let mut present: Vec<usize> = (0..DEVICES).filter(|_| self.random.bool()).collect();
        if present.is_empty() || !present.iter().any(|n| self.last_run.contains(n)) {
            present.push(self.last_run.first().copied().unwrap_or(0));
        }
        present.sort_unstable();
        present.dedup();
        self.random.shuffle(&mut present);
        present
    }

    /// Opens what is present, with more room or not.
    fn open(&mut self, present: &[Arc<Joint>]) -> Cache {
        let mib = [16, 16, 24, 32, 44][self.random.usize(..5)];
        let config = |size_bytes| Config {
            devices: present
                .iter()
                .map(|it| Arc::clone(it) as Arc<dyn Device>)
                .collect(),
            size_bytes,
            memory_bytes: 32 * MIB as u64,
            ..quiet(present[0].clone(), self.form)
        };
        match Cache::open(config(Some((mib * MIB) as u64))) {
            // One alone does not shrink, and a Disk Table does not grow.
            Err(OpenError::Size { .. }) => Cache::open(config(None)),
            other => other,
        }
        .unwrap_or_else(|error| panic!("{:?}, seed {}: {error}", self.form, self.seed))
    }

    fn run(&mut self) {
        let present = self.present();
        let cut_off = self.random.bool();
        let left = if cut_off {
            self.random.u64(..120)
        } else {
            u64::MAX
        };
        let left = Arc::new(AtomicU64::new(left));
        let joint = |n: &usize| {
            Arc::new(Joint {
                inner: MemoryDevice::from_bytes(self.devices[*n].to_bytes()),
                left: Arc::clone(&left),
            })
        };
        let devices: Vec<_> = present.iter().map(joint).collect();
        let alive = || left.load(Ordering::Acquire) > 0;
        let cache = self.open(&devices);
        // Writes that did not arrive in earlier runs never will.
        self.names.iter_mut().for_each(|it| it.last = it.oldest);
        if alive() {
            self.last_run.clone_from(&present);
        }
        self.look(&cache);
        for _ in 0..self.random.usize(..60) {
            self.step(&cache, &alive);
        }
        self.look(&cache);
        if self.random.bool() {
            cache.close();
            self.settle(&alive);
        } else {
            // Killed: what is written from now on does not arrive.
            left.store(0, Ordering::Release);
            drop(cache);
        }
        for (n, device) in present.into_iter().zip(devices) {
            self.devices[n] = copy(device.inner.to_bytes());
        }
    }

    fn step(&mut self, cache: &Cache, alive: &dyn Fn() -> bool) {
        self.steps += 1;
        let n = self.random.usize(..NAMES);
        match self.random.u8(..10) {
            0..6 => {
                let length = [300, 5_000, 70 * KIB, 300 * KIB][self.random.usize(..4)];
                let value = Value::new(self.steps, length);
                if value.store(cache, &name(n)).is_ok() {
                    self.names[n].put.insert(value);
                    self.names[n].last = self.steps;
                }
            }
            6..8 => {
                let removed = cache.remove(&name(n)).wait().is_ok();
                self.names[n].last = self.steps;
                if removed && alive() {
                    self.names[n].oldest = self.steps;
                }
            }
            8 => {
                if cache.flush().wait() {
                    self.settle(alive);
                }
            }
            _ => self.look(cache),
        }
    }

    /// All that was done is on disk.
    fn settle(&mut self, alive: &dyn Fn() -> bool) {
        if alive() {
            self.names.iter_mut().for_each(|it| it.oldest = it.last);
        }
    }

    fn look(&mut self, cache: &Cache) {
        for (n, known) in self.names.iter().enumerate() {
            let Some(value) = get(cache, &name(n)) else {
                continue;
            };
            let (form, seed) = (self.form, self.seed);
            assert!(
                value.put >= known.oldest && known.put.contains(&value),
                "{form:?}, seed {seed}: {n} is {value:?}, nothing before {} may be",
                known.oldest
            );
            self.answers += 1;
        }
    }
}

#[test]
fn whatever_comes_goes_grows_and_ends_no_answer_is_old_or_foreign() {
    for form in chosen() {
        let mut answers = 0;
        for round in 0..rounds() {
            let mut attack = Attack::new(form, seed() + round);
            for _ in 0..8 {
                attack.run();
            }
            answers += attack.answers;
        }
        assert!(answers > 100, "{form:?}: {answers}");
    }
}
