//! A request while it is being answered, and the steps towards the response.
//!
//! The loop in `request` holds a [`Transaction`] and carries out one [`Next`] after another. The
//! module that carries out a step returns the next step.
//!
//! Invariant: a step never calls another step. A second attempt (the stored object is damaged, the
//! origin does not support ranges, another request's validation is over) is another turn of the
//! loop. Therefore no future contains itself, and no two modules import each other.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use hashcache::Hit;
use hashcache_access::quota::RequestLimits;
use hashcache_base::failure::Failure;
use hashcache_http::{
    Authority, CacheStatus, Exempt, FieldKinds, Forward, Handling, MethodKind, OnError,
    RequestFacts, Seconds, Space, Target, VariantTable, asks_for_upgrade, is_forwarded,
    logs_in_connection, origin_conditions_hold,
};
use hashcache_site::live::{ORIGIN, Sender, SiteRequest};
use hashcache_store::collapse::{Leader, Requester, WaitTimes};
use hashcache_store::in_flight_ranges::AwaitedRange;
use hashcache_store::page_groups::{NotedGroup, PageRequest};
use hashcache_store::{ObjectPlace, StoredResponse};
use hashcache_upstream::Informational;
use hashcache_upstream::pinned::{KeptLogin, LinkedLogin, PinKey, Pinning};
use hashcache_wire::{ClientBody, ContentFraming, HeadInfo};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use tokio::time::Instant;

use super::body::Body;
use super::linked::LinkedRequest;
use crate::connection::Connection;
use crate::fetch::{self, SelectedResponse};
use crate::log_entry::LogEntryBuilder;
use crate::route::{Route, Siblings};
use crate::worker::Worker;

/// A response, or the reason why there is none.
pub(super) type Answer = Result<Response<Body>, Failure>;

/// A request that is being answered.
pub(super) struct Transaction<'a> {
    pub(super) connection: &'a Rc<Connection>,
    pub(super) request: Box<ClientRequest>,
    /// Properties of the request that the caching rules need.
    pub(super) facts: RequestFacts,
    /// Number of stored responses that could not be completed for this request.
    pub(super) tries: u8,
    /// Keeps a range fetch running until the response has its own follower.
    pub(super) awaited: Option<AwaitedRange>,
    pub(super) log_entry: &'a mut LogEntryBuilder,
}

/// The next step towards an answer.
pub(super) enum Next {
    /// Look this cache key up and decide.
    LookUp(Bytes),
    /// Answer from a stored response that satisfies the request.
    Serve(Box<Found>),
    /// Validate a stored response at upstream.
    Validate(Box<SelectedResponse>, Forward, OnError),
    /// Follow the fetch of another request, or start a fetch.
    Miss(ObjectPlace, ForwardReason),
    /// Fetch; the response is stored if that is allowed.
    Fetch(Fetch),
    /// Forward the request; nothing is stored.
    Pass(Forward),
    /// The response is ready.
    Answer(Response<Body>),
}

/// A stored response that satisfies the request, and the reason why it is served.
pub(super) struct Found {
    pub(super) hit: Hit,
    pub(super) stored: StoredResponse,
    pub(super) place: ObjectPlace,
    pub(super) served: Served,
}

/// The age of a stored response when it is served, and the entry for Cache-Status.
#[derive(Clone, Copy)]
pub(super) struct Served {
    pub(super) age: Seconds,
    pub(super) handling: Handling,
    pub(super) ttl: i64,
    pub(super) upstream_status: Option<StatusCode>,
    pub(super) collapsed: bool,
    /// Content fetched for the response is stored.
    pub(super) stored: bool,
    /// The HTTP version in which it was received.
    pub(super) received: Version,
}

impl Served {
    /// Served from the store without a request to upstream.
    pub(super) fn fresh(age: Seconds, ttl: i64) -> Self {
        let handling = Handling::Hit;
        Self {
            age,
            handling,
            ttl,
            upstream_status: None,
            collapsed: false,
            stored: false,
            received: Version::HTTP_11,
        }
    }

    pub(super) fn status(&self) -> CacheStatus<'static> {
        CacheStatus {
            ttl: Some(self.ttl),
            upstream_status: self.upstream_status,
            collapsed: self.collapsed,
            stored: self.stored,
            ..CacheStatus::from_handling(self.handling)
        }
    }
}

