//! How much content a core encodes: in all, and for each client.
//!
//! Called before a response is encoded (while there is no room, the response is served unencoded),
//! and before each further piece, which waits. The budget counts bytes and not time, so it needs no
//! clock but the clock of the event loop, and tests are deterministic.
//!
//! Invariant: over any longer time at most [`CLIENT_RATE`] bytes a second are encoded for a client,
//! and at most [`CORE_RATE`] for all clients together: about a quarter and three quarters of a slow
//! processor.
//! Cost: a lookup in a map with the clients of the last seconds.

use std::collections::HashMap;
use std::time::Duration;

use hashcache_base::share::Network;
use tokio::time::Instant;

/// The budget of a core.
#[derive(Debug, Default)]
pub struct EncodeBudget {
    all: Debt,
    clients: HashMap<Network, Debt>,
}

/// Permission to encode content now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Content may be encoded now.
    Now,
    /// Content may be encoded after this time.
    After(Duration),
}

/// Encoded bytes that were not yet forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct Debt {
    bytes: u64,
    since: Option<Instant>,
}

impl Debt {
    /// The remaining bytes at `now`.
    fn left(&self, rate: u64, now: Instant) -> u64 {
        let passed = self
            .since
            .map_or(Duration::ZERO, |since| now.duration_since(since));
        // In microseconds; a second at either rate fits many times.
        let forgotten = u128::from(rate) * passed.as_micros() / 1_000_000;
        let forgotten = u64::try_from(forgotten).unwrap_or(u64::MAX);
        self.bytes.saturating_sub(forgotten)
    }

    fn add(&mut self, bytes: u64, rate: u64, now: Instant) {
        self.bytes = self.left(rate, now).saturating_add(bytes);
        self.since = Some(now);
    }

    /// The time until less than one second's bytes are left.
    fn wait(&self, rate: u64, now: Instant) -> Duration {
        let over = self.left(rate, now).saturating_sub(rate);
        let micros = u128::from(over) * 1_000_000 / u128::from(rate);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl EncodeBudget {
    /// Returns whether more content may be encoded for this client now.
    pub fn ask(&self, client: Network, now: Instant) -> Verdict {
        let own = self.clients.get(&client);
        let own = own.map_or(Duration::ZERO, |own| own.wait(CLIENT_RATE, now));
        match own.max(self.all.wait(CORE_RATE, now)) {
            Duration::ZERO => Verdict::Now,
            // A timer has a resolution of milliseconds.
            wait => Verdict::After(wait.max(Duration::from_millis(1))),
        }
    }

    /// Notes that `bytes` were encoded for this client.
    pub fn spend(&mut self, client: Network, bytes: u64, now: Instant) {
        self.all.add(bytes, CORE_RATE, now);
        if self.clients.len() >= CLIENTS_KEPT && !self.clients.contains_key(&client) {
            self.clients
                .retain(|_, debt| debt.left(CLIENT_RATE, now) > 0);
        }
        let own = self.clients.entry(client).or_default();
        own.add(bytes, CLIENT_RATE, now);
    }
}

/// Bytes a second for a client; as much again at once.
const CLIENT_RATE: u64 = 10 << 20;
/// Bytes a second for all clients of a core; as much again at once.
const CORE_RATE: u64 = 30 << 20;
/// From this number of clients on, clients without debt are removed. The other clients have debt,
/// which lasts only for seconds, so the request rate bounds their number.
const CLIENTS_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn client(n: u8) -> Network {
        Network::containing(IpAddr::from([192, 0, 2, n]))
    }

    #[test]
    fn a_client_waits_after_its_share_and_others_do_not() {
        let (mut budget, now) = (EncodeBudget::default(), Instant::now());
        budget.spend(client(1), CLIENT_RATE, now);
        assert_eq!(budget.ask(client(1), now), Verdict::Now);
        budget.spend(client(1), CLIENT_RATE / 2, now);
        assert_eq!(budget.ask(client(1), now), Verdict::After(SECOND / 2));
        assert_eq!(budget.ask(client(2), now), Verdict::Now);
        assert_eq!(budget.ask(client(1), now + SECOND / 2), Verdict::Now);
    }

    #[test]
    fn all_clients_together_have_a_limit() {
        let (mut budget, now) = (EncodeBudget::default(), Instant::now());
        for n in 0..6 {
            budget.spend(client(n), CLIENT_RATE, now);
        }
        assert_eq!(budget.ask(client(100), now), Verdict::After(SECOND));
        assert_eq!(budget.ask(client(100), now + SECOND), Verdict::Now);
    }

    #[test]
    fn a_greedy_client_gets_its_rate_and_no_more() {
        let (mut budget, start) = (EncodeBudget::default(), Instant::now());
        let (mut now, mut bytes) = (start, 0);
        while now < start + 20 * SECOND {
            match budget.ask(client(1), now) {
                Verdict::Now => {
                    budget.spend(client(1), 1 << 16, now);
                    bytes += 1 << 16;
                }
                Verdict::After(wait) => now += wait,
            }
        }
        let most = 21 * CLIENT_RATE + (1 << 16);
        assert!((19 * CLIENT_RATE..=most).contains(&bytes), "{bytes}");
    }

    #[test]
    fn clients_without_debt_are_forgotten() {
        let (mut budget, mut now) = (EncodeBudget::default(), Instant::now());
        for n in 0..5000_u32 {
            let address = IpAddr::from(n.to_be_bytes());
            budget.spend(Network::containing(address), 1 << 10, now);
            now += Duration::from_millis(1);
        }
        assert!(
            budget.clients.len() <= CLIENTS_KEPT,
            "{}",
            budget.clients.len()
        );
    }
}
