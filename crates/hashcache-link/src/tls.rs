//! TLS for links: only version 1.3, with a certificate on both sides. Each side accepts the
//! certificate of the other side only by the pin of the key.
//!
//! The names, dates and issuers in the certificates are not checked: the pin is the whole identity,
//! and a box with a wrong clock still gets a link. rustls verifies the handshake signatures, so the
//! other side has the private half of the pinned key.
//!
//! Invariants: no certificate without a pin in the list is accepted; no session is resumed, because
//! a resumed session would keep a child with a removed pin. Cost: one handshake per connection.

use std::sync::Arc;

use hashcache_base::clock::Clock;
use hashcache_base::tls::{HTTP_2, OurTime, provider};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    Error, PeerIncompatible, ServerConfig, SignatureScheme,
};

use super::pin::Pin;

/// TLS configuration on a child, for the parent with the key `pin`.
pub(crate) fn of_child(key: &Arc<CertifiedKey>, pin: Pin) -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has suites of version 1.3");
    let verifier = PinnedKeys::new(vec![pin]);
    // rustls calls every custom verifier "dangerous".
    let mut config = config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))));
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// TLS configuration on a parent, for children with the keys `pins`.
pub fn of_parent(key: &Arc<CertifiedKey>, pins: &[Pin], clock: &Arc<Clock>) -> Arc<ServerConfig> {
    let time = Arc::new(OurTime(Arc::clone(clock)));
    let config = ServerConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has suites of version 1.3");
    let mut config = config
        .with_client_cert_verifier(Arc::new(PinnedKeys::new(pins.to_vec())))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))));
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Arc::new(config)
}

/// Accepts certificates by the pin of the key.
#[derive(Debug)]
struct PinnedKeys {
    pins: Vec<Pin>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedKeys {
    fn new(pins: Vec<Pin>) -> Self {
        Self {
            pins,
            algorithms: provider().signature_verification_algorithms,
        }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let pin = Pin::from_certificate(certificate).ok_or(CertificateError::BadEncoding)?;
        if self.pins.contains(&pin) {
            Ok(())
        } else {
            // rustls sends the alert access_denied to the other side.
            Err(NOT_PINNED.into())
        }
    }
}

/// Returns true if the handshake failed because the other side has another key than the pinned key.
pub fn is_not_pinned(error: &Error) -> bool {
    *error == NOT_PINNED.into()
}

/// Returns true if the other side has aborted the handshake because of our key, or because we have
/// no key.
pub fn is_refused(error: &Error) -> bool {
    use AlertDescription as Alert;
    matches!(
        error,
        Error::AlertReceived(
            Alert::AccessDenied | Alert::CertificateRequired | Alert::BadCertificate
        )
    )
}

/// Error: the key of a certificate is not in the list of pins.
const NOT_PINNED: CertificateError = CertificateError::ApplicationVerificationFailure;

impl ServerCertVerifier for PinnedKeys {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for PinnedKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
