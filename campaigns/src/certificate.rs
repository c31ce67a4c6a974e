//! A certificate of this machine for servers under test.
//!
//! Used by `h2spec` and `cpu`, whose clients do not check who signed it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Files with a certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub file: PathBuf,
    pub key_file: PathBuf,
}

impl Certificate {
    /// Makes one for this machine, signed by itself, in `folder`.
    pub fn make(folder: &Path) -> anyhow::Result<Self> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made =
            rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
        let certificate = Self {
            file: folder.join("certificate.pem"),
            key_file: folder.join("key.pem"),
        };
        std::fs::write(&certificate.file, made.cert.pem())
            .context("cannot write the certificate")?;
        std::fs::write(&certificate.key_file, made.signing_key.serialize_pem())
            .context("cannot write the key")?;
        Ok(certificate)
    }
}
