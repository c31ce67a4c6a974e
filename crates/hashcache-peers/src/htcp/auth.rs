//! The signature of an HTCP message: HMAC-MD5 with a shared secret (RFC 2756 section 2.8).
//!
//! The proxy signs messages to a peer with a key, and checks the messages from such a peer, above
//! all CLR. The signature also covers the addresses and ports of both sides, so it does not pass
//! through address translation, and the receiver must know the address at which the datagram
//! arrived. A captured datagram can be replayed until the signature expires.
//!
//! Invariant: neither the duration of a check nor the printed output depends on the secret.
//! Cost: MD5 over the message.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::{Failure, Message};
use crate::octets::Octets;

/// Validity of our signatures, in seconds.
pub const LIFETIME_SECONDS: u32 = 60;

/// Maximum validity of a peer's signature in seconds, even if it states more.
pub const LIFETIME_SECONDS_MAX: u32 = 300;

/// How far a peer's clock may be ahead, in seconds.
pub const CLOCK_AHEAD_SECONDS: u32 = 60;

/// Maximum length of a key name in octets.
pub const NAME_BYTES_MAX: usize = 255;

/// Size of MD5 and HMAC-MD5 in octets.
const MAC_BYTES: usize = 16;

/// A shared secret with a name.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    name: Vec<u8>,
    secret: Vec<u8>,
}

/// Why a key is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name is empty or longer than [`NAME_BYTES_MAX`].
    #[error("the name of a key has 1 to {NAME_BYTES_MAX} octets")]
    Name,
    /// The secret is empty.
    #[error("the secret of a key is empty")]
    Secret,
}

/// The addresses and ports of sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
}

/// The parameters of a signature.
#[derive(Clone, Copy, Debug)]
pub struct Signature<'a> {
    /// Signing key.
    pub key: &'a Key,
    /// Addresses and ports of both sides.
    pub ends: Ends,
    /// Time of signing, in seconds since 1970.
    pub time: u32,
    /// Expiry, in seconds since 1970.
    pub expiry: u32,
}

/// Why a message is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The message is not signed.
    #[error("the message is not signed")]
    Unsigned,
    /// The key name differs.
    #[error("the message is signed by a key of another name")]
    OtherKey,
    /// The signature does not match the key.
    #[error("the signature is wrong")]
    Wrong,
    /// The signature has expired, or is from the future.
    #[error("the signature is for {time} to {expiry}, seconds since 1970, and now is {now}")]
    Time {
        /// Time of signing.
        time: u32,
        /// Expiry.
        expiry: u32,
        /// Current time.
        now: u32,
    },
}

/// The parts of a message needed for a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signed<'a> {
    /// DATA with the length field.
    data: &'a [u8],
    fields: Option<Fields<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields<'a> {
    time: u32,
    expiry: u32,
    key_name: &'a [u8],
    mac: &'a [u8],
}

impl Key {
    /// A new key. RFC 2756 recommends a random secret of a few hundred octets.
    pub fn new(name: &[u8], secret: &[u8]) -> Result<Key, KeyError> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(KeyError::Name);
        }
        if secret.is_empty() {
            return Err(KeyError::Secret);
        }
        Ok(Key {
            name: name.to_vec(),
            secret: secret.to_vec(),
        })
    }

    /// Name of the key.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.name.escape_ascii())
    }
}

impl AuthError {
    /// The failure to send back, if the sender wants a response.
    pub fn failure(&self) -> Failure {
        match self {
            AuthError::Unsigned => Failure::AuthenticationRequired,
            AuthError::OtherKey | AuthError::Wrong | AuthError::Time { .. } => {
                Failure::AuthenticationUnsatisfactory
            }
        }
    }
}

