//! Names of sites and clients, as the history and the dashboard know them.
//!
//! Made by `tally` for each request, so a name has no allocation. `record` stores it as it is.
//!
//! Invariant: a name has 1 to [`NAME_BYTES`] printable ASCII characters, whatever a client sent or
//! a file contains.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name. Of a longer one the end is kept, which has the registered domain.
pub(super) const NAME_BYTES: usize = 55;

/// The name of a site, a user or a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    length: u8,
    bytes: [u8; NAME_BYTES],
}

impl Name {
    /// The name that `shown` displays as.
    pub(crate) fn of(shown: impl fmt::Display) -> Self {
        let mut buffer = Buffer::default();
        // The buffer takes everything, so an error would be one of `shown`; it has no name then.
        let _ = write!(buffer, "{shown}");
        Self::of_bytes(&buffer.bytes[..buffer.length])
    }

    /// The site of a request: its authority without user name and password.
    pub(crate) fn of_site(authority: &str) -> Self {
        let host = authority.rsplit_once('@').map_or(authority, |(_, it)| it);
        Self::of_bytes(host.as_bytes())
    }

    fn of_bytes(text: &[u8]) -> Self {
        let (mut bytes, mut length) = ([0; NAME_BYTES], 0);
        let cut = match text.len() > NAME_BYTES {
            true => &text[text.len() - (NAME_BYTES - CUT.len())..],
            false => text,
        };
        let mark: &[u8] = match text.len() {
            0 => UNKNOWN,
            all if all > cut.len() => CUT,
            _ => &[],
        };
        for byte in mark.iter().chain(cut) {
            bytes[length] = match byte.is_ascii_graphic() {
                true => *byte,
                false => b'?',
            };
            length += 1;
        }
        Self {
            length: u8::try_from(length).unwrap_or_default(),
            bytes,
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.used()).unwrap_or_default()
    }

    fn used(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(NAME_BYTES)]
    }

    /// As in a record: the length and [`NAME_BYTES`] bytes.
    pub(super) fn to_bytes(self) -> [u8; NAME_BYTES + 1] {
        let mut bytes = [0; NAME_BYTES + 1];
        bytes[0] = self.length;
        bytes[1..].copy_from_slice(&self.bytes);
        bytes
    }

    /// `None`: these bytes are no name.
    pub(super) fn from_bytes(bytes: &[u8; NAME_BYTES + 1]) -> Option<Self> {
        let [length, text @ ..] = bytes;
        let used = text.get(..usize::from(*length))?;
        let is_name = !used.is_empty() && used.iter().all(u8::is_ascii_graphic);
        let (length, bytes) = (*length, *text);
        is_name.then_some(Self { length, bytes })
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

/// Takes the text of a [`Name`] before it is cut: a host has at most 253 bytes, a port six.
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

/// How much of a client's address is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientForm {
    /// An IPv4 address, or the IPv6 /64 that one subscriber has.
    Client,
    /// The network that `log_anonymize` leaves: /24 or /48.
    Network,
}

/// A client as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    network: IpAddr,
    bits: u8,
}

impl Client {
    pub(crate) fn of(address: IpAddr, form: ClientForm) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let bits = if form == ClientForm::Client { 32 } else { 24 };
                let kept = address.to_bits() >> (32 - bits) << (32 - bits);
                Self {
                    network: Ipv4Addr::from_bits(kept).into(),
                    bits,
                }
            }
            IpAddr::V6(address) => {
                let bits = if form == ClientForm::Client { 64 } else { 48 };
                let kept = address.to_bits() >> (128 - bits) << (128 - bits);
                Self {
                    network: Ipv6Addr::from_bits(kept).into(),
                    bits,
                }
            }
        }
    }

    pub(crate) fn name(self) -> Name {
        match self.bits {
            32 => Name::of(self.network),
            bits => Name::of(format_args!("{}/{bits}", self.network)),
        }
    }
}

/// Begins a name whose beginning was cut off.
const CUT: &[u8] = b"...";
/// The name of a request that names no site.
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
        for name in [Name::of_site(&long), Name::of(&long)] {
            assert_eq!(name.as_str().len(), NAME_BYTES);
            assert!(name.as_str().starts_with("...a"), "{name:?}");
            assert!(name.as_str().ends_with("a.example.org:8080"), "{name:?}");
        }
        assert_eq!(Name::of("x".repeat(300)).as_str().len(), NAME_BYTES);
    }

    #[test]
    fn only_what_a_name_writes_is_read_as_one() {
        let name = Name::of_site("a.test");
        assert_eq!(Name::from_bytes(&name.to_bytes()), Some(name));
        for (at, byte) in [(0, 0), (0, 56), (0, 7), (1, b'\n'), (3, 0xff)] {
            let mut bytes = name.to_bytes();
            bytes[at] = byte;
            assert_eq!(Name::from_bytes(&bytes), None, "{at} {byte}");
        }
    }

    #[test]
    fn clients_are_counted_by_address_or_by_network() {
        let name = |address: &str, form| {
            let client = Client::of(address.parse().unwrap(), form);
            client.name().as_str().to_owned()
        };
        for (address, client, network) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.0/24"),
            ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.0/24"),
            ("2001:db8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ] {
            assert_eq!(name(address, ClientForm::Client), client);
            assert_eq!(name(address, ClientForm::Network), network);
        }
    }
}
