//! The certificate authority of an intercepting proxy: a root that devices trust, an intermediate
//! signed by it, and a leaf for each intercepted host.
//!
//! `hashcache ca init` makes an authority ([`CertificateAuthority::make`]). The proxy loads it
//! ([`CertificateAuthority::load`]) and takes a host's certificate from it at each handshake
//! (`CertificateAuthority::leaf`). `files` has the form of an authority on disk.
//!
//! ```text
//! root (5 years, pathlen 1) ── intermediate (5 years, pathlen 0, TLS servers only)
//!                                  └── leaf (7 days, one name) ── one key for all leaves
//! ```
//!
//! Invariants: a [`CertificateAuthority`] has proved with a leaf that the key and the certificates
//! belong together. No key is ever shown, not even by `Debug`, and the leaves' key is never written
//! to disk. If an authority is limited to domains, both certificates contain the limit, and the
//! root key is destroyed.
//!
//! Cost: a cached leaf costs a lookup, a new leaf a signature (some 30 µs).

mod files;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use hashcache::Cache;
use hashcache_base::tls::certificate::Certificate;
use hashcache_base::tls::{provider, sha256};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, SanType, SerialNumber, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::pki_types::{
    CertificateDer, DnsName, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use rustls::sign::{CertifiedKey, SigningKey};

use super::hosts::SELF_TEST_HOST;
use super::leaf_cache::{Leaf, LeafCache};
use super::pem::pem;

/// Properties of a new authority.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The name that devices show, at most [`CertificateAuthority::NAME_CHARS`] characters.
    pub name: String,
    /// The domains for which the authority may sign, including all subdomains; empty: all.
    pub only: Vec<String>,
    /// The time.
    pub now: SystemTime,
}