impl Message<'_> {
    /// Checks that `key` signed this message for these addresses, and that the signature is valid
    /// at `now` (seconds since 1970).
    pub fn check(&self, key: &Key, ends: &Ends, now: u32) -> Result<(), AuthError> {
        let fields = self.signed.fields.ok_or(AuthError::Unsigned)?;
        if fields.key_name != key.name {
            return Err(AuthError::OtherKey);
        }
        let Fields { time, .. } = fields;
        let expected = mac(key, ends, self.minor, time, fields.expiry, self.signed.data);
        if !is_equal(&expected, fields.mac) {
            return Err(AuthError::Wrong);
        }
        // Limited, because an eavesdropper can replay a message until the signature expires.
        let expiry = fields.expiry.min(time.saturating_add(LIFETIME_SECONDS_MAX));
        let is_early = time > now.saturating_add(CLOCK_AHEAD_SECONDS);
        if is_early || expiry < now {
            Err(AuthError::Time { time, expiry, now })
        } else {
            Ok(())
        }
    }

    /// Returns true if the message has a signature, valid or not.
    pub fn is_signed(&self) -> bool {
        self.signed.fields.is_some()
    }
}

impl<'a> Signed<'a> {
    /// Parses AUTH with the length field; `None` if a field is truncated.
    pub(super) fn parse(data: &'a [u8], auth: &'a [u8]) -> Option<Signed<'a>> {
        let mut octets = Octets::new(auth);
        let length = octets.u16()?;
        if length == 2 {
            return Some(Signed { data, fields: None });
        }
        let fields = Fields {
            time: octets.u32()?,
            expiry: octets.u32()?,
            key_name: super::string(&mut octets)?,
            mac: super::string(&mut octets)?,
        };
        Some(Signed {
            data,
            fields: Some(fields),
        })
    }
}

impl Signature<'_> {
    /// Appends AUTH to a datagram with the DATA `data`.
    pub(super) fn write(&self, minor: u8, data: &[u8], datagram: &mut Vec<u8>) {
        let name = counted(&self.key.name);
        let mac = mac(self.key, &self.ends, minor, self.time, self.expiry, data);
        let parts: [&[u8]; 4] = [
            &self.time.to_be_bytes(),
            &self.expiry.to_be_bytes(),
            &name,
            &counted(&mac),
        ];
        let auth = parts.concat();
        datagram.extend_from_slice(&length(auth.len() + 2));
        datagram.extend_from_slice(&auth);
    }
}

/// The signature over these fields in this order, in wire format (RFC 2756 section 2.8).
fn mac(key: &Key, ends: &Ends, minor: u8, time: u32, expiry: u32, data: &[u8]) -> [u8; MAC_BYTES] {
    hmac(
        &key.secret,
        &[
            &end(ends.source),
            &end(ends.destination),
            &[super::MAJOR, minor],
            &time.to_be_bytes(),
            &expiry.to_be_bytes(),
            data,
            &counted(&key.name),
        ],
    )
}

/// Address and port. The RFC defines only IPv4; IPv6 is written with 16 octets.
fn end(end: SocketAddr) -> Vec<u8> {
    let mut octets = match end.ip().to_canonical() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    octets.extend_from_slice(&end.port().to_be_bytes());
    octets
}

/// A COUNTSTR for a key name or a signature; both are short.
fn counted(string: &[u8]) -> Vec<u8> {
    [&length(string.len()), string].concat()
}

fn length(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

/// HMAC-MD5 over the concatenated parts (RFC 2104, with blocks of 64 octets).
fn hmac(secret: &[u8], parts: &[&[u8]]) -> [u8; MAC_BYTES] {
    let mut block = [0; 64];
    match block.get_mut(..secret.len()) {
        Some(start) => start.copy_from_slice(secret),
        None => block[..MAC_BYTES].copy_from_slice(&md5::compute(secret).0),
    }
    let hash = |pad: u8, parts: &[&[u8]]| {
        let mut context = md5::Context::new();
        context.consume(block.map(|octet| octet ^ pad));
        for part in parts {
            context.consume(part);
        }
        context.finalize().0
    };
    hash(0x5c, &[&hash(0x36, parts)])
}

/// Compares in constant time, because otherwise a sender could measure the position of the first
/// difference.
fn is_equal(expected: &[u8; MAC_BYTES], received: &[u8]) -> bool {
    let differences = expected
        .iter()
        .zip(received)
        .fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    received.len() == MAC_BYTES && differences == 0
}

#[cfg(test)]
mod tests;