/// A fetch to start.
pub(super) struct Fetch {
    pub(super) place: ObjectPlace,
    pub(super) reason: ForwardReason,
    /// Followers wait for the fetch through this leader; `None`: the fetch is for this request
    /// only.
    pub(super) leader: Option<Leader>,
    /// The range to request instead of the client's own range.
    pub(super) range: Option<HeaderValue>,
}

impl Fetch {
    /// A fetch without followers.
    pub(super) fn alone(place: ObjectPlace, reason: ForwardReason) -> Self {
        Self {
            place,
            reason,
            leader: None,
            range: None,
        }
    }
}

impl Next {
    /// Returns true if the step may send a request to an origin.
    pub(super) fn needs_origin(&self) -> bool {
        match self {
            Self::Validate(..) | Self::Miss(..) | Self::Fetch(_) | Self::Pass(_) => true,
            Self::LookUp(_) | Self::Serve(_) | Self::Answer(_) => false,
        }
    }
}

impl<'a> Transaction<'a> {
    pub(super) fn new(
        connection: &'a Rc<Connection>,
        request: Box<ClientRequest>,
        log_entry: &'a mut LogEntryBuilder,
    ) -> Self {
        let mut facts = request.facts();
        facts.directives.only_if_cached |= connection.gets_stored_only();
        if facts.directives.only_if_cached {
            // Most likely the client is a sibling, which knows the resource by our summary.
            connection.worker.common.summary.note_use();
        }
        Self {
            connection,
            request,
            facts,
            tries: 0,
            awaited: None,
            log_entry,
        }
    }

    /// Properties of the request with respect to a stored response: a precondition about the
    /// origin's state counts only if it does not hold for that response.
    pub(super) fn facts_beside(&self, stored: &StoredResponse) -> RequestFacts {
        let mut facts = self.facts;
        if facts.has_origin_condition {
            let now = self.connection.worker.common.now();
            let (request, fields) = (&self.request.fields, &stored.fields);
            facts.has_origin_condition =
                !origin_conditions_hold(request, &stored.facts, fields, now);
        }
        facts
    }

    /// A copy of the request without content, to be sent before this transaction continues.
    pub(super) fn without_body(&mut self) -> Transaction<'_> {
        Transaction {
            connection: self.connection,
            request: Box::new(self.request.without_body()),
            facts: self.facts,
            tries: self.tries,
            awaited: None,
            log_entry: &mut *self.log_entry,
        }
    }

    /// Sends interim responses on to the client.
    pub(super) fn informational(&self) -> Informational {
        let cell = Rc::clone(&self.connection.cell);
        Rc::new(move |status, fields: HeaderMap| {
            cell.send_interim(status, &fields);
        })
    }

    /// Time to wait for the fetch of another request for the same key.
    pub(super) fn wait_times(&self) -> WaitTimes {
        let worker = &self.connection.worker;
        worker.wait_times(&self.request.target.authority)
    }

    /// Returns true if the request may follow the fetch of another request, or share its own fetch.
    pub(super) fn may_share(&self) -> bool {
        let facts = &self.facts;
        facts.method == MethodKind::Get
            && !facts.has_range
            && !facts.has_condition
            && !facts.has_origin_condition
            && !facts.directives.no_store
            && !facts.has_override
            && !self.request.fields.contains_key(AUTHORIZATION)
    }

    /// The kind of request, which decides whether an outcome is shared.
    pub(super) fn requester(&self) -> Requester {
        fetch::requester(&self.request.fields)
    }

    /// Permission for the store of a sibling to answer the request.
    pub(super) fn siblings(&self) -> Siblings {
        let directives = &self.facts.directives;
        let wants_origin = directives.no_cache
            || directives.no_store
            || directives.only_if_cached
            || directives.max_age.is_some_and(|age| age == Seconds::ZERO);
        // A sibling cannot satisfy the other demands of a single client, and this would count as a
        // false hit.
        let is_demanding =
            directives.max_age.is_some() || directives.min_fresh.is_some() || self.facts.has_range;
        let may_ask = self.facts.method == MethodKind::Get
            && !wants_origin
            && !is_demanding
            && !self.facts.has_origin_condition
            && !self.facts.has_override
            && !self.request.fields.contains_key(AUTHORIZATION);
        if may_ask {
            Siblings::Asked(self.connection.peer_address())
        } else {
            Siblings::NotAsked
        }
    }

    /// Fetches for this request only. The response may be stored only if the request is a plain
    /// GET.
    pub(super) fn fetch_alone(&self, place: ObjectPlace, reason: ForwardReason) -> Next {
        if self.request.method != Method::GET || self.request.body.is_some() {
            return Next::Pass(reason.forward);
        }
        Next::Fetch(Fetch::alone(place, reason))
    }
}

