//! The input and the results of a fetch.
//!
//! Filled by `request` and `background`, read by all modules of `fetch`.

use std::rc::Rc;

use bytes::Bytes;
use hashcache::Hit;
use hashcache_base::failure::Failure;
use hashcache_base::share::{Network, Share};
use hashcache_http::{
    Authority, ByteRange, Exempt, FieldKinds, HintUse, NotStored, OnError, RangeSpec, Space,
    StoredFacts, Target, Variant, VariantTable, origin_key, parse_range,
};
use hashcache_link::coding::{LinkCoding, StoredHere};
use hashcache_link::dictionary::StoredContent;
use hashcache_link::named::NamedLookup;
use hashcache_store::collapse::Requester;
use hashcache_store::follow::ContentFollower;
use hashcache_store::in_flight_ranges::AwaitedRange;
use hashcache_store::page_groups::NotedGroup;
use hashcache_store::{ObjectPlace, StoredResponse};
use hashcache_upstream::announced::ClientEnds;
use hashcache_upstream::pinned::Pinning;
use hashcache_upstream::{Informational, ResponseBody};
use http::header::RANGE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use tokio::sync::oneshot;

use super::ask::AskFailure;
use super::counters::Trailers;
use super::rest::Rest;
use crate::route::{NextHop, Route, Siblings};
use crate::worker::Worker;

/// The resource to fetch, and the client that pays for the fetch.
pub(crate) struct FetchSpec {
    /// Both addresses of the client connection.
    pub(crate) ends: ClientEnds,
    /// The client's share, which limits the connections.
    pub(crate) share: Share,
    /// The key space of the resource.
    pub(crate) space: Space,
    pub(crate) target: Target,
    /// Place where the response is stored, unless it turns out to be another variant.
    pub(crate) place: ObjectPlace,
    /// The next hops for the request; `Ok(None)`: not planned yet.
    pub(crate) route: Result<Option<Route>, Failure>,
    /// Permission for siblings to answer.
    pub(crate) siblings: Siblings,
    /// The client's fields as received, without the hop-by-hop fields.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    /// The page group, if it follows from the request only.
    pub(crate) noted_group: Option<NotedGroup>,
    /// The stored response to validate.
    pub(crate) selected: Option<Box<SelectedResponse>>,
    /// Other stored variants: their entity tags are sent, so that upstream can select one of them.
    pub(crate) choices: Option<VariantTable>,
    /// Use of the stored response if upstream sends an error.
    pub(crate) on_error: OnError,
    /// The response stored under this key, even if it is not validated.
    pub(crate) replaces: Option<Hit>,
    pub(crate) extent: Extent,
    pub(crate) informational: Option<Informational>,
    /// Pinning of the connection if the response requires a connection login.
    pub(crate) pinning: Pinning,
    pub(crate) cause: Cause,
}

/// Cause of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A client request.
    Request,
    /// A request from a child, because this box had named the resource.
    RequestByHint,
    /// A stored response is validated while it is served. No client waits.
    Revalidation,
    /// A parent named the resource because the client of a page will need it. No client waits yet.
    Hint,
}

impl FetchSpec {
    /// How the request uses the link to a parent.
    pub(super) fn link(&self) -> LinkCoding {
        let is_stored =
            self.selected.is_some() || self.replaces.is_some() || self.choices.is_some();
        let stored = if is_stored {
            StoredHere::Yes
        } else {
            StoredHere::No
        };
        LinkCoding::new(&self.fields, stored)
    }

    /// Use of the parent's hints in this request.
    pub(super) fn hints(&self, worker: &Worker) -> HintUse {
        let is_page = self.space == Space::Own && self.is_whole();
        match self.cause {
            Cause::Request if is_page && worker.common.live().settings.link_hints => {
                HintUse::Wanted
            }
            Cause::Request | Cause::Revalidation => HintUse::None,
            Cause::RequestByHint | Cause::Hint => HintUse::Followed,
        }
    }

    /// The client, and the origin that it requests.
    pub(super) fn client_and_origin(&self) -> (Network, &Authority) {
        (self.share.network(), &self.target.authority)
    }

