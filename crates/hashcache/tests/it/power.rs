//! Power cuts: of what was not synced, any sector may be lost.

use std::collections::HashMap;
use std::sync::Arc;

use hashcache::device::{FaultDevice, MemoryDevice};
use hashcache::{Ban, PolicyKind, Updated, Version};

use super::support::{
    Form, KIB, LABELS, MIB, Value, copy, forms, label, open, quiet, read, rounds,
};

const LENGTHS: [usize; 6] = [0, 500, 7_000, 20_000, 65 * KIB, 330 * KIB];

/// What is known of a name: what may answer, which is what was put since it was last removed or
/// flushed, and what was flushed then; and what must be there.
#[derive(Default)]
struct Known {
    committed: Vec<(Value, Version)>,
    /// Put, and a flush has returned since, with nothing after.
    durable: Option<Value>,
    last: Option<(Value, Version)>,
}

/// Runs a workload up to a cut; returns what is left and what is known.
fn run(policy: Form, seed: u64) -> (Vec<u8>, HashMap<Vec<u8>, Known>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let device = Arc::new(FaultDevice::with_volatile_cache(MemoryDevice::new(
        16 * MIB,
    )));
    let cache = open(quiet(device.clone(), policy));
    let mut known: HashMap<Vec<u8>, Known> = HashMap::new();
    let steps = random.u64(1..120);
    let mut flushing = None;
    for step in 0..steps {
        let name = format!("name {}", random.u32(..20)).into_bytes();
        let of_name = known.entry(name.clone()).or_default();
        match random.u32(..100) {
            0..60 => {
                let value = Value::new(step, LENGTHS[random.usize(..LENGTHS.len())]);
                let Ok(version) = value.store_with(&cache, &name, value.labels(&cache)) else {
                    continue;
                };
                of_name.committed.push((value, version));
                of_name.last = Some((value, version));
                of_name.durable = None;
            }
            60..72 => {
                let Some((value, version)) = of_name.last else {
                    continue;
                };
                let value = Value {
                    revision: value.revision + 1,
                    ..value
                };
                let updated = cache
                    .update_metadata(&name, version, value.metadata())
                    .wait();
                if updated == Updated::Done {
                    of_name.committed.push((value, version));
                    of_name.last = Some((value, version));
                    of_name.durable = None;
                }
            }
            72..80 => {
                cache.remove(&name).wait().unwrap();
                *of_name = Known::default();
            }
            80 => {
                // By a label, which puts have and not names: with the newest version all go.
                let drawn = random.u64(..LABELS);
                cache
                    .remove_matching(&[Ban::label(label(&cache, drawn))])
                    .wait()
                    .unwrap();
                let is_purged = |it: &(Value, Version)| it.0.label() == Some(drawn);
                for known in known.values_mut() {
                    if known.last.as_ref().is_some_and(is_purged) {
                        *known = Known::default();
                    }
                    known.committed.retain(|it| !is_purged(it));
                }
            }
            81 => {
                cache.remove_matching(&[Ban::prefix(&name)]).wait().unwrap();
                for (other, known) in &mut known {
                    if other.starts_with(&name) {
                        *known = Known::default();
                    }
                }
            }
            82..90 => {
                // Not waited for: the cut may happen in the middle of it.
                flushing = Some(cache.flush());
            }
            _ => {
                assert!(cache.flush().wait());
                for of_name in known.values_mut() {
                    of_name.durable = of_name.last.map(|(value, _)| value);
                    // Nothing that was replaced before may answer.
                    of_name.committed = of_name.last.into_iter().collect();
                }
            }
        }
    }
    let share = random.f64();
    device.cut_power(|| random.f64() < share);
    drop((flushing, cache));
    (device.media(), known)
}

#[test]
fn a_power_cut_loses_what_was_not_synced_and_nothing_is_ever_wrong() {
    for policy in forms() {
        let (mut durable, mut lost) = (0, 0);
        for seed in 0..200 * rounds() {
            let (bytes, known) = run(policy, seed);
            let cache = open(quiet(copy(bytes), policy));
            for (name, known) in &known {
                let hit = cache.get(name).wait();
                let version = hit.as_ref().map(hashcache::Hit::version);
                let found = hit.and_then(|hit| read(&hit, name)).zip(version);
                if let Some(found) = found {
                    assert!(
                        known.committed.contains(&found),
                        "{policy:?} seed {seed}: {found:?} was never committed, or was removed"
                    );
                }
                if let Some(value) = known.durable {
                    durable += 1;
                    if found.map(|(found, _)| found) != Some(value) {
                        lost += 1;
                    }
                }
            }
        }
        assert!(durable > 500, "{durable}");
        // The log of 16 MiB does not wrap in 120 steps, so what is lost was evicted by a neighbour.
        // With `basic` that is any name with the same place. `set-mem` takes two records of one of
        // the 64 sets for each other when 8 bits of their hashes are equal: heads, and spans, of
        // which those of older versions stay. That loses two or three objects of about 1,650 in a
        // run; CI has seen 9. The others tell all names apart.
        let rare = match policy.policy {
            PolicyKind::Basic => 20,
            PolicyKind::SetMem | PolicyKind::SetMemLru => 100,
            _ => 500,
        };
        assert!(
            lost * rare <= durable,
            "{policy:?}: {lost} of {durable} lost though synced"
        );
    }
}
