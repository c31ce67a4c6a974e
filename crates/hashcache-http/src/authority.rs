//! Scheme, host and port, each checked and in its canonical spelling.
//!
//! `target` reads them from request lines and Host; the proxy reads its settings with this module.
//!
//! Invariant: a [`Host`] is a name in lower case or an address. It is never an alternative spelling
//! of an address, because such a spelling would pass a check of names.
//! Cost: a small allocation for a name, none for an address or for a clone.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use thiserror::Error;

/// Schemes of the resources that the proxy can cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `http`
    Http,
    /// `https`
    Https,
    /// `ftp` (RFC 1738): fetched by a gateway, because the server does not use HTTP.
    Ftp,
    /// `gopher` (RFC 4266): fetched by a gateway, as `ftp`.
    Gopher,
}

impl Scheme {
    /// The port for a URL of this scheme without a port.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
            Scheme::Ftp => 21,
            Scheme::Gopher => 70,
        }
    }

    /// The scheme in lower case, as in URLs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Ftp => "ftp",
            Scheme::Gopher => "gopher",
        }
    }

    /// Returns true if the resources are fetched with a protocol other than HTTP.
    pub const fn needs_gateway(self) -> bool {
        matches!(self, Scheme::Ftp | Scheme::Gopher)
    }

    pub(crate) const ALL: [Scheme; 4] = [Scheme::Http, Scheme::Https, Scheme::Ftp, Scheme::Gopher];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A host, checked and in its canonical spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name, in lower case.
    Name(Arc<str>),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address; printed in brackets as in RFC 5952.
    V6(Ipv6Addr),
}

impl Host {
    /// Parses a name, four decimals, or an IPv6 address in brackets.
    ///
    /// A host that ends in a number but is not four plain decimals is an error: many systems
    /// resolve `0x7f.1`, `127.1` and `2130706433` to 127.0.0.1, and no check of names would see it.
    pub fn parse(text: &str) -> Result<Host, TargetError> {
        if let Some(inside) = text.strip_prefix('[') {
            let address = inside.strip_suffix(']').ok_or(TargetError::Host)?;
            return address.parse().map(Host::V6).map_err(|_| TargetError::Host);
        }
        if ends_in_number(text) {
            return plain_ipv4(text).map(Host::V4).ok_or(TargetError::Host);
        }
        let labels = text.strip_suffix('.').unwrap_or(text);
        if text.len() > 255 || !labels.split('.').all(is_label) {
            return Err(TargetError::Host);
        }
        Ok(Host::Name(text.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::V4(address) => f.write_str(Decimals::new(address.octets()).as_str()),
            Host::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Text of numbers with dots between them. Authorities are printed several times per request, and
/// the standard formatting takes ten times as long.
struct Decimals {
    bytes: [u8; 15],
    length: usize,
}

impl Decimals {
    /// Takes at most four numbers with three digits, or a single number with five.
    fn new<const N: usize>(numbers: [impl Into<u16>; N]) -> Self {
        let mut text = Self {
            bytes: [0; 15],
            length: 0,
        };
        for (n, number) in numbers.into_iter().enumerate() {
            if n > 0 {
                text.push(b'.');
            }
            let number = number.into();
            // Each divisor is a constant, so the compiler multiplies instead of dividing.
            if number >= 10_000 {
                text.push(digit(number / 10_000));
            }
            if number >= 1_000 {
                text.push(digit(number / 1_000 % 10));
            }
            if number >= 100 {
                text.push(digit(number / 100 % 10));
            }
            if number >= 10 {
                text.push(digit(number / 10 % 10));
            }
            text.push(digit(number % 10));
        }
        text
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

fn digit(number: u16) -> u8 {
    b"0123456789"[usize::from(number % 10)]
}

/// Checks a label of a name. It may have only the characters from RFC 3986's `reg-name` that are in
/// use (letters, digits, hyphen, underscore, tilde). Percent-encoding is refused because it would
/// give a host many spellings.
fn is_label(label: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_~".contains(&b);
    !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed)
}

/// The URL Standard's test that separates addresses from names.
fn ends_in_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let all_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
    (!last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())) || hex.is_some_and(all_hex)
}

/// Four decimals without leading zeros; `Ipv4Addr::from_str` itself rejects the zeros.
fn plain_ipv4(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok()
}

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// The host.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

impl Authority {
    /// Parses `host` or `host:port`; without a port, the default port of the scheme is used.
    pub fn parse(text: &str, scheme: Scheme) -> Result<Authority, TargetError> {
        let (host, port) = split_port(text)?;
        let host = Host::parse(host)?;
        let port = match port {
            // RFC 3986 6.2.3: an empty port means the default port.
            None | Some("") => scheme.default_port(),
            Some(port) => parse_port(port)?,
        };
        Ok(Authority { host, port })
    }

    /// Parses `host:port`; the port is required, as in CONNECT.
    pub fn parse_with_port(text: &str) -> Result<Authority, TargetError> {
        let (host, port) = split_port(text)?;
        let host = Host::parse(host)?;
        let port = parse_port(port.ok_or(TargetError::Port)?)?;
        Ok(Authority { host, port })
    }

    /// The value for Host in a request for a URL with this `scheme` (RFC 9110 7.2): without the
    /// default port. Cost: one allocation.
    pub fn host_field(&self, scheme: Scheme) -> String {
        let host_bytes = match &self.host {
            Host::Name(name) => name.len(),
            Host::V4(_) => 15,
            Host::V6(_) => 41,
        };
        let mut text = String::with_capacity(host_bytes + ":65535".len());
        write!(text, "{}", self.display(scheme)).expect("a String takes all that is written");
        text
    }

    /// Prints this authority as in a URL with this scheme: without the default port.
    pub fn display(&self, scheme: Scheme) -> impl fmt::Display + '_ {
        DisplayAuthority {
            authority: self,
            port: (self.port != scheme.default_port()).then_some(self.port),
        }
    }
}

/// An IPv4-mapped IPv6 address becomes the IPv4 address.
impl From<SocketAddr> for Authority {
    fn from(address: SocketAddr) -> Authority {
        let host = match address.ip().to_canonical() {
            IpAddr::V4(address) => Host::V4(address),
            IpAddr::V6(address) => Host::V6(address),
        };
        let port = address.port();
        Authority { host, port }
    }
}

/// Always prints the port; [`Authority::display`] leaves out the default port.
impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = Some(self.port);
        let authority = self;
        DisplayAuthority { authority, port }.fmt(f)
    }
}

