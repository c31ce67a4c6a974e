//! The locks and atomics that decide which record a lookup finds: those in the standard library, or
//! those in loom when `cargo xtask loom` tries every order of their steps (`models`).
//!
//! Used by `completion`, `members` (versions), `shard`, `stripe`, `disk/circular_log` and
//! `memory/sharded_lock`. Reference counts, the budget and the queue of the writer always use the
//! standard library.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
