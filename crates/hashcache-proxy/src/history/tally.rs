//! Counts of a core since the last transfer to `History`: no lock and no atomic for a request.
//!
//! `log_entry` counts each entry here. A second after the first entry, a task of the core adds all
//! counts to the history under the history's lock, and then sleeps until the next request.
//!
//! Invariant: each entry reaches the history once, at the latest when the core stops.
//! Cost: two lookups in tables of at most [`LINES`] lines, three for a user.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::History;
use super::counts::{Counts, Kind, Table, Totals};
use super::name::{Client, Name, Persons};
use crate::access_log::{LogEntry, Outcome};

/// A core's counts.
pub(crate) struct Tally {
    counted: RefCell<Counted>,
    /// Notified of the first entry since the last transfer.
    begun: Notify,
    history: Arc<History>,
}

/// Counts that are not in the history yet.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) totals: Totals,
    pub(super) sites: Table<Name>,
    pub(super) clients: Table<Client>,
    pub(super) users: Table<Name>,
}

impl Counted {
    pub(super) fn new(lines: usize) -> Self {
        Self {
            totals: Totals::default(),
            sites: Table::new(lines),
            clients: Table::new(lines),
            users: Table::new(lines),
        }
    }

    pub(super) fn count(&mut self, site: Name, entry: &LogEntry<'_>, persons: Persons) {
        let kind = Kind::from_entry(entry);
        self.totals.add(kind, entry.client_bytes);
        if kind == Kind::Own {
            return;
        }
        let counts = counts(kind, entry);
        self.sites.count(site, &counts);
        let client = Client::new(entry.client.ip(), persons);
        self.clients.count(client, &counts);
        if let Some(user) = entry.user.filter(|_| persons == Persons::Named) {
            self.users.count(Name::of_user(user), &counts);
        }
    }
}

/// Returns an entry's counts.
fn counts(kind: Kind, entry: &LogEntry<'_>) -> Counts {
    let is_asked = matches!(kind, Kind::Peer | Kind::Origin | Kind::Revalidated);
    let is_answered = is_asked && entry.error.is_none();
    let wait = entry.first_byte.filter(|_| is_answered).unwrap_or_default();
    let is_failed = entry.outcome != Outcome::Denied
        && match entry.error {
            Some(slug) => !OURS.contains(&slug),
            // An origin that answers with an error has failed too, also if the client gets a stored
            // response instead.
            None => is_asked && entry.status >= 500 || entry.outcome == Outcome::StaleIfError,
        };
    Counts {
        requests: u64::from(kind.is_request()),
        hits: u64::from(kind.is_hit()),
        client_bytes: if kind.is_own_page() {
            0
        } else {
            entry.client_bytes
        },
        origin_bytes: entry.origin_bytes,
        failures: u64::from(is_failed),
        answered: u64::from(is_answered),
        wait_us: u64::try_from(wait.as_micros()).unwrap_or(u64::MAX),
    }
}

/// Failures that no origin or peer has caused.
const OURS: [&str; 15] = [
    "refused",
    "origin-form",
    "offline",
    "quota-used",
    "too-many-requests",
    "client-denied",
    "client-limit",
    "connect-port-denied",
    "port-denied",
    "destination-denied",
    "loop",
    "not-cached",
    "no-route",
    "not-implemented",
    "internal",
];

impl Tally {
    pub(crate) fn new(history: Arc<History>) -> Rc<Self> {
        let lines = history.lines_max.min(LINES);
        Rc::new(Self {
            counted: RefCell::new(Counted::new(lines)),
            begun: Notify::new(),
            history,
        })
    }

    /// Counts an entry for `site`.
    pub(crate) fn count(&self, site: Name, entry: &LogEntry<'_>) {
        let mut counted = self.counted.borrow_mut();
        let is_first = counted.totals.is_empty();
        counted.count(site, entry, self.history.persons);
        if is_first {
            self.begun.notify_one();
        }
    }

    /// Adds the counts to the history, a second after the first entry; never returns.
    pub(crate) async fn keep(self: Rc<Self>) {
        loop {
            self.begun.notified().await;
            tokio::time::sleep(EVERY).await;
            self.flush();
        }
    }

    fn flush(&self) {
        self.history.take(&mut self.counted.borrow_mut());
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.flush();
    }
}

/// A core's lines for sites, clients and users between two transfers.
pub(super) const LINES: usize = 64;
/// Delay from the first entry to the transfer of a core's counts.
const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use hashcache_base::failure::Failure;

    use super::*;

    #[test]
    fn every_failure_of_ours_is_a_failure() {
        for slug in OURS {
            assert!(Failure::SLUGS.contains(&slug), "{slug}");
        }
    }
}
