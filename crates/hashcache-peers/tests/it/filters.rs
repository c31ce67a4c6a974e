//! Bloom filters: nothing is forgotten, and the share of false positives is the estimated one.

use fastrand::Rng;
use hashcache_peers::digest::{self, BLOCK_BYTES, ControlBlock};
use hashcache_peers::filter::{
    BITS_PER_ENTRY, Filter, SMALL_FILTER_BITS_PER_ENTRY, SQUID_BITS_PER_ENTRY, Size,
};
use hashcache_peers::key::Key;

use crate::support::{for_each_seed, mutate};

fn key(rng: &mut Rng) -> Key {
    Key::from_octets(rng.u128(..).to_be_bytes())
}

fn filter(rng: &mut Rng, size: Size, keys: u32) -> (Filter, Vec<Key>) {
    let mut filter = Filter::empty(size).unwrap();
    let keys: Vec<Key> = (0..keys).map(|_| key(rng)).collect();
    for key in &keys {
        filter.insert(key);
    }
    (filter, keys)
}

fn body(filter: &Filter) -> Vec<u8> {
    [&ControlBlock::from_filter(filter).octets(), filter.octets()].concat()
}

#[test]
fn a_filter_never_forgets_what_was_inserted() {
    for_each_seed(300, |rng| {
        let size = Size::new(rng.u32(1..2_000), rng.u8(1..=20)).unwrap();
        let count = rng.u32(..3_000);
        let (filter, keys) = filter(rng, size, count);
        assert!(keys.iter().all(|key| filter.contains(key)));
        assert_eq!(filter.entries(), count);

        let received = digest::parse(&body(&filter)).unwrap();
        assert!(keys.iter().all(|key| received.contains(key)));
        assert_eq!(received, filter);
    });
}

#[test]
fn the_measured_share_of_false_positives_is_the_estimated_one() {
    // At capacity 9.2 % with 5 bits an entry and 1.2 % with 10, 0.24 % with 16, and beyond it.
    let cases = [
        (SQUID_BITS_PER_ENTRY, 20_000, 0.092),
        (BITS_PER_ENTRY, 20_000, 0.012),
        (SMALL_FILTER_BITS_PER_ENTRY, 20_000, 0.002_4),
        (BITS_PER_ENTRY, 40_000, 0.092),
        (8, 5_000, 0.000_19),
    ];
    const PROBES: u32 = 400_000;
    for_each_seed(3, |rng| {
        for (bits_per_entry, inserted, expected) in cases {
            let size = Size::new(20_000, bits_per_entry).unwrap();
            let (filter, _) = filter(rng, size, inserted);
            let found = (0..PROBES).filter(|_| filter.contains(&key(rng))).count();
            let measured = f64::from(u32::try_from(found).unwrap()) / f64::from(PROBES);
            let estimate = filter.false_positive_share();
            // Five standard deviations of the measurement.
            let tolerance = 5.0 * (estimate * (1.0 - estimate) / f64::from(PROBES)).sqrt();
            assert!(
                (measured - estimate).abs() < tolerance,
                "{bits_per_entry} bits, {inserted} entries: {measured} ≠ {estimate} ± {tolerance}"
            );
            assert!((estimate / expected - 1.0).abs() < 0.05, "{estimate}");
        }
    });
}

#[test]
fn a_mutated_digest_is_refused_or_means_what_would_be_sent_for_it() {
    for_each_seed(20_000, |rng| {
        let size = Size::new(rng.u32(1..40), rng.u8(1..=10)).unwrap();
        let (filter, _) = filter(rng, size, 10);
        let mut body = body(&filter);
        mutate(rng, &mut body);
        let Ok(received) = digest::parse(&body) else {
            return;
        };
        let sent = self::body(&received);
        // Versions, deletions and what is reserved are not kept.
        let kept = [4..12, 16..22, BLOCK_BYTES..body.len()];
        for place in kept {
            assert_eq!(sent[place.clone()], body[place]);
        }
    });
}

/// A digest that Squid 5.7 served when it held 80 URLs: the fields of its control block, which
/// zeros follow, and its filter.
const SQUIDS_FIELDS: u128 = 0x0005_0003_0000_0084_0000_0050_0000_0000;
const SQUIDS_FIELDS_REST: u64 = 0x0000_0053_0504_0000;
const SQUIDS_FILTER: &str = "\
    46c83ea52c104126251e148104d06ea17072c562478870026a9256c8e86aa929\
    524516fb519741c440625084015c2486511c2823e49812000a3d929561a94657\
    802b90a0411494c7ec04b020c74bd960426e0a";

#[test]
fn the_digest_of_80_urls_is_octet_for_octet_squids() {
    let mut filter = Filter::empty(Size::new(132, SQUID_BITS_PER_ENTRY).unwrap()).unwrap();
    for n in 1..=40 {
        let host = "http://127.0.7.1:13976";
        filter.insert(&Key::of_get(format!("{host}/d/{n}.html").as_bytes()));
        filter.insert(&Key::of_get(format!("{host}/q?n={n}&x=%2f").as_bytes()));
    }
    let mut squids = SQUIDS_FIELDS.to_be_bytes().to_vec();
    squids.extend_from_slice(&SQUIDS_FIELDS_REST.to_be_bytes());
    squids.resize(BLOCK_BYTES, 0);
    squids.extend(
        (0..SQUIDS_FILTER.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&SQUIDS_FILTER[at..at + 2], 16).unwrap()),
    );
    assert_eq!(body(&filter), squids);
    assert_eq!(digest::parse(&squids).unwrap(), filter);
}
