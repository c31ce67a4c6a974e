//! How a child uses its link for one request.
//!
//! `fetch` of the proxy decides by the request and by what is stored; `linked_requests` of
//! `hashcache-upstream` carries it out where the next hop is a parent with a pin. Other hops never
//! see any of it.
//!
//! Invariant: a request that takes no part passes as it came: its client's `Accept-Encoding` stays,
//! and the response arrives as the origin sent it. These are requests with Authorization, requests
//! with Cookie for which nothing is stored, and those of clients that want content coded.

use hashcache_http::{
    HASHCACHE_LINK, HintUse, LinkRequest, OfferedContent, RequestDirectives, permits_identity,
};
use hashcache_wan::decode::Offer;
use hashcache_wan::limits::DICTIONARY_BYTES_MAX;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};

use super::dictionary::StoredContent;
use super::named::NamedLookup;

/// How a request uses a link.
#[derive(Clone, Debug, Default)]
pub enum LinkCoding {
    /// It takes no part.
    #[default]
    Unchanged,
    /// Content without a coding, in ordinary HTTP.
    Identity,
    /// Content without a coding, in frames.
    Frames(Dictionaries),
}

/// What the child may decode frames with.
#[derive(Clone, Debug, Default)]
pub struct Dictionaries {
    /// The older version of what is asked for.
    pub offered: Option<StoredContent>,
    /// Finds what the parent names; `None`: it may name nothing.
    pub named: Option<NamedLookup>,
}

impl Dictionaries {
    /// What the decoder may be asked to use.
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

/// Whether a response for the URL of a request is stored here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredHere {
    /// A response is stored here.
    Yes,
    /// No response is stored here.
    No,
}

impl LinkCoding {
    /// For a request that is safe and has no content.
    pub fn of(request: &HeaderMap, stored: StoredHere) -> Self {
        let is_private = request.contains_key(AUTHORIZATION)
            || (request.contains_key(COOKIE) && stored == StoredHere::No);
        let is_bound = RequestDirectives::parse(request).no_transform;
        if is_private || is_bound || !permits_identity(request) {
            Self::Unchanged
        } else {
            Self::Frames(Dictionaries::default())
        }
    }

    /// The same with the offer of an older version.
    pub fn offering(mut self, content: Option<StoredContent>) -> Self {
        if let Self::Frames(dictionaries) = &mut self {
            dictionaries.offered = content;
        }
        self
    }

    /// The same, if `lookup` is something, with dictionaries that the parent names.
    pub fn finding(mut self, lookup: Option<NamedLookup>) -> Self {
        if let Self::Frames(dictionaries) = &mut self {
            dictionaries.named = lookup;
        }
        self
    }

    /// What is worth another attempt when frames were of no use; `None`: nothing is.
    pub fn next(&self) -> Option<Self> {
        match self {
            Self::Frames(dictionaries) if dictionaries.is_any() => {
                Some(self.without_dictionaries())
            }
            Self::Frames(_) => Some(Self::Identity),
            Self::Unchanged | Self::Identity => None,
        }
    }

    /// The same without dictionaries.
    pub fn without_dictionaries(&self) -> Self {
        match self {
            Self::Frames(_) => Self::Frames(Dictionaries::default()),
            other => other.clone(),
        }
    }

    /// The same without frames.
    pub fn in_plain(&self) -> Self {
        match self {
            Self::Unchanged => Self::Unchanged,
            Self::Identity | Self::Frames(_) => Self::Identity,
        }
    }

    /// Sets the fields of a request to the parent. One with Authorization has nothing to do with
    /// hints.
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
                LinkCoding::of(&request(fields), stored),
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
