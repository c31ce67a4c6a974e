//! State that all devices of a store share: secret, memory, hot objects, clock, and members.
//!
//! Made when a store is opened; held by `cache` and by each stripe.
//!
//! Invariant: every device reserves from the same budget.
//! Cost: none beyond the parts.

use std::io;
use std::sync::Arc;

use crate::clock::Clock;
use crate::key::Secret;
use crate::members::Members;
use crate::memory::{Budget, Hot, MemoryPressure, Process};
use crate::observers::Observers;
use crate::stats::Counters;

/// See the module's head.
pub(crate) struct Shared {
    pub(crate) secret: Secret,
    pub(crate) budget: Budget,
    /// The part of the budget that pending writes may take.
    pub(crate) write_budget: Budget,
    pub(crate) hot: Arc<Hot>,
    pub(crate) members: Members,
    pub(crate) clock: Clock,
    pub(crate) observers: Arc<Observers>,
    /// Counters for events that belong to no particular device.
    pub(crate) counters: Counters,
}

impl Shared {
    pub(crate) fn new(
        secret: Secret,
        budget: Budget,
        hot: Arc<Hot>,
        members: Members,
        clock: Clock,
    ) -> Self {
        Self {
            secret,
            // Bulk may take three quarters of this: half of the whole budget.
            write_budget: Budget::new(budget.limit() / 3 * 2),
            budget,
            hot,
            members,
            clock,
            observers: Arc::default(),
            counters: Counters::default(),
        }
    }

    /// Starts the thread that gives the memory of hot objects back to other processes.
    pub(crate) fn memory_pressure(&self, process: Process) -> io::Result<MemoryPressure> {
        let (limit, writes) = (self.budget.limit(), &self.write_budget);
        MemoryPressure::start(&self.hot, limit, writes, &self.clock, process)
    }

    /// Bytes of memory that are free or that hot objects can release.
    pub(crate) fn available_bytes(&self) -> u64 {
        let reclaimable = self.hot.reclaimable_bytes();
        let held = self.budget.used().saturating_sub(reclaimable);
        self.budget.reservable().saturating_sub(held)
    }
}
