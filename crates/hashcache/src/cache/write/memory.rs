//! Memory for writes: reserved from both the share for writes and the whole budget.
//!
//! Invariant: a refusal releases nothing of the whole budget, and names the budget that refused.
//! The writer then waits only for that budget.

use super::super::Cache;
use crate::memory::{Budget, Class, MemoryWait, Reservation, Reservations, Turn};
use crate::stripe::Stripe;

/// Memory that a pending record takes in addition to its bytes: 763 bytes were measured with a
/// 29-byte name and nothing else, including entries in maps and queues.
pub(super) const RECORD_OVERHEAD: usize = 768;

/// Reserves memory for a pending write, from the share for writes and from the whole budget.
pub(super) fn reserve(cache: &Cache, bytes: usize) -> Option<Reserved> {
    reserve_as(cache, Class::Small, bytes, None).ok()
}

/// As [`reserve`], for a head that takes `bytes` of memory, to which `content` bytes will be added.
///
/// In the Disk Table even an empty object costs a slot to write, and with `set` a set to read. So
/// there every object counts at least one slot in the share for writes: otherwise a burst of tiny
/// objects would queue up 70,000 reads and writes, which closing the store waits for.
pub(super) fn reserve_head(
    cache: &Cache,
    stripe: &Stripe,
    bytes: usize,
    content: u64,
) -> Option<Reserved> {
    let mut reserved = reserve(cache, bytes)?;
    let expected = (bytes as u64).saturating_add(content);
    let missing = stripe.medium.geometry.slot_bytes().saturating_sub(expected);
    if missing > 0 {
        let Some(more) = cache.write_budget().reserve(missing) else {
            cache.counters().puts_refused.add(1);
            return None;
        };
        if let Some(share) = &mut reserved.share {
            share.join(more);
        }
    }
    Some(reserved)
}

/// As [`reserve`], for content of `class`.
pub(super) fn reserve_as(
    cache: &Cache,
    class: Class,
    bytes: usize,
    waited: Option<&Refusal>,
) -> Result<Reserved, Refusal> {
    let share = take(cache.write_budget(), class, bytes, waited);
    let reserved = share.and_then(|share| {
        Ok(Reserved {
            whole: take(cache.budget(), class, bytes, waited)?,
            share: Some(share),
        })
    });
    if reserved.is_err() {
        cache.counters().puts_refused.add(1);
    }
    reserved
}

/// As [`reserve_as`], for content that is only passed on. The share for writes is not used: it is
/// for content that the disk will take, and may be spent just because the disk takes nothing.
pub(super) fn reserve_window(
    cache: &Cache,
    class: Class,
    bytes: usize,
    waited: Option<&Refusal>,
) -> Result<Reserved, Refusal> {
    Ok(Reserved {
        share: None,
        whole: take(cache.budget(), class, bytes, waited)?,
    })
}

/// Reserves from one budget. A caller that has waited for one budget is new to the other, where
/// other callers may be waiting.
fn take(
    budget: &Budget,
    class: Class,
    bytes: usize,
    waited: Option<&Refusal>,
) -> Result<Reservation, Refusal> {
    let turn = match waited {
        Some(refusal) if refusal.budget.is(budget) => Turn::Waited,
        _ => Turn::New,
    };
    let (bytes, releases) = (bytes as u64, budget.releases());
    let reservation = budget.reserve_in_turn(class, bytes, turn);
    reservation.ok_or_else(|| Refusal {
        budget: budget.clone(),
        releases,
        class,
        bytes,
    })
}

/// Memory reserved from both budgets.
pub(super) struct Reserved {
    pub(super) share: Option<Reservation>,
    pub(super) whole: Reservation,
}

impl Reserved {
    /// Splits off a part as a separate reservation.
    pub(super) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self {
            share: self.share.as_mut().map(|share| share.split(bytes)),
            whole: self.whole.split(bytes),
        }
    }
}

impl From<Reserved> for Reservations {
    fn from(reserved: Reserved) -> Self {
        reserved.share.into_iter().chain([reserved.whole]).collect()
    }
}

/// The budget that refused a reservation, and the refused number of bytes.
pub(super) struct Refusal {
    budget: Budget,
    /// Number of releases before the reservation was tried.
    releases: u64,
    class: Class,
    bytes: u64,
}

impl Refusal {
    /// Resolves when another attempt may succeed.
    pub(super) fn over(&self) -> MemoryWait {
        self.budget
            .room_since(self.releases, self.class, self.bytes)
    }
}
