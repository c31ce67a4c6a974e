//! The index file: rows in the published checkpoint, for policies that keep a part of their index
//! on disk.
//!
//! The index file is the checkpoint. The pass that writes a checkpoint merges the rows from the
//! previous checkpoint, in their order, so the file needs no extra write. Each row is followed by a
//! checksum, so that a row can be read separately.
//!
//! Called by `stripe` when a position is on disk, and by `checkpoint` and `writer` when rows are
//! written.
//!
//! Invariant: a row from another checkpoint, from another place, or a damaged row is not returned.
//! A new checkpoint is published before any shard drops the positions that were saved in it. So a
//! reader that finds the same checkpoint published *after* the read has a row on which the shard
//! still relies.
//! Cost: a read of 51 bytes (grouped 56), widened to the device's read size.

use bytes::Bytes;

use super::index::CheckpointId;
use super::{Index, Medium};
use crate::format::{PART_BODY, PART_BYTES, PART_HEADER, ROW_CHECK};
use crate::geometry::{Geometry, IndexShape, meta_parts};

/// Rows `first` to `last` of a shard.
#[derive(Clone, Copy)]
pub(crate) struct RowRange {
    pub(crate) shard: usize,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// The row ranges in a part, shard by shard.
pub(crate) fn pieces(index: &IndexShape, part: u64) -> impl Iterator<Item = RowRange> + use<> {
    let rows = u64::from(index.shard_rows).max(1);
    let from = part * index.rows_per_part();
    let to = (from + index.rows_per_part()).min(index.rows());
    (from / rows..to.div_ceil(rows)).map(move |shard| {
        let narrow = |row: u64| u32::try_from(row).unwrap_or(u32::MAX);
        let first = from.saturating_sub(shard * rows);
        let last = (to - shard * rows).min(rows);
        RowRange {
            shard: usize::try_from(shard).unwrap_or(usize::MAX),
            first: narrow(first),
            last: narrow(last),
        }
    })
}

/// Offset of the checkpoint with this serial.
pub(crate) fn area(geometry: &Geometry, serial: u64) -> u64 {
    geometry.checkpoint_offset + (serial % 2) * geometry.checkpoint_bytes
}

/// The checksum behind a row.
fn check(medium: &Medium, checkpoint_id: CheckpointId, row: u64, bytes: &[u8]) -> [u8; ROW_CHECK] {
    let device = u64::from(medium.device_id);
    let place = [checkpoint_id.serial, checkpoint_id.begun, device, row].map(u64::to_le_bytes);
    let mac = medium.secret.mac(&[b"row", place.as_flattened(), bytes]);
    let mut check = [0; ROW_CHECK];
    check.copy_from_slice(&mac.to_le_bytes()[..ROW_CHECK]);
    check
}

/// Device offset of a row, numbered across all shards.
pub(crate) fn row_offset(
    medium: &Medium,
    index: &Index,
    checkpoint_id: CheckpointId,
    row: u64,
) -> u64 {
    let per_part = index.shape.rows_per_part();
    let part = meta_parts(medium.geometry.segments) + row / per_part;
    let within = row % per_part * index.shape.saved_row_bytes() as u64;
    area(&medium.geometry, checkpoint_id.serial)
        + part * PART_BYTES as u64
        + PART_HEADER as u64
        + within
}

/// Reads the row `row`, numbered across all shards; `None` if it cannot be read or does not belong
/// to this checkpoint. `read` reads bytes at an offset, with or without waiting for memory.
pub(crate) fn read_row(
    medium: &Medium,
    index: &Index,
    checkpoint_id: CheckpointId,
    row: u64,
    read: impl FnOnce(&Medium, u64, usize) -> Option<Bytes>,
) -> Option<Vec<u8>> {
    let stored = index.shape.saved_row_bytes();
    let bytes = read(
        medium,
        row_offset(medium, index, checkpoint_id, row),
        stored,
    )?;
    let (bytes, found) = bytes.get(..stored)?.split_at(index.shape.row_bytes);
    let is_genuine = found == check(medium, checkpoint_id, row, bytes);
    // After another checkpoint is published, the next checkpoint overwrites this one: then a
    // mismatch is no damage.
    if !is_genuine && index.file.checkpoint_id() == Some(checkpoint_id) {
        medium.counters.damaged.add(1);
    }
    is_genuine.then(|| bytes.to_vec())
}

/// Builds a part body for `checkpoint_id`; `old`: the body of this part in the published
/// checkpoint, empty if there is none. Holds a shard lock for a single row at a time.
pub(crate) fn rows_body(
    medium: &Medium,
    index: &Index,
    pieces: impl Iterator<Item = RowRange>,
    checkpoint_id: CheckpointId,
    old: &[u8],
) -> Vec<u8> {
    let mut body = Vec::with_capacity(PART_BODY);
    let mut old = old.chunks_exact(index.shape.saved_row_bytes());
    for piece in pieces {
        for row in piece.first..piece.last {
            let old = old
                .next()
                .map_or(&[][..], |row| &row[..index.shape.row_bytes]);
            save_row(
                medium,
                index,
                piece.shard,
                row,
                checkpoint_id,
                old,
                &mut body,
            );
        }
    }
    body
}

/// Appends a row and the checksum to a part body; `old`: the row in the published checkpoint.
pub(crate) fn save_row(
    medium: &Medium,
    index: &Index,
    shard: usize,
    row: u32,
    checkpoint_id: CheckpointId,
    old: &[u8],
    body: &mut Vec<u8>,
) {
    let from = body.len();
    index.shard_at(shard).policy.save(row..row + 1, old, body);
    let number = index.shape.row_number(shard, row);
    let check = check(medium, checkpoint_id, number, &body[from..]);
    body.extend_from_slice(&check);
}
