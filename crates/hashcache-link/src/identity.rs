//! A box's key for links, with a certificate for that key, in a file.
//!
//! `hashcache link init` makes a key ([`LinkIdentity::make`]); the proxy loads it at the start and
//! at each reload. Both sides of a link use the same kind of file, and a box that is both child and
//! parent uses a single file.
//!
//! Invariants: the file gets its name only after all content is on disk, and an existing file is
//! never replaced, because the other side knows the pin. The file mode is 600; a file that other
//! users can read is refused, and so is a file that another user owns. The key is never shown.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{error, fmt};

use ::pem::{EncodeConfig, LineEnding, Pem, encode_config};
use hashcache_base::state_file::{Link, open_regular};
use hashcache_base::tls::{provider, sha256};
use hashcache_wan::chunk::Key;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::pin::Pin;

/// This box's key for links.
#[derive(Clone)]
pub struct LinkIdentity {
    /// The key, with a certificate that the other box recognises by the pin.
    pub key: Arc<CertifiedKey>,
    /// Hashes the names that are sent to the other box.
    pub names: NameSecret,
    pin: Pin,
}

/// This box's secret from which the keys for chunk names are derived, a key for each child. The
/// secret is derived from the private key, so it needs no file and survives a restart.
#[derive(Clone)]
pub struct NameSecret([u8; 32]);

impl NameSecret {
    fn from_key(key: &PrivateKeyDer<'_>) -> Self {
        Self(sha256(&[NAMES_LABEL, key.secret_der()].concat()))
    }

    /// Returns the key for this box and the child with the key `pin`.
    pub fn key(&self, pin: &Pin) -> Key {
        // All parts have a fixed length, so the concatenation is unambiguous.
        let hash = sha256(&[NAMES_LABEL, &self.0, &pin.bytes()].concat());
        Key(std::array::from_fn(|at| hash[at]))
    }
}

impl fmt::Debug for NameSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameSecret")
    }
}

const NAMES_LABEL: &[u8] = b"hashcache names of chunks 1";

/// Reasons for a missing key for links.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkIdentityError {
    /// No directory was configured, and there is no home directory.
    #[error("no directory for the key for links: HOME is not set")]
    NoDirectory,
    /// There is a key already.
    #[error("there is a key already in {}", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The key could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The key could not be read.
    #[error("cannot read the key for links in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read the key.
    #[error("other users can read the key in {} (mode {mode:03o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// Another user owns the file, and can change it.
    #[error("{} belongs to user {owner}, not to user {user} of this process", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The file was not written by `make`.
    #[error("{} is not a key for links: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the defect.
        what: &'static str,
    },
    /// The system gave no random bytes, or the key could not sign.
    #[error("cannot make a key")]
    Key(#[source] Box<dyn error::Error + Send + Sync>),
}

impl LinkIdentityError {
    /// Advice for the operator.
    pub fn advice(&self) -> Option<String> {
        Some(match self {
            Self::Exists { .. } => "the other side knows its pin, which `hashcache link pin` \
                                    prints; to make a new key, use another `--dir`, or remove it"
                .to_owned(),
            Self::Exposed { path, .. } => format!(
                "`chmod 600 {}`; a user who has read the key can pretend to be this box: if that \
                 may have happened, make a new one",
                path.display()
            ),
            Self::Foreign { path, user, .. } => format!(
                "`chown {user} {}` if you trust its content, or run as its owner",
                path.display()
            ),
            Self::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
                "make one with `hashcache link init`".to_owned()
            }
            Self::Read { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                "the user of this process must own it; systemd can pass a key of root's as the \
                 credential `hashcache-link`: see the unit in `packaging/systemd`"
                    .to_owned()
            }
            Self::NoDirectory => "name one with `link_dir`".to_owned(),
            Self::Malformed { .. } => "make a new one with `hashcache link init`".to_owned(),
            _ => return None,
        })
    }
}

impl LinkIdentity {
    /// The key file's path in `directory`.
    pub fn path(directory: &Path) -> PathBuf {
        directory.join(FILE)
    }

