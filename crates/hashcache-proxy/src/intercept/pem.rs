//! Base64 (RFC 4648, section 4) and PEM (RFC 7468).
//!
//! Called where certificates are served. `rustls` parses PEM.

/// The bytes as base64, padded.
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = 0_u32;
        for at in 0..3 {
            bits = bits << 8 | u32::from(group.get(at).copied().unwrap_or(0));
        }
        for at in 0..4 {
            let letter = usize::try_from(bits >> (18 - 6 * at) & 63).expect("six bits");
            // One byte fills two letters, two fill three.
            let is_filled = at <= group.len();
            text.push(char::from(if is_filled { LETTERS[letter] } else { b'=' }));
        }
    }
    text
}

/// The bytes in PEM with this label.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let letters = base64(bytes);
    let mut rest = letters.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Letters in a line (RFC 7468, section 2).
const LINE: usize = 64;

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn pem_is_read_back_whatever_its_length() {
        for length in [1, 47, 48, 49, 500] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let text = pem("CERTIFICATE", &bytes);
            let read = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!(read.as_ref(), bytes);
            assert!(text.lines().all(|line| line.len() <= LINE));
        }
    }
}
