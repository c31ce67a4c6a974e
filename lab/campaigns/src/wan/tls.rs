//! An origin with TLS, for the cases in which only the scheme is another one.
//!
//! Used by `privacy`. Invariant: it serves one content, at every path, to HTTP/1.1.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A running origin; it ends when dropped.
pub struct TlsSite {
    address: SocketAddr,
    /// The authority of its certificate, PEM.
    pub certificate: PathBuf,
    content: Content,
    task: JoinHandle<()>,
}

type Content = Arc<Mutex<Arc<Vec<u8>>>>;

impl TlsSite {
    /// Starts one whose authority is written into `folder`.
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(vec![])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate()?;
        let root = params.self_signed(&authority_key)?;
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned()];
        let leaf = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        let certificate = folder.join("origin.pem");
        std::fs::write(&certificate, root.pem())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let content = Content::default();
        let shared = Arc::clone(&content);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, content) = (acceptor.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    // What a client breaks is its own connection.
                    let _ = serve(acceptor, socket, content).await;
                });
            }
        });
        Ok(Self {
            address,
            certificate,
            content,
            task,
        })
    }

    /// Serves this from now on.
    pub fn set(&self, content: Arc<Vec<u8>>) {
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = content;
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

impl Drop for TlsSite {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(acceptor: TlsAcceptor, socket: TcpStream, content: Content) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(socket).await?);
    loop {
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
        }
        let content = content
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: public, max-age=600\r\nContent-Length: {}\r\n\r\n",
            content.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&content).await?;
        stream.flush().await?;
    }
}
