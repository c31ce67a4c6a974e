//! DNS: one cache for the process; lookups run on the core that needs them.
//!
//! Called by `connect`. A fresh answer is taken from `table` without leaving the core. Otherwise
//! there is at most a single lookup per name, on any core, and all callers wait for it. `source`
//! does the lookup: hosts file, resolvers, the system for `.local`, or the server of an own domain.
//!
//! Invariants: while the resolvers do not answer, an answer up to three days old is served. A name
//! that is known not to exist never gets an old address.
//! Cost: a lock and a hash for a known name; at most `TABLE_NAMES` names are kept.

mod outcome;
mod source;
mod table;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::fair_permits::FairPermits;
use hashcache_base::net::own_domain::OwnDomain;
use hashcache_base::share::Network;
use hashcache_base::task::spawn_local;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use outcome::Addresses;
pub use source::NameServers;

use outcome::{LookupOutcome, LookupResult, PendingLookup};
use source::DnsSource;
use table::{Table, TableAnswer};

/// The DNS cache; one for the process, shared by the `Resolver` of every core.
#[derive(Clone, Debug)]
pub struct DnsCache(Arc<DnsShared>);

#[derive(Debug)]
struct DnsShared {
    table: Mutex<Table>,
    servers: NameServers,
    dns_time: Duration,
    system: FairPermits<Option<Network>>,
}

impl DnsCache {
    /// Makes an empty cache; a lookup takes at most `dns_time`.
    pub fn new(servers: NameServers, dns_time: Duration) -> Self {
        let table = Mutex::new(Table::new(TABLE_NAMES));
        let system = FairPermits::new(source::SYSTEM_LOOKUPS);
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

/// Looks names up on a core.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    names: DnsCache,
    source: Rc<DnsSource>,
    /// Domains with separate name servers.
    domains: Rc<[(OwnDomain, Rc<DnsSource>)]>,
}

/// A name, the source to query, and the key in the table.
struct NameLookup {
    name: String,
    source: Rc<DnsSource>,
    key: String,
}

impl Resolver {
    /// Makes a resolver for the calling core; the lookups run as local tasks.
    pub(crate) fn new(names: DnsCache) -> Self {
        let DnsShared {
            servers,
            dns_time,
            system,
            ..
        } = &*names.0;
        let source = DnsSource::new(servers.clone(), *dns_time, system.clone());
        Self {
            names,
            source: Rc::new(source),
            domains: Rc::new([]),
        }
    }

    /// Sets separate servers: a name in any of these domains is looked up only at that domain's
    /// server.
    pub(crate) fn with_domains(self, domains: &[OwnDomain]) -> Self {
        let DnsShared {
            dns_time, system, ..
        } = &*self.names.0;
        let source = |domain: &OwnDomain| {
            let servers = NameServers::Fixed(Arc::new([domain.server()]));
            Rc::new(DnsSource::new(servers, *dns_time, system.clone()))
        };
        let domains = domains.iter();
        let domains = domains.map(|domain| (domain.clone(), source(domain)));
        let domains = domains.collect();
        Self { domains, ..self }
    }

    /// Chooses the source for `name`. The key keeps the answers from different servers apart,
    /// because a reload may give a domain another server.
    fn lookup(&self, name: String) -> NameLookup {
        let mut domains = self.domains.iter();
        match domains.find(|(domain, _)| domain.contains(&name)) {
            Some((domain, source)) => NameLookup {
                key: format!("{name}@{}", domain.server()),
                name,
                source: Rc::clone(source),
            },
            None => NameLookup {
                key: name.clone(),
                name,
                source: Rc::clone(&self.source),
            },
        }
    }

    /// Returns the addresses of `name`, with IPv6 addresses only if `ipv6` is set (they can be
    /// reached). A lookup that this call starts counts for `client`.
    pub(crate) async fn resolve(
        &self,
        name: &str,
        ipv6: bool,
        client: Option<Network>,
    ) -> Result<Addresses, Failure> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if name.is_empty() {
            return Err(Failure::NameNotFound); // the root of the tree is no host
        }
        if name == "localhost" || name.ends_with(".localhost") {
            // RFC 6761: never sent to a resolver.
            return Ok([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into());
        }
        let lookup = self.lookup(name);
        let dns_time = self.names.0.dns_time;
        let deadline = Instant::now() + dns_time;
        loop {
            // A separate statement, so that the lock is released before any await.
            let answer = self.names.table().find(&lookup.key, Instant::now());
            match answer {
                TableAnswer::Known(outcome) => return outcome.into_result(dns_time),
                TableAnswer::UnderWay { pending, stale } => {
                    if let Some(result) = self.wait(pending, stale, deadline).await {
                        return result;
                    }
                }
                TableAnswer::Unknown => self.start(&lookup, ipv6, client),
            }
        }
    }

    /// Waits for a lookup; `None` if the lookup was given up and must be started again.
    async fn wait(
        &self,
        mut pending: PendingLookup,
        stale: Option<Addresses>,
        deadline: Instant,
    ) -> Option<Result<Addresses, Failure>> {
        let landed = pending.wait_for(Option::is_some);
        if let Some(stale) = stale {
            // For a client an old answer now is worth more than a fresh answer in five seconds (RFC
            // 8767, section 5). The lookup continues for later callers.
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

    /// Starts a lookup as a separate task: it serves other callers too, so it must not be cancelled
    /// with the first client.
    fn start(&self, lookup: &NameLookup, ipv6: bool, client: Option<Network>) {
        let (landed, pending) = watch::channel(None);
        let key = lookup.key.clone();
        if !self.names.table().begin(&key, pending, Instant::now()) {
            return; // another core was faster
        }
        let (names, source) = (self.names.clone(), Rc::clone(&lookup.source));
        let name = lookup.name.clone();
        let mut guard = LookupGuard {
            names,
            key,
            landed: Some(landed),
        };
        spawn_local(async move {
            let limit = guard.names.0.dns_time;
            let looked_up = timeout(limit, source.look_up(&name, ipv6, client));
            let outcome = looked_up
                .await
                .unwrap_or_else(|_| LookupResult::timed_out());
            let outcome = guard
                .names
                .table()
                .finish(&guard.key, outcome, Instant::now());
            if let Some(landed) = guard.landed.take() {
                landed.send_replace(Some(outcome));
            }
        });
    }
}

/// Clears a lookup when the task finishes in any way, so that no name stays pending when the core
/// stops.
struct LookupGuard {
    names: DnsCache,
    key: String,
    landed: Option<watch::Sender<Option<LookupOutcome>>>,
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        if let Some(given_up) = self.landed.take() {
            drop(given_up);
            self.names.table().clear_pending(&self.key);
        }
    }
}

/// Time for which a client waits for a lookup if there is an old answer.
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// Names kept in memory; each costs some 200 bytes.
const TABLE_NAMES: usize = 8192;

#[cfg(test)]
mod tests;