    /// Makes a key and writes it to `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// There is already a key, or the key cannot be written.
    pub fn make(directory: &Path) -> Result<Self, LinkIdentityError> {
        let failed = |error: rcgen::Error| LinkIdentityError::Key(error.into());
        let path = Self::path(directory);
        if fs::symlink_metadata(&path).is_ok() {
            return Err(LinkIdentityError::Exists { path });
        }
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        // The other side checks only the key; the name is for people who look into the file.
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "HashCache link");
        let certificate = params.self_signed(&key).map_err(failed)?;
        let text = format!(
            "{}{}",
            pem("PRIVATE KEY", key.serialized_der()),
            pem("CERTIFICATE", certificate.der())
        );
        let made = Self::parse(text.as_bytes()).map_err(|what| LinkIdentityError::Malformed {
            path: path.clone(),
            what,
        })?;
        match write(directory, &path, &text) {
            Ok(()) => Ok(made),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(LinkIdentityError::Exists { path })
            }
            Err(source) => Err(LinkIdentityError::Write { path, source }),
        }
    }

    /// Loads the key that systemd passes as the credential `hashcache-link`: the content of
    /// `link.pem`. Without this credential, loads the key in `directory`.
    ///
    /// # Errors
    /// There is no key, it is damaged, or it is a file that other users can read or own.
    pub fn find(directory: Option<&Path>) -> Result<Self, LinkIdentityError> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        Self::find_in(credentials.as_deref(), directory)
    }

    fn find_in(
        credentials: Option<&Path>,
        directory: Option<&Path>,
    ) -> Result<Self, LinkIdentityError> {
        let credential = credentials.map(|credentials| credentials.join(CREDENTIAL));
        match (credential.filter(|path| path.exists()), directory) {
            // systemd shows a credential only to this service, whatever the file mode and owner
            // are.
            (Some(path), _) => Self::read(path, |_| None),
            (None, Some(directory)) => Self::load(directory),
            (None, None) => Err(LinkIdentityError::NoDirectory),
        }
    }

    /// Loads the key in `directory`.
    ///
    /// # Errors
    /// There is no key, it is damaged, or other users can read or own the file.
    pub fn load(directory: &Path) -> Result<Self, LinkIdentityError> {
        let path = Self::path(directory);
        let user = rustix::process::geteuid().as_raw();
        Self::read(path.clone(), |file| exposed(path, file, user))
    }

    /// Reads the file at `path`, unless `refusal` returns an error.
    fn read(
        path: PathBuf,
        refusal: impl FnOnce(&Metadata) -> Option<LinkIdentityError>,
    ) -> Result<Self, LinkIdentityError> {
        let cannot_read = |source| LinkIdentityError::Read {
            path: path.clone(),
            source,
        };
        let file = open_regular(&path, Link::Followed).map_err(cannot_read)?;
        if let Some(refusal) = refusal(&file.metadata().map_err(cannot_read)?) {
            return Err(refusal);
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(cannot_read)?;
        Self::parse(&text).map_err(|what| LinkIdentityError::Malformed { path, what })
    }

    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let key = PrivateKeyDer::from_pem_slice(text).map_err(|_| "it has no key")?;
        let certificate =
            CertificateDer::from_pem_slice(text).map_err(|_| "it has no certificate")?;
        let pin = Pin::from_certificate(&certificate).ok_or("its certificate is damaged")?;
        let names = NameSecret::from_key(&key);
        let key = CertifiedKey::from_der(vec![certificate], key, &provider())
            .map_err(|_| "its key and its certificate do not belong together")?;
        Ok(Self {
            key: Arc::new(key),
            names,
            pin,
        })
    }

    /// The pin that the other side needs.
    pub fn pin(&self) -> Pin {
        self.pin
    }
}

impl fmt::Debug for LinkIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LinkIdentity").field(&self.pin).finish()
    }
}

/// Returns an error if the file at `path` is no private file of `user`.
fn exposed(path: PathBuf, file: &Metadata, user: u32) -> Option<LinkIdentityError> {
    let (mode, owner) = (file.mode() & 0o777, file.uid());
    if mode & OTHERS != 0 {
        return Some(LinkIdentityError::Exposed { path, mode });
    }
    // A file that root owns is accepted for every user; root accepts no other user's file.
    (owner != user && owner != 0).then_some(LinkIdentityError::Foreign { path, owner, user })
}

