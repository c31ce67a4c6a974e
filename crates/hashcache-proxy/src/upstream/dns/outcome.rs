//! How a name lookup ends, and who waits for it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::failure::Failure;

/// The addresses of a name, in the order in which to try them; never empty.
pub(crate) type Addresses = Arc<[IpAddr]>;

/// A lookup under way on some core: a verdict comes, or the core has gone.
pub(super) type PendingLookup = watch::Receiver<Option<LookupOutcome>>;

/// How a lookup ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LookupOutcome {
    Found(Addresses),
    NoSuchName,
    Broken,
    TimedOut,
}

impl LookupOutcome {
    /// The same as a result; `limit` is the time a lookup may take.
    pub(super) fn into_result(self, limit: Duration) -> Result<Addresses, Failure> {
        match self {
            Self::Found(addresses) => Ok(addresses),
            Self::NoSuchName => Err(Failure::NameNotFound),
            Self::Broken => Err(Failure::NameError),
            Self::TimedOut => Err(Failure::NameTimeout(limit)),
        }
    }
}

/// How a lookup ended and how long that holds.
#[derive(Clone, Debug)]
pub(super) struct LookupResult {
    pub(super) outcome: LookupOutcome,
    pub(super) ttl: Option<Duration>,
}

impl LookupResult {
    /// Nothing came within the time for a lookup.
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
