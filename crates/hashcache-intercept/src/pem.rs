//! PEM (RFC 7468).
//!
//! Called where certificates are served. `rustls` parses PEM.

use ::pem::{EncodeConfig, LineEnding, Pem, encode_config};

/// Encodes the bytes in PEM with this label.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    encode_config(&Pem::new(label, bytes), config)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn pem_is_read_back_whatever_its_length() {
        for length in [1, 47, 48, 49, 500] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let text = pem("CERTIFICATE", &bytes);
            let read = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!(read.as_ref(), bytes);
            assert!(text.ends_with("-----END CERTIFICATE-----\n") && !text.contains('\r'));
            assert!(text.lines().all(|line| line.len() <= 64));
        }
    }
}
