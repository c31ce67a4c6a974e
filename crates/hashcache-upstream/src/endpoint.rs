//! The server to connect to.

use std::sync::Arc;

use hashcache_base::net::address::Purpose;
use hashcache_http::{Authority, Scheme};

use crate::peer::Peer;

/// A server and the party that chose it; the key of pooled connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host and port.
    pub authority: Authority,
    /// The party that chose the server; decides which addresses may be reached.
    pub purpose: Purpose,
    /// The connection's protocol.
    pub scheme: Scheme,
    /// The peer that makes a tunnel to the server; `None`: the server is reached directly.
    pub through: Option<Arc<Peer>>,
}

impl Endpoint {
    /// Returns the peer's endpoint, for requests with the whole URL.
    pub fn of_peer(peer: &Peer) -> Self {
        Self {
            authority: peer.settings.url.authority.clone(),
            purpose: Purpose::Peer,
            scheme: peer.settings.url.scheme,
            through: None,
        }
    }
}
