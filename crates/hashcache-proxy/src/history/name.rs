//! Names for sites and clients in the history and on the dashboard.
//!
//! Made by `tally` for each request, so a name needs no allocation. `record` stores the bytes
//! unchanged.
//!
//! Invariant: a name has 1 to [`NAME_BYTES`] printable ASCII characters, whatever bytes a client
//! sends or a file contains.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name. A longer name is cut at the start, because the end has the registered domain.
pub(super) const NAME_BYTES: usize = 55;

/// The name of a site, user or client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    length: u8,
    bytes: [u8; NAME_BYTES],
}

impl Name {
    /// Returns the name with the text that `shown` displays.
    pub(crate) fn new(shown: impl fmt::Display) -> Self {
        let mut buffer = Buffer::default();
        // The buffer accepts any text, so an error would be an error of `shown`; it has no name
        // then.
        let _ = write!(buffer, "{shown}");
        Self::of_bytes(&buffer.bytes[..buffer.length])
    }

    /// Returns the site of a request: the authority without user name and password.
    pub(crate) fn of_site(authority: &str) -> Self {
        let host = authority.rsplit_once('@').map_or(authority, |(_, it)| it);
        Self::of_bytes(host.as_bytes())
    }

    /// Returns a user by the login name. Bytes that a name cannot have are written as `%C3`, so
    /// that no two users have the same name.
    pub(crate) fn of_user(user: &str) -> Self {
        let mut buffer = Buffer::default();
        for byte in user.bytes() {
            // Errors are ignored as in `of`.
            let _ = if byte.is_ascii_graphic() && byte != b'%' {
                buffer.write_char(byte.into())
            } else {
                write!(buffer, "%{byte:02X}")
            };
        }
        Self::of_bytes(&buffer.bytes[..buffer.length])
    }

    fn of_bytes(text: &[u8]) -> Self {
        let (mut bytes, mut length) = ([0; NAME_BYTES], 0);
        let cut = if text.len() > NAME_BYTES {
            &text[text.len() - (NAME_BYTES - CUT.len())..]
        } else {
            text
        };
        let mark: &[u8] = match text.len() {
            0 => UNKNOWN,
            all if all > cut.len() => CUT,
            _ => &[],
        };
        for byte in mark.iter().chain(cut) {
            bytes[length] = if byte.is_ascii_graphic() { *byte } else { b'?' };
            length += 1;
        }
        Self {
            length: u8::try_from(length).unwrap_or_default(),
            bytes,
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.used()).unwrap_or_default()
    }

    /// Returns the text as bytes.
    pub(super) fn used(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(NAME_BYTES)]
    }

    /// Parses a stored name; `None` if this text is not a name.
    pub(super) fn stored(text: &[u8]) -> Option<Self> {
        let is_name = (1..=NAME_BYTES).contains(&text.len());
        let is_name = is_name && text.iter().all(u8::is_ascii_graphic);
        is_name.then(|| Self::of_bytes(text))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.used().hash(state);
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Holds the text of a [`Name`] before it is cut: a host has at most 253 bytes, a port six.
struct Buffer {
    length: usize,
    bytes: [u8; 260],
}

impl Default for Buffer {
    fn default() -> Self {
        let (length, bytes) = (0, [0; 260]);
        Self { length, bytes }
    }
}

impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = &mut self.bytes[self.length..];
        let taken = text.len().min(free.len());
        free[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Selects whether users and clients' addresses are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persons {
    /// Users by name; clients by their IPv4 address, or by the IPv6 /64 of a subscriber.
    Named,
    /// Neither users nor addresses, only the networks that `log_anonymize` leaves.
    LeftOut,
}

/// A client in the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    network: IpAddr,
    bits: u8,
}

impl Client {
    /// Returns the client at `address`.
    pub(super) fn new(address: IpAddr, persons: Persons) -> Self {
        match persons {
            Persons::Named => Self::with_bits(address, 32, 64),
            Persons::LeftOut => Self::with_bits(address, 24, 48),
        }
    }

    /// Returns the client's network.
    pub(super) fn network(self) -> Self {
        Self::new(self.network, Persons::LeftOut)
    }

    fn with_bits(address: IpAddr, v4_bits: u8, v6_bits: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let bits = v4_bits;
                let kept = address.to_bits() >> (32 - bits) << (32 - bits);
                Self {
                    network: Ipv4Addr::from_bits(kept).into(),
                    bits,
                }
            }
            IpAddr::V6(address) => {
                let bits = v6_bits;
                let kept = address.to_bits() >> (128 - bits) << (128 - bits);
                Self {
                    network: Ipv6Addr::from_bits(kept).into(),
                    bits,
                }
            }
        }
    }

    pub(super) fn name(self) -> Name {
        match self.bits {
            32 => Name::new(self.network),
            bits => Name::new(format_args!("{}/{bits}", self.network)),
        }
    }
}

/// Prefix for a name that was cut.
const CUT: &[u8] = b"...";
/// Name for a request that names no site.
const UNKNOWN: &[u8] = b"-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_character_that_could_break_out() {
        assert_eq!(Name::of_site("a.test:8080").as_str(), "a.test:8080");
        assert_eq!(Name::of_site("u:p@q@a.test").as_str(), "a.test");
        assert_eq!(Name::of_site("a\n\x1b[2J\u{e9}b").as_str(), "a??[2J??b");
        assert_eq!(Name::of_site("").as_str(), "-");
    }

    #[test]
    fn of_a_long_name_the_end_is_kept() {
        let long = format!("{}.example.org:8080", "a".repeat(200));
        for name in [Name::of_site(&long), Name::new(&long)] {
            assert_eq!(name.as_str().len(), NAME_BYTES);
            assert!(name.as_str().starts_with("...a"), "{name:?}");
            assert!(name.as_str().ends_with("a.example.org:8080"), "{name:?}");
        }
        assert_eq!(Name::new("x".repeat(300)).as_str().len(), NAME_BYTES);
    }

    #[test]
    fn only_what_a_name_writes_is_read_as_one() {
        for name in [Name::of_site("a.test"), Name::new("x".repeat(300))] {
            assert_eq!(Name::stored(name.used()), Some(name));
        }
        for text in [&b""[..], b"a\n", b"a b", b"\xff", &[b'a'; 56]] {
            assert_eq!(Name::stored(text), None, "{text:?}");
        }
    }

    #[test]
    fn no_two_users_have_one_name() {
        assert_eq!(Name::of_user("ada").as_str(), "ada");
        assert_eq!(Name::of_user("m\u{fc}ller").as_str(), "m%C3%BCller");
        assert_eq!(Name::of_user("m%C3").as_str(), "m%25C3");
        assert_eq!(Name::of_user("a b\x1b").as_str(), "a%20b%1B");
    }

    #[test]
    fn clients_are_counted_by_address_or_by_network() {
        let client_of = |address: &str, persons| Client::new(address.parse().unwrap(), persons);
        for (address, client, network) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.0/24"),
            ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.0/24"),
            ("2001:db8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ] {
            let named = client_of(address, Persons::Named);
            assert_eq!(named.name().as_str(), client);
            assert_eq!(named.network().name().as_str(), network);
            let left_out = client_of(address, Persons::LeftOut);
            assert_eq!(left_out.name().as_str(), network);
            assert_eq!(left_out.network(), left_out);
        }
    }
}
