//! Host names in a canonical form: lower case, ASCII, without a dot at the end.
//!
//! Rules, lists and requests are compared in this form, so that `Example.ORG.` does not evade a
//! rule for `example.org`.

use std::borrow::Cow;
use std::net::IpAddr;

use hashcache_http::Host;

/// Parses a host that an operator wrote. Names with non-ASCII letters are converted (IDNA). `None`:
/// the text is no host.
pub(super) fn read_host(text: &str) -> Option<Host> {
    let text = if text.is_ascii() {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(idna::domain_to_ascii(text).ok()?)
    };
    Host::parse(text.strip_suffix('.').unwrap_or(&text)).ok()
}

/// A host in the form in which hosts are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainHost<'a> {
    Name(&'a str),
    Address(IpAddr),
}

impl<'a> PlainHost<'a> {
    pub(super) fn from_host(host: &'a Host) -> Self {
        match host {
            Host::Name(name) => Self::Name(name.strip_suffix('.').unwrap_or(name)),
            Host::V4(address) => Self::Address(IpAddr::V4(*address)),
            Host::V6(address) => Self::Address(IpAddr::V6(*address).to_canonical()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (written, plain) in [
            ("Example.ORG.", "example.org"),
            ("B\u{fc}cher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            let host = read_host(written).unwrap();
            assert_eq!(PlainHost::from_host(&host), PlainHost::Name(plain));
        }
        let dotted = Host::parse("example.org.").unwrap();
        assert_eq!(
            PlainHost::from_host(&dotted),
            PlainHost::Name("example.org")
        );
        let mapped = Host::parse("[::ffff:192.0.2.1]").unwrap();
        let address = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(PlainHost::from_host(&mapped), PlainHost::Address(address));
        for text in ["", ".", "a..b", "a b", "a/b", "||ads^"] {
            assert_eq!(read_host(text), None, "{text}");
        }
    }
}
