//! TLS for both sides of the proxy: parts of certificates, our own certificates, the algorithms,
//! and the time for handshakes.
//!
//! Called by `server` in the proxy, and by `hashcache-intercept`, `hashcache-link` and
//! `hashcache-upstream`. Invariant: origins' certificates are not verified here; `tls` in
//! `hashcache-upstream` does that.

pub mod certificate;
pub mod identity;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verified_hosts;

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

use crate::clock::Clock;

/// The algorithms for both sides of the proxy.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

/// SHA-256, from the cipher suites' provider.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let suite = TLS13_AES_128_GCM_SHA256.tls13();
    let hash = suite.expect("a suite of TLS 1.3").common.hash_provider;
    let hash = hash.hash(bytes);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The time for handshakes; origins' certificates use [`Clock::certificate_time`].
#[derive(Debug)]
pub struct OurTime(pub Arc<Clock>);

impl TimeProvider for OurTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.now().seconds();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
pub const HTTP_2: &[u8] = b"h2";
