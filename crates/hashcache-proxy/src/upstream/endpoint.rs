//! The server to connect to.

use hashcache_http::{Authority, Scheme};

use super::address::Purpose;

/// A server and the party that chose it; the key of pooled connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// Host and port.
    pub(crate) authority: Authority,
    /// The party that chose the server; decides which addresses may be reached.
    pub(crate) purpose: Purpose,
    /// Whether the connection uses TLS.
    pub(crate) scheme: Scheme,
}
