//! Clients whose requests share no connection for a minute, because an origin has ended a shared
//! connection for an error while they waited for an answer on it: one of them may be the cause.
//!
//! Used by `conns`. There are two classes: a client is wary at an origin, or, after errors of many
//! origins, at all of them. So a client that has origins of its own end connections is not
//! forgotten at another one, and it takes no more room than others.
//!
//! Invariant: a client has one entry, of at most [`ORIGINS_MAX`] origins. If there are too many
//! clients, the one whose time ends first is forgotten.
//! Cost: nothing while nobody is wary; else one lookup for each request.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::super::endpoint::Endpoint;
use crate::share::Network;

/// The wary clients of one core.
#[derive(Default)]
pub(super) struct WaryClients(HashMap<Option<Network>, WaryClient>);

/// One client, and until when it is wary.
#[derive(Default)]
struct WaryClient {
    at: Vec<(Endpoint, Instant)>,
    everywhere: Option<Instant>,
}

impl WaryClients {
    /// Whether requests of `client` to `to` share no connection.
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

    /// Notes that `to` has ended a shared connection on which `client` waited for an answer.
    pub(super) fn note(&mut self, client: Option<Network>, to: &Endpoint, now: Instant) {
        if self.0.len() >= WARY_MAX && !self.0.contains_key(&client) {
            self.0.retain(|_, wary| wary.end() > Some(now));
            if self.0.len() >= WARY_MAX {
                let first = self.0.iter().min_by_key(|(_, wary)| wary.end());
                let first = first.map(|(client, _)| *client);
                first.and_then(|client| self.0.remove(&client));
            }
        }
        let wary = self.0.entry(client).or_default();
        wary.at.retain(|(at, until)| at != to && *until > now);
        wary.at.push((to.clone(), now + WARY_TIME));
        if wary.at.len() > ORIGINS_MAX {
            wary.everywhere = Some(now + WARY_TIME);
            wary.at.clear();
        }
    }
}

impl WaryClient {
    fn end(&self) -> Option<Instant> {
        let ends = self.at.iter().map(|(_, until)| *until);
        ends.chain(self.everywhere).max()
    }
}

/// How long a client gets connections of its own after one that it shared has broken.
const WARY_TIME: Duration = Duration::from_secs(60);
/// Clients that are remembered.
const WARY_MAX: usize = 1024;
/// Origins of one client that are told apart.
const ORIGINS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use hashcache_http::Scheme;

    use super::*;
    use crate::upstream::address::Purpose;

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
        Some(Network::of([10, a, b, c].into()))
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
}
