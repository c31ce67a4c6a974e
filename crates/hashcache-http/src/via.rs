//! Via: our name in each message, which reveals loops (RFC 9110 7.6.3); CDN-Loop, which other
//! proxies must not remove, although they may remove Via (RFC 8586).
//!
//! The proxy checks each request and appends our member to each message that it forwards.
//!
//! Invariant: the name is a token, so we always append a single well-formed member, and recognise
//! our own members among any others.
//! Cost: appending shares a prepared value; the check is linear in the field.

use http::Version;
use http::header::{HeaderMap, HeaderName, HeaderValue, VIA};
use thiserror::Error;

use crate::fields::{is_token, members};

/// The field in which CDNs, and proxies in front of sites, add their names.
const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// The name of this proxy in Via, Cache-Status and Proxy-Status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pseudonym {
    name: Box<str>,
    via_1_0: HeaderValue,
    via_1_1: HeaderValue,
    via_2: HeaderValue,
    cdn_id: HeaderValue,
}

/// The name is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("name has characters other than letters, digits and !#$%&'*+-.^_`|~")]
pub struct NoToken;

impl Pseudonym {
    /// Checks a name: a token, such as `hashcache` or `cache1.example.net`.
    pub fn new(name: &str) -> Result<Pseudonym, NoToken> {
        if !is_token(name.as_bytes()) {
            return Err(NoToken);
        }
        let via = |version| HeaderValue::try_from(format!("{version} {name}")).or(Err(NoToken));
        Ok(Pseudonym {
            name: name.into(),
            via_1_0: via("1.0")?,
            via_1_1: via("1.1")?,
            via_2: via("2")?,
            cdn_id: HeaderValue::try_from(name).or(Err(NoToken))?,
        })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Our member for a message received over this version of HTTP.
    pub fn via_value(&self, received: Version) -> &HeaderValue {
        match received {
            Version::HTTP_2 => &self.via_2,
            Version::HTTP_09 | Version::HTTP_10 => &self.via_1_0,
            _ => &self.via_1_1,
        }
    }

    /// Appends our member to a message received over this version of HTTP.
    pub fn append_via(&self, fields: &mut HeaderMap, received: Version) {
        fields.append(VIA, self.via_value(received).clone());
    }

    /// The members of Via in `fields` and our member, in a single value.
    pub fn chain(&self, fields: &HeaderMap, received: Version) -> HeaderValue {
        let mut with_ours = HeaderMap::new();
        for value in fields.get_all(VIA) {
            with_ours.append(VIA, value.clone());
        }
        self.append_via(&mut with_ours, received);
        let lines: Vec<_> = with_ours
            .get_all(VIA)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        HeaderValue::from_bytes(&lines.join(&b", "[..])).expect("field values stay field values")
    }

    /// Appends our member to the CDN-Loop of a request to the origin of a site (RFC 8586 2).
    pub fn append_cdn_loop(&self, request: &mut HeaderMap) {
        request.append(CDN_LOOP, self.cdn_id.clone());
    }

    /// Returns true if our name is in CDN-Loop: the request has passed through this proxy before.
    pub fn is_in_cdn_loop(&self, request: &HeaderMap) -> bool {
        members(request, &CDN_LOOP).any(|member| {
            let id = member.split(|&b| b == b';').next().unwrap_or_default();
            id.trim_ascii().eq_ignore_ascii_case(self.name.as_bytes())
        })
    }

    /// Returns true if our name is in Via, so that the request is in a loop.
    pub fn is_in_via(&self, request: &HeaderMap) -> bool {
        via_names(request).any(|name| name.eq_ignore_ascii_case(self.name.as_bytes()))
    }
}

/// The names of the proxies that a request has passed through, from Via, in order.
pub fn via_names(request: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    members(request, &VIA).filter_map(|member| {
        let words = member.split(|&b| b == b' ' || b == b'\t');
        words.filter(|word| !word.is_empty()).nth(1)
    })
}

/// The number of proxies that a request has passed through, from Via.
pub fn via_members(request: &HeaderMap) -> usize {
    members(request, &VIA).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_member_is_appended_after_those_of_others() {
        let us = Pseudonym::new("hashcache").unwrap();
        let mut fields = HeaderMap::new();
        fields.insert(VIA, HeaderValue::from_static("1.0 fred"));
        us.append_via(&mut fields, Version::HTTP_11);
        us.append_via(&mut fields, Version::HTTP_2);
        us.append_via(&mut fields, Version::HTTP_10);
        let lines: Vec<_> = fields.get_all(VIA).iter().collect();
        assert_eq!(
            lines,
            ["1.0 fred", "1.1 hashcache", "2 hashcache", "1.0 hashcache"]
        );
    }

    #[test]
    fn a_loop_is_seen_among_protocols_comments_and_lines() {
        let us = Pseudonym::new("hashcache").unwrap();
        let seen = |line: &'static str| {
            let mut fields = HeaderMap::new();
            fields.insert(VIA, HeaderValue::from_static(line));
            us.is_in_via(&fields)
        };
        assert!(seen("1.1 hashcache"));
        assert!(seen("1.0 fred, HTTP/1.1  HashCache (mine, yours)"));
        assert!(!seen("1.1 hashcache2"));
        assert!(!seen("1.1 fred (hashcache)"));
        assert!(!seen("hashcache"));
        assert!(!us.is_in_via(&HeaderMap::new()));
    }

    #[test]
    fn cdn_loop_names_us_whatever_its_parameters() {
        let us = Pseudonym::new("edge.example").unwrap();
        let seen = |line: &'static str| {
            let mut fields = HeaderMap::new();
            fields.insert(CDN_LOOP, HeaderValue::from_static(line));
            us.is_in_cdn_loop(&fields)
        };
        assert!(seen("edge.example"));
        assert!(seen(
            "foo123.foocdn.example, barcdn.example; trace=\"abcdef\", Edge.Example ;a=1"
        ));
        assert!(!seen(
            "barcdn.example; trace=\"edge.example, edge.example\""
        ));
        assert!(!seen("edge.example:8080, not-edge.example"));
        let mut fields = HeaderMap::new();
        assert!(!us.is_in_cdn_loop(&fields));
        us.append_cdn_loop(&mut fields);
        assert!(us.is_in_cdn_loop(&fields));
    }

    #[test]
    fn a_chain_has_all_members_in_order() {
        let us = Pseudonym::new("hashcache").unwrap();
        let mut fields = HeaderMap::new();
        assert_eq!(us.chain(&fields, Version::HTTP_11), "1.1 hashcache");
        fields.append(VIA, HeaderValue::from_static("1.0 fred, 1.1 joe (a b)"));
        fields.append(VIA, HeaderValue::from_static("1.1 sqa (squid/5.7)"));
        let chain = us.chain(&fields, Version::HTTP_2);
        assert_eq!(
            chain,
            "1.0 fred, 1.1 joe (a b), 1.1 sqa (squid/5.7), 2 hashcache"
        );
        let chained = HeaderMap::from_iter([(VIA, chain)]);
        assert_eq!(via_members(&chained), 4);
    }

    #[test]
    fn only_tokens_are_names() {
        for name in ["", "a b", "a,b", "ä", "a\r\nb", "a:80"] {
            assert!(Pseudonym::new(name).is_err(), "{name:?}");
        }
    }
}