/// The reason why there is no authority, or no certificate from it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The directory of the new authority is not empty.
    #[error("{} exists already and is not empty", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// A file or the directory of the authority could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the authority could not be read.
    #[error("cannot read {}", path.display())]
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
    /// The file was not written by `make`.
    #[error("{} is not the directory of a certificate authority: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The defect of the file.
        what: &'static str,
    },
    /// The name is not valid for an authority.
    #[error("`{0}` is not a valid name for a certificate authority")]
    Name(String),
    /// The limit is not a domain.
    #[error("`{0}` is not a domain name")]
    Domain(String),
    /// The host cannot have a certificate.
    #[error("`{0}` is not a host name")]
    Host(String),
    /// This authority is limited to other domains.
    #[error("this authority is not valid for `{0}`")]
    NotPermitted(String),
    /// The certificate of the origin, or of the authority, has expired.
    #[error("no valid certificate can be made: {0} has expired")]
    Ended(&'static str),
    /// The system gave no random bytes, or the key could not sign.
    #[error("cannot make a certificate")]
    Sign(#[source] Box<dyn Error + Send + Sync>),
}

impl AuthorityError {
    /// Advice to the operator.
    pub fn advice(&self) -> Option<String> {
        Some(match self {
            Self::Exists { path } => format!(
                "devices that trust the old CA would not trust a new one; to make a new one, use \
                 another `--dir`, or move {}",
                path.display()
            ),
            Self::Exposed { path, .. } => format!(
                "`chmod 600 {}`; a user who has read the key can make certificates that your \
                 devices trust: if that may have happened, make a new CA",
                path.display()
            ),
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "make one with `hashcache ca init`".to_owned()
            }
            Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "the user of this process must own it".to_owned()
            }
            Self::Malformed { .. } => "make a new one with `hashcache ca init`".to_owned(),
            Self::Name(_) => format!(
                "a name has 1 to {} characters, none of them a control character",
                CertificateAuthority::NAME_CHARS
            ),
            Self::Domain(_) => {
                "write a domain as example.org, in ASCII (xn--…); it includes all its subdomains"
                    .to_owned()
            }
            Self::Ended("the authority") => {
                "make a new one with `hashcache ca init --dir DIR`, and install it on the devices"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

/// A certificate authority, ready to sign; one instance for all cores.
pub struct CertificateAuthority {
    root: CertificateDer<'static>,
    intermediate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    name: String,
    /// Seconds since 1970: the earlier expiry time of the two certificates.
    not_after: u64,
    /// The domains to which the authority is limited; `None`: not limited.
    only: Option<Vec<String>>,
    /// The key of all leaves, once for `rcgen` and once for `rustls`.
    leaf_key: KeyPair,
    signing_key: Arc<dyn SigningKey>,
    leaves: Mutex<LeafCache>,
    /// The budget that the cached leaves are charged to; set by [`Self::count_in`].
    memory: OnceLock<Cache>,
}

impl CertificateAuthority {
    /// Maximum number of characters in a name: 64 for a common name in X.509, minus the suffix of
    /// the intermediate.
    pub const NAME_CHARS: usize = 64 - INTERMEDIATE.len();

    /// Memory for cached leaves, bytes: enough for some 1,500 leaves.
    const LEAVES_BYTES: u64 = 2 << 20;

    /// Makes a new authority and writes it to `directory`, which must be empty or missing.
    ///
    /// After a power failure the directory has a complete authority or none. Only the owner can
    /// read the directory (mode 700) and the files with keys (600).
    pub fn make(directory: &Path, options: &MakeOptions) -> Result<Self, AuthorityError> {
        let name = options.name.trim();
        if name.is_empty()
            || name.chars().count() > Self::NAME_CHARS
            || name.chars().any(char::is_control)
        {
            return Err(AuthorityError::Name(options.name.clone()));
        }
        files::check_free(directory)?;
        let constraints = constraints(&options.only)?;
        let now = seconds(options.now);
        let params = |name: String, path_length| {
            let mut params = params(&name, now.saturating_sub(DAY), now + LIFETIME)?;
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params.name_constraints = constraints.clone();
            Ok::<_, AuthorityError>(params)
        };
        let root_key = KeyPair::generate().map_err(sign_error)?;
        let root_params = params(name.to_owned(), 1)?;
        let root = root_params.self_signed(&root_key).map_err(sign_error)?;
        let key = KeyPair::generate().map_err(sign_error)?;
        let mut own_params = params(format!("{name}{INTERMEDIATE}"), 0)?;
        // A thief of this key cannot sign programs or mail with it.
        own_params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        own_params.use_authority_key_identifier_extension = true;
        let by_root = Issuer::from_params(&root_params, &root_key);
        let intermediate = own_params.signed_by(&key, &by_root).map_err(sign_error)?;
        let bundle = files::AuthorityKeys {
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
            intermediate: intermediate.der().clone(),
            root: root.der().clone(),
        };
        let authority = Self::from_bundle(bundle.clone())
            .map_err(|what| malformed(&files::signer(directory), what))?;
        // Some clients ignore the limits of a trusted root, but a destroyed key can sign nothing.
        let root_key = constraints.is_none().then_some(root_key);
        files::write(directory, &bundle, root_key.as_ref(), || Ok(()))?;
        Ok(authority)
    }

    /// Loads the authority in `directory`, or the authority that systemd passes as the credential
    /// `hashcache-ca`: the content of `signer.pem` of such a directory.
    ///
    /// A key file that other users can read is refused; a credential is private.
    pub fn load(directory: &Path) -> Result<Self, AuthorityError> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        Self::load_from(directory, credentials.as_deref())
    }

    fn load_from(directory: &Path, credentials: Option<&Path>) -> Result<Self, AuthorityError> {
        let (path, bundle) = files::read(directory, credentials)?;
        Self::from_bundle(bundle).map_err(|what| malformed(&path, what))
    }

    /// Makes the authority from these keys and certificates, if they belong together.
    fn from_bundle(bundle: files::AuthorityKeys) -> Result<Self, &'static str> {
        let files::AuthorityKeys {
            key,
            intermediate,
            root,
        } = bundle;
        let root_facts = Certificate::read(&root).ok_or("the root is damaged")?;
        let facts = Certificate::read(&intermediate).ok_or("the intermediate is damaged")?;
        let (Some(name), Some(issuer_name)) = (root_facts.common_name, facts.common_name) else {
            return Err("another program made it");
        };
        let key = KeyPair::try_from(&key).map_err(|_| "its key cannot be used")?;
        let leaf_key = KeyPair::generate().map_err(|_| "no key can be made")?;
        let pkcs8 = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&issuer_name);
        let authority = Self {
            root,
            intermediate,
            issuer: Issuer::new(params, key),
            name,
            not_after: facts.not_after.min(root_facts.not_after),
            only: facts.permitted,
            leaf_key,
            signing_key: any_ecdsa_type(&pkcs8).map_err(|_| "no key can be made")?,
            leaves: Mutex::new(LeafCache::new(Self::LEAVES_BYTES)),
            memory: OnceLock::new(),
        };
        let begin = facts.not_before.max(root_facts.not_before) + DAY;
        authority.prove(begin)?;
        Ok(authority)
    }

    /// Makes a leaf that is valid at `time`, and verifies it as clients do.
    fn prove(&self, time: u64) -> Result<(), &'static str> {
        let leaf = self
            .sign(SELF_TEST_HOST, time, time + 1)
            .map_err(|_| "its key cannot sign")?;
        let mut roots = RootCertStore::empty();
        roots
            .add(self.root.clone())
            .map_err(|_| "the root is no authority")?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|_| "the root is no authority")?;
        let name = ServerName::try_from(SELF_TEST_HOST).expect("a name of ours");
        let time = UnixTime::since_unix_epoch(Duration::from_secs(time));
        let chain = [self.intermediate.clone()];
        verifier
            .verify_server_cert(&leaf, &chain, &name, &[], time)
            .map_err(|_| "its key and certificates do not go together")?;
        Ok(())
    }

    /// Returns the certificate of `host` with the chain (without the root) and key: from the cache
    /// or new.
    ///
    /// A new certificate is valid from a day before `now` until seven days after `now`. If the
    /// certificate of the origin (`no_later_than`) or this authority expires earlier, it is valid
    /// only until then. A cached leaf that expires within a day is replaced if a new leaf is valid
    /// for longer.
    ///
    /// Errors: `host` is not a DNS name, or this authority may not sign for it, or no time is left.
    pub(crate) fn leaf(
        &self,
        host: &str,
        no_later_than: SystemTime,
        now: SystemTime,
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let (now, origin_end) = (seconds(now), seconds(no_later_than));
        if now >= self.not_after {
            return Err(AuthorityError::Ended("the authority"));
        }
        if now >= origin_end {
            return Err(AuthorityError::Ended("the certificate of the origin"));
        }
        let not_after = (now + LEAF_LIFETIME).min(origin_end).min(self.not_after);
        if let Some(leaf) = self.leaves().get(&host) {
            let is_long = leaf.not_after > now + DAY || leaf.not_after >= not_after;
            let is_now = leaf.not_before <= now && leaf.not_after > now;
            if is_now && is_long && leaf.not_after <= origin_end {
                return Ok(leaf.key);
            }
        }
        if DnsName::try_from(host.as_str()).is_err() || host.parse::<Ipv4Addr>().is_ok() {
            return Err(AuthorityError::Host(host));
        }
        if !self.permits(&host) {
            return Err(AuthorityError::NotPermitted(host));
        }
        // Without the lock, so that other cores can continue.
        let not_before = now.saturating_sub(DAY);
        let certificate = self.sign(&host, not_before, not_after)?;
        let chain = vec![certificate, self.intermediate.clone()];
        let key = Arc::new(CertifiedKey::new(chain, Arc::clone(&self.signing_key)));
        let leaf = Leaf {
            key: Arc::clone(&key),
            not_before,
            not_after,
        };
        // If memory is short, the leaf is made again the next time.
        let bytes = leaf.bytes(&host);
        let memory = self.memory.get().map(|cache| cache.reserve_spare(bytes));
        if !matches!(memory, Some(None)) {
            self.leaves().put(&host, leaf, memory.flatten());
        }
        Ok(key)
    }

    fn sign(
        &self,
        host: &str,
        not_before: u64,
        not_after: u64,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        // Longer names do not fit into a common name, and clients no longer read the common name.
        let shown = if host.len() <= 64 { host } else { "" };
        let mut params = params(shown, not_before, not_after)?;
        let name = host.try_into().map_err(sign_error)?;
        params.subject_alt_names = vec![SanType::DnsName(name)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(&self.leaf_key, &self.issuer);
        Ok(signed.map_err(sign_error)?.into())
    }

    /// Charges the memory of every later leaf to the budget of `cache`.
    pub fn count_in(&self, cache: &Cache) {
        // A second call has the same cache: a process has one store.
        let _ = self.memory.set(cache.clone());
    }

    /// Returns true if the authority may sign for `host`.
    pub(crate) fn permits(&self, host: &str) -> bool {
        let Some(only) = &self.only else {
            return true;
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        only.iter().any(|domain| {
            let above = host.strip_suffix(domain.as_str());
            above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
        })
    }

    /// Returns the domains to which the authority is limited, without the domain of the self-test.
    pub fn only(&self) -> Option<impl Iterator<Item = &str>> {
        let only = self.only.as_ref()?;
        let only = only.iter().map(String::as_str);
        Some(only.filter(|domain| *domain != SELF_TEST_HOST))
    }

    /// Returns the name that devices show.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the certificate that devices must trust.
    pub fn root_der(&self) -> &[u8] {
        &self.root
    }

    /// Returns the certificate that devices must trust, in PEM.
    pub fn root_pem(&self) -> String {
        pem("CERTIFICATE", &self.root)
    }

    /// SHA-256 of that certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(sha256(&self.root))
    }

    /// Returns the expiry time of the authority.
    pub fn not_after(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.not_after)
    }

    /// Returns the expiry time in seconds since 1970.
    pub fn not_after_seconds(&self) -> u64 {
        self.not_after
    }

    /// Memory of the cached leaves, bytes; at most [`Self::LEAVES_BYTES`].
    #[cfg(test)]
    pub(crate) fn leaves_bytes(&self) -> u64 {
        self.leaves().bytes()
    }

    fn leaves(&self) -> std::sync::MutexGuard<'_, LeafCache> {
        // A panic under the lock would leave at worst a wrong count.
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("name", &self.name)
            .field("only", &self.only)
            .finish_non_exhaustive()
    }
}

