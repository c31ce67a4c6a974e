//! A child's forwarded port: the address that accepts connections, and the destination to which the
//! parent connects them.
//!
//! Written `PORT=HOST:PORT` or `ADDRESS:PORT=HOST:PORT`; see the setting `link_forward`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use hashcache_http::{Authority, Origin};

/// A forwarded port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkForward {
    /// Programs connect to this address: loopback, unless another address is written.
    pub listen: SocketAddr,
    /// The destination to which the parent connects.
    pub to: Authority,
}

/// Error: a text is no [`LinkForward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkForwardError {
    /// The text has no `=`.
    #[error("it has no `=`")]
    NoDestination,
    /// The part before the `=` is invalid.
    #[error("what is before `=` is neither a port nor an address with a port")]
    Listen,
    /// The part behind the `=` is invalid.
    #[error("what is behind `=` is not a host with a port")]
    Destination,
}

impl LinkForward {
    /// Host and port to which the parent connects, for display.
    pub fn destination(&self) -> String {
        self.to.to_string()
    }
}

impl FromStr for LinkForward {
    type Err = LinkForwardError;

    fn from_str(text: &str) -> Result<Self, LinkForwardError> {
        let (listen, to) = text
            .split_once('=')
            .ok_or(LinkForwardError::NoDestination)?;
        let listen = match listen.parse::<u16>() {
            Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            Err(_) => listen.parse().map_err(|_| LinkForwardError::Listen)?,
        };
        let port = to.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(LinkForwardError::Destination);
        }
        // A host has the same syntax as in a URL.
        let url = format!("http://{to}").parse::<Origin>();
        let url = url.map_err(|_| LinkForwardError::Destination)?;
        Ok(Self {
            listen,
            to: url.authority,
        })
    }
}

impl fmt::Display for LinkForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.listen.ip() == Ipv4Addr::LOCALHOST {
            write!(f, "{}={}", self.listen.port(), self.to)
        } else {
            write!(f, "{}={}", self.listen, self.to)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_port_is_on_loopback_unless_an_address_is_written() {
        for (text, listen) in [
            ("5432=db.example:5432", "127.0.0.1:5432"),
            ("0=db.example:80", "127.0.0.1:0"),
            ("0.0.0.0:25=192.0.2.1:2525", "0.0.0.0:25"),
            ("[::1]:25=[2001:db8::1]:25", "[::1]:25"),
        ] {
            let forward: LinkForward = text.parse().unwrap();
            assert_eq!(forward.listen, listen.parse().unwrap());
            assert_eq!(forward.to_string(), text);
        }
        for (text, error) in [
            ("5432", LinkForwardError::NoDestination),
            ("x=db:1", LinkForwardError::Listen),
            ("70000=db:1", LinkForwardError::Listen),
            ("1=db", LinkForwardError::Destination),
            ("1=db:", LinkForwardError::Destination),
            ("1=db:0", LinkForwardError::Destination),
            ("1=user@db:1", LinkForwardError::Destination),
            ("1=db:1/path", LinkForwardError::Destination),
            ("1=:5", LinkForwardError::Destination),
        ] {
            assert_eq!(text.parse::<LinkForward>(), Err(error), "{text}");
        }
    }
}
