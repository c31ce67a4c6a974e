//! Interception: the proxy answers for an origin with a certificate of its own authority, so that
//! responses over https can be stored. Only listed hosts are intercepted.
//!
//! Called by `connect` of the proxy at a CONNECT. [`Interceptor::judge`] looks the name up in
//! `hosts`. After the 200, `peek` reads the client's first bytes and `client_hello` parses them.
//! `hashcache_base::tls::verified_hosts` knows whether the origin's certificate was verified
//! recently, `refusals` whether this program refuses our certificate. Only if all checks pass,
//! `authority` makes a leaf. Otherwise the bytes are forwarded unchanged, and the client sees the
//! origin's certificate.
//!
//! Invariant: a client that is not intercepted notices no difference to a proxy without
//! interception, except that the bytes to a listed host may be delayed by up to three seconds.

// Certificates.
pub mod authority;
mod leaf_cache;
pub(crate) mod pem;

// Decisions.
pub mod hosts;
mod reason;

pub mod client_hello;
pub mod peek;

pub mod refusals;

pub use self::hosts::SELF_TEST_HOST;
pub use self::reason::Reason;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hashcache_base::clock::Clock;
use hashcache_base::tls::verified_hosts::VerifiedHosts;
use hashcache_base::tls::{OurTime, provider};
use hashcache_http::{Authority, Host, UnixTime};
use rustls::crypto::ring::Ticketer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, Error as TlsError, ServerConfig};
use tokio_rustls::TlsAcceptor;

use self::authority::{AuthorityError, CertificateAuthority};
use self::client_hello::{InnerProtocol, ParsedHello};
use self::hosts::Hosts;
use self::refusals::Refusals;

/// The operator's settings for interception.
#[derive(Clone, Debug)]
pub struct Intercept {
    /// The authority that signs for the hosts.
    pub authority: Arc<CertificateAuthority>,
    /// The hosts.
    pub hosts: Hosts,
}

/// Results of earlier interceptions, by host and program; one instance for all cores, not changed
/// by a reload.
#[derive(Debug, Default)]
pub struct InterceptState {
    /// Hosts with certificates that were found valid.
    pub verified: Arc<VerifiedHosts>,
    /// Programs that refuse our certificates.
    pub refusals: Refusals,
}

/// Accepts handshakes for intercepted hosts; made anew by a reload.
pub struct Interceptor {
    /// Signs the leaves.
    pub authority: Arc<CertificateAuthority>,
    hosts: Hosts,
    /// The TLS configuration without the certificate.
    config: ServerConfig,
}

/// The host whose TLS is intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptKind {
    /// An origin.
    Origin,
    /// The host of the self-test: the client tests whether it trusts our authority.
    SelfTest,
}

impl Interceptor {
    /// Makes an interceptor according to `intercept`. Error: the system gave no random bytes for
    /// tickets.
    pub fn new(intercept: &Intercept, clock: &Arc<Clock>) -> Result<Self, TlsError> {
        let time = Arc::new(OurTime(Arc::clone(clock)));
        let mut config = ServerConfig::builder_with_details(provider(), time)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites of both versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(FixedLeaf(None)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A ticket is accepted only for the name for which it was issued.
        config.ticketer = Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            authority: Arc::clone(&intercept.authority),
            hosts: intercept.hosts.clone(),
            config,
        })
    }

    /// Decides by the name whether TLS to `upstream` may be intercepted.
    pub fn judge(&self, upstream: &Authority) -> Result<InterceptKind, Reason> {
        let Host::Name(name) = &upstream.host else {
            return Err(Reason::Address);
        };
        if &**name == SELF_TEST_HOST {
            return Ok(InterceptKind::SelfTest);
        }
        self.hosts.judge(&upstream.host)?;
        if self.authority.permits(name) {
            Ok(InterceptKind::Origin)
        } else {
            Err(Reason::NotPermitted)
        }
    }

    /// Makes the acceptor for `host`; the certificate of the origin expires at `not_after`.
    pub fn acceptor(
        &self,
        host: &str,
        not_after: UnixTime,
        now: UnixTime,
    ) -> Result<TlsAcceptor, AuthorityError> {
        let time = |time: UnixTime| SystemTime::UNIX_EPOCH + Duration::from_secs(time.0);
        let leaf = self.authority.leaf(host, time(not_after), time(now))?;
        let mut config = self.config.clone();
        config.cert_resolver = Arc::new(FixedLeaf(Some(leaf)));
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interceptor").finish()
    }
}