fn pem(label: &str, bytes: &[u8]) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    encode_config(&Pem::new(label, bytes), config)
}

/// Writes the file completely, or not at all; fails if the file exists.
fn write(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // A random name, so that a file from an interrupted run does not collide.
    let fresh = directory.join(format!(".{FILE}.{:016x}.new", fastrand::u64(..)));
    let written = || {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // Unlike a rename, a hard link fails if the file exists.
        fs::hard_link(&fresh, path)?;
        File::open(directory)?.sync_all()
    };
    let written = written();
    // An error here would hide the first error.
    let _ = fs::remove_file(&fresh);
    written
}

const FILE: &str = "link.pem";
/// The credential's name; it has the same content as the file.
const CREDENTIAL: &str = "hashcache-link";
/// Permissions that the file must not have.
const OTHERS: u32 = 0o077;
/// Only this many bytes are read; a valid file has less than 1 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_and_read_back() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("link");
        let made = LinkIdentity::make(&directory).unwrap();
        let again = LinkIdentity::make(&directory);
        assert!(matches!(again, Err(LinkIdentityError::Exists { .. })));
        assert_eq!(LinkIdentity::load(&directory).unwrap().pin(), made.pin());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = LinkIdentity::path(&directory);
        assert_eq!((mode(&directory), mode(&path)), (0o700, 0o600));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let exposed = LinkIdentity::load(&directory);
        assert!(matches!(exposed, Err(LinkIdentityError::Exposed { .. })));
    }

    #[test]
    fn a_credential_is_taken_in_place_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let made = LinkIdentity::make(&home.path().join("link")).unwrap();
        let other = home.path().join("other");
        LinkIdentity::make(&other).unwrap();
        let credentials = home.path().join("credentials");
        fs::create_dir(&credentials).unwrap();
        let find = |directory: Option<&Path>| {
            let found = LinkIdentity::find_in(Some(&credentials), directory);
            found.map(|found| found.pin())
        };
        assert!(matches!(find(None), Err(LinkIdentityError::NoDirectory)));
        assert_ne!(find(Some(&other)).unwrap(), made.pin());
        let credential = credentials.join(CREDENTIAL);
        fs::copy(home.path().join("link/link.pem"), &credential).unwrap();
        // As systemd has it where it names a user by an access list.
        fs::set_permissions(&credential, fs::Permissions::from_mode(0o440)).unwrap();
        for directory in [None, Some(other.as_path())] {
            assert_eq!(find(directory).unwrap(), made.pin());
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused_unless_it_is_roots() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let facts = file.as_file().metadata().unwrap();
        let refused = |user| exposed(file.path().to_owned(), &facts, user);
        assert!(refused(facts.uid()).is_none());
        let other = facts.uid() + 1;
        match facts.uid() {
            0 => assert!(refused(other).is_none()),
            _ => assert!(matches!(
                refused(other),
                Some(LinkIdentityError::Foreign { .. })
            )),
        }
    }

    #[test]
    fn a_damaged_file_is_refused_and_no_output_shows_the_key() {
        let home = tempfile::tempdir().unwrap();
        let made = LinkIdentity::make(home.path()).unwrap();
        let path = LinkIdentity::path(home.path());
        let text = fs::read_to_string(&path).unwrap();
        let key = text.lines().nth(1).unwrap();
        assert!(!format!("{made:?}").contains(key));
        let other = LinkIdentity::make(&home.path().join("other")).unwrap();
        assert_ne!(other.pin(), made.pin());
        let other = fs::read_to_string(home.path().join("other/link.pem")).unwrap();
        let begin = other.find("-----BEGIN CERTIFICATE").unwrap();
        let mixed = format!(
            "{}{}",
            &text[..text.find("-----BEGIN C").unwrap()],
            &other[begin..]
        );
        for wrong in ["", &text[..100], &mixed] {
            fs::write(&path, wrong).unwrap();
            let loaded = LinkIdentity::load(home.path());
            assert!(
                matches!(loaded, Err(LinkIdentityError::Malformed { .. })),
                "{loaded:?}"
            );
        }
    }
}
