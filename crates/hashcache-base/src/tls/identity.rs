//! The proxy's own certificates for clients that use TLS, read from files.
//!
//! Made by `server` in the proxy at the start and by `server/control` at every reload;
//! `server/cores` uses it in handshakes.
//!
//! Invariant: every certificate in an [`Identity`] has a separate key. Cost: for a new client, the
//! handshake is most of the cost; a client with a ticket pays a part of it, and only the client
//! stores the ticket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::{HTTP_2, OurTime, provider};
use crate::clock::Clock;

/// Why the certificates cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file could not be read, or has no PEM block of this kind.
    #[error("cannot read {what} from {}", path.display())]
    Read {
        /// The missing kind.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PemError,
    },
    /// Certificate and key do not match, or cannot be used.
    #[error("the certificate in {} does not match its key", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        /// The cause.
        source: TlsError,
    },
    /// The system gave no random bytes for tickets.
    #[error("cannot make keys for session tickets")]
    Tickets(#[source] TlsError),
}

/// The files with a certificate and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, our own certificate first (PEM).
    pub certificate: PathBuf,
    /// The key (PEM).
    pub key: PathBuf,
}

/// The certificates for clients; one set for all cores, made anew by a reload.
#[derive(Clone)]
pub struct Identity(Arc<ServerConfig>);

impl Identity {
    /// Loads the files; `None` without files.
    pub fn load(
        files: &[CertificateFiles],
        protocols: &[&[u8]],
        clock: &Arc<Clock>,
    ) -> Result<Option<Self>, IdentityError> {
        if files.is_empty() {
            return Ok(None);
        }
        let pairs = files.iter().map(pair).collect::<Result<_, _>>()?;
        let time = Arc::new(OurTime(Arc::clone(clock)));
        let mut config = ServerConfig::builder_with_details(provider(), time)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites of both versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(KeyPairs(pairs)));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.ticketer = Ticketer::new().map_err(IdentityError::Tickets)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // Reads and writes are copied from and to TLS records; larger records would wait in memory.
        config.max_fragment_size = None;
        Ok(Some(Self(Arc::new(config))))
    }

    /// An acceptor for TLS connections with these certificates.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").finish()
    }
}

/// The certificate and the key in `files`, if they match.
pub fn pair(files: &CertificateFiles) -> Result<Arc<CertifiedKey>, IdentityError> {
    let cannot = |what, path: &Path| {
        let path = path.to_owned();
        move |source| IdentityError::Read { what, path, source }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(cannot("certificates", &files.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(cannot("a key", &files.key))?;
    let pair = CertifiedKey::from_der(chain, key, &provider());
    pair.map(Arc::new).map_err(|source| IdentityError::Pair {
        path: files.certificate.clone(),
        source,
    })
}

/// Certificates in the order of the settings.
#[derive(Debug)]
struct KeyPairs(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for KeyPairs {
    /// The first certificate with the requested name. Otherwise the first certificate of all: the
    /// client will refuse it with a reason that the user can read.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok())
            .and_then(|name| self.0.iter().find(|pair| bears(pair, &name)));
        named.or(self.0.first()).cloned()
    }
}

fn bears(pair: &CertifiedKey, name: &ServerName<'_>) -> bool {
    pair.end_entity_cert()
        .and_then(ParsedCertificate::try_from)
        .and_then(|certificate| verify_server_name(&certificate, name))
        .is_ok()
}

/// The protocols for clients of a site.
pub const FOR_SITES: [&[u8]; 2] = [HTTP_2, HTTP_1];
/// The protocols for clients of a forward proxy: CONNECT is served in HTTP/1.1 only.
pub const FOR_FORWARD: [&[u8]; 1] = [HTTP_1];
const HTTP_1: &[u8] = b"http/1.1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Authorities;

    fn files(directory: &Path, name: &str, certificate: &str, key: &str) -> CertificateFiles {
        let files = CertificateFiles {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate).unwrap();
        std::fs::write(&files.key, key).unwrap();
        files
    }

    #[test]
    fn a_certificate_is_taken_only_with_its_own_key() {
        let directory = tempfile::tempdir().unwrap();
        let authorities = Authorities::generate();
        let clock = Arc::new(Clock::start(None));
        let (one, other) = (
            authorities.leaf("a.test", |_| ()),
            authorities.leaf("b.test", |_| ()),
        );
        let load = |certificate: &str, key: &str| {
            let files = files(directory.path(), "x", certificate, key);
            Identity::load(&[files], &FOR_SITES, &clock).map(|identity| identity.is_some())
        };
        assert!(load(&one.certificate_pem, &one.key_pem).unwrap());
        assert!(matches!(
            load(&one.certificate_pem, &other.key_pem),
            Err(IdentityError::Pair { .. })
        ));
        assert!(matches!(
            load("", &one.key_pem),
            Err(IdentityError::Pair { .. })
        ));
        assert!(matches!(
            load(&one.certificate_pem, ""),
            Err(IdentityError::Read { what: "a key", .. })
        ));
        assert!(Identity::load(&[], &FOR_SITES, &clock).unwrap().is_none());
    }

    #[test]
    fn a_certificate_is_found_by_the_name_it_bears() {
        let directory = tempfile::tempdir().unwrap();
        let authorities = Authorities::generate();
        let pairs = ["a.test", "*.b.test"].map(|name| {
            let leaf = authorities.leaf(name, |_| ());
            let files = files(directory.path(), name, &leaf.certificate_pem, &leaf.key_pem);
            pair(&files).unwrap()
        });
        let bears =
            |at: usize, name: &'static str| bears(&pairs[at], &ServerName::try_from(name).unwrap());
        assert!(bears(0, "a.test") && !bears(1, "a.test"));
        assert!(!bears(0, "x.b.test") && bears(1, "x.b.test"));
        assert!(!bears(0, "c.test") && !bears(1, "c.test"));
    }
}
