//! Who we are to clients that speak TLS: certificates with their keys, read from files.
//!
//! Made by `server` at the start and by `control` at every reload; `cores` shakes hands with it.
//!
//! Invariant: an [`Identity`] that exists has for each certificate its own key. Cost: a handshake
//! is most of what a new client costs; whoever comes again with a ticket pays a part of it, and
//! the ticket is kept by the client alone.

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

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file could not be read, or holds no PEM of that kind.
    #[error("cannot read {what} from {}", path.display())]
    Read {
        /// What was looked for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PemError,
    },
    /// The two do not belong together, or cannot be used.
    #[error("the certificate in {} does not match its key", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong.
        source: TlsError,
    },
    /// The system gave no random bytes for tickets.
    #[error("cannot make keys for session tickets")]
    Tickets(#[source] TlsError),
}

/// Where a certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, our own certificate first (PEM).
    pub certificate: PathBuf,
    /// The key (PEM).
    pub key: PathBuf,
}

/// What is shown to clients; one for all cores, made anew by a reload.
#[derive(Clone)]
pub(crate) struct Identity(Arc<ServerConfig>);

impl Identity {
    /// What the files hold; none without files.
    pub(crate) fn load(
        files: &[CertificateFiles],
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
        config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
        config.ticketer = Ticketer::new().map_err(IdentityError::Tickets)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // Reads and writes are copied from and to the records; more would wait in memory.
        config.max_fragment_size = None;
        Ok(Some(Self(Arc::new(config))))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").finish()
    }
}

/// The certificate and the key in `files`, if they belong together.
pub(crate) fn pair(files: &CertificateFiles) -> Result<Arc<CertifiedKey>, IdentityError> {
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
    /// The first that bears the name asked for; else the first of all, which the client will refuse
    /// with a reason that its user can read.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tls::tests::Authorities;

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
        let authorities = Authorities::new();
        let clock = Arc::new(Clock::start(None));
        let (one, other) = (
            authorities.leaf("a.test", |_| ()),
            authorities.leaf("b.test", |_| ()),
        );
        let load = |certificate: &str, key: &str| {
            let files = files(directory.path(), "x", certificate, key);
            Identity::load(&[files], &clock).map(|identity| identity.is_some())
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
        assert!(Identity::load(&[], &clock).unwrap().is_none());
    }

    #[test]
    fn a_certificate_is_found_by_the_name_it_bears() {
        let directory = tempfile::tempdir().unwrap();
        let authorities = Authorities::new();
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