/// The certificate for a handshake, for any server name: the name was checked before.
#[derive(Debug)]
struct FixedLeaf(Option<Arc<CertifiedKey>>);

impl ResolvesServerCert for FixedLeaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
}

/// Result of a handshake with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// The client accepts our certificate.
    Finished,
    /// The client refuses our certificate with an alert, or we have no protocol in common.
    Refused,
    /// The client closed the connection without an alert.
    Left,
    /// Another error, or a timeout.
    Failed,
}

impl Handshake {
    /// All results with their names, in numerical order.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Finished, "finished"),
        (Self::Refused, "refused"),
        (Self::Left, "left"),
        (Self::Failed, "failed"),
    ];

    /// Returns the meaning of a handshake error.
    pub fn from_error(error: &io::Error) -> Self {
        use AlertDescription as Alert;
        let cause = error.get_ref().and_then(|it| it.downcast_ref::<TlsError>());
        match cause {
            Some(TlsError::AlertReceived(
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA,
            )) => Self::Refused,
            // No common protocol: a tunnel works better.
            Some(TlsError::PeerIncompatible(_) | TlsError::NoApplicationProtocol) => Self::Refused,
            Some(_) => Self::Failed,
            None => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => Self::Left,
                _ => Self::Failed,
            },
        }
    }
}

/// Checks that we can serve the client that sent `hello` on a connection to `host`.
pub fn suits(hello: &ParsedHello, host: &str) -> Result<(), Reason> {
    match hello.name.as_deref() {
        None => return Err(Reason::NoName),
        Some(name) if name != host => return Err(Reason::OtherName),
        Some(_) => {}
    }
    if !hello.modern {
        return Err(Reason::OldTls);
    }
    if hello.speaks == InnerProtocol::Other {
        return Err(Reason::NotHttp);
    }
    if hello.common {
        Ok(())
    } else {
        Err(Reason::NothingInCommon)
    }
}

/// Time for which the proxy waits for a ClientHello after the 200.
pub const PEEK_TIME: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_number_has_its_place() {
        for (at, (reason, _)) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
        for (at, (handshake, _)) in Handshake::ALL.iter().enumerate() {
            assert_eq!(*handshake as usize, at);
        }
    }

    #[test]
    fn a_client_refuses_by_alert_or_by_leaving() {
        let by = |error: TlsError| Handshake::from_error(&io::Error::other(error));
        for alert in [42, 43, 45, 46, 48].map(AlertDescription::from) {
            assert_eq!(by(TlsError::AlertReceived(alert)), Handshake::Refused);
        }
        for alert in [0, 40, 44, 47, 49, 80, 90].map(AlertDescription::from) {
            assert_eq!(by(TlsError::AlertReceived(alert)), Handshake::Failed);
        }
        assert_eq!(by(TlsError::DecryptError), Handshake::Failed);
        for (kind, expected) in [
            (io::ErrorKind::UnexpectedEof, Handshake::Left),
            (io::ErrorKind::ConnectionReset, Handshake::Left),
            (io::ErrorKind::TimedOut, Handshake::Failed),
        ] {
            assert_eq!(Handshake::from_error(&kind.into()), expected);
        }
    }

    #[test]
    fn a_hello_suits_if_it_names_the_host_and_can_be_answered() {
        let good = ParsedHello {
            name: Some("a.test".into()),
            speaks: InnerProtocol::Http,
            modern: true,
            common: true,
            fingerprint: 0,
        };
        let judged = |change: &dyn Fn(&mut ParsedHello)| {
            let mut hello = good.clone();
            change(&mut hello);
            suits(&hello, "a.test")
        };
        assert_eq!(judged(&|_| ()), Ok(()));
        assert_eq!(judged(&|it| it.speaks = InnerProtocol::Unsaid), Ok(()));
        assert_eq!(
            judged(&|it| it.speaks = InnerProtocol::Other),
            Err(Reason::NotHttp)
        );
        assert_eq!(judged(&|it| it.name = None), Err(Reason::NoName));
        let other = |it: &mut ParsedHello| it.name = Some("b.test".into());
        assert_eq!(judged(&other), Err(Reason::OtherName));
        assert_eq!(judged(&|it| it.modern = false), Err(Reason::OldTls));
        assert_eq!(
            judged(&|it| it.common = false),
            Err(Reason::NothingInCommon)
        );
    }
}
