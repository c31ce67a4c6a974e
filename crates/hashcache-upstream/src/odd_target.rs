//! Paths and queries that `http::Uri` cannot hold: quotes, angle brackets, octets that are not
//! UTF-8.
//!
//! `fetch` and `request` in the proxy set the target of each request with [`set_target`]. If the
//! URI does not accept the target, the target is stored beside the URI, which is `/` in this case:
//! on an HTTP/1.1 connection `exchange` writes the stored target in place of that `/` (`http1`),
//! and `linked` sends it to a parent in a separate field. HTTP/2 to an origin is not used for such
//! a request, because h2 writes the URI.
//!
//! Invariant: a request is sent with the octets that the client sent, or not at all.

use bytes::Bytes;
use hashcache_http::{Origin, octets};
use http::{Request, Uri};

/// A path and a query beside the URI of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OddTarget(Bytes);

impl OddTarget {
    /// Returns the odd target of `request`, if there is one.
    pub(super) fn from_request<B>(request: &Request<B>) -> Option<&Self> {
        request.extensions().get()
    }

    /// The target in origin-form.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the target with every octet percent-encoded that is not allowed in a URI. Only a
    /// gateway gets this form, because it decodes the target again: for other servers it may be
    /// another resource.
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

    /// Returns the target to write, with the whole URL if `origin` is given.
    pub(super) fn written(&self, origin: Option<&Origin>) -> Bytes {
        match origin {
            Some(origin) => [origin.to_string().as_bytes(), &self.0].concat().into(),
            None => self.0.clone(),
        }
    }
}

/// Sets the path and the query of a [`hashcache_http::Target`] on `request`.
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
            match OddTarget::from_request(&request) {
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
