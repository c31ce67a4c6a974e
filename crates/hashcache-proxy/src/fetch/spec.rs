//! What a fetch is given, and what it gives back.
//!
//! Filled by `request` (and by `background`), read by all modules of `fetch`.

use std::net::{IpAddr, SocketAddr};

use hashcache::{Follower, Hit};
use hashcache_http::{
    ByteRange, NotStored, OnError, Space, StoredFacts, Target, Variant, VariantTable,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use tokio::sync::oneshot;

use super::counters::Trailers;
use crate::in_flight_ranges::AwaitedRange;
use crate::share::Share;
use crate::store::{ObjectPlace, StoredResponse};
use crate::upstream::{Endpoint, Informational, ResponseBody, SendFailure};

/// What is to be fetched, and for whom.
pub(crate) struct FetchSpec {
    pub(crate) client: IpAddr,
    /// Out of whose share it takes a connection.
    pub(crate) share: Share,
    /// Whose resource it is.
    pub(crate) space: Space,
    pub(crate) target: Target,
    /// Where the answer is stored, unless it turns out to be another variant.
    pub(crate) place: ObjectPlace,
    pub(crate) endpoint: Endpoint,
    /// The client's fields as they came, without those of its connection.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    /// What is stored and to be confirmed.
    pub(crate) selected: Option<SelectedResponse>,
    /// Other variants that are stored: which of them, if any, is the answer?
    pub(crate) choices: Option<VariantTable>,
    /// What is known is good for if upstream answers with an error.
    pub(crate) on_error: OnError,
    /// Something is stored under this key, whether or not it is to be confirmed.
    pub(crate) replaces: Option<Hit>,
    pub(crate) extent: Extent,
    pub(crate) informational: Option<Informational>,
    /// Nobody waits for it, and it is fetched all the same.
    pub(crate) background: bool,
}

/// What is asked for of the content.
pub(crate) enum Extent {
    /// What the client asked for.
    AsAsked,
    /// This range instead, a stretch of whole pages around the client's.
    Around(HeaderValue),
    /// All of it, though the client wants a range.
    Whole,
}

/// A stored response that is being validated.
#[derive(Clone)]
pub(crate) struct SelectedResponse {
    pub(crate) hit: Hit,
    pub(crate) stored: StoredResponse,
    pub(crate) place: ObjectPlace,
    /// The row by which it will answer for other values than those it was stored for.
    pub(crate) alias: Option<Variant>,
}

/// What a fetch came to, for the request that caused it.
pub(crate) enum Fetched {
    /// It is being stored; read along.
    Stored {
        response: Response<()>,
        facts: StoredFacts,
        follower: Follower,
        length: Option<u64>,
        /// What of it the client wants, where the follower begins; `None`: all of it.
        part: Option<ByteRange>,
        /// Filled when the content has ended; for the client that caused the fetch.
        trailers: Trailers,
        peer: SocketAddr,
    },
    /// A part of it is being stored; more of it can be had.
    Begun {
        hit: Hit,
        stored: Box<StoredResponse>,
        place: ObjectPlace,
        awaited: AwaitedRange,
        peer: SocketAddr,
    },
    /// It cannot be put together from parts: ask as the client did.
    NotInParts,
    /// It is not stored: pass it on.
    Passed {
        response: Response<ResponseBody>,
        reason: NotStored,
        peer: SocketAddr,
    },
    /// What was stored is good again, with these fields.
    Confirmed {
        selected: Box<SelectedResponse>,
        peer: SocketAddr,
    },
}

/// The answer to whoever ordered.
pub(crate) type Reply = oneshot::Sender<Result<Fetched, SendFailure>>;

/// Whether a stale response may stand in for an answer of this status (RFC 5861 4).
pub(crate) fn is_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// Whether an answer that is not stored for this reason also says that what is stored must go.
pub(super) fn is_withdrawn(reason: NotStored) -> bool {
    matches!(
        reason,
        NotStored::NoStore | NotStored::Private | NotStored::VaryAnything
    )
}
