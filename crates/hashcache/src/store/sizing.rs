//! The least memory that a store needs, and the sizes of its buffers.
//!
//! Called by `device` and `store`, before anything is made or grows.

use crate::config::{Config, PolicyKind};
use crate::disk::circular_log::LogWriter;
use crate::disk::table;
use crate::error::OpenError;
use crate::format::{FOOTER_TAIL, IO_BLOCK, PART_BYTES, round_up};
use crate::geometry::{Geometry, IndexPolicy};
use crate::key::SHARDS;
use crate::writer::{BATCH_BYTES_MAX, BATCH_BYTES_MIN};

/// What is left for content, at the least, beside index and batch.
const CONTENT_BYTES_MIN: u64 = 4 << 20;
/// And for so many sets of the Disk Table: one is read whole for a lookup, and stays in memory
/// while a client reads what was found in it. With 1 MiB blocks that is 8 MiB each.
const CONTENT_SETS_MIN: u64 = 4;

/// Two batches of each device are at most this share of the memory, or there is one: so batches of
/// 4 MiB overlap from 128 MiB on, and the small ones of small segments in tests do.
const OVERLAP_SHARE: u64 = 16;

/// Whether the memory allowed is enough, also for the old indexes of what grows.
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
    // With more memory, batches are larger and overlap: the size that is named must be enough then
    // too.
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

/// The memory a store needs: for each device its index, a batch (two of them where they overlap,
/// and what is written between them), the footer and its list, a set, a checkpoint part and the
/// state of the log in it (and the part before, where rows are merged, and with readmission the
/// footer of the segment that is looked through); and room for content.
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
        let index = geometry.index(IndexPolicy::of(config));
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

/// What is left for content, at the least.
pub(crate) fn content_bytes_min<'a>(geometries: impl IntoIterator<Item = &'a Geometry>) -> u64 {
    let sets = geometries.into_iter().map(table::set_buffer_bytes);
    let largest = sets.max().unwrap_or(0) as u64;
    CONTENT_BYTES_MIN.max(largest.saturating_mul(CONTENT_SETS_MIN))
}

/// Memory for the index of the layout that a device had before it grew, with all its positions.
pub(crate) fn pre_growth_bytes(config: &Config, pre_growth: &Geometry) -> u64 {
    let index = pre_growth.index(IndexPolicy::of(config));
    let widened = index.widened_bytes().saturating_mul(SHARDS as u64);
    index.bytes().saturating_add(widened)
}

/// Whether a batch is put together while the one before is being written: with `log` alone, for
/// the other policies read or save something between two batches; and where two batches take little
/// of the memory, for what is being written stays there until it is. With 64 MiB and 64 downloads
/// at once, half of what came was not stored for want of that.
pub(crate) fn overlaps(config: &Config, geometry: &Geometry) -> bool {
    let devices = config.device_paths().len().max(1) as u64;
    let batches = 2 * devices * batch_bytes(config, geometry) as u64;
    let alone = config.policy == PolicyKind::Log && !config.readmission;
    alone && batches <= config.memory_bytes / OVERLAP_SHARE
}

/// The buffer of a writing thread: batches, and footers, which are encoded into it too.
pub(crate) fn buffer_bytes(config: &Config, geometry: &Geometry) -> usize {
    batch_bytes(config, geometry).max(footer_bytes_max(geometry))
}

/// The buffer for what is written between two batches that overlap: a footer, a checkpoint's part.
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
            // Indexes that leave the sum on either side of where batches begin to overlap.
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
