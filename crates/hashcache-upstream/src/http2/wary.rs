//! Clients that share no connection for a minute: an origin has closed a shared connection for an
//! error while they waited for an answer on it, so any of them may be the cause; or they have given
//! up many requests at once, for which many origins close a connection ("rapid reset").
//!
//! Used by `conns`. There are two classes: a client is wary at a single origin, or, after errors at
//! many origins, at all origins. So a client that makes its own origins close connections is not
//! forgotten at another origin, and takes no more room than other clients.
//!
//! Invariant: a client has a single entry, with at most [`ORIGINS_MAX`] origins. If there are too
//! many clients, the client with the earliest expiry is forgotten.
//! Cost: nothing while no client is wary; otherwise a lookup for each request.

use std::collections::HashMap;
use std::time::Duration;

use hashcache_base::share::Network;
use tokio::time::Instant;

use super::super::endpoint::Endpoint;

/// The wary clients on a core.
#[derive(Default)]
pub(super) struct WaryClients(HashMap<Option<Network>, WaryClient>);

/// A client, and the time until which it is wary.
#[derive(Default)]
struct WaryClient {
    at: Vec<(Endpoint, Instant)>,
    everywhere: Option<Instant>,
    /// Origins with requests that the client has lately given up: at most [`ORIGINS_MAX`].
    given_up: Vec<GivenUp>,
}

/// Requests to an origin that a client has given up.
struct GivenUp {
    to: Endpoint,
    since: Instant,
    requests: u32,
}

impl WaryClients {
    /// Returns true if requests of `client` to `to` share no connection.
    pub(super) fn has(&self, client: Option<Network>, to: &Endpoint, now: Instant) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(wary) = self.0.get(&client) else {
            return false;
        };
        let mut ends = wary.at.iter().filter(|(at, _)| at == to);
        wary.everywhere.is_some_and(|until| until > now) || ends.any(|(_, until)| *until > now)
    }

    /// Notes that `client` has given up a request to `to` on a shared connection.
    pub(super) fn note_given_up(&mut self, client: Option<Network>, to: &Endpoint, now: Instant) {
        let wary = self.client(client, now);
        wary.given_up.retain(|it| it.since + GIVEN_UP_TIME > now);
        let requests = match wary.given_up.iter_mut().find(|it| it.to == *to) {
            Some(given_up) => {
                given_up.requests += 1;
                given_up.requests
            }
            None => {
                if wary.given_up.len() == ORIGINS_MAX {
                    wary.given_up.remove(0);
                }
                wary.given_up.push(GivenUp {
                    to: to.clone(),
                    since: now,
                    requests: 1,
                });
                1
            }
        };
        if requests > GIVEN_UP_MAX {
            self.note(client, to, now);
        }
    }

    /// Notes that `to` has closed a shared connection on which `client` waited for an answer.
    pub(super) fn note(&mut self, client: Option<Network>, to: &Endpoint, now: Instant) {
        let wary = self.client(client, now);
        wary.at.retain(|(at, until)| at != to && *until > now);
        wary.at.push((to.clone(), now + WARY_TIME));
        if wary.at.len() > ORIGINS_MAX {
            wary.everywhere = Some(now + WARY_TIME);
            wary.at.clear();
        }
    }

    /// Returns the entry of `client`, after making room for it.
    fn client(&mut self, client: Option<Network>, now: Instant) -> &mut WaryClient {
        if self.0.len() >= WARY_MAX && !self.0.contains_key(&client) {
            self.0.retain(|_, wary| wary.end() > Some(now));
            if self.0.len() >= WARY_MAX {
                let first = self.0.iter().min_by_key(|(_, wary)| wary.end());
                let first = first.map(|(client, _)| *client);
                first.and_then(|client| self.0.remove(&client));
            }
        }
        self.0.entry(client).or_default()
    }
}

