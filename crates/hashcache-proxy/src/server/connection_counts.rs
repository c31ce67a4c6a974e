//! Counts client connections, in total and per client, and enforces the limits on them.
//!
//! `cores` and `forward_listener` count each connection from acceptance until the connection or the
//! tunnel in it closes; `control` logs the number at a stop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashcache_base::limits::Limits;
use hashcache_base::share::{Allowance, Network, OpenConnection, ShareReservation};
use hashcache_wire::{HTTP_2_BYTES, TLS_BYTES};

use crate::metrics::Limit;
use crate::settings::{Mode, Speaks};

/// Connections, in total and per client.
#[derive(Default)]
pub(super) struct ConnectionCounts {
    pub(super) all: AtomicUsize,
    by_client: Mutex<HashMap<Network, usize>>,
}

/// A counted connection; dropping it decrements the counts.
pub(super) struct CountedConnection {
    counts: Arc<ConnectionCounts>,
    /// `None` if a load balancer has not sent the client's address yet.
    client: Option<Network>,
    pub(super) bytes: u64,
    _open: OpenConnection,
    _memory: ShareReservation,
}

impl ConnectionCounts {
    /// Counts a connection that takes `bytes` of memory, unless a limit forbids it.
    pub(super) fn admit(
        self: &Arc<Self>,
        allowance: &Allowance,
        bytes: u64,
        limits: &Limits,
    ) -> Result<CountedConnection, Limit> {
        let client = allowance.share().network();
        self.count(allowance, Some(client), bytes, limits)
    }

    /// As [`admit`](Self::admit), for a connection from the load balancer with this allowance,
    /// before the balancer has sent the client's address. The connection counts in the total, but
    /// not in the limit of a client.
    pub(super) fn admit_unnamed(
        self: &Arc<Self>,
        balancer: &Allowance,
        limits: &Limits,
    ) -> Result<CountedConnection, Limit> {
        self.count(balancer, None, CONNECTION_BYTES, limits)
    }

    fn count(
        self: &Arc<Self>,
        allowance: &Allowance,
        client: Option<Network>,
        bytes: u64,
        limits: &Limits,
    ) -> Result<CountedConnection, Limit> {
        let memory =
            allowance
                .reserve(bytes)
                .ok_or_else(|| match allowance.share().take(bytes) {
                    Some(_) => Limit::Memory,
                    None => Limit::ClientShare,
                })?;
        let mut by_client = self.by_client();
        // Check the client's own limit first: a client that is refused anyway must not close
        // another client's connection.
        let own = client.and_then(|client| by_client.get(&client));
        if own.is_some_and(|own| *own >= limits.clients_per_address) {
            return Err(Limit::ClientsPerAddress);
        }
        let all = self.all.load(Ordering::Relaxed);
        let has_room = all < limits.clients || allowance.share().make_room(all, limits.clients);
        let most = limits.clients + (limits.clients / CLOSING_PART).max(CLOSING_MIN);
        if !has_room || all >= most {
            return Err(Limit::Clients);
        }
        if let Some(client) = client {
            *by_client.entry(client).or_insert(0) += 1;
        }
        self.all.fetch_add(1, Ordering::Relaxed);
        Ok(CountedConnection {
            counts: Arc::clone(self),
            client,
            bytes,
            _open: allowance.open_connection(),
            _memory: memory,
        })
    }

    fn by_client(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.by_client
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let counts = &self.counts;
        counts.all.fetch_sub(1, Ordering::Relaxed);
        let Some(client) = self.client else {
            return;
        };
        let mut by_client = counts.by_client();
        if let Some(count) = by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&client);
            }
        }
    }
}

/// Returns the memory of an idle connection on a listener of this kind.
pub(super) fn connection_bytes(speaks: Speaks, mode: Mode) -> u64 {
    match (speaks, mode) {
        (Speaks::Http | Speaks::Transparent(_), _) => CONNECTION_BYTES,
        (Speaks::H2c, _) => CONNECTION_BYTES + HTTP_2_BYTES,
        // Clients of a forward proxy are not offered HTTP/2 (`tls::identity::FOR_FORWARD`).
        (Speaks::Tls, Mode::Forward) => CONNECTION_BYTES + TLS_BYTES,
        (Speaks::Tls, Mode::Reverse) => CONNECTION_BYTES + TLS_BYTES + HTTP_2_BYTES,
    }
}

/// A connection that is being closed keeps its place for up to a second. Until then there may be
/// 1/`CLOSING_PART` more connections than `limits.clients`, at least `CLOSING_MIN`.
const CLOSING_PART: usize = 8;
const CLOSING_MIN: usize = 16;
/// Memory of an idle client connection: task (2 KiB), state, up to 4 KiB of read-ahead.
/// `hashcache-wire` reserves what a request needs beyond that.
pub(super) const CONNECTION_BYTES: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use hashcache::device::MemoryDevice;
    use hashcache::{Cache, Config};
    use hashcache_base::tls::HTTP_2;
    use hashcache_base::tls::identity::{FOR_FORWARD, FOR_SITES};

    use super::*;

    #[test]
    fn a_connection_counts_before_a_balancer_names_its_client() {
        let config = Config {
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
        };
        let balancer = Allowance::unbounded(&Cache::open(config).unwrap());
        let limits = Limits {
            clients: 2,
            clients_per_address: 1,
            ..Limits::default()
        };
        let counts = Arc::new(ConnectionCounts::default());
        let admit = || counts.admit_unnamed(&balancer, &limits);
        let held = [admit(), admit()];
        assert!(held.iter().all(Result::is_ok));
        assert!(matches!(admit(), Err(Limit::Clients)));
        drop(held);
        assert_eq!(counts.all.load(Ordering::Relaxed), 0);
        assert!(admit().is_ok());
    }

    #[test]
    fn a_connection_over_tls_takes_memory_for_http_2_where_that_is_offered() {
        for (mode, offered) in [
            (Mode::Forward, &FOR_FORWARD[..]),
            (Mode::Reverse, &FOR_SITES[..]),
        ] {
            let http_2 = if offered.contains(&HTTP_2) {
                HTTP_2_BYTES
            } else {
                0
            };
            let expected = CONNECTION_BYTES + TLS_BYTES + http_2;
            assert_eq!(connection_bytes(Speaks::Tls, mode), expected, "{mode:?}");
        }
    }
}
