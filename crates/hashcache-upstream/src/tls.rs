//! TLS to origins: trusted authorities, and failures.
//!
//! `Upstream` passes every socket to an `https` origin to `Trust::handshake`. Certificates are
//! checked against the roots of the platform and of the operator (`verifier`), at the time of our
//! own clock: a board without a battery starts in 1970 and would refuse every site. In turn the
//! clock learns from each certificate whether it was valid now or at another time.
//!
//! Invariants: no byte of a request is sent before the origin's certificate was verified for the
//! name in the URL. The end of a stream without close_notify is a read error, so content delimited
//! by connection close is complete only if the origin has confirmed the end. Cost: a handshake, or
//! a resumed handshake for a known origin (256 are remembered, for all cores).

mod verifier;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use hashcache_base::clock::Clock;
use hashcache_base::failure::Failure;
use hashcache_base::tls::{OurTime, certificate, provider};
use hashcache_http::Host;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, Error as TlsError, HandshakeKind, RootCertStore,
    SignatureScheme,
};
use tokio::io::AsyncWriteExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::warn;

use self::verifier::Verifier;
use super::channel::Channel;

/// Authority certificates could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthoritiesError {
    /// The file could not be read or is not PEM.
    #[error("cannot read certificates from {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// There is no certificate in the file.
    #[error("no certificate in {}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A certificate does not belong to an authority.
    #[error("{} contains a certificate that is not a CA certificate", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: TlsError,
    },
}

/// The trusted authorities; one instance for all cores, made anew by a reload.
#[derive(Clone)]
pub struct Trust {
    /// The configuration that offers HTTP/2 too.
    both: Arc<ClientConfig>,
    http_1: Arc<ClientConfig>,
    clock: Arc<Clock>,
}

/// The reason why a host must not be intercepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// The host's certificate is invalid, or the host cannot be reached.
    Failed(Failure),
    /// The host requests client certificates, which the proxy cannot present.
    WantsCertificate,
}

/// The HTTP versions offered in ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AlpnOffer {
    /// HTTP/2, or else HTTP/1.1.
    Both,
    /// Only HTTP/1.1.
    Http1,
}

impl Trust {
    /// Loads the platform's roots and the roots in the files `more`; certificates are checked at
    /// the time of `clock`.
    pub fn load(more: &[PathBuf], clock: Arc<Clock>) -> Result<Self, AuthoritiesError> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        for path in more {
            add(&mut roots, path)?;
        }
        if taken == 0 {
            warn!("no CA certificates found on this system: https origins are refused");
        }
        Ok(Self::new(roots, clock))
    }

    fn new(roots: RootCertStore, clock: Arc<Clock>) -> Self {
        let time = Arc::new(OurTime(Arc::clone(&clock)));
        let config = ClientConfig::builder_with_details(provider(), time)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites of both versions");
        let verifier = Verifier::new(roots, Arc::clone(&clock), &provider());
        // rustls calls every other verifier "dangerous"; ours calls the same functions.
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(ORIGINS_REMEMBERED);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut both = config.clone();
        both.alpn_protocols.insert(0, b"h2".to_vec());
        Self {
            both: Arc::new(both),
            http_1: Arc::new(config),
            clock,
        }
    }

    /// Returns the time at which certificates are checked, seconds since 1970.
    pub(super) fn now(&self) -> hashcache_http::UnixTime {
        hashcache_http::UnixTime(self.clock.now().seconds())
    }

    /// Does the handshake with `host` on a connected stream, within `limit`. `peer` is the address
    /// of the host if the stream is a direct connection to it.
    pub(super) async fn handshake<S>(
        &self,
        host: &Host,
        (stream, peer): (S, Option<SocketAddr>),
        offer: AlpnOffer,
        limit: Duration,
    ) -> Result<TlsStream<S>, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = server_name(host)?;
        let connector = TlsConnector::from(Arc::clone(match offer {
            AlpnOffer::Both => &self.both,
            AlpnOffer::Http1 => &self.http_1,
        }));
        let shaken = tokio::time::timeout(limit, connector.connect(name, stream)).await;
        if let (Ok(shaken), Some(peer)) = (&shaken, peer) {
            self.bear_witness(host, peer.ip(), shaken);
        }
        match shaken {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(failure_of(&error)),
            Err(_) => Err(Failure::ConnectTimeout(limit)),
        }
    }

    /// Reports the certificate's validity to the clock.
    fn bear_witness<S>(&self, host: &Host, peer: IpAddr, shaken: &io::Result<TlsStream<S>>) {
        match shaken {
            // A resumed handshake shows no certificate: this is the certificate of the earlier
            // handshake.
            Ok(stream) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                if let Some(validity) = chain.first().and_then(|it| verifier::validity(it)) {
                    self.clock.verified(host, peer, validity);
                }
            }
            Err(error) => {
                if let Failure::TlsCertificate(EXPIRED | NOT_YET) = failure_of(error) {
                    self.clock.out_of_time(host, peer);
                }
            }
        }
    }
}

