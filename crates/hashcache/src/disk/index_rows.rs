//! The index file: rows of the published checkpoint, for policies that keep a part of their index
//! on disk.
//!
//! It is the checkpoint itself. The pass that writes a checkpoint merges the rows of the one
//! before, in their order, so the file costs no write of its own. Each row has a checksum behind
//! it, so that it can be read without the others.
//!
//! Called by `stripe` when a position lies on disk, by `checkpoint` and `writer` when one is
//! written.
//!
//! Invariant: a row of another checkpoint, of another place, or damaged, is not returned. A new
//! checkpoint is published before any shard drops the positions that it took in. So a reader that
//! finds the same checkpoint published *after* its read has a row that the shard still relies on.
//! Cost: one read of 51 bytes (grouped 56), widened to what the device reads at once.

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

/// The pieces of shards that a part of rows is made of.
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

/// Where the checkpoint of this serial lies.
pub(crate) fn area(geometry: &Geometry, serial: u64) -> u64 {
    geometry.checkpoint_offset + (serial % 2) * geometry.checkpoint_bytes
}

/// What stands behind a row.
fn check(medium: &Medium, checkpoint_id: CheckpointId, row: u64, bytes: &[u8]) -> [u8; ROW_CHECK] {
    let device = u64::from(medium.device_id);
    let place = [checkpoint_id.serial, checkpoint_id.begun, device, row].map(u64::to_le_bytes);
    let mac = medium.secret.mac(&[b"row", place.as_flattened(), bytes]);
    let mut check = [0; ROW_CHECK];
    check.copy_from_slice(&mac.to_le_bytes()[..ROW_CHECK]);
    check
}

/// Where a row of all shards' rows lies on the device.
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

/// The row `row` of all shards' rows; `None` when it cannot be read or is not of this checkpoint.
/// `read` reads so many bytes at an offset, with or without waiting for memory.
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
    // Once another checkpoint is published, the one after it is written over this one.
    if !is_genuine && index.file.checkpoint_id() == Some(checkpoint_id) {
        medium.counters.damaged.add(1);
    }
    is_genuine.then(|| bytes.to_vec())
}

/// The body of a part that is saved for `checkpoint_id`; `old`: that of the published checkpoint,
/// empty if there is none. Holds the lock of a shard for a row at a time.
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

/// Appends a row and its check to the body of a part; `old`: the row in the published checkpoint.
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
