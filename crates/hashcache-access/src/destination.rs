//! Destinations in rules: a host, a domain with all hosts below it, or a network.

use std::fmt;
use std::str::FromStr;

use hashcache_base::net::prefix::Prefix;

use super::name::{PlainHost, read_host};

/// A destination that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A host, by name.
    Host(Box<str>),
    /// A domain and every host below it, written `.example.org`.
    Below(Box<str>),
    /// Hosts that are named by an address in this network. The addresses to which names resolve do
    /// not matter.
    Network(Prefix),
}

/// Why a text is not a [`Destination`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host, a domain such as `.example.org`, an address or a network")]
pub struct DestinationError;

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        if let Ok(network) = text.parse() {
            return Ok(Self::Network(network));
        }
        let domain = text.strip_prefix('.');
        let host = read_host(domain.unwrap_or(text)).ok_or(DestinationError)?;
        match (PlainHost::from_host(&host), domain) {
            (PlainHost::Name(name), None) => Ok(Self::Host(name.into())),
            (PlainHost::Name(name), Some(_)) => Ok(Self::Below(name.into())),
            (PlainHost::Address(address), None) => Ok(Self::Network(Prefix::new(address, u8::MAX))),
            (PlainHost::Address(_), Some(_)) => Err(DestinationError),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Below(name) => write!(f, ".{name}"),
            Self::Network(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_shown_as_it_is_read() {
        for text in ["example.org", ".example.org", "10.0.0.0/8", "2001:db8::/32"] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
        for (text, shown) in [
            ("Example.ORG.", "example.org"),
            (".B\u{fc}cher.example", ".xn--bcher-kva.example"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("[::1]", "::1/128"),
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            ".",
            "*.example.org",
            ".10.0.0.1",
            "a b",
            "http://a",
            "a:80",
        ] {
            assert_eq!(text.parse::<Destination>(), Err(DestinationError), "{text}");
        }
    }
}
