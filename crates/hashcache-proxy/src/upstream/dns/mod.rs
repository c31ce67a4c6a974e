//! Names to addresses: one table for the process, lookups on the core that needs them.
//!
//! `connect` asks. A fresh answer comes from `table` without leaving the core; else exactly one
//! lookup per name is in flight, whichever core began it, and all who ask wait for that one. The
//! lookup itself is `source`'s: hosts file, resolvers, or the system for `.local`.
//!
//! Invariant: while resolvers are silent, an answer up to three days old is served rather than
//! none; a name that is known not to exist is never answered with an old address.
//! Cost: one lock and one hash for a known name; at most `TABLE_NAMES` names are kept.

mod outcome;
mod source;
mod table;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use outcome::Addresses;
pub(crate) use source::NameServers;

use crate::failure::Failure;
use outcome::{LookupOutcome, LookupResult, PendingLookup};
use source::DnsSource;
use table::{Table, TableAnswer};

/// What is known about names; one for the process, shared by the `Resolver` of every core.
#[derive(Clone, Debug)]
pub(crate) struct DnsCache(Arc<DnsShared>);

#[derive(Debug)]
struct DnsShared {
    table: Mutex<Table>,
    servers: NameServers,
    dns_time: Duration,
    system: Arc<Semaphore>,
}

impl DnsCache {
    /// An empty table; a lookup takes at most `dns_time`.
    pub(crate) fn new(servers: NameServers, dns_time: Duration) -> Self {
        let table = Mutex::new(Table::new(TABLE_NAMES));
        let system = Arc::new(Semaphore::new(source::SYSTEM_LOOKUPS));
        Self(Arc::new(DnsShared {
            table,
            servers,
            dns_time,
            system,
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic under the lock would leave at worst one odd entry, which expires.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks names up on one core.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    names: DnsCache,
    source: Rc<DnsSource>,
}

impl Resolver {
    /// A resolver for the core that calls this; its lookups run as local tasks.
    pub(crate) fn new(names: DnsCache) -> Self {
        let DnsShared {
            servers,
            dns_time,
            system,
            ..
        } = &*names.0;
        let source = DnsSource::new(servers.clone(), *dns_time, Arc::clone(system));
        Self {
            names,
            source: Rc::new(source),
        }
    }

    /// The addresses of `name`, with IPv6 ones only if `ipv6` says they can be reached.
    pub(crate) async fn resolve(&self, name: &str, ipv6: bool) -> Result<Addresses, Failure> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if name.is_empty() {
            return Err(Failure::NameNotFound); // the root of the tree is no host
        }
        if name == "localhost" || name.ends_with(".localhost") {
            // RFC 6761: never asked of a resolver.
            return Ok([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into());
        }
        let dns_time = self.names.0.dns_time;
        let deadline = Instant::now() + dns_time;
        loop {
            // A statement of its own: the lock must be gone before anything is waited for.
            let answer = self.names.table().find(&name, Instant::now());
            match answer {
                TableAnswer::Known(outcome) => return outcome.into_result(dns_time),
                TableAnswer::UnderWay { pending, stale } => {
                    if let Some(result) = self.wait(pending, stale, deadline).await {
                        return result;
                    }
                }
                TableAnswer::Unknown => self.start(name.clone(), ipv6),
            }
        }
    }

    /// Waits for a flight; `None` when it was given up and someone has to begin anew.
    async fn wait(
        &self,
        mut pending: PendingLookup,
        stale: Option<Addresses>,
        deadline: Instant,
    ) -> Option<Result<Addresses, Failure>> {
        let landed = pending.wait_for(Option::is_some);
        if let Some(stale) = stale {
            // An old answer now is worth more to a client than a fresh one in five seconds (RFC
            // 8767, section 5); the lookup goes on and serves the next who asks.
            return match timeout(STALE_AFTER, landed).await {
                Ok(outcome) => Self::outcome(outcome.ok()?.as_ref(), self.names.0.dns_time),
                Err(_) => Some(Ok(stale)),
            };
        }
        match timeout_at(deadline, landed).await {
            Ok(outcome) => Self::outcome(outcome.ok()?.as_ref(), self.names.0.dns_time),
            Err(_) => Some(Err(Failure::NameTimeout(self.names.0.dns_time))),
        }
    }

    fn outcome(
        outcome: Option<&LookupOutcome>,
        limit: Duration,
    ) -> Option<Result<Addresses, Failure>> {
        outcome.map(|outcome| outcome.clone().into_result(limit))
    }

    /// Begins a lookup as a task of its own: it serves others too, so it must not end with the
    /// client that asked first.
    fn start(&self, name: String, ipv6: bool) {
        let (landed, pending) = watch::channel(None);
        if !self.names.table().begin(&name, pending, Instant::now()) {
            return; // another core was faster
        }
        let (names, source) = (self.names.clone(), Rc::clone(&self.source));
        let mut guard = LookupGuard {
            names,
            name,
            landed: Some(landed),
        };
        tokio::task::spawn_local(async move {
            let limit = guard.names.0.dns_time;
            let looked_up = timeout(limit, source.look_up(&guard.name, ipv6));
            let outcome = looked_up
                .await
                .unwrap_or_else(|_| LookupResult::timed_out());
            let outcome = guard
                .names
                .table()
                .finish(&guard.name, outcome, Instant::now());
            if let Some(landed) = guard.landed.take() {
                landed.send_replace(Some(outcome));
            }
        });
    }
}

/// Clears the flight of a lookup whose task ends in any way, so that no name stays "under way" when
/// its core is torn down.
struct LookupGuard {
    names: DnsCache,
    name: String,
    landed: Option<watch::Sender<Option<LookupOutcome>>>,
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        if let Some(given_up) = self.landed.take() {
            drop(given_up);
            self.names.table().clear_pending(&self.name);
        }
    }
}

/// How long a client waits for a lookup when an old answer is at hand.
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// Names kept in memory; each costs some 200 bytes.
const TABLE_NAMES: usize = 8192;

#[cfg(test)]
mod tests;
