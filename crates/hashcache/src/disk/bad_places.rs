//! Places on a device that could not be read, and the limits beyond which the device counts as
//! failed.
//!
//! Called by `medium` after each read, and by `writer`, which skips log segments in which reads
//! fail: new records there might be lost again.
//!
//! Invariant: a place counts once, however often it is read. So a bad sector loses the records on
//! it, and nothing else.
//! Cost: at most [`PLACES_MAX`] numbers; a good read takes no lock.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::geometry::Geometry;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A device with this many failed places in a row, with no good read between, is dead.
const IN_A_ROW_MAX: usize = 8;
/// A device with this many failed places in total, 64 MiB, is dying.
const PLACES_MAX: usize = 256;
/// Failed reads within the same stretch of this length count once: a bad track is a few stretches.
const PLACE_BYTES: u64 = 256 << 10;
/// At most 1/4 of the log segments are skipped, so that objects can still be stored.
const LEFT_OUT_SHARE: usize = 4;

/// See the module head.
#[derive(Default)]
pub(crate) struct BadPlaces {
    places: Mutex<Places>,
    /// True if `in_a_row` is not empty: most reads are good, and check this without the lock.
    any_in_a_row: AtomicBool,
}

#[derive(Default)]
struct Places {
    /// Offset of the first failed read in each place.
    all: Vec<u64>,
    /// As `all`, but only since the last good read.
    in_a_row: Vec<u64>,
}

impl BadPlaces {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a good read.
    pub(crate) fn good(&self) {
        if self.any_in_a_row.load(Ordering::Relaxed) {
            self.lock().in_a_row.clear();
            self.any_in_a_row.store(false, Ordering::Relaxed);
        }
    }

    /// Notes a failed read at device `offset`. Returns true if the device counts as failed.
    pub(crate) fn refused(&self, offset: u64) -> bool {
        let is_same_place = |other: &u64| other / PLACE_BYTES == offset / PLACE_BYTES;
        let mut places = self.lock();
        let Places { all, in_a_row } = &mut *places;
        for list in [&mut *all, &mut *in_a_row] {
            if !list.iter().any(is_same_place) && list.len() < PLACES_MAX {
                list.push(offset);
            }
        }
        self.any_in_a_row.store(true, Ordering::Relaxed);
        all.len() >= PLACES_MAX || in_a_row.len() >= IN_A_ROW_MAX
    }

    /// Returns true if the log must skip `segment`.
    pub(crate) fn leaves_out(&self, geometry: &Geometry, segment: u64) -> bool {
        let places = self.lock();
        let bad = places
            .all
            .iter()
            .filter_map(|offset| segment_of(geometry, *offset));
        let bad: BTreeSet<u64> = bad.collect();
        let most = usize::try_from(geometry.segments).unwrap_or(usize::MAX) / LEFT_OUT_SHARE;
        bad.contains(&segment) && bad.len() <= most
    }
}

/// The log segment at device `offset`.
fn segment_of(geometry: &Geometry, offset: u64) -> Option<u64> {
    let in_log = offset.checked_sub(geometry.log_offset)?;
    let segment = in_log / u64::from(geometry.segment_bytes);
    (segment < geometry.segments).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, PolicyKind};

    fn geometry() -> Geometry {
        let config = Config {
            policy: PolicyKind::Set,
            segment_bytes: Some(1 << 20),
            ..Config::new("x")
        };
        Geometry::plan(&config, 256 << 20).unwrap()
    }

    #[test]
    fn one_place_counts_once_however_often_it_is_read() {
        let (geometry, bad) = (geometry(), BadPlaces::default());
        for n in 0..1000 {
            assert!(!bad.refused(geometry.table_offset + n % 512));
            assert!(!bad.refused(geometry.log_offset + n));
        }
    }

    #[test]
    fn many_places_in_a_row_are_a_dead_device_and_good_reads_between_put_that_off() {
        let bad = BadPlaces::default();
        let at = |n: usize| 12_345 + n as u64 * PLACE_BYTES;
        for n in 0..IN_A_ROW_MAX - 1 {
            assert!(!bad.refused(at(n)));
        }
        bad.good();
        for n in 0..IN_A_ROW_MAX - 1 {
            assert!(!bad.refused(at(n)));
        }
        assert!(bad.refused(at(IN_A_ROW_MAX)));
        let bad = BadPlaces::default();
        for n in 0..PLACES_MAX - 1 {
            assert!(!bad.refused(at(n)), "{n}");
            bad.good();
        }
        assert!(bad.refused(at(PLACES_MAX)));
    }

    #[test]
    fn a_segment_where_reads_fail_is_left_out_unless_too_many_are() {
        let (geometry, bad) = (geometry(), BadPlaces::default());
        let refuse = |segment: u64| {
            let at = geometry.log_offset + segment * u64::from(geometry.segment_bytes);
            bad.refused(at + 4096);
            bad.good();
        };
        assert!(!bad.leaves_out(&geometry, 3));
        refuse(3);
        assert!(bad.leaves_out(&geometry, 3));
        assert!(!bad.leaves_out(&geometry, 4));
        (0..geometry.segments / LEFT_OUT_SHARE as u64 + 1).for_each(refuse);
        assert!(!bad.leaves_out(&geometry, 3));
    }
}
