//! Where to connect to.

use hashcache_http::{Authority, Scheme};

use super::address::Purpose;

/// Where to connect to and who chose it; the key of pooled connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// Host and port.
    pub(crate) authority: Authority,
    /// Whose choice this is; decides which addresses may be reached.
    pub(crate) purpose: Purpose,
    /// Whether TLS is spoken there.
    pub(crate) scheme: Scheme,
}
