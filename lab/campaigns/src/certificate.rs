//! A certificate of this machine for servers under test.
//!
//! Used by `application`, `h2spec` and `cpu`. Their clients accept a certificate that no known
//! authority has signed.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Files with a certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub file: PathBuf,
    pub key_file: PathBuf,
}

impl Certificate {
    /// Makes one for this machine in `folder`.
    pub fn make(folder: &Path) -> anyhow::Result<Self> {
        Self::make_for(&["localhost", "127.0.0.1"], folder)
    }

    /// Makes one for these names in `folder`, signed by its own key.
    pub fn make_for(names: &[&str], folder: &Path) -> anyhow::Result<Self> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
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
