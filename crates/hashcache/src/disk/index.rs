//! The index of a device: its shards, the shape of their rows, and the checkpoint that holds the
//! rows on disk.
//!
//! Called by `stripe` for every lookup and put, and by `checkpoint` to save and load the rows.
//!
//! Invariant: a shard in which a thread panicked is not trusted any more: the device is taken out
//! of service.
//! Cost: a lock in one lane to read a shard, a lock in every lane to change it.

use std::sync::{Arc, RwLock};

use super::DeviceHealth;
use crate::geometry::{IndexId, IndexShape};
use crate::key::{KeyHash, SHARDS};
use crate::memory::{ReadLocked, ShardedLock, WriteLocked};
use crate::shard::Shard;

/// Identifies a checkpoint: the serial, which determines the place on disk, and the version that
/// was drawn when the checkpoint started, which is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointId {
    pub(crate) serial: u64,
    pub(crate) begun: u64,
}

/// The published checkpoint: readers look for rows there.
#[derive(Default)]
pub(crate) struct IndexFile {
    checkpoint_id: RwLock<Option<CheckpointId>>,
}

impl IndexFile {
    pub(crate) fn checkpoint_id(&self) -> Option<CheckpointId> {
        *self
            .checkpoint_id
            .read()
            .expect("no holder of this lock panics")
    }

    /// Publishes a checkpoint; `None`: there are no rows on disk.
    pub(crate) fn publish(&self, checkpoint_id: Option<CheckpointId>) {
        *self
            .checkpoint_id
            .write()
            .expect("no holder of this lock panics") = checkpoint_id;
    }
}

/// See the module head.
pub(crate) struct Index {
    pub(crate) shape: IndexShape,
    pub(crate) id: IndexId,
    /// The checkpoint that holds the rows on disk.
    pub(crate) file: IndexFile,
    shards: ShardedLock<Shard, SHARDS>,
    health: Arc<DeviceHealth>,
}

impl Index {
    pub(crate) fn new(
        shape: IndexShape,
        id: IndexId,
        shards: Vec<Shard>,
        health: Arc<DeviceHealth>,
    ) -> Self {
        Self {
            shape,
            id,
            file: IndexFile::default(),
            shards: ShardedLock::new(shards),
            health,
        }
    }

    /// Locks the shard of `key` for writing. Costs a lock for each lane.
    pub(crate) fn shard(&self, key: KeyHash) -> WriteLocked<'_, Shard> {
        self.shard_at(key.shard())
    }

    pub(crate) fn shard_at(&self, n: usize) -> WriteLocked<'_, Shard> {
        let (shard, is_broken) = self.shards.write_anyway(n);
        if is_broken {
            self.fail_broken();
        }
        shard
    }

    /// A thread has panicked while it changed a shard: the shard may be wrong, so the device is
    /// taken out of service. Otherwise callers could wait for an answer that would never arrive.
    #[cold]
    fn fail_broken(&self) {
        self.health.fail(
            "a panic",
            &std::io::Error::other("an index is half changed"),
        );
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = WriteLocked<'_, Shard>> {
        (0..SHARDS).map(|n| self.shard_at(n))
    }

    /// Locks the shard of `key` for reading. Several readers can hold it at the same time.
    pub(crate) fn view(&self, key: KeyHash) -> ReadLocked<'_, Shard> {
        self.view_at(key.shard())
    }

    pub(crate) fn view_at(&self, n: usize) -> ReadLocked<'_, Shard> {
        let (shard, is_broken) = self.shards.read_anyway(n);
        if is_broken {
            self.fail_broken();
        }
        shard
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = ReadLocked<'_, Shard>> {
        (0..SHARDS).map(|n| self.view_at(n))
    }
}