struct DisplayAuthority<'a> {
    authority: &'a Authority,
    port: Option<u16>,
}

impl fmt::Display for DisplayAuthority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.authority.host.fmt(f)?;
        match self.port {
            Some(port) => {
                f.write_str(":")?;
                f.write_str(Decimals::new([port]).as_str())
            }
            None => Ok(()),
        }
    }
}

/// Splits the text at the colon after the host.
fn split_port(text: &str) -> Result<(&str, Option<&str>), TargetError> {
    if text.contains('@') {
        return Err(TargetError::Userinfo);
    }
    let host_end = if text.starts_with('[') {
        text.find(']').ok_or(TargetError::Host)? + 1
    } else {
        text.find(':').unwrap_or(text.len())
    };
    let (host, rest) = text.split_at(host_end);
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if rest.is_empty() => Ok((host, None)),
        None => Err(TargetError::Host),
    }
}

/// Accepts 1 to 65535, digits only. `str::parse` would also accept a sign.
fn parse_port(text: &str) -> Result<u16, TargetError> {
    if text.is_empty() || text.len() > 5 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(TargetError::Port);
    }
    match text.parse() {
        Ok(0) | Err(_) => Err(TargetError::Port),
        Ok(port) => Ok(port),
    }
}

/// A scheme and an authority: `http://host[:port]`. An origin parsed from text is `http` or
/// `https`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The scheme.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
}

impl std::str::FromStr for Origin {
    type Err = TargetError;

