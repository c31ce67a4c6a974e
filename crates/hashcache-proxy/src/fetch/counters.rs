//! Values that a fetch shares with the response to the client: received bytes, and trailers.
//!
//! Written by `fetch` and by the bodies of `hashcache-upstream`, read by `request` for the log
//! entry. Both run on the same core, so no lock is needed.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use hashcache_access::quota::RequestLimits;
use http::HeaderMap;

use hashcache_link::usage::LinkUsage;

/// Bytes received from upstream for a request, counted as they arrive.
pub(crate) type ByteCount = Rc<Received>;

/// Counters for the bytes received for a request.
#[derive(Debug, Default)]
pub(crate) struct Received {
    bytes: Cell<u64>,
    /// Limits to which the bytes are charged.
    limits: OnceCell<RequestLimits>,
    /// True if the bytes that arrive now did not use the line.
    is_free: Cell<bool>,
    link: Cell<Option<LinkUsage>>,
}

impl Received {
    pub(crate) fn get(&self) -> u64 {
        self.bytes.get()
    }

    /// Counts bytes and charges them.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        if let Some(limits) = self.limits.get().filter(|_| !self.is_free.get()) {
            limits.charge(bytes);
        }
    }

    /// Counts a response that has reached `all` bytes, if `counted` bytes of it are already
    /// counted.
    pub(crate) fn advance(&self, counted: &mut u64, all: u64) {
        self.add(all.saturating_sub(*counted));
        *counted = all.max(*counted);
    }

    /// Marks the bytes received after this call as free or not free: free bytes did not use the
    /// line.
    pub(crate) fn set_free(&self, is_free: bool) {
        self.is_free.set(is_free);
    }

    /// Charges the bytes received after this call to the quotas in these limits, except free bytes.
    pub(crate) fn charge_to(&self, limits: &RequestLimits) {
        let _ = self.limits.set(limits.clone());
    }

    /// Returns true if a quota of the charged limits is used up.
    pub(crate) fn is_over_quota(&self) -> bool {
        let limits = self.limits.get();
        limits.is_some_and(RequestLimits::is_any_used_up)
    }

    /// Records the frames of a response on a link; a resumed transfer has several responses.
    pub(crate) fn note_link(&self, usage: Option<LinkUsage>) {
        let Some(usage) = usage else { return };
        let before = self.link.get().map_or(0, |usage| usage.bytes);
        self.link.set(Some(LinkUsage {
            bytes: before + usage.bytes,
            ..usage
        }));
    }

    /// Sets the link usage so far.
    pub(crate) fn set_link(&self, usage: LinkUsage) {
        self.link.set(Some(usage));
    }

    /// Link usage so far, if there were frames.
    pub(crate) fn link(&self) -> Option<LinkUsage> {
        self.link.get()
    }
}

/// The trailers of a response that is being stored; set when all content has arrived.
pub(crate) type Trailers = Rc<RefCell<Option<HeaderMap>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_all_attempts_are_counted_once() {
        let received = Received::default();
        received.add(7);
        let mut counted = 0;
        for all in [3, 3, 5] {
            received.advance(&mut counted, all);
        }
        received.add(2);
        assert_eq!(received.get(), 14);
    }
}
