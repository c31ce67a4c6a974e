//! One request on its way to an answer, and the steps of that way.
//!
//! The loop in `request` holds a [`Transaction`] and carries out one [`Next`] after another. The
//! module that carries out a step returns the next one.
//!
//! Invariant: a step never calls another step. A second attempt (the stored object is damaged, the
//! origin does not know ranges, another request's validation has ended) is one more turn of the
//! loop, so no future contains itself and no two modules import each other.

use std::rc::Rc;
use std::time::Duration;

use hashcache::Hit;
use hashcache_http::{
    CacheStatus, Forward, Handling, MethodKind, OnError, RequestFacts, Seconds, Space, Target,
    VariantTable,
};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};

use super::body::Body;
use crate::collapse::Leader;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::fetch::SelectedResponse;
use crate::in_flight_ranges::AwaitedRange;
use crate::log_entry::LogEntryBuilder;
use crate::store::{ObjectPlace, StoredResponse};
use crate::upstream::Informational;
use crate::upstream::address::Purpose;
use crate::upstream::endpoint::Endpoint;
use crate::wire::{ClientBody, ContentFraming, HeadInfo};

/// An answer on its way, or why there is none.
pub(super) type Answer = Result<Response<Body>, Failure>;

/// A request that is being answered.
pub(super) struct Transaction<'a> {
    pub(super) connection: &'a Rc<Connection>,
    pub(super) request: ClientRequest,
    /// What the caching rules need to know of the request.
    pub(super) facts: RequestFacts,
    /// How many stored responses could not be completed for this request.
    pub(super) tries: u8,
    /// Keeps the fetch of a range going until the answer has a follower of its own.
    pub(super) awaited: Option<AwaitedRange>,
    pub(super) log_entry: &'a mut LogEntryBuilder,
}

/// The next step towards an answer.
pub(super) enum Next {
    /// Look this cache key up and decide.
    LookUp(Vec<u8>),
    /// Answer from a stored response that satisfies the request.
    Serve(Found),
    /// Ask upstream whether a stored response is still good.
    Validate(SelectedResponse, Forward, OnError),
    /// Join the fetch of another request, or begin one.
    Miss(ObjectPlace, ForwardReason),
    /// Fetch; the response is stored if it may be.
    Fetch(Fetch),
    /// Send the request on; nothing is stored.
    Pass(Forward),
    /// The answer is ready.
    Answer(Response<Body>),
}

/// A stored response that satisfies the request, and how it comes to be served.
pub(super) struct Found {
    pub(super) hit: Hit,
    pub(super) stored: StoredResponse,
    pub(super) place: ObjectPlace,
    pub(super) served: Served,
}

/// How old a stored response is when it is served, and why.
#[derive(Clone, Copy)]
pub(super) struct Served {
    pub(super) age: Seconds,
    pub(super) handling: Handling,
    pub(super) ttl: i64,
    pub(super) upstream_status: Option<StatusCode>,
    pub(super) collapsed: bool,
    /// What upstream sends for it is stored.
    pub(super) stored: bool,
}

impl Served {
    /// Without asking anyone.
    pub(super) fn fresh(age: Seconds, ttl: i64) -> Self {
        let handling = Handling::Hit;
        Self {
            age,
            handling,
            ttl,
            upstream_status: None,
            collapsed: false,
            stored: false,
        }
    }

    pub(super) fn status(&self) -> CacheStatus<'static> {
        CacheStatus {
            ttl: Some(self.ttl),
            upstream_status: self.upstream_status,
            collapsed: self.collapsed,
            stored: self.stored,
            ..CacheStatus::of(self.handling)
        }
    }
}

/// A fetch to begin.
pub(super) struct Fetch {
    pub(super) place: ObjectPlace,
    pub(super) reason: ForwardReason,
    /// The requests that wait for this fetch; `None`: it is this request's alone.
    pub(super) leader: Option<Leader>,
    /// Asked for instead of the client's own range.
    pub(super) range: Option<HeaderValue>,
}

impl Fetch {
    /// A fetch that no other request waits for.
    pub(super) fn alone(place: ObjectPlace, reason: ForwardReason) -> Self {
        Self {
            place,
            reason,
            leader: None,
            range: None,
        }
    }
}

