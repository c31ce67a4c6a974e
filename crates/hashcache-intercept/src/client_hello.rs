//! The parts of a ClientHello that decide whether a client is intercepted.
//!
//! Made by `peek` from a client's first bytes. rustls parses the message; the parts that rustls
//! does not expose (versions, extensions) are parsed here from the same bytes.
//!
//! Invariant: the result does not depend on how the bytes were divided into records or segments.
//! Cost: two passes over the message, a few hundred nanoseconds.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use rustls::server::ClientHello;
use rustls::{CipherSuite, NamedGroup, SignatureScheme};

/// The offer of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedHello {
    /// The server name, in lower case; `None` for an address.
    pub name: Option<Box<str>>,
    /// The protocols offered inside TLS.
    pub(crate) speaks: InnerProtocol,
    /// True if TLS 1.2 or 1.3 is offered.
    pub(crate) modern: bool,
    /// True if the client and we have a cipher suite, a group and a signature algorithm in common.
    pub(crate) common: bool,
    /// Identifies the program: equal on all connections of a program, different for most other
    /// programs.
    pub fingerprint: u64,
}

/// The protocols that a client offers inside TLS, by ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InnerProtocol {
    /// No ALPN, which means HTTP/1.1 on the https port.
    Unsaid,
    /// HTTP/1.1 or HTTP/2 is offered.
    Http,
    /// Neither is offered.
    Other,
}

impl ParsedHello {
    /// Returns the offer in `hello`, which was parsed from `records`; `None` if the two are
    /// different messages.
    pub(crate) fn new(hello: &ClientHello<'_>, records: &[u8]) -> Option<Self> {
        let message = message(records)?;
        let raw = RawHello::read(&message)?;
        let mut alpn = hello.alpn();
        let speaks = match &mut alpn {
            None => InnerProtocol::Unsaid,
            Some(names) => {
                if names.any(|name| matches!(name, b"h2" | b"http/1.1")) {
                    InnerProtocol::Http
                } else {
                    InnerProtocol::Other
                }
            }
        };
        Some(Self {
            name: hello
                .server_name()
                .map(|name| name.to_ascii_lowercase().into()),
            speaks,
            modern: raw.offers(TLS_1_2) || raw.offers(TLS_1_3),
            common: has_common(hello, &raw),
            fingerprint: fingerprint(hello, &raw),
        })
    }
}

/// Returns true if a handshake with a P-256 certificate can succeed. Other clients get a tunnel to
/// the origin.
fn has_common(hello: &ClientHello<'_>, raw: &RawHello<'_>) -> bool {
    let suites = hello.cipher_suites();
    let any = |ours: &[CipherSuite]| suites.iter().any(|suite| ours.contains(suite));
    let suite = raw.offers(TLS_1_3) && any(&SUITES_1_3) || raw.offers(TLS_1_2) && any(&SUITES_1_2);
    let groups = hello.named_groups().unwrap_or_default();
    let group = groups.iter().any(|group| GROUPS.contains(group));
    let signatures = hello.signature_schemes();
    suite && group && signatures.contains(&SignatureScheme::ECDSA_NISTP256_SHA256)
}

/// Returns a number for the client program, from versions, suites, extensions, groups, signatures
/// and ALPN, without the parts that differ between connections (keys, tickets, the order of
/// extensions, padding, GREASE: RFC 8701).
fn fingerprint(hello: &ClientHello<'_>, raw: &RawHello<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    raw.legacy_version.hash(&mut hasher);
    let suites = hello.cipher_suites().iter().map(|suite| u16::from(*suite));
    hash_each(&mut hasher, suites);
    let mut kinds: Vec<u16> = raw.kinds.clone();
    kinds.retain(|kind| !CHANGING.contains(kind));
    kinds.sort_unstable();
    hash_each(&mut hasher, kinds);
    hash_each(&mut hasher, raw.versions());
    let groups = hello.named_groups().unwrap_or_default();
    hash_each(&mut hasher, groups.iter().map(|group| u16::from(*group)));
    let signatures = hello.signature_schemes().iter();
    hash_each(&mut hasher, signatures.map(|scheme| u16::from(*scheme)));
    for name in hello.alpn().into_iter().flatten() {
        name.hash(&mut hasher);
    }
    hasher.finish()
}

