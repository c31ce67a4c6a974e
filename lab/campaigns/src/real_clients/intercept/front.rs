//! TLS in front of origins that speak clear text, with certificates of an authority made for this
//! run, which the proxy trusts and clients do not.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The host name of all origins; it resolves to this machine on every system.
pub const HOST: &str = "origin.localhost";

/// All TLS fronts of a run.
pub struct Front {
    acceptor: TlsAcceptor,
    /// The authority's certificate.
    pub pem: String,
    open: Mutex<Vec<(u16, JoinHandle<()>)>>,
}

impl Front {
    /// With an authority and one certificate, for these names.
    pub fn new(names: &[&str]) -> anyhow::Result<Self> {
        let mut authority = CertificateParams::new(vec![])?;
        let hosts: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let name = "Authority of origins";
        let subject = &mut authority.distinguished_name;
        subject.push(rcgen::DnType::CommonName, name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate()?;
        let certificate = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new(hosts)?.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)?;
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            pem: certificate.pem(),
            open: Mutex::default(),
        })
    }

    /// Puts TLS in front of `origin`; returns its URL without a slash at the end.
    pub async fn put(&self, origin: SocketAddr) -> anyhow::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        self.put_on(listener, origin)?;
        Ok(format!("https://{HOST}:{port}"))
    }

    /// The same at an address of the caller's choice.
    pub fn put_on(&self, listener: TcpListener, origin: SocketAddr) -> anyhow::Result<()> {
        let port = listener.local_addr()?.port();
        let acceptor = self.acceptor.clone();
        let task = tokio::spawn(async move {
            // The connections end with the task that accepts them.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    // A client that breaks off or refuses the certificate is not an error of the
                    // front.
                    if let Ok(mut client) = acceptor.accept(client).await
                        && let Ok(mut origin) = TcpStream::connect(origin).await
                    {
                        let _ = copy_bidirectional(&mut client, &mut origin).await;
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        self.open().push((port, task));
        Ok(())
    }

    /// The ports of all fronts.
    pub fn ports(&self) -> Vec<u16> {
        self.open().iter().map(|(port, _)| *port).collect()
    }

    /// Ends all fronts, as if the line were down.
    pub async fn cut(&self) -> anyhow::Result<()> {
        let open = std::mem::take(&mut *self.open());
        for (port, task) in open {
            task.abort();
            // The port is closed only after the task has ended.
            let _ = task.await;
            let refused = TcpStream::connect(("127.0.0.1", port)).await;
            anyhow::ensure!(refused.is_err(), "port {port} is still open");
        }
        Ok(())
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<(u16, JoinHandle<()>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        for (_, task) in self.open().drain(..) {
            task.abort();
        }
    }
}
