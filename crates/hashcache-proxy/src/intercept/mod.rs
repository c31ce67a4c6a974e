//! TLS that ends here: the proxy answers for an origin with a certificate of its own authority.

pub(crate) mod authority;
pub(crate) mod certificate;
mod leaves;
pub(crate) mod pem;

/// The host that is always intercepted and that the proxy answers itself, for nobody else has it:
/// a browser that gets an answer from there over https trusts the authority. The domain `internal`
/// is for private use alone, so the name leads nowhere without this proxy.
pub(crate) const SELF_TEST_HOST: &str = "trust-test.hashcache.internal";
