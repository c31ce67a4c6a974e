//! A key's pin: the SHA-256 of the public key, as in RFC 7469.
//!
//! Operators copy pins from one box to the other; `tls` compares them.
//!
//! Invariant: a pin does not depend on a certificate's names or dates, so a new certificate for the
//! same key has the same pin.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hashcache_base::tls::sha256;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;

/// The SHA-256 of a public key with its algorithm (SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pin([u8; BYTES]);

/// Error: a text is no pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a pin is written as sha256: and 44 characters of base64, as `hashcache link pin` prints it"
)]
pub struct PinError;

impl Pin {
    /// The pin of the key in `certificate`; `None` if this is no certificate.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = ParsedCertificate::try_from(certificate).ok()?;
        Some(Self(sha256(&certificate.subject_public_key_info())))
    }

    /// The hash itself.
    pub(crate) fn bytes(&self) -> [u8; BYTES] {
        self.0
    }

    /// The pin with this hash.
    pub(crate) fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// The first 128 bits, to distinguish children.
    pub fn number(&self) -> u128 {
        let mut half = [0; 16];
        half.copy_from_slice(&self.0[..16]);
        u128::from_be_bytes(half)
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let hash = text.strip_prefix(PREFIX).ok_or(PinError)?;
        let hash = STANDARD.decode(hash).map_err(|_| PinError)?;
        hash.try_into().map(Self).map_err(|_| PinError)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const BYTES: usize = 32;
const PREFIX: &str = "sha256:";

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn a_pin_belongs_to_a_key_whatever_certificate_it_is_in() {
        let key = KeyPair::generate().unwrap();
        let made = |name: &str| {
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            Pin::from_certificate(params.self_signed(&key).unwrap().der()).unwrap()
        };
        assert_eq!(made("a.test"), made("b.test"));
        let other = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        let other = Pin::from_certificate(params.self_signed(&other).unwrap().der()).unwrap();
        assert_ne!(made("a.test"), other);
        assert_eq!(
            Pin::from_certificate(&CertificateDer::from(vec![1, 2, 3])),
            None
        );
    }

    #[test]
    fn a_pin_is_read_as_it_is_written_and_in_no_other_form() {
        let text = format!("sha256:{}=", "A".repeat(43));
        assert_eq!(text.parse::<Pin>().unwrap().to_string(), text);
        let short = format!("sha256:{}=", "A".repeat(39));
        for wrong in [&text[7..], "sha256:", &text[..40], &short, "SHA256:AAAA"] {
            assert_eq!(wrong.parse::<Pin>(), Err(PinError), "{wrong}");
        }
    }
}