impl WaryClient {
    fn end(&self) -> Option<Instant> {
        let ends = self.at.iter().map(|(_, until)| *until);
        let given_up = self.given_up.iter().map(|it| it.since + GIVEN_UP_TIME);
        ends.chain(given_up).chain(self.everywhere).max()
    }
}

/// Time for which a client gets exclusive connections after a shared connection has broken.
const WARY_TIME: Duration = Duration::from_secs(60);
/// Requests that a client may give up in [`GIVEN_UP_TIME`]: more than a page has in progress when
/// the user leaves it, and a fraction of the number for which Envoy (500) or Go (400) closes a
/// connection.
const GIVEN_UP_MAX: u32 = 64;
const GIVEN_UP_TIME: Duration = Duration::from_secs(10);
/// Maximum number of clients that are remembered.
const WARY_MAX: usize = 1024;
/// Maximum number of separate origins per client.
const ORIGINS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use hashcache_base::net::address::Purpose;
    use hashcache_http::Scheme;

    use super::*;

    fn origin(port: u16) -> Endpoint {
        Endpoint {
            authority: hashcache_http::Authority::parse(&format!("h:{port}"), Scheme::Https)
                .unwrap(),
            purpose: Purpose::Forward,
            scheme: Scheme::Https,
            through: None,
        }
    }

    fn client(n: u32) -> Option<Network> {
        let [_, a, b, c] = n.to_be_bytes();
        Some(Network::containing([10, a, b, c].into()))
    }

    #[test]
    fn a_client_that_breaks_connections_of_many_origins_is_forgotten_at_none() {
        let (mut wary, now) = (WaryClients::default(), Instant::now());
        wary.note(client(1), &origin(443), now);
        assert!(wary.has(client(1), &origin(443), now));
        assert!(!wary.has(client(1), &origin(8000), now));
        for port in 9000..9999 {
            wary.note(client(1), &origin(port), now + WARY_TIME / 2);
        }
        assert!(wary.has(client(1), &origin(443), now + WARY_TIME));
        assert!(!wary.has(client(2), &origin(443), now));
        assert_eq!(wary.0.len(), 1);
        assert!(wary.0[&client(1)].at.len() <= ORIGINS_MAX);
        assert!(!wary.has(client(1), &origin(443), now + 2 * WARY_TIME));
    }

    #[test]
    fn too_many_wary_clients_displace_one_and_not_all() {
        let (mut wary, now) = (WaryClients::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        wary.note(client(0), &origin(443), later);
        for n in 1..=1024 {
            wary.note(client(n), &origin(443), now);
        }
        assert_eq!(wary.0.len(), WARY_MAX);
        assert!(wary.has(client(0), &origin(443), now));
        assert!(wary.has(client(1024), &origin(443), now));
        // Clients whose time is over go first.
        wary.note(client(5000), &origin(443), now + WARY_TIME);
        assert_eq!(wary.0.len(), 2);
    }

    #[test]
    fn a_client_that_gives_up_many_requests_at_once_shares_no_connections() {
        let (mut wary, now) = (WaryClients::default(), Instant::now());
        for (n, port) in (0..=GIVEN_UP_MAX).zip(9000..) {
            assert!(!wary.has(client(1), &origin(443), now), "{n}");
            wary.note_given_up(client(1), &origin(443), now);
            wary.note_given_up(client(2), &origin(port), now);
        }
        assert!(wary.has(client(1), &origin(443), now));
        assert!(!wary.has(client(1), &origin(8000), now));
        assert!(!wary.has(client(2), &origin(9000), now));
        assert!(wary.0[&client(2)].given_up.len() <= ORIGINS_MAX);
        // Not those of an hour.
        let mut wary = WaryClients::default();
        for n in 0..4 * GIVEN_UP_MAX {
            let now = now + n * GIVEN_UP_TIME / (GIVEN_UP_MAX / 2);
            wary.note_given_up(client(1), &origin(443), now);
            assert!(!wary.has(client(1), &origin(443), now));
        }
    }
}
