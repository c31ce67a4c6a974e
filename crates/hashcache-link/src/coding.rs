//! The way in which a child's request uses the link.
//!
//! `fetch` in the proxy decides by the request and by the stored response; `linked_requests` in
//! `hashcache-upstream` applies the decision if the next hop is a parent with a pin. Other hops
//! never see these fields.
//!
//! Invariant: a request without coding passes unchanged: the client's `Accept-Encoding` stays, and
//! the response arrives as the origin sent it. This applies to requests with Authorization, to
//! requests with Cookie and no stored response, to requests with no-transform, and if the client
//! accepts only coded content.

use hashcache_http::{
    HASHCACHE_LINK, HintUse, LinkRequest, OfferedContent, RequestDirectives, permits_identity,
};
use hashcache_wan::decode::Offer;
use hashcache_wan::limits::DICTIONARY_BYTES_MAX;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};

use super::dictionary::StoredContent;
use super::named::NamedLookup;

/// How a request uses the link.
#[derive(Clone, Debug, Default)]
pub enum LinkCoding {
    /// No coding: the request passes unchanged.
    #[default]
    Unchanged,
    /// Content without a content coding, in ordinary HTTP.
    Identity,
    /// Content without a content coding, in frames.
    Frames(Dictionaries),
}

/// The dictionaries that the child can use to decode frames.
#[derive(Clone, Debug, Default)]
pub struct Dictionaries {
    /// An older version with the same URL.
    pub offered: Option<StoredContent>,
    /// Lookup of the dictionary that the parent names; `None`: the parent may name none.
    pub named: Option<NamedLookup>,
}

impl Dictionaries {
    /// The dictionaries that the encoder may use.
    pub fn offer(&self) -> Offer {
        Offer {
            offered: self.offered.as_ref().map(|content| content.length),
            named_max: match self.named {
                Some(_) => DICTIONARY_BYTES_MAX,
                None => 0,
            },
        }
    }

    fn is_any(&self) -> bool {
        self.offered.is_some() || self.named.is_some()
    }
}

/// Result of a search for a stored response to the URL of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredHere {
    /// A response is stored here.
    Yes,
    /// No response is stored here.
    No,
}

impl LinkCoding {
    /// Selects the coding for a request that is safe and has no content.
    pub fn new(request: &HeaderMap, stored: StoredHere) -> Self {
        let is_private = request.contains_key(AUTHORIZATION)
            || (request.contains_key(COOKIE) && stored == StoredHere::No);
        let is_bound = RequestDirectives::parse(request).no_transform;
        if is_private || is_bound || !permits_identity(request) {
            Self::Unchanged
        } else {
            Self::Frames(Dictionaries::default())
        }
    }

    /// Offers an older version.
    pub fn offering(mut self, content: Option<StoredContent>) -> Self {
        if let Self::Frames(dictionaries) = &mut self {
            dictionaries.offered = content;
        }
        self
    }

    /// Adds a lookup for dictionaries that the parent names, if `lookup` is set.
    pub fn finding(mut self, lookup: Option<NamedLookup>) -> Self {
        if let Self::Frames(dictionaries) = &mut self {
            dictionaries.named = lookup;
        }
        self
    }

    /// The coding for another attempt when frames did not help; `None`: no other coding would help.
    pub fn next(&self) -> Option<Self> {
        match self {
            Self::Frames(dictionaries) if dictionaries.is_any() => {
                Some(self.without_dictionaries())
            }
            Self::Frames(_) => Some(Self::Identity),
            Self::Unchanged | Self::Identity => None,
        }
    }

    /// This coding, but without dictionaries.
    pub fn without_dictionaries(&self) -> Self {
        match self {
            Self::Frames(_) => Self::Frames(Dictionaries::default()),
            other => other.clone(),
        }
    }

    /// This coding, but without frames.
    pub fn in_plain(&self) -> Self {
        match self {
            Self::Unchanged => Self::Unchanged,
            Self::Identity | Self::Frames(_) => Self::Identity,
        }
    }

    /// Sets the fields of a request to the parent. A request with Authorization neither requests
    /// hints nor counts for them.
    pub fn prepare(&self, request: &mut HeaderMap, hints: HintUse) {
        request.remove(HASHCACHE_LINK);
        let hints = if request.contains_key(AUTHORIZATION) {
            HintUse::None
        } else {
            hints
        };
        if let Self::Identity | Self::Frames(_) = self {
            request.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let mut asked = LinkRequest {
            hints,
            ..LinkRequest::default()
        };
        if let Self::Frames(dictionaries) = self {
            let offered = dictionaries.offered.as_ref();
            asked = LinkRequest {
                reads_frames: true,
                offered: offered.map(|content| OfferedContent {
                    digest: content.digest.0,
                    length: content.length,
                }),
                named_max: dictionaries.offer().named_max,
                ..asked
            };
        }
        if asked != LinkRequest::default() {
            request.insert(HASHCACHE_LINK, asked.to_value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        fields.collect()
    }

    #[test]
    fn private_requests_and_clients_that_want_a_coding_take_no_part() {
        let takes_part = |fields: &[_], stored| {
            !matches!(
                LinkCoding::new(&request(fields), stored),
                LinkCoding::Unchanged
            )
        };
        for (fields, stored, expected) in [
            (&[][..], StoredHere::No, true),
            (&[("accept-encoding", "gzip")], StoredHere::No, true),
            (&[("accept-encoding", "*;q=0")], StoredHere::Yes, false),
            (&[("authorization", "Basic x")], StoredHere::Yes, false),
            (&[("cookie", "a=b")], StoredHere::No, false),
            (&[("cookie", "a=b")], StoredHere::Yes, true),
            (&[("cache-control", "no-transform")], StoredHere::Yes, false),
        ] {
            assert_eq!(takes_part(fields, stored), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_request_that_takes_no_part_keeps_its_fields() {
        let asked = [("accept-encoding", "gzip"), ("hashcache-link", "v=1")];
        let prepared = |coding: LinkCoding| {
            let mut fields = request(&asked);
            coding.prepare(&mut fields, HintUse::None);
            [ACCEPT_ENCODING, HASHCACHE_LINK].map(|name| fields.get(name).cloned())
        };
        let value = |text| Some(HeaderValue::from_static(text));
        let frames = LinkCoding::Frames(Dictionaries::default());
        assert_eq!(prepared(LinkCoding::Unchanged), [value("gzip"), None]);
        assert_eq!(prepared(frames.in_plain()), [value("identity"), None]);
        assert_eq!(prepared(frames), [value("identity"), value("v=1")]);
    }

    #[test]
    fn hints_are_asked_for_without_frames_too_but_not_with_authorization() {
        let prepared = |fields: &[_], coding: &LinkCoding| {
            let mut fields = request(fields);
            coding.prepare(&mut fields, HintUse::Wanted);
            fields.remove(HASHCACHE_LINK)
        };
        let value = |text| Some(HeaderValue::from_static(text));
        let frames = LinkCoding::Frames(Dictionaries::default());
        assert_eq!(prepared(&[], &LinkCoding::Unchanged), value("hints"));
        assert_eq!(prepared(&[], &frames), value("v=1, hints"));
        let secret = [("authorization", "Basic x")];
        assert_eq!(prepared(&secret, &LinkCoding::Unchanged), None);
    }
}
