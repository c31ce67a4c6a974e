//! Domains in the operator's own network, with names that may lead to private addresses.
//!
//! The names of any other domain must not: the owner could point a name at a machine behind the
//! proxy (DNS rebinding). For each domain here, the settings name the server that knows the names,
//! and `dns` in `hashcache-upstream` queries only that server, so only the operator decides where
//! the names lead. Settings are parsed into [`AllowedDestination`]; `address` and `dns` check
//! whether a name is in a domain.
//!
//! Invariant: an address counts as an address of a domain only if the domain's server has given it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use hashcache_http::Host;

use super::prefix::{Prefix, PrefixError};

/// Destinations that are allowed although they would be refused by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedDestination {
    /// Addresses, by any name.
    Network(Prefix),
    /// Private addresses, by names in a domain.
    Domain(OwnDomain),
}

/// A domain with all names below it, and the name server that knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnDomain {
    domain: Box<str>,
    server: SocketAddr,
}

/// Why a text is not an [`AllowedDestination`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllowedDestinationError {
    /// The text has no `@` and is no network.
    #[error("{0}; or a domain with its name server, such as school.example@10.0.0.1")]
    Network(PrefixError),
    /// The part before the `@` is no name.
    #[error("the part before the `@` is not a domain (expected one such as school.example)")]
    Domain,
    /// The part behind the `@` is no address.
    #[error("the part behind the `@` is not the address of a name server (expected 10.0.0.1)")]
    Server,
}

impl FromStr for AllowedDestination {
    type Err = AllowedDestinationError;

    fn from_str(text: &str) -> Result<Self, AllowedDestinationError> {
        let Some((domain, server)) = text.split_once('@') else {
            let network = text.parse().map_err(AllowedDestinationError::Network)?;
            return Ok(Self::Network(network));
        };
        let domain = match Host::parse(domain) {
            // A final dot would be another spelling.
            Ok(Host::Name(name)) if !name.ends_with('.') => name,
            _ => return Err(AllowedDestinationError::Domain),
        };
        let address = |ip: IpAddr| SocketAddr::new(ip, DNS_PORT);
        let server = server.parse().or_else(|_| server.parse().map(address));
        let server = server.map_err(|_| AllowedDestinationError::Server)?;
        let domain = domain.as_ref().into();
        Ok(Self::Domain(OwnDomain { domain, server }))
    }
}

impl fmt::Display for AllowedDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Domain(OwnDomain { domain, server }) if server.port() == DNS_PORT => {
                write!(f, "{domain}@{}", server.ip())
            }
            Self::Domain(OwnDomain { domain, server }) => write!(f, "{domain}@{server}"),
        }
    }
}

impl OwnDomain {
    /// Returns true if `name`, in lower case, is the domain or below it.
    pub fn contains(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        let Some(before) = name.strip_suffix(&*self.domain) else {
            return false;
        };
        before.is_empty() || before.ends_with('.')
    }

    /// The name server for the domain.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

const DNS_PORT: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(text: &str) -> OwnDomain {
        match text.parse().unwrap() {
            AllowedDestination::Domain(domain) => domain,
            AllowedDestination::Network(network) => panic!("{network}"),
        }
    }

    #[test]
    fn a_destination_is_written_as_it_is_read() {
        for text in [
            "10.0.0.0/8",
            "school.example@10.0.0.1",
            "lan@[fd00::1]:5353",
            "school.example@10.0.0.1:5353",
            "lan@fd00::1",
        ] {
            let destination: AllowedDestination = text.parse().unwrap();
            assert_eq!(destination.to_string(), text);
        }
        for (text, error) in [
            ("*.school.example@10.0.0.1", AllowedDestinationError::Domain),
            ("10.0.0.2@10.0.0.1", AllowedDestinationError::Domain),
            ("@10.0.0.1", AllowedDestinationError::Domain),
            ("school.example.@10.0.0.1", AllowedDestinationError::Domain),
            ("school.example@", AllowedDestinationError::Server),
            (
                "school.example@ns.school.example",
                AllowedDestinationError::Server,
            ),
        ] {
            assert_eq!(text.parse::<AllowedDestination>(), Err(error), "{text}");
        }
        let without = "school.example".parse::<AllowedDestination>().unwrap_err();
        assert!(without.to_string().contains("school.example@10.0.0.1"));
    }

    #[test]
    fn a_domain_has_all_names_below_it_and_no_other() {
        let domain = domain("School.Example@10.0.0.1");
        for name in [
            "school.example",
            "www.school.example",
            "a.b.school.example.",
        ] {
            assert!(domain.contains(name), "{name}");
        }
        for name in ["preschool.example", "example", "school.example.org", ""] {
            assert!(!domain.contains(name), "{name}");
        }
    }
}