/// Use of a login that belongs to the connection (NTLM, Negotiate).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Login {
    /// No login.
    None,
    /// The request has such a login, or follows an earlier login of the client.
    Pinned(PinKey),
    /// The request has a login, but requests of other clients may arrive on the same connection.
    Alone,
}

/// A client's request. It is boxed, because a future has room for every variable that a value is
/// moved through.
pub(super) struct ClientRequest {
    /// The key space of the resource.
    pub(super) space: Space,
    pub(super) target: Target,
    pub(super) method: Method,
    /// The fields as received, without the hop-by-hop fields.
    pub(super) fields: HeaderMap,
    pub(super) version: Version,
    pub(super) body: Option<ClientBody>,
    /// Set if the resource belongs to one of our sites.
    pub(super) site: Option<Arc<SiteRequest>>,
    /// The store must not be used.
    pub(super) is_bypass: bool,
    /// The remaining limits of the sender.
    pub(super) limits: Option<RequestLimits>,
    /// The only server that may answer: the destination of the client's connection, if the name
    /// does not resolve to it.
    pub(super) only_server: Option<Authority>,
    /// The link field of a request from a child.
    pub(super) linked: Option<Arc<LinkedRequest>>,
    /// Number of the login, if a child's client has logged in.
    linked_login: Option<LinkedLogin>,
    /// True if the proxy that sent the request keeps the connection for a single client.
    is_kept: bool,
    /// Login of the connection that the request has or follows.
    pub(super) login: Login,
    /// The page group, if it follows from the request only.
    pub(super) noted_group: Option<NotedGroup>,
    /// True if there is content: the framing fields are no longer in `fields`.
    pub(super) has_content: bool,
}

impl ClientRequest {
    pub(super) fn new(
        space: Space,
        target: Target,
        request: Request<ClientBody>,
        info: &HeadInfo,
    ) -> Box<Self> {
        let (mut head, body) = request.into_parts();
        let linked = head.extensions.remove::<Arc<LinkedRequest>>();
        Box::new(Self {
            linked,
            linked_login: head.extensions.remove(),
            is_kept: head.extensions.remove::<KeptLogin>().is_some(),
            login: Login::None,
            space,
            target,
            method: head.method,
            fields: head.headers,
            version: info.version,
            body: (info.content != ContentFraming::None).then_some(body),
            site: None,
            is_bypass: false,
            limits: None,
            only_server: None,
            noted_group: None,
            has_content: !matches!(
                info.content,
                ContentFraming::None | ContentFraming::Length(0)
            ),
        })
    }

    /// Records the request if it is for a page, or for a part of a page that can name other parts.
    pub(super) fn note_page(&mut self, connection: &Connection) {
        // Pages behind a connection login are never stored.
        if !connection.pins.is_empty() || logs_in_connection(&self.fields) {
            return;
        }
        let asked = PageRequest {
            client: connection.client.ip(),
            target: &self.target,
            fields: &self.fields,
        };
        let page_groups = &connection.worker.common.page_groups;
        self.noted_group = page_groups.note_request(&self.method, &asked, Instant::now());
    }

    /// Finds out whether the request has or follows a login of the connection. Then no stored
    /// response answers it, and no other request shares the response.
    pub(super) fn find_login(&mut self, connection: &Connection) {
        let pins = &connection.pins;
        let has_credentials = logs_in_connection(&self.fields);
        let may_follow = !pins.is_empty() || self.linked_login.is_some();
        if !has_credentials && !may_follow || self.target.scheme.needs_gateway() {
            return;
        }
        let key = self.pin_key(connection);
        if !has_credentials && self.linked_login.is_none() && !pins.has_login(&key) {
            return;
        }
        self.login = if self.is_one_client(connection) {
            Login::Pinned(key)
        } else if has_credentials {
            Login::Alone
        } else {
            // The request may belong to any client of the proxy in front, so it follows no login.
            Login::None
        };
    }

    /// Returns how the connection is pinned if the response offers such a login.
    pub(super) fn pinning(&self, connection: &Connection) -> Pinning {
        if self.is_one_client(connection) {
            let client = connection.allowance.share().clone();
            let key = self.pin_key(connection);
            Pinning::Offer(connection.pins.offer(key, client))
        } else {
            Pinning::None
        }
    }

