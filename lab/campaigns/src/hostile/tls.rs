//! TLS for both ends of `hostile`: a certificate for 127.0.0.1, and handshakes that offer HTTP/2.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use hashcache_testkit::scenario::hostile::{Channel, Shake};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A certificate authority, and a certificate for 127.0.0.1 with its key, also as files.
pub struct Certificates {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    root: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    leaf_key: PrivateKeyDer<'static>,
}

impl Certificates {
    pub fn make(directory: &Path) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(vec![])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate()?;
        let root = params.self_signed(&authority_key)?;
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate()?;
        let leaf =
            CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            let written = std::fs::write(&path, text);
            written.with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            authority: write("authority.pem", root.pem())?,
            certificate: write("site.pem", leaf.pem())?,
            key: write("site.key", key.serialize_pem())?,
            root: root.der().clone(),
            leaf: leaf.der().clone(),
            leaf_key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        })
    }

    /// The handshake of a client.
    pub fn client(&self) -> anyhow::Result<Shake> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone())?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Arc::new(move |socket| {
            let connector = connector.clone();
            Box::pin(async move {
                let name = ServerName::try_from("127.0.0.1").map_err(io::Error::other)?;
                let stream = connector.connect(name, socket).await?;
                Ok(Box::new(stream) as Box<dyn Channel>)
            })
        }))
    }

    /// The handshake of an origin.
    pub fn server(&self) -> anyhow::Result<Shake> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.leaf.clone()], self.leaf_key.clone_key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Arc::new(move |socket| {
            let acceptor = acceptor.clone();
            Box::pin(async move {
                let stream = acceptor.accept(socket).await?;
                Ok(Box::new(stream) as Box<dyn Channel>)
            })
        }))
    }
}