    /// Parses `http://host[:port]`, optionally followed by a single `/`.
    fn from_str(text: &str) -> Result<Origin, TargetError> {
        let (scheme, rest) = split_scheme(text).ok_or(TargetError::Form)??;
        if scheme.needs_gateway() {
            return Err(TargetError::Scheme);
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(TargetError::Path);
        }
        let authority = Authority::parse(authority, scheme)?;
        Ok(Origin { scheme, authority })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}",
            self.scheme,
            self.authority.display(self.scheme)
        )
    }
}

/// Splits at `://` into the scheme and the rest; `None` if the text has no scheme.
pub(crate) fn split_scheme(text: &str) -> Option<Result<(Scheme, &str), TargetError>> {
    if text.starts_with('/') {
        return None;
    }
    let (name, rest) = text.split_once("://")?;
    let mut schemes = Scheme::ALL.into_iter();
    let known = schemes.find(|scheme| name.eq_ignore_ascii_case(scheme.as_str()));
    Some(
        known
            .map(|scheme| (scheme, rest))
            .ok_or(TargetError::Scheme),
    )
}

/// Why a target or an authority is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The method does not allow this form of target.
    #[error("request target has a form that this method does not allow")]
    Form,
    /// The scheme is unknown, or not allowed here.
    #[error("scheme is neither http nor https")]
    Scheme,
    /// Origin-form without a Host field.
    #[error("request has no Host field")]
    NoHost,
    /// The host is neither a name nor an address in its usual spelling.
    #[error("host is neither a valid name nor an IP address")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("port is not a number from 1 to 65535")]
    Port,
    /// There is a user name or a password before the host.
    #[error("authority contains a user name or password")]
    Userinfo,
    /// The request target contains a `#`.
    #[error("request target contains a fragment")]
    Fragment,
    /// The path has a blank or control byte, or does not start with `/`.
    #[error("path does not begin with /, or contains a space or control character")]
    Path,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Option<String> {
        Host::parse(text).ok().map(|host| host.to_string())
    }

    #[test]
    fn addresses_have_one_spelling() {
        assert_eq!(host("[2001:DB8:0:0::1]").as_deref(), Some("[2001:db8::1]"));
        assert_eq!(
            host("[::ffff:7f00:1]").as_deref(),
            Some("[::ffff:127.0.0.1]")
        );
        for text in ["127.0.0.1", "0.0.0.0", "255.254.100.9", "10.20.30.40"] {
            assert_eq!(host(text).as_deref(), Some(text));
        }
        for port in [1, 9, 10, 99, 100, 1_000, 9_999, 10_000, 65_535] {
            let text = format!("a:{port}");
            let authority = Authority::parse(&text, Scheme::Https).unwrap();
            assert_eq!(authority.to_string(), text);
        }
    }

    #[test]
    fn other_spellings_of_addresses_are_errors() {
        for text in [
            "0x7f.1",
            "2130706433",
            "127.1",
            "127.0.0.01",
            "0177.0.0.1",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.4.",
            "0x7f000001",
            "a.0x",
            "x.09",
            "[::1",
            "[::1]x",
            "[fe80::1%25eth0]",
            "::1",
            "[v1.x]",
            "[127.0.0.1]",
        ] {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_an_error() {
        for text in [
            "", ".", "a..b", ".a", "a b", "a%41", "a/b", "ä", "a,b", "a\u{0}b", "a@b",
        ] {
            assert_eq!(host(text), None, "{text:?}");
        }
        assert_eq!(host(&"a".repeat(64)), None);
        assert_eq!(
            host("_dmarc.x-1.Example.").as_deref(),
            Some("_dmarc.x-1.example.")
        );
    }

    #[test]
    fn an_origin_is_read_and_printed() {
        let origin: Origin = "HTTP://Example.com:8080/".parse().unwrap();
        assert_eq!(origin.to_string(), "http://example.com:8080");
        assert_eq!(
            "http://h:80".parse::<Origin>().unwrap().to_string(),
            "http://h"
        );
        assert_eq!("http://h/x".parse::<Origin>(), Err(TargetError::Path));
        assert_eq!("h:80".parse::<Origin>(), Err(TargetError::Form));
        assert_eq!("ftp://h".parse::<Origin>(), Err(TargetError::Scheme));
    }
}