impl Trust {
    /// Does a handshake with `host` on a socket that is used for nothing else, and returns the
    /// expiry time of the certificate. Nothing is resumed, so the host shows the certificate.
    pub(super) async fn verify(
        &self,
        host: &Host,
        channel: Channel,
        limit: Duration,
    ) -> Result<hashcache_http::UnixTime, Unverified> {
        let wanted = Arc::new(CertificateRequested::default());
        let mut config = ClientConfig::clone(&self.both);
        config.resumption = Resumption::disabled();
        config.client_auth_cert_resolver = Arc::clone(&wanted) as Arc<dyn ResolvesClientCert>;
        let name = server_name(host).map_err(Unverified::Failed)?;
        let connector = TlsConnector::from(Arc::new(config));
        let shaken = tokio::time::timeout(limit, connector.connect(name, channel)).await;
        // Some hosts abort the handshake without a client certificate; report that as the reason.
        if wanted.0.load(Relaxed) {
            return Err(Unverified::WantsCertificate);
        }
        let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let mut stream = shaken.map_err(|error| Unverified::Failed(failure_of(&error)))?;
        let damaged = Failure::TlsCertificate("damaged");
        let not_after = not_after(&stream).ok_or(Unverified::Failed(damaged));
        // Fits into the socket's buffer, so it does not block.
        let _ = tokio::time::timeout(limit, stream.shutdown()).await;
        not_after
    }
}

/// Returns the expiry time of the certificate shown in this handshake; `None` if no certificate was
/// shown.
pub(super) fn not_after<S>(stream: &TlsStream<S>) -> Option<hashcache_http::UnixTime> {
    let connection = stream.get_ref().1;
    if connection.handshake_kind() == Some(HandshakeKind::Resumed) {
        return None;
    }
    let certificate = connection.peer_certificates()?.first()?;
    let not_after = certificate::not_after(certificate)?;
    let since = not_after.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(hashcache_http::UnixTime(since.as_secs()))
}

/// Has no client certificate, and notes that a client certificate was requested.
#[derive(Debug, Default)]
struct CertificateRequested(AtomicBool);

impl ResolvesClientCert for CertificateRequested {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Adds the authorities in the file at `path` to `roots`.
fn add(roots: &mut RootCertStore, path: &Path) -> Result<(), AuthoritiesError> {
    roots.roots.extend(read_authorities(path)?.roots);
    Ok(())
}

/// Reads the authorities in the file at `path`.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, AuthoritiesError> {
    let path = path.to_owned();
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect);
    let certificates: Vec<CertificateDer<'static>> = match read {
        Ok(certificates) => certificates,
        Err(source) => return Err(AuthoritiesError::Read { path, source }),
    };
    if certificates.is_empty() {
        return Err(AuthoritiesError::Empty { path });
    }
    for certificate in certificates {
        if let Err(source) = roots.add(certificate) {
            return Err(AuthoritiesError::Certificate { path, source });
        }
    }
    Ok(roots)
}

/// Returns the name for SNI and for the certificate: DNS allows a final dot, certificates do not
/// (RFC 6066, section 3).
pub(super) fn server_name(host: &Host) -> Result<ServerName<'static>, Failure> {
    match host {
        Host::Name(name) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_owned();
            ServerName::try_from(name)
                .map_err(|_| Failure::TlsCertificate("not possible for this host name"))
        }
        Host::V4(address) => Ok(ServerName::from(IpAddr::V4(*address))),
        Host::V6(address) => Ok(ServerName::from(IpAddr::V6(*address))),
    }
}

/// Returns the failure for a handshake error.
fn failure_of(error: &io::Error) -> Failure {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<TlsError>());
    match cause {
        Some(TlsError::InvalidCertificate(why)) => Failure::TlsCertificate(why_refused(why)),
        Some(TlsError::NoCertificatesPresented) => Failure::TlsCertificate("missing"),
        Some(TlsError::AlertReceived(alert)) => {
            Failure::TlsAlert(alert.as_str().unwrap_or("an unknown alert"))
        }
        Some(TlsError::InvalidMessage(_)) => {
            Failure::TlsProtocol("the server does not answer with TLS, or with an old version")
        }
        Some(TlsError::PeerIncompatible(_)) => Failure::TlsProtocol(
            "no common TLS version or cipher suite; TLS 1.2 is the oldest allowed",
        ),
        Some(TlsError::NoApplicationProtocol) => Failure::TlsProtocol("no common HTTP version"),
        Some(_) => Failure::TlsProtocol("the handshake failed"),
        None => Failure::ConnectionTerminated,
    }
}

fn why_refused(why: &CertificateError) -> &'static str {
    use CertificateError as Why;
    match why {
        Why::Expired | Why::ExpiredContext { .. } => EXPIRED,
        Why::NotValidYet | Why::NotValidYetContext { .. } => NOT_YET,
        Why::Revoked => "revoked",
        Why::UnknownIssuer => "signed by an unknown issuer",
        Why::NotValidForName | Why::NotValidForNameContext { .. } => "for another name",
        Why::InvalidPurpose | Why::InvalidPurposeContext { .. } => "not for servers",
        Why::BadEncoding => "damaged",
        Why::BadSignature => "wrongly signed",
        Why::UnhandledCriticalExtension => "marked with an unknown critical extension",
        // The result of `openssl req -x509` with default options; the error has no separate
        // variant.
        Why::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "that of a CA, not of a site"
        }
        _ => "not acceptable",
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trust").finish()
    }
}

/// The reason for certificates that are valid only at another time.
const EXPIRED: &str = "expired";
const NOT_YET: &str = "not valid yet";

/// Number of origins with remembered sessions, each with up to eight tickets of about 1 KiB.
const ORIGINS_REMEMBERED: usize = 256;

#[cfg(test)]
mod http2_message_tests;
#[cfg(test)]
mod http2_refusal_tests;
#[cfg(test)]
mod http2_sharing_tests;
#[cfg(test)]
mod http2_tests;
#[cfg(test)]
pub(crate) mod tests;
