//! Verification of origins' certificates: by rustls, at the time of our clock.
//!
//! rustls uses one time for all certificates. A clock that has lost the time with the power does
//! not have such a time: see `clock` of `hashcache-base` for the time that it uses instead, and the
//! reasons.
//!
//! Invariant: rustls functions always verify chain, name and signature; only the time is ours.
//! Cost: another pass over the certificate.

use std::sync::Arc;

use hashcache_base::clock::{Clock, Validity};
use hashcache_base::tls::certificate::Certificate;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Verifies certificates with `roots` and the clock.
#[derive(Debug)]
pub(super) struct Verifier {
    roots: RootCertStore,
    clock: Arc<Clock>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(roots: RootCertStore, clock: Arc<Clock>, provider: &CryptoProvider) -> Self {
        Self {
            roots,
            clock,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn verify_at(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        seconds: u64,
    ) -> Result<(), Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, chain, time, algorithms)?;
        verify_server_name(&leaf, name)
    }
}

/// Returns a certificate's validity period; `None` for invalid data.
pub(super) fn validity(der: &CertificateDer<'_>) -> Option<Validity> {
    let read = Certificate::read(der)?;
    Some(Validity {
        not_before: read.not_before,
        not_after: read.not_after,
    })
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |seconds| self.verify_at(end_entity, intermediates, server_name, seconds);
        let Some(validity) = validity(end_entity) else {
            verify(now.as_secs())?;
            return Ok(ServerCertVerified::assertion());
        };
        let time = self.clock.certificate_time(validity);
        match verify(time) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            // webpki checks the time first. If there is another error too, return that error: the
            // clock must learn only from certificates that are valid except for the time.
            Err(error) if is_of_time(&error) => {
                verify(time.min(validity.not_after).max(validity.not_before))?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
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

fn is_of_time(error: &Error) -> bool {
    use CertificateError as Why;
    matches!(
        error,
        Error::InvalidCertificate(
            Why::Expired
                | Why::ExpiredContext { .. }
                | Why::NotValidYet
                | Why::NotValidYetContext { .. }
        )
    )
}
