//! Locks and atomics by which threads agree on what is found: those of the standard library, or
//! those of loom where `cargo xtask loom` tries every order of their steps (`models`).
//!
//! Used by `completion`, `members` (versions), `shard`, `stripe`, `disk/circular_log` and
//! `memory/sharded_lock`. Reference counts, the budget and the queue of the writing thread are not
//! among it.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