/// The fingerprint that people compare: hexadecimal bytes with colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

/// Makes the parameters of all our certificates: one name, a random serial number, two times.
fn params(
    name: &str,
    not_before: u64,
    not_after: u64,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    // Some clients refuse two certificates of one issuer with the same number.
    let mut serial = [0; 16];
    provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|_| sign_error("no random bytes"))?;
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(not_before.min(LAST_SECOND));
    params.not_after = epoch + Duration::from_secs(not_after.min(LAST_SECOND));
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    if !name.is_empty() {
        names.push(DnType::CommonName, name);
    }
    names
}

/// Makes the name constraints of an authority that is limited to domains: no other names, and no
/// addresses.
fn constraints(only: &[String]) -> Result<Option<NameConstraints>, AuthorityError> {
    if only.is_empty() {
        return Ok(None);
    }
    let mut domains = Vec::new();
    for domain in only {
        let bare = domain.trim_end_matches('.').to_ascii_lowercase();
        let is_domain = DnsName::try_from(bare.as_str()).is_ok()
            && bare.parse::<Ipv4Addr>().is_err()
            && !bare.contains('_');
        if !is_domain {
            return Err(AuthorityError::Domain(domain.clone()));
        }
        domains.push(bare);
    }
    // Without this domain no device could test whether it trusts the authority.
    domains.push(SELF_TEST_HOST.to_owned());
    let addresses = [
        CidrSubnet::from_addr_prefix(Ipv4Addr::UNSPECIFIED.into(), 0),
        CidrSubnet::from_addr_prefix(Ipv6Addr::UNSPECIFIED.into(), 0),
    ];
    Ok(Some(NameConstraints {
        permitted_subtrees: domains.into_iter().map(GeneralSubtree::DnsName).collect(),
        excluded_subtrees: addresses.map(GeneralSubtree::IpAddress).into(),
    }))
}

fn malformed(path: &Path, what: &'static str) -> AuthorityError {
    let path = path.to_owned();
    AuthorityError::Malformed { path, what }
}

fn sign_error(error: impl Into<Box<dyn Error + Send + Sync>>) -> AuthorityError {
    AuthorityError::Sign(error.into())
}

/// Converts to seconds since 1970; 0 for earlier times.
fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().min(LAST_SECOND))
}

const DAY: u64 = 86_400;
/// Five years.
const LIFETIME: u64 = 5 * 365 * DAY;
/// Maximum lifetime of a leaf; some clients accept at most 398 days.
const LEAF_LIFETIME: u64 = 7 * DAY;
/// 9999-12-31 23:59:59, the last second in a certificate (RFC 5280, section 4.1.2.5).
const LAST_SECOND: u64 = 253_402_300_799;
/// The suffix of the intermediate's name.
const INTERMEDIATE: &str = " (proxy)";

#[cfg(test)]
mod tests;
