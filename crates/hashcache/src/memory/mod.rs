//! Memory: one budget for everything, aligned buffers for the device, the index, the hot objects.
//!
//! Called by `cache`, `io`, `flush` and `policy`.
//!
//! Invariant: index + hot + pending + buffers + what readers hold never exceed the budget, which is
//! what the operator was told (`--memory`).

mod budget;
mod buffer;
mod chunk;
mod heap;
mod hot;
mod index;
mod keeper;
mod mapping;
mod shelf;
mod slab;
mod spares;
mod surroundings;
mod wakes;
mod wide_lock;

pub use budget::Reservation;
pub(crate) use budget::{Budget, Class, Turn, Waiting};
pub use buffer::AlignedBuf;
pub(crate) use chunk::Chunk;
pub(crate) use hot::{Copied, Hot};
pub(crate) use index::IndexMemory;
pub(crate) use keeper::Keeper;
pub(crate) use shelf::{Held, Stand};
pub(crate) use spares::Spares;
pub(crate) use wakes::{Marked, marked, wake};
pub(crate) use wide_lock::{ReadLocked, WideLocks, WriteLocked};