fn hash_each(hasher: &mut DefaultHasher, numbers: impl IntoIterator<Item = u16>) {
    let numbers = numbers.into_iter().filter(|number| !is_grease(*number));
    numbers.collect::<Vec<u16>>().hash(hasher);
}

/// RFC 8701: both bytes are equal, and their last hexadecimal digit is `a`.
fn is_grease(number: u16) -> bool {
    let [high, low] = number.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

/// Returns the handshake message at the start of `records`, joined.
fn message(records: &[u8]) -> Option<Vec<u8>> {
    let mut rest = HelloReader(records);
    let mut message = Vec::with_capacity(records.len());
    loop {
        if rest.u8()? != HANDSHAKE {
            return None;
        }
        rest.take(2)?;
        let fragment = rest.prefixed_u16()?;
        message.extend_from_slice(fragment);
        let mut head = HelloReader(&message);
        let Some([kind, high, middle, low]) =
            head.take(4).and_then(|it| <[u8; 4]>::try_from(it).ok())
        else {
            continue;
        };
        if kind != CLIENT_HELLO {
            return None;
        }
        let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
        if let Some(body) = head.take(length) {
            return Some(body.to_vec());
        }
    }
}

/// Fields of the message (RFC 8446, section 4.1.2).
struct RawHello<'a> {
    legacy_version: u16,
    /// Types of the extensions.
    kinds: Vec<u16>,
    /// Content of `supported_versions`, in pairs of bytes.
    versions: Option<&'a [u8]>,
}

impl<'a> RawHello<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let mut rest = HelloReader(message);
        let legacy_version = rest.u16()?;
        rest.take(RANDOM_BYTES)?;
        rest.prefixed_u8()?; // session
        rest.prefixed_u16()?; // suites
        rest.prefixed_u8()?; // compression
        let mut raw = Self {
            legacy_version,
            kinds: Vec::new(),
            versions: None,
        };
        if rest.0.is_empty() {
            return Some(raw);
        }
        let mut extensions = HelloReader(rest.prefixed_u16()?);
        while !extensions.0.is_empty() {
            let kind = extensions.u16()?;
            let content = extensions.prefixed_u16()?;
            raw.kinds.push(kind);
            if kind == SUPPORTED_VERSIONS {
                raw.versions = Some(HelloReader(content).prefixed_u8()?);
            }
        }
        Some(raw)
    }

    fn versions(&self) -> impl Iterator<Item = u16> {
        let pairs = self.versions.unwrap_or_default().chunks_exact(2);
        pairs.map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
    }

    /// Without `supported_versions` the old field has the highest version (RFC 5246).
    fn offers(&self, version: u16) -> bool {
        match self.versions {
            Some(_) => self.versions().any(|offered| offered == version),
            None => version <= TLS_1_2 && self.legacy_version >= version,
        }
    }
}

/// Bytes to be parsed from the front.
struct HelloReader<'a>(&'a [u8]);

impl<'a> HelloReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    }

    fn prefixed_u8(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    fn prefixed_u16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

const TLS_1_2: u16 = 0x0303;
const TLS_1_3: u16 = 0x0304;

/// The record type of a handshake.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RANDOM_BYTES: usize = 32;
const SUPPORTED_VERSIONS: u16 = 43;
/// Padding, early data, cookie, session ticket: a program sends them only on some connections.
const CHANGING: [u16; 4] = [21, 41, 42, 44];

const SUITES_1_3: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];
const SUITES_1_2: [CipherSuite; 3] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];
const GROUPS: [NamedGroup; 3] = [
    NamedGroup::X25519,
    NamedGroup::secp256r1,
    NamedGroup::secp384r1,
];

#[cfg(test)]
pub(super) mod tests;
