//! Certificates from an authority that a test makes.
#![allow(clippy::unwrap_used, reason = "a test fails where it is")]

use rcgen::{BasicConstraints, CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// An authority that a test makes.
#[derive(Debug)]
pub struct Authorities {
    /// Certificate of the authority.
    pub certificate: CertificateDer<'static>,
    /// Certificate of the authority, in PEM.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, ready for a server.
#[derive(Debug)]
pub struct Leaf {
    /// Certificate, signed by the authority.
    pub certificate: CertificateDer<'static>,
    /// Private key of the certificate.
    pub key: PrivateKeyDer<'static>,
    /// The certificate in PEM.
    pub certificate_pem: String,
    /// The key in PEM.
    pub key_pem: String,
}

impl Authorities {
    /// A new authority with a unique name.
    #[must_use]
    pub fn generate() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let name = format!("Authorities {:x}", fastrand::u64(..));
        let names = &mut params.distinguished_name;
        names.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for `name`, changed by `change` before it is signed.
    #[must_use]
    pub fn leaf(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Leaf {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}
