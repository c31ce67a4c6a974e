//! The server to connect to.

use std::sync::Arc;

use hashcache_base::net::address::Purpose;
use hashcache_http::{Authority, Scheme};

use crate::peer::Peer;

/// A server and the party that chose it; the key of pooled connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// Host and port.
    pub(crate) authority: Authority,
    /// The party that chose the server; decides which addresses may be reached.
    pub(crate) purpose: Purpose,
    /// The protocol of the connection.
    pub(crate) scheme: Scheme,
    /// The peer that makes a tunnel to the server; `None`: the server is reached directly.
    pub(crate) through: Option<Arc<Peer>>,
}

impl Endpoint {
    /// The peer itself, for requests with the whole URL.
    pub(crate) fn of_peer(peer: &Peer) -> Self {
        Self {
            authority: peer.settings.url.authority.clone(),
            purpose: Purpose::Peer,
            scheme: peer.settings.url.scheme,
            through: None,
        }
    }
}
