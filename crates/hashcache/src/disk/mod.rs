//! A single device: its reads and writes ([`Medium`]), its health ([`DeviceHealth`]), its index
//! ([`Index`]), and the areas on it.
//!
//! Called by `stripe`, `writer` and `store`, and does not import them.

mod bad_places;
pub(crate) mod checkpoint;
pub(crate) mod circular_log;
mod health;
mod index;
pub(crate) mod index_rows;
pub(crate) mod journal;
mod medium;
mod segment;
mod segment_lists;
mod superblock;
pub(crate) mod table;

pub(crate) use health::DeviceHealth;
pub(crate) use index::Index;
pub(crate) use medium::{FIRST_READ, Medium, MediumParts, Read};
pub(crate) use segment::{LastOpening, Look, Segment, first_header, last_opening};
pub(crate) use segment_lists::{ListMemory, PieceEnd, SegmentLists};
pub(crate) use superblock::write_superblock;
