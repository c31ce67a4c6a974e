//! Memory: one budget for everything, aligned buffers for the device, the index, the hot objects.
//!
//! Called by `cache`, `io`, `writer` and `policy`.
//!
//! Invariant: index + hot + pending + buffers + the bytes that readers hold never exceed the budget
//! that the operator has set (`--memory`).

mod budget;
mod buffer;
mod buffer_pool;
mod chunk;
mod heap;
mod hot;
mod huge_buffers;
mod index;
mod mapping;
mod pinned;
mod pressure;
mod recent_keys;
mod record_handle;
mod sharded_lock;
mod slab;
mod slab_streams;
mod stored;
mod system_memory;
mod uncounted;
mod wakes;

pub use budget::Reservation;
pub(crate) use budget::Reservations;
pub(crate) use budget::{Budget, Class, MemoryWait, Turn};
pub use buffer::AlignedBuf;
pub(crate) use buffer_pool::BufferPool;
pub(crate) use chunk::Chunk;
pub(crate) use hot::{Arrival, Copied, Hot};
pub(crate) use huge_buffers::HugeBuffers;
pub(crate) use index::IndexMemory;
pub(crate) use pinned::{Pinned, PinnedRecord};
pub(crate) use pressure::{MemoryPressure, Process};
pub(crate) use record_handle::RecordHandle;
pub(crate) use sharded_lock::{ReadLocked, ShardedLock, WriteLocked};
pub(crate) use uncounted::ProcessMemory;
pub(crate) use wakes::{Marked, marked, wake};