    fn pin_key(&self, connection: &Connection) -> PinKey {
        PinKey {
            client: connection.client.ip(),
            linked: self.linked_login,
            space: self.space,
            scheme: self.target.scheme,
            authority: self.target.authority.clone(),
            server: self.only_server.clone(),
        }
    }

    /// Returns true if other requests with the same pin key are from the same client. Another proxy
    /// may send the requests of all its clients on one connection, and their addresses do not
    /// distinguish them. A child numbers logins, so a request without a number may be from any
    /// client; a member never tells from which client a request is. In front of a site only the
    /// setting of the site decides, and no field: a front may pass on fields from clients.
    pub(super) fn is_one_client(&self, connection: &Connection) -> bool {
        if connection.child.is_some() {
            return self.linked_login.is_some();
        }
        let (is_from_member, is_shared) = match &self.site {
            Some(site) => (site.sender == Sender::Member, site.is_shared),
            None => (
                connection.is_from_member(&self.fields),
                is_forwarded(&self.fields) && !self.is_kept,
            ),
        };
        !is_from_member && !is_shared
    }

    fn facts(&self) -> RequestFacts {
        RequestFacts {
            has_content: self.has_content,
            ..RequestFacts::with_exempt(&self.method, &self.fields, self.exempt())
        }
    }

    /// The request fields that the key or a trusted front proxy has already accounted for.
    pub(super) fn exempt(&self) -> Exempt<'_> {
        let site = self.site.as_ref();
        site.map_or(Exempt::default(), |site| site.exempt())
    }

    /// Returns true if a field may make the origin use another URL or method than the key holds.
    pub(super) fn may_override(&self, worker: &Worker) -> bool {
        let live = worker.common.live();
        let kinds = FieldKinds::new(&self.fields, self.exempt(), &[], &live.store.harmless);
        kinds.has(FieldKinds::OVERRIDE)
    }

    fn without_body(&self) -> Self {
        Self {
            space: self.space,
            target: self.target.clone(),
            method: self.method.clone(),
            fields: self.fields.clone(),
            version: self.version,
            body: None,
            site: self.site.clone(),
            is_bypass: self.is_bypass,
            limits: self.limits.clone(),
            only_server: self.only_server.clone(),
            linked: self.linked.clone(),
            linked_login: self.linked_login,
            is_kept: self.is_kept,
            login: self.login.clone(),
            noted_group: self.noted_group,
            has_content: self.has_content,
        }
    }

    /// Returns true if no member gets the request: the owner would look up and store a response
    /// that no box may store, and other protocols are not worth a hop. But the owner must see
    /// requests that may change a stored response.
    pub(super) fn is_for_origin(&self) -> bool {
        // A login is at a single server, and each URL has another owner.
        (self.is_bypass && self.method.is_safe())
            || self.login != Login::None
            || asks_for_upgrade(&self.method, &self.fields)
    }

    /// The next hops for a request to a site; `Ok(None)`: the request is not for a site, and the
    /// route is planned when it is sent. A request about a stored response with these fields has
    /// the entity tag of one origin, so that origin is tried first.
    ///
    /// # Errors
    /// No origin of the site is in service.
    pub(super) fn site_route(
        &self,
        worker: &Worker,
        stored: Option<&HeaderMap>,
    ) -> Result<Option<Route>, Failure> {
        let Some(site) = &self.site else {
            return Ok(None);
        };
        let url = &self.target.path_and_query;
        let first = stored.and_then(|fields| fields.get(ORIGIN));
        let origins = site.site.endpoints(url, first);
        let members = if self.is_for_origin() {
            Vec::new()
        } else {
            worker.member_hops(self.space, &self.target, &self.fields)
        };
        let route = Route::of_site(Arc::clone(site), members, origins);
        route.map(Some).ok_or(NO_ORIGIN)
    }
}

const NO_ORIGIN: Failure = Failure::Refused {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no server of this site is in service",
};

/// Reason for forwarding a request, and the responses that are stored already.
pub(super) struct ForwardReason {
    pub(super) forward: Forward,
    /// The stored response that the new response would replace.
    pub(super) replaces: Option<Hit>,
    /// The stored variants.
    pub(super) choices: Option<VariantTable>,
}

impl ForwardReason {
    pub(super) fn from_forward(forward: Forward) -> Self {
        Self {
            forward,
            replaces: None,
            choices: None,
        }
    }
}
