//! Paths and queries that `http::Uri` cannot hold: quotes, angle brackets, octets beside UTF-8.
//!
//! `fetch` and `request` of the proxy set the target of each request with [`set_target`]. If the
//! URI does not take it, it travels beside the URI, which is then `/`: `exchange` has it written in
//! the place of that `/` on a connection in HTTP/1.1 (`http1`), and `linked` sends it to a parent
//! in a field of its own. HTTP/2 to an origin is not used for such a request, because h2 writes
//! what the URI has.
//!
//! Invariant: a request goes out with the octets that the client sent, or not at all.

use bytes::Bytes;
use hashcache_http::{Origin, octets};
use http::{Request, Uri};

/// A path and a query beside the URI of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OddTarget(Bytes);

impl OddTarget {
    /// That of `request`, if it has one.
    pub(super) fn of<B>(request: &Request<B>) -> Option<&Self> {
        request.extensions().get()
    }

    /// The target in origin-form.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The target with every octet percent-encoded that is no character of a URI. Only a gateway
    /// gets this, which decodes it again: to others it may be another resource.
    pub(super) fn encoded(&self) -> Uri {
        let mut text = String::with_capacity(self.0.len() * 2);
        for &octet in &self.0 {
            match octet {
                b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{'..=b'}' | 0x7f.. => {
                    text.push_str(&format!("%{octet:02X}"));
                }
                _ => text.push(char::from(octet)),
            }
        }
        Uri::try_from(text).unwrap_or_else(|_| Uri::from_static("/"))
    }

    /// The target to write, with the whole URL of a resource of `origin` if there is one.
    pub(super) fn written(&self, origin: Option<&Origin>) -> Bytes {
        match origin {
            Some(origin) => [origin.to_string().as_bytes(), &self.0].concat().into(),
            None => self.0.clone(),
        }
    }
}

/// Gives `request` the path and the query of a [`hashcache_http::Target`].
pub fn set_target<B>(request: &mut Request<B>, path_and_query: &str) {
    let octets = octets(path_and_query);
    let uri = match std::str::from_utf8(&octets) {
        Ok(text) => Uri::try_from(text).ok(),
        Err(_) => None,
    };
    *request.uri_mut() = uri.unwrap_or_else(|| {
        let odd = OddTarget(Bytes::copy_from_slice(&octets));
        request.extensions_mut().insert(odd);
        Uri::from_static("/")
    });
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use hashcache_http::octet_text;

    use super::*;

    #[test]
    fn every_target_is_sent_in_its_own_octets() {
        for target in [
            &b"/"[..],
            b"//double//slash",
            b"/{x}/[y]|^`\\?{a}|^`\\",
            b"/<a>?\"b\"",
            b"/\xe4\xff?\xfc",
            "/日本?é".as_bytes(),
            "/\u{10ffe4}".as_bytes(),
            b"*",
        ] {
            let mut request = Request::new(());
            set_target(&mut request, &octet_text(target));
            let origin = Origin::from_str("http://a.test").unwrap();
            match OddTarget::of(&request) {
                Some(odd) => {
                    assert_eq!(request.uri(), "/");
                    assert_eq!(odd.written(None), target);
                    assert!(odd.encoded().to_string().starts_with("/%"));
                    let whole = [b"http://a.test", target].concat();
                    assert_eq!(odd.written(Some(&origin)), whole);
                }
                None => assert_eq!(request.uri().to_string().as_bytes(), target),
            }
        }
    }
}
