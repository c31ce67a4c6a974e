//! Memory: one budget for everything, aligned buffers for the device, the index, the hot objects.
//!
//! Called by `cache`, `io`, `writer` and `policy`.
//!
//! Invariant: index + hot + pending + buffers + what readers hold never exceed the budget, which is
//! what the operator was told (`--memory`).

mod budget;
mod buffer;
mod buffer_pool;
mod chunk;
mod heap;
mod hot;
mod index;
mod kept;
mod mapping;
mod pinned;
mod pressure;
mod sharded_lock;
mod slab;
mod system_memory;
mod wakes;

pub use budget::Reservation;
pub(crate) use budget::{Budget, Class, Turn, Waiting};
pub use buffer::AlignedBuf;
pub(crate) use buffer_pool::Spares;
pub(crate) use chunk::Chunk;
pub(crate) use hot::{Copied, Hot};
pub(crate) use index::IndexMemory;
pub(crate) use kept::Kept;
pub(crate) use pinned::{Held, Stand};
pub(crate) use pressure::Keeper;
pub(crate) use sharded_lock::{ReadLocked, WideLocks, WriteLocked};
pub(crate) use wakes::{Marked, marked, wake};