impl<'a> Transaction<'a> {
    pub(super) fn new(
        connection: &'a Rc<Connection>,
        request: ClientRequest,
        log_entry: &'a mut LogEntryBuilder,
    ) -> Self {
        let facts = request.facts();
        Self {
            connection,
            request,
            facts,
            tries: 0,
            awaited: None,
            log_entry,
        }
    }

    /// The same request without content, to be sent before this transaction goes on.
    pub(super) fn without_body(&mut self) -> Transaction<'_> {
        Transaction {
            connection: self.connection,
            request: self.request.without_body(),
            facts: self.facts,
            tries: self.tries,
            awaited: None,
            log_entry: &mut *self.log_entry,
        }
    }

    /// Passes interim responses on to the client.
    pub(super) fn informational(&self) -> Informational {
        let cell = Rc::clone(&self.connection.cell);
        Rc::new(move |status, fields: HeaderMap| {
            cell.send_interim(status, &fields);
        })
    }

    /// How long to wait for the same request that is under way.
    pub(super) fn wait_time(&self) -> Duration {
        let worker = &self.connection.worker;
        worker.wait_time(&self.request.target.authority)
    }

    /// Whether the request may share the fetch of another, or share its own.
    pub(super) fn may_share(&self) -> bool {
        let facts = &self.facts;
        facts.method == MethodKind::Get
            && !facts.has_range
            && !facts.has_condition
            && !facts.has_origin_condition
            && !facts.directives.no_store
            && !self.request.fields.contains_key(AUTHORIZATION)
    }

    /// Fetches for this request alone. The response is stored if it may be, which a response to
    /// anything but a plain GET may not.
    pub(super) fn fetch_alone(&self, place: ObjectPlace, reason: ForwardReason) -> Next {
        if self.request.method != Method::GET || self.request.body.is_some() {
            return Next::Pass(reason.forward);
        }
        Next::Fetch(Fetch::alone(place, reason))
    }
}

/// What a client asked for.
pub(super) struct ClientRequest {
    /// Whose resource it is.
    pub(super) space: Space,
    pub(super) target: Target,
    pub(super) method: Method,
    /// As they came, without those of the connection.
    pub(super) fields: HeaderMap,
    pub(super) version: Version,
    pub(super) body: Option<ClientBody>,
    /// Whether there is content: its framing is no longer among the fields.
    pub(super) has_content: bool,
}

impl ClientRequest {
    pub(super) fn new(
        space: Space,
        target: Target,
        request: Request<ClientBody>,
        info: &HeadInfo,
    ) -> Self {
        let (head, body) = request.into_parts();
        Self {
            space,
            target,
            method: head.method,
            fields: head.headers,
            version: info.version,
            body: (info.content != ContentFraming::None).then_some(body),
            has_content: !matches!(
                info.content,
                ContentFraming::None | ContentFraming::Length(0)
            ),
        }
    }

    fn facts(&self) -> RequestFacts {
        RequestFacts {
            has_content: self.has_content,
            ..RequestFacts::of(&self.method, &self.fields)
        }
    }

    fn without_body(&self) -> Self {
        Self {
            space: self.space,
            target: self.target.clone(),
            method: self.method.clone(),
            fields: self.fields.clone(),
            version: self.version,
            body: None,
            has_content: self.has_content,
        }
    }

    /// Where it is to be fetched from.
    pub(super) fn endpoint(&self) -> Endpoint {
        let purpose = match self.space {
            Space::Site(_) | Space::Mirror(_) => Purpose::Configured,
            Space::Own => Purpose::Forward,
        };
        Endpoint {
            authority: self.target.authority.clone(),
            purpose,
            scheme: self.target.scheme,
        }
    }
}

/// Why a request goes upstream, and what is known of what is stored.
pub(super) struct ForwardReason {
    pub(super) forward: Forward,
    /// What lies where the answer would.
    pub(super) replaces: Option<Hit>,
    /// The variants that are stored.
    pub(super) choices: Option<VariantTable>,
}

impl ForwardReason {
    pub(super) fn of(forward: Forward) -> Self {
        Self {
            forward,
            replaces: None,
            choices: None,
        }
    }
}
