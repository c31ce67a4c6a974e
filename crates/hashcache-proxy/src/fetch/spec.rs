//! The input and the results of a fetch.
//!
//! Filled by `request` and `background`, read by all modules of `fetch`.

use std::net::IpAddr;

use hashcache::{Follower, Hit};
use hashcache_http::{
    ByteRange, NotStored, OnError, Space, StoredFacts, Target, Variant, VariantTable,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use tokio::sync::oneshot;

use super::ask::AskFailure;
use super::counters::Trailers;
use crate::failure::Failure;
use crate::in_flight_ranges::AwaitedRange;
use crate::route::{NextHop, Route, Siblings};
use crate::share::Share;
use crate::store::{ObjectPlace, StoredResponse};
use crate::upstream::{Informational, ResponseBody};

/// The resource to fetch, and the client that pays for the fetch.
pub(crate) struct FetchSpec {
    pub(crate) client: IpAddr,
    /// The client's share, which limits the connections.
    pub(crate) share: Share,
    /// The key space of the resource.
    pub(crate) space: Space,
    pub(crate) target: Target,
    /// Where the response is stored, unless it turns out to be another variant.
    pub(crate) place: ObjectPlace,
    /// The next hops of the request; `Ok(None)`: they are not planned yet.
    pub(crate) route: Result<Option<Route>, Failure>,
    /// Whether siblings may answer.
    pub(crate) siblings: Siblings,
    /// The client's fields as received, without the hop-by-hop fields.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    /// The stored response to validate.
    pub(crate) selected: Option<SelectedResponse>,
    /// Other stored variants: the request asks whether one of them answers it.
    pub(crate) choices: Option<VariantTable>,
    /// Whether the stored response may be served if upstream sends an error.
    pub(crate) on_error: OnError,
    /// The response stored under this key, whether or not it is validated.
    pub(crate) replaces: Option<Hit>,
    pub(crate) extent: Extent,
    pub(crate) informational: Option<Informational>,
    /// The fetch has no client.
    pub(crate) background: bool,
}

/// The part of the content that is requested.
pub(crate) enum Extent {
    /// The part that the client requested.
    AsAsked,
    /// This range: the client's range rounded out to pages.
    Around(HeaderValue),
    /// All of it, although the client requested a range.
    Whole,
}

/// A stored response that is being validated (the "selected response" of RFC 9111).
#[derive(Clone)]
pub(crate) struct SelectedResponse {
    pub(crate) hit: Hit,
    pub(crate) stored: StoredResponse,
    pub(crate) place: ObjectPlace,
    /// The table row by which it will answer requests with other values than those it was stored
    /// for.
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
        follower: Follower,
        length: Option<u64>,
        /// The range that the client wants, at which the follower begins; `None`: all of it.
        part: Option<ByteRange>,
        /// Filled at the end of the content.
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
        response: Response<ResponseBody>,
        reason: NotStored,
        next_hop: NextHop,
    },
    /// Upstream has confirmed the stored response, with these fields.
    Confirmed {
        selected: Box<SelectedResponse>,
        next_hop: NextHop,
    },
}

/// Returns the result to the request that began the fetch.
pub(crate) type Reply = oneshot::Sender<Result<Fetched, AskFailure>>;

/// Whether a stale response may be served instead of this status (RFC 5861 4).
pub(crate) fn is_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// Whether a response that is not stored for this reason also invalidates the stored one.
pub(super) fn is_withdrawn(reason: NotStored) -> bool {
    matches!(
        reason,
        NotStored::NoStore | NotStored::Private | NotStored::VaryAnything
    )
}