    /// The request fields that the key or a trusted front proxy has already accounted for.
    pub(super) fn exempt(&self) -> Exempt<'_> {
        let route = self.route.as_ref().ok().and_then(Option::as_ref);
        route.map_or(Exempt::default(), Route::exempt)
    }

    /// Returns true if a field may have made the origin use another URL or method than the key
    /// holds, unless the stored response varies by that field (`varied`). The response then gives
    /// no information about the stored response.
    pub(super) fn may_override(&self, worker: &Worker, varied: &[HeaderName]) -> bool {
        let live = worker.common.live();
        let kinds = FieldKinds::new(&self.fields, self.exempt(), varied, &live.store.harmless);
        kinds.has(FieldKinds::OVERRIDE)
    }

    /// Metadata of the stored response that the new response replaces.
    pub(super) fn replaced(&self) -> Option<&Bytes> {
        self.stored().map(Hit::metadata)
    }

    fn stored(&self) -> Option<&Hit> {
        let selected = self.selected.as_ref().map(|selected| &selected.hit);
        selected.or(self.replaces.as_ref())
    }

    /// A lookup for the dictionaries that a parent names, among stored responses of the same
    /// origin.
    pub(super) fn named(&self, worker: &Worker) -> Option<NamedLookup> {
        if !self.is_whole() {
            return None;
        }
        let cache = worker.cache.clone();
        // The parent names responses by the parent's own cache keys.
        let theirs = origin_key(Space::Own, &self.target);
        let ours = origin_key(self.space, &self.target);
        Some(NamedLookup::new(move |key, digest| {
            let path = key.strip_prefix(&theirs[..]);
            let name = path.map(|path| [&ours[..], path].concat());
            let cache = cache.clone();
            Box::pin(async move { StoredContent::find(&cache, &name?, digest).await })
        }))
    }

    fn is_whole(&self) -> bool {
        match self.extent {
            Extent::AsAsked => !self.fields.contains_key(RANGE),
            Extent::Around(_) => false,
            Extent::Whole => true,
        }
    }

    /// Returns true if a 206 that covers a whole representation with this length may in fact be a
    /// part of a longer one. Some origins cut the part out of the content and then take the part's
    /// length for the complete length, so one client could shorten the response for all others.
    /// That is possible if the length equals the length of the range that was sent, or the end of
    /// that range; a client's range is rounded out to pages first, so hardly any file ends there.
    pub(super) fn may_be_cut(&self, length: u64) -> bool {
        let client = || parse_range(&self.fields).unwrap_or_default();
        let sent = match &self.extent {
            Extent::AsAsked => client(),
            Extent::Around(range) => {
                let sent = HeaderMap::from_iter([(RANGE, range.clone())]);
                parse_range(&sent).unwrap_or_default()
            }
            Extent::Whole => Vec::new(),
        };
        let ends_there = |range: &RangeSpec| match range {
            RangeSpec::Between(range) => {
                range.last.checked_add(1) == Some(length) || range.length() == length
            }
            RangeSpec::Last(count) => *count == length,
            RangeSpec::From(_) => false,
        };
        // A wrong guess costs little up to a page, so there the client's own range counts too.
        sent.iter().any(ends_there) || length <= SHORT && client().iter().any(ends_there)
    }

    /// The stored response that the new response replaces, as a dictionary for the whole content.
    pub(super) fn offered(&self) -> Option<StoredContent> {
        let hit = self.stored().filter(|_| self.is_whole())?;
        StoredContent::new(hit, &StoredResponse::decode(hit.metadata())?)
    }
}

/// The part of the content that is requested.
pub(crate) enum Extent {
    /// The part that the client requested.
    AsAsked,
    /// This range: the client's range rounded out to pages.
    Around(HeaderValue),
    /// The whole content, although the client requested a range.
    Whole,
}

/// A stored response that is being validated (the "selected response" of RFC 9111).
#[derive(Clone)]
pub(crate) struct SelectedResponse {
    pub(crate) hit: Hit,
    pub(crate) stored: StoredResponse,
    pub(crate) place: ObjectPlace,
    /// The table row with which this response will answer requests with other field values than the
    /// original request had.
    pub(crate) alias: Option<Variant>,
}

/// The result of a fetch for the request that caused it.
pub(crate) enum Fetched {
    /// The response is being stored, or passed to all requests that wait for it, and can be
    /// followed.
    Stored {
        response: Response<()>,
        facts: StoredFacts,
        is_stored: bool,
        follower: ContentFollower,
        length: Option<u64>,
        /// The range that the client wants, at which the follower starts; `None`: the whole
        /// content.
        part: Option<ByteRange>,
        /// Filled after the last content byte.
        trailers: Trailers,
        next_hop: NextHop,
    },
    /// A range of the response is being stored; further ranges can be added.
    Begun {
        hit: Hit,
        stored: Box<StoredResponse>,
        place: ObjectPlace,
        awaited: AwaitedRange,
        next_hop: NextHop,
    },
    /// Ranges of the response cannot be combined: forward the client's own request.
    NotInParts,
    /// The response is not stored.
    Passed {
        response: Box<Response<ResponseBody>>,
        reason: NotStored,
        next_hop: NextHop,
        /// Fetches the missing part if the response breaks off.
        rest: Option<Rc<Rest>>,
    },
    /// Upstream has confirmed the stored response, with these fields.
    Confirmed {
        selected: Box<SelectedResponse>,
        next_hop: NextHop,
    },
}

/// Returns the result to the request that started the fetch.
pub(crate) type Reply = oneshot::Sender<Result<Fetched, AskFailure>>;

/// Up to this length, a page of the store, content that may be cut costs little to fetch again.
pub(crate) const SHORT: u64 = hashcache::PAGE as u64;

/// Returns true if a stale response may be served instead of this status (RFC 5861 4).
pub(crate) fn is_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// Returns true if the status shows that the origin fails, so that other requests for the resource
/// would fail too. A client error concerns a single request; 429 often concerns a single client
/// address.
pub(super) fn is_failing(status: StatusCode) -> bool {
    status.is_server_error()
}

/// The kind of request that has these fields: it decides whether the outcome is valid for other
/// requests too.
pub(crate) fn requester(fields: &HeaderMap) -> Requester {
    let kinds = FieldKinds::new(fields, Exempt::default(), &[], &[]);
    // Each of these can be the reason for an error: a malformed session, a blocked address, an
    // Origin that the application does not expect.
    let of_client = FieldKinds::COOKIE
        .and(FieldKinds::AUTHORIZATION)
        .and(FieldKinds::ADDRESS)
        .and(FieldKinds::SPECIAL);
    if kinds.has(FieldKinds::UNKNOWN.and(FieldKinds::OVERRIDE)) {
        Requester::Unknown
    } else if kinds.has(of_client) {
        Requester::OneClient
    } else {
        Requester::Anybody
    }
}

/// Returns true if a response that is not stored for this reason also invalidates the stored
/// response.
pub(super) fn is_withdrawn(reason: NotStored) -> bool {
    matches!(
        reason,
        NotStored::NoStore | NotStored::Private | NotStored::VaryAnything
    )
}
