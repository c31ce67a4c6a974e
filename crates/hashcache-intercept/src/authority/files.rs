//! An authority on disk: a directory with four files.
//!
//! | file | mode | content |
//! |---|---|---|
//! | `root.pem` | 644 | the certificate that devices must trust |
//! | `bundle.pem` | 644 | this certificate, and the roots that the system trusted at that time |
//! | `signer.pem` | 600 | for the proxy: intermediate key and certificate, root certificate |
//! | `root.key` | 600 | the root's key; missing if the authority is limited to domains |
//!
//! The bundle is for programs that read all roots from one file.
//!
//! Called by `authority`. Invariant: the directory gets the final name when all files are on disk.
//! So after a power failure there is a complete authority or none (and perhaps a temporary
//! directory).

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::{AuthorityError, malformed};
use crate::pem::pem;

/// The parts of an authority that the proxy needs.
pub(super) struct AuthorityKeys {
    pub(super) key: PrivatePkcs8KeyDer<'static>,
    pub(super) intermediate: CertificateDer<'static>,
    pub(super) root: CertificateDer<'static>,
}

impl Clone for AuthorityKeys {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone_key(),
            intermediate: self.intermediate.clone(),
            root: self.root.clone(),
        }
    }
}

/// Returns the path of the file that is loaded.
pub(super) fn signer(directory: &Path) -> PathBuf {
    directory.join("signer.pem")
}

/// Fails if `write` would overwrite anything.
pub(super) fn check_free(directory: &Path) -> Result<(), AuthorityError> {
    let path = directory.to_owned();
    match directory.read_dir().map(|mut entries| entries.next()) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(AuthorityError::Exists { path }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(AuthorityError::Write { path, source }),
    }
}

/// Writes a new authority completely, or not at all. `step` is called before each change on disk;
/// an error simulates a power failure there.
pub(super) fn write(
    directory: &Path,
    bundle: &AuthorityKeys,
    root_key: Option<&KeyPair>,
    step: impl FnMut() -> io::Result<()>,
) -> Result<(), AuthorityError> {
    let path = directory.to_owned();
    let (Some(name), Some(parent)) = (directory.file_name(), directory.parent()) else {
        let source = ErrorKind::InvalidInput.into();
        return Err(AuthorityError::Write { path, source });
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    // A unique name, even after an interrupted run.
    let mut fresh = std::ffi::OsString::from(".");
    fresh.push(name);
    fresh.push(format!(".{:016x}.new", fastrand::u64(..)));
    let fresh = parent.join(fresh);
    let written = AtomicWrite { step }.all(&fresh, parent, directory, bundle, root_key);
    written.map_err(|source| {
        // Remaining files do no harm; an error here would hide the first error.
        let _ = std::fs::remove_dir_all(&fresh);
        match source.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
                AuthorityError::Exists { path }
            }
            _ => AuthorityError::Write { path, source },
        }
    })
}

/// A write that may be interrupted at any point.
struct AtomicWrite<S> {
    step: S,
}

impl<S: FnMut() -> io::Result<()>> AtomicWrite<S> {
    fn all(
        mut self,
        fresh: &Path,
        parent: &Path,
        directory: &Path,
        bundle: &AuthorityKeys,
        root_key: Option<&KeyPair>,
    ) -> io::Result<()> {
        (self.step)()?;
        DirBuilder::new().mode(0o700).create(fresh)?;
        let root = pem("CERTIFICATE", &bundle.root);
        let signer_text = format!(
            "{}{}{root}",
            pem("PRIVATE KEY", bundle.key.secret_pkcs8_der()),
            pem("CERTIFICATE", &bundle.intermediate),
        );
        self.file(&fresh.join("root.pem"), 0o644, &root)?;
        let mut all = root.clone();
        for certificate in rustls_native_certs::load_native_certs().certs {
            all.push_str(&pem("CERTIFICATE", &certificate));
        }
        self.file(&fresh.join("bundle.pem"), 0o644, &all)?;
        if let Some(key) = root_key {
            let text = pem("PRIVATE KEY", key.serialized_der());
            self.file(&fresh.join("root.key"), 0o600, &text)?;
        }
        self.file(&signer(fresh), 0o600, &signer_text)?;
        (self.step)()?;
        File::open(fresh)?.sync_all()?;
        (self.step)()?;
        // Fails if there is a directory that is not empty.
        std::fs::rename(fresh, directory)?;
        File::open(parent)?.sync_all()
    }

    fn file(&mut self, path: &Path, mode: u32, text: &str) -> io::Result<()> {
        (self.step)()?;
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
        (self.step)()?;
        file.write_all(text.as_bytes())?;
        (self.step)()?;
        file.sync_all()
    }
}

/// Reads the parts that the proxy needs, and returns their path: the credential, if it exists, else
/// the file in `directory`.
pub(super) fn read(
    directory: &Path,
    credentials: Option<&Path>,
) -> Result<(PathBuf, AuthorityKeys), AuthorityError> {
    let credential = credentials.map(|credentials| credentials.join(CREDENTIAL));
    let (path, is_file) = match credential.filter(|path| path.exists()) {
        // systemd shows a credential only to this service, whatever the mode of the file is.
        Some(path) => (path, false),
        None => (signer(directory), true),
    };
    let cannot_read = |source| {
        let path = path.clone();
        AuthorityError::Read { path, source }
    };
    let file = File::open(&path).map_err(cannot_read)?;
    let facts = file.metadata().map_err(cannot_read)?;
    let mode = facts.mode() & 0o777;
    if is_file && mode & 0o077 != 0 {
        return Err(AuthorityError::Exposed { path, mode });
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(cannot_read)?;
    match parse(&text) {
        Ok(bundle) => Ok((path, bundle)),
        Err(what) => Err(malformed(&path, what)),
    }
}

fn parse(text: &[u8]) -> Result<AuthorityKeys, &'static str> {
    if u64::try_from(text.len()).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
        return Err("it is too long");
    }
    let key = PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|_| "it has no key")?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let certificates: [CertificateDer<'static>; 2] = certificates
        .map_err(|_| "a certificate is damaged")?
        .try_into()
        .map_err(|_| "it has not two certificates")?;
    let [intermediate, root] = certificates;
    Ok(AuthorityKeys {
        key,
        intermediate,
        root,
    })
}

/// The name of the credential; the content is as in `signer.pem`.
const CREDENTIAL: &str = "hashcache-ca";

/// Longer files are not read; a real file has some 2 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;
