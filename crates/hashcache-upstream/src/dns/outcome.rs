//! Outcomes of a DNS lookup.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hashcache_base::failure::Failure;
use tokio::sync::watch;

/// The addresses of a name, in the order in which they are tried; never empty.
pub(crate) type Addresses = Arc<[IpAddr]>;

/// A lookup in progress on some core. If the sender is dropped, the lookup was given up.
pub(super) type PendingLookup = watch::Receiver<Option<LookupOutcome>>;

/// Outcome of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LookupOutcome {
    Found(Addresses),
    NoSuchName,
    Broken,
    TimedOut,
}

impl LookupOutcome {
    /// Converts to a result; `limit` is the time a lookup may take.
    pub(super) fn into_result(self, limit: Duration) -> Result<Addresses, Failure> {
        match self {
            Self::Found(addresses) => Ok(addresses),
            Self::NoSuchName => Err(Failure::NameNotFound),
            Self::Broken => Err(Failure::NameError),
            Self::TimedOut => Err(Failure::NameTimeout(limit)),
        }
    }
}

/// Outcome of a lookup, with the time to live.
#[derive(Clone, Debug)]
pub(super) struct LookupResult {
    pub(super) outcome: LookupOutcome,
    pub(super) ttl: Option<Duration>,
}

impl LookupResult {
    /// No answer within the time for a lookup.
    pub(super) fn timed_out() -> Self {
        Self {
            outcome: LookupOutcome::TimedOut,
            ttl: None,
        }
    }

    pub(super) fn found(addresses: Vec<IpAddr>, ttl: Option<Duration>) -> Self {
        if addresses.is_empty() {
            return Self {
                outcome: LookupOutcome::NoSuchName,
                ttl,
            };
        }
        Self {
            outcome: LookupOutcome::Found(addresses.into()),
            ttl,
        }
    }
}
