//! Names to addresses: one table for the process, lookups on the core that needs them.
//!
//! `connect` asks. A fresh answer comes from `table` without leaving the core; else exactly one
//! lookup per name is in flight, whichever core began it, and all who ask wait for that one. The
//! lookup itself is `source`'s: hosts file, resolvers, or the system for `.local`.
//!
//! Invariant: while resolvers are silent, an answer up to three days old is served rather than
//! none; a name that is known not to exist is never answered with an old address.
//! Cost: one lock and one hash for a known name; at most `TABLE_NAMES` names are kept.

mod source;
mod table;
mod verdict;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use source::NameServers;
pub(crate) use verdict::Addresses;

use crate::failure::Failure;
use source::Source;
use table::{Finding, Table};
use verdict::{Flight, LookedUp, Verdict};

/// What is known about names; one for the process, shared by the `Resolver` of every core.
#[derive(Clone, Debug)]
pub(crate) struct Names(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    servers: NameServers,
    dns_time: Duration,
    system: Arc<Semaphore>,
}

impl Names {
    /// An empty table; a lookup takes at most `dns_time`.
    pub(crate) fn new(servers: NameServers, dns_time: Duration) -> Self {
        let table = Mutex::new(Table::new(TABLE_NAMES));
        let system = Arc::new(Semaphore::new(source::SYSTEM_LOOKUPS));
        Self(Arc::new(Shared {
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
    names: Names,
    source: Rc<Source>,
}

impl Resolver {
    /// A resolver for the core that calls this; its lookups run as local tasks.
    pub(crate) fn new(names: Names) -> Self {
        let Shared {
            servers,
            dns_time,
            system,
            ..
        } = &*names.0;
        let source = Source::new(servers.clone(), *dns_time, Arc::clone(system));
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
            let finding = self.names.table().find(&name, Instant::now());
            match finding {
                Finding::Known(verdict) => return verdict.into_result(dns_time),
                Finding::UnderWay { flight, stale } => {
                    if let Some(result) = self.wait(flight, stale, deadline).await {
                        return result;
                    }
                }
                Finding::Unknown => self.start(name.clone(), ipv6),
            }
        }
    }

    /// Waits for a flight; `None` when it was given up and someone has to begin anew.
    async fn wait(
        &self,
        mut flight: Flight,
        stale: Option<Addresses>,
        deadline: Instant,
    ) -> Option<Result<Addresses, Failure>> {
        let landed = flight.wait_for(Option::is_some);
        if let Some(stale) = stale {
            // An old answer now is worth more to a client than a fresh one in five seconds (RFC
            // 8767, section 5); the lookup goes on and serves the next who asks.
            return match timeout(STALE_AFTER, landed).await {
                Ok(verdict) => Self::verdict(verdict.ok()?.as_ref(), self.names.0.dns_time),
                Err(_) => Some(Ok(stale)),
            };
        }
        match timeout_at(deadline, landed).await {
            Ok(verdict) => Self::verdict(verdict.ok()?.as_ref(), self.names.0.dns_time),
            Err(_) => Some(Err(Failure::NameTimeout(self.names.0.dns_time))),
        }
    }

    fn verdict(verdict: Option<&Verdict>, limit: Duration) -> Option<Result<Addresses, Failure>> {
        verdict.map(|verdict| verdict.clone().into_result(limit))
    }

    /// Begins a lookup as a task of its own: it serves others too, so it must not end with the
    /// client that asked first.
    fn start(&self, name: String, ipv6: bool) {
        let (landed, flight) = watch::channel(None);
        if !self.names.table().take_off(&name, flight, Instant::now()) {
            return; // another core was faster
        }
        let (names, source) = (self.names.clone(), Rc::clone(&self.source));
        let mut landing = Landing {
            names,
            name,
            landed: Some(landed),
        };
        tokio::task::spawn_local(async move {
            let limit = landing.names.0.dns_time;
            let looked_up = timeout(limit, source.look_up(&landing.name, ipv6));
            let verdict = looked_up.await.unwrap_or_else(|_| LookedUp::timed_out());
            let verdict = landing
                .names
                .table()
                .land(&landing.name, verdict, Instant::now());
            if let Some(landed) = landing.landed.take() {
                landed.send_replace(Some(verdict));
            }
        });
    }
}

/// Clears the flight of a lookup whose task ends in any way, so that no name stays "under way" when
/// its core is torn down.
struct Landing {
    names: Names,
    name: String,
    landed: Option<watch::Sender<Option<Verdict>>>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(given_up) = self.landed.take() {
            drop(given_up);
            self.names.table().clear_flight(&self.name);
        }
    }
}

/// How long a client waits for a lookup when an old answer is at hand.
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// Names kept in memory; each costs some 200 bytes.
const TABLE_NAMES: usize = 8192;

#[cfg(test)]
mod tests;
