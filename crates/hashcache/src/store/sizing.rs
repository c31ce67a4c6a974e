//! The minimum memory for a store, and the sizes of its buffers.
//!
//! Called by `device` and `store`, before anything is created or grows.

use crate::config::{Config, PolicyKind};
use crate::disk::circular_log::LogWriter;
use crate::disk::table;
use crate::error::OpenError;
use crate::format::{FOOTER_TAIL, IO_BLOCK, PART_BYTES, round_up};
use crate::geometry::{Geometry, IndexPolicy};
use crate::key::SHARDS;
use crate::writer::{BATCH_BYTES_MAX, BATCH_BYTES_MIN};

/// Minimum memory for content, beside index and batch.
const CONTENT_BYTES_MIN: u64 = 4 << 20;
/// Minimum memory for content, in sets of the Disk Table: a lookup reads a whole set, and the set
/// stays in memory while a client reads the object. With 1 MiB blocks a set has 8 MiB.
const CONTENT_SETS_MIN: u64 = 4;

/// Two batches for each device together take at most 1/16 of the memory, otherwise each device has
/// a single batch: so 4 MiB batches overlap from 128 MiB on, and so do the small batches of the
/// small segments in tests.
const OVERLAP_SHARE: u64 = 16;

/// Returns an error if the configured memory is not enough, including the old indexes of devices
/// that grow.
pub(crate) fn enough<'a>(
    config: &Config,
    geometries: impl IntoIterator<Item = &'a Geometry> + Clone,
    pre_growth: impl IntoIterator<Item = &'a Geometry>,
) -> Result<(), OpenError> {
    let memory_bytes = config.memory_bytes;
    let pre_growth = pre_growth
        .into_iter()
        .map(|it| pre_growth_bytes(config, it));
    let pre_growth = pre_growth.fold(0, u64::saturating_add);
    let needed_with = |memory_bytes| {
        let config = Config {
            memory_bytes,
            ..config.clone()
        };
        memory_needed(&config, geometries.clone()).saturating_add(pre_growth)
    };
    let mut needed_bytes = needed_with(memory_bytes);
    if memory_bytes >= needed_bytes {
        return Ok(());
    }
    // With more memory, batches are larger and overlap: the size in the error must be enough for
    // that, too.
    loop {
        let with_that = needed_with(needed_bytes);
        if with_that <= needed_bytes {
            break;
        }
        needed_bytes = with_that;
    }
    Err(OpenError::Memory {
        memory_bytes,
        needed_bytes,
    })
}

/// The memory that a store needs: for each device the index, a batch (two batches if they overlap,
/// and the buffer for writes between them), the footer and the list in it, a set, a checkpoint part
/// and the log state in it (also the previous part if rows are merged, and with readmission the
/// footer of the segment that is searched); plus room for content.
pub(crate) fn memory_needed<'a>(
    config: &Config,
    geometries: impl IntoIterator<Item = &'a Geometry> + Clone,
) -> u64 {
    let of = |geometry: &Geometry| {
        let batch = buffer_bytes(config, geometry) as u64;
        let buffer = if overlaps(config, geometry) {
            2 * batch + side_buffer_bytes(geometry) as u64
        } else {
            batch
        };
        let index = geometry.index(IndexPolicy::from_config(config));
        let parts = if index.stays_on_disk() { 3 } else { 2 };
        index
            .bytes()
            .saturating_add(buffer + LogWriter::list_bytes_max(geometry))
            .saturating_add(table::set_buffer_bytes(geometry) as u64)
            .saturating_add(parts * PART_BYTES as u64 + geometry.segments * 16)
            .saturating_add(if config.readmission {
                footer_bytes_max(geometry) as u64
            } else {
                0
            })
    };
    let devices = geometries.clone().into_iter().map(of);
    devices.fold(content_bytes_min(geometries), u64::saturating_add)
}

/// Minimum memory for content.
pub(crate) fn content_bytes_min<'a>(geometries: impl IntoIterator<Item = &'a Geometry>) -> u64 {
    let sets = geometries.into_iter().map(table::set_buffer_bytes);
    let largest = sets.max().unwrap_or(0) as u64;
    CONTENT_BYTES_MIN.max(largest.saturating_mul(CONTENT_SETS_MIN))
}

/// Memory for the index of the layout before a device grew, with all positions.
pub(crate) fn pre_growth_bytes(config: &Config, pre_growth: &Geometry) -> u64 {
    let index = pre_growth.index(IndexPolicy::from_config(config));
    let widened = index.widened_bytes().saturating_mul(SHARDS as u64);
    index.bytes().saturating_add(widened)
}

/// Returns true if a batch is built while the previous batch is being written. Only with `log`,
/// because the other policies read or save data between two batches; and only if two batches take
/// little of the memory, because the data being written stays in memory until the write is done.
/// With 64 MiB and 64 downloads at once, half of the received content was not stored because that
/// memory was missing.
pub(crate) fn overlaps(config: &Config, geometry: &Geometry) -> bool {
    let devices = config.device_paths().len().max(1) as u64;
    let batches = 2 * devices * batch_bytes(config, geometry) as u64;
    let alone = config.policy == PolicyKind::Log && !config.readmission;
    alone && batches <= config.memory_bytes / OVERLAP_SHARE
}

/// Buffer size for a writer thread: batches, and footers, which are also encoded in it.
pub(crate) fn buffer_bytes(config: &Config, geometry: &Geometry) -> usize {
    batch_bytes(config, geometry).max(footer_bytes_max(geometry))
}

/// Buffer size for writes between two batches that overlap: a footer, a checkpoint part.
pub(crate) fn side_buffer_bytes(geometry: &Geometry) -> usize {
    footer_bytes_max(geometry).max(PART_BYTES)
}

/// Most bytes in a batch.
pub(crate) fn batch_bytes(config: &Config, geometry: &Geometry) -> usize {
    let devices = config.device_paths().len().max(1) as u64;
    let by_memory = usize::try_from(config.memory_bytes / 16 / devices).unwrap_or(usize::MAX);
    let by_segment = geometry.segment_bytes as usize / 2;
    let bytes = by_memory
        .clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX)
        .min(by_segment);
    bytes / IO_BLOCK * IO_BLOCK
}

fn footer_bytes_max(geometry: &Geometry) -> usize {
    let lines = usize::try_from(LogWriter::list_bytes_max(geometry)).unwrap_or(usize::MAX);
    round_up(lines + FOOTER_TAIL, IO_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_named_as_needed_is_enough_whether_batches_overlap_or_not() {
        let mut were_refused = 0;
        for policy in PolicyKind::ALL {
            // Index sizes with a sum on either side of the limit from which batches overlap.
            for size in (1..40).map(|n| n * (2 << 30)) {
                let with = |memory_bytes| Config {
                    policy,
                    memory_bytes,
                    ..Config::new("x")
                };
                let geometry = Geometry::plan(&with(64 << 20), size).unwrap();
                for memory in (8..200).map(|n| n << 20) {
                    let Err(error) = enough(&with(memory), [&geometry], []) else {
                        continue;
                    };
                    let OpenError::Memory { needed_bytes, .. } = error else {
                        panic!("{error}")
                    };
                    assert!(needed_bytes > memory);
                    enough(&with(needed_bytes), [&geometry], []).unwrap();
                    were_refused += 1;
                }
            }
        }
        assert!(were_refused > 1_000, "{were_refused}");
    }
}
