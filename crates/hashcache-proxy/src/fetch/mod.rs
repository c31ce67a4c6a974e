//! A fetch: one request to upstream; the response is stored while any number of readers follow it.
//!
//! A fetch runs in a separate task, because the client that caused it may leave at any time while
//! other requests have joined. The fetch stops when the content is complete, when the last reader
//! has left (unless the content is nearly complete), or when upstream fails and the transfer cannot
//! be resumed. `judge` decides about a response, `variant` where it is stored, `confirm` about a
//! 304. `pump` transfers the content; `range_fetch` transfers a range for a response with other
//! ranges already stored.
//!
//! Called by `request`; calls `hashcache-upstream` and writes to the engine.
//!
//! Invariants: the version is drawn before the request is sent, so an invalidation after the
//! request also covers the response. A response is committed only if the end of the content was
//! received.

mod ask;
pub(crate) mod background;
pub(crate) mod confirm;
mod content_hash;
pub(crate) mod counters;
mod fields;
mod hinted;
mod judge;
mod keep;
pub(crate) mod learn;
mod mark;
mod patience;
mod pump;
pub(crate) mod range_fetch;
mod rest;
mod sink;
mod spec;
pub(crate) mod variant;

pub(crate) use self::ask::{Answered, AskFailure, Others, ask, is_final};
pub(crate) use self::fields::{passed_on, upstream_fields};
pub(crate) use self::hinted::{HINTED_BYTES_MAX, HINTED_FIELDS};
pub(crate) use self::patience::Patience;
pub(crate) use self::rest::Rest;
pub(crate) use self::spec::{
    Cause, Extent, FetchSpec, Fetched, Reply, SHORT, SelectedResponse, is_error, requester,
};

use std::rc::Rc;

use hashcache::Storage;
use hashcache_base::failure::Failure;
use hashcache_http::{
    ByteRange, ContentDigest, FactFlags, NotStored, OnError, RangeAnswer, Scheme, Space, UnixTime,
    Upgrading, VariantTable, answer_range, has_strict_condition, not_modified_confirms,
    parse_http_date, set_validators,
};
use hashcache_link::coding::LinkCoding;
use hashcache_link::hints::Hints;
use hashcache_site::mirror::note_negotiation;
use hashcache_store::StoredResponse;
use hashcache_store::collapse::{Leader, SharedFailure, SharedResponse};
use hashcache_upstream::{ResponseBody, SendOptions};
use http::header::{AGE, DATE, ETAG, IF_RANGE, RANGE};
use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;

use self::content_hash::ContentHash;
use self::counters::{ByteCount, Trailers};
use self::fields::{copy_for_upstream, request, strip_for_storing, whole_of_part};
use self::judge::{Arrived, BegunPut, BegunRangePut, StoreDecision, judge};
use self::pump::{RESUMES_MAX, Transfer};
use self::rest::Asked;
use self::spec::{is_failing, is_withdrawn};
use self::variant::{Intents, add_row, chosen, plan_put};
use crate::metrics::CountedBytes;
use crate::route::{Route, Siblings};
use crate::worker::Worker;

/// A fetch, with the channels for the result.
pub(crate) struct FetchTask {
    pub(crate) worker: Rc<Worker>,
    pub(crate) spec: Box<FetchSpec>,
    /// Informs the followers; `None`: the fetch is for a single request only.
    pub(crate) leader: Option<Leader>,
    /// Returns the result to the request that started the fetch.
    pub(crate) reply: Reply,
    /// Counts the bytes from upstream.
    pub(crate) byte_count: ByteCount,
}

/// Times at which a request was sent and the response head received.
type Times = (UnixTime, UnixTime);

impl FetchTask {
    /// Runs the fetch until the content is complete.
    pub(crate) async fn run(mut self) {
        let intents = Intents::draw(&self.worker, &self.spec);
        let request_time = self.worker.common.now();
        let mut answered = match ask_origin(&self.worker, &mut self.spec).await {
            Ok(answered) => answered,
            Err(failure) => return self.fail(failure),
        };
        self.byte_count.set_free(answered.is_stored_nearby());
        let times = (request_time, self.worker.common.now());
        self.follow_hints(&mut answered);
        if self.spec.cause == Cause::Hint && !hinted::is_wanted(&answered.exchange.response) {
            // A request that waits for this resource fetches it itself.
            return;
        }
        self.settle(&mut answered);
        self.learn_from(&answered, times.1);
        let status = answered.exchange.response.status();
        if self.has_own_condition() && status == StatusCode::NOT_MODIFIED {
            // Boxed, because only few fetches need this future.
            return Box::pin(self.not_modified(answered, &intents, times)).await;
        }
        if self.has_own_condition()
            && status == StatusCode::PRECONDITION_FAILED
            && !has_strict_condition(&self.spec.fields)
        {
            // The 412 answers a condition that the proxy has set, not the client.
            return self.again(answered, without_condition).await;
        }
        if is_failing(status) {
            self.note_failed();
        }
        match self.decide(&answered, intents, times).await {
            StoreDecision::Store(begun) => self.store(answered, *begun).await,
            // Boxed, because only few fetches need this future.
            StoreDecision::Part(part) => Box::pin(self.store_part(answered, *part)).await,
            // The range is too small to be worth parts, or the content may be longer than the
            // origin states.
            StoreDecision::Small => {
                let as_whole = |spec: &mut FetchSpec| spec.extent = Extent::Whole;
                self.again(answered, as_whole).await;
            }
            StoreDecision::NotInParts => self.not_in_parts(&answered),
            StoreDecision::Pass(reason) => self.pass(answered, reason, times.1),
        }
    }

    /// Reports that no hop gave a response.
    fn fail(self, failure: AskFailure) {
        self.worker.metrics.fetched(failure.origin_bytes, 0);
        // The flag of an earlier attempt does not apply to this failure.
        self.byte_count.set_free(false);
        self.byte_count.add(failure.origin_bytes);
        self.note_failed();
        if let Some(leader) = self.leader.filter(|_| failure.failure.is_of_next_hop()) {
            leader.failed(shared_failure(&self.spec, failure.failure.clone()));
        }
        let _ = self.reply.send(Err(failure));
    }

    /// Records the failure, so that the next background validation is delayed.
    fn note_failed(&self) {
        let (name, client) = (&self.spec.place.name, self.spec.share.network());
        let collapse = &self.worker.common.collapse;
        collapse.failed(name, client, Instant::now());
    }

    /// Fetches the objects that a parent names with a response.
    fn follow_hints(&self, answered: &mut Answered) {
        let extensions = answered.exchange.response.extensions_mut();
        if let Some(hints) = extensions.remove::<Hints>() {
            hinted::follow(&self.worker, &self.spec, &hints);
        }
    }

    /// Prepares the response head for storing and for the decision about it.
    fn settle(&mut self, answered: &mut Answered) {
        let spec = &mut self.spec;
        spec.route = std::mem::replace(&mut spec.route, Ok(None))
            .map(|route| route.map(|route| route.beginning_with(answered.hop)));
        let response = &mut answered.exchange.response;
        strip_for_storing(spec.space, response.headers_mut());
        let length_max = match spec.extent {
            // A 206 to a request without Range is no answer to rely on.
            Extent::AsAsked if !spec.fields.contains_key(RANGE) => 0,
            Extent::AsAsked => u64::MAX,
            Extent::Around(_) => WHOLE_PART_MAX,
            Extent::Whole => 0,
        };
        whole_of_part(response, length_max, |length| spec.may_be_cut(length));
        if matches!(spec.space, Space::Mirror(_)) {
            note_negotiation(&spec.fields, response.status(), response.headers_mut());
        }
    }

    /// Records what the response head shows: the time that the origin took for the head, and the
    /// origin's Date as evidence for the clock of this box.
    fn learn_from(&self, answered: &Answered, now: UnixTime) {
        let exchange = &answered.exchange;
        tracing::trace!(
            peer = %exchange.peer,
            reused = exchange.reused,
            head_time = ?exchange.head_time,
            status = exchange.response.status().as_u16(),
            "response head"
        );
        if !answered.next_hop.is_sibling() && !answered.next_hop.is_member() {
            let collapse = &self.worker.common.collapse;
            collapse.note_head_time(self.spec.client_and_origin(), exchange.head_time);
        }
        hint_clock(&self.worker, &self.spec, answered, now);
    }

    /// Returns true if this proxy added a condition that the client did not send.
    fn has_own_condition(&self) -> bool {
        self.spec.selected.is_some() || self.spec.choices.is_some()
    }

    /// Answers with the stored response that the 304 confirms. If the 304 is about another
    /// response, sends the request again without conditions.
    async fn not_modified(mut self, answered: Box<Answered>, intents: &Intents, times: Times) {
        let fields = answered.exchange.response.headers();
        let Some(selected) = spoken_of(&self.worker, &mut self.spec, fields).await else {
            return self.again(answered, without_condition).await;
        };
        self.confirm((selected, intents.drawn()), answered, times)
            .await;
    }

    /// Sends another request in place of the request that was answered, after `change`.
    async fn again(mut self, answered: Box<Answered>, change: impl FnOnce(&mut FetchSpec)) {
        self.count(&answered.exchange.response);
        drop(answered);
        change(&mut self.spec);
        Box::pin(self.run()).await;
    }

    /// Decides how the response is handled.
    async fn decide(&self, answered: &Answered, intents: Intents, times: Times) -> StoreDecision {
        let (worker, spec, exchange) = (&self.worker, &self.spec, &answered.exchange);
        if is_error(exchange.response.status()) && spec.on_error == OnError::ServeIfError {
            // The stored response is served instead of this error.
            return StoreDecision::Pass(NotStored::Status);
        }
        let plan = plan_put(worker, spec, exchange, intents, self.leader.is_some()).await;
        let arrived = Arrived {
            worker,
            spec,
            exchange,
            storage: if answered.next_hop.is_member() {
                Storage::Memory
            } else {
                Storage::Disk
            },
            times,
        };
        judge(&arrived, plan)
    }

    /// The ranges of the response cannot be combined, so the caller must forward the client's own
    /// range.
    fn not_in_parts(self, answered: &Answered) {
        self.count(&answered.exchange.response);
        if let Some(leader) = self.leader {
            let kind = requester(&self.spec.fields);
            leader.not_shared(self.spec.client_and_origin(), kind, Instant::now());
        }
        let _ = self.reply.send(Ok(Fetched::NotInParts));
    }

    /// Passes the response to the client, and stores nothing.
    fn pass(self, answered: Box<Answered>, reason: NotStored, response_time: UnixTime) {
        let Self {
            worker,
            spec,
            leader,
            reply,
            byte_count,
        } = self;
        let status = answered.exchange.response.status();
        let not_stored = &worker.common.not_stored;
        not_stored.note(&spec.place.key, reason, response_time);
        // Neither an error nor a response to a request that no client has made shows whether the
        // next response can be shared. A 412 does not either: it is about this client's
        // precondition.
        let says_nothing = spec.cause == Cause::Hint || status == StatusCode::PRECONDITION_FAILED;
        // Dropping a leader without an outcome lets a follower fetch, so keep it until the reply is
        // sent.
        let mut silent_leader = None;
        match leader {
            Some(leader) if is_failing(status) => {
                let status = status.as_u16();
                leader.failed(shared_failure(&spec, Failure::OriginStatus { status }));
            }
            Some(leader) if says_nothing => silent_leader = Some(leader),
            Some(leader) => {
                let kind = requester(&spec.fields);
                leader.not_shared(spec.client_and_origin(), kind, Instant::now());
            }
            None => {}
        }
        if is_withdrawn(reason) && replaces_stored(status) && spec.replaces.is_some() {
            worker.cache.invalidate(&spec.place.name);
        }
        let response = passed_on(answered.exchange.response, response_time, Upgrading::No);
        let is_of_client = matches!(spec.cause, Cause::Request | Cause::RequestByHint);
        let route = spec.route.ok().flatten().filter(|_| is_of_client);
        let rest = match route {
            Some(route) => {
                let asked = Asked {
                    target: spec.target,
                    fields: spec.fields,
                    version: spec.version,
                    share: spec.share,
                    ends: spec.ends,
                    route,
                };
                Rest::new(&worker, asked, &response)
            }
            None => None,
        };
        let sent = reply.send(Ok(Fetched::Passed {
            response: Box::new(response),
            reason,
            next_hop: answered.next_hop,
            rest,
        }));
        // The requester has left, so nobody else counts these bytes.
        if let Err(Ok(Fetched::Passed { response, .. })) = sent {
            count(&worker, &byte_count, &response);
        }
        drop(silent_leader);
    }

    /// Counts a response that is not read any further.
    fn count(&self, response: &Response<ResponseBody>) {
        count(&self.worker, &self.byte_count, response);
    }

    /// Stores the range in the response, and informs the waiting requests.
    async fn store_part(self, answered: Box<Answered>, part: BegunRangePut) {
        let (worker, spec) = (&self.worker, &self.spec);
        let BegunRangePut {
            hit,
            stored,
            claim,
            awaited,
            skip,
            row,
            place,
        } = part;
        claim.guard.note_arriving();
        if let Some(row) = row {
            add_row(worker, &place.key, row).await;
        }
        if let Some(leader) = self.leader {
            leader.validated(spec.client_and_origin(), requester(&spec.fields));
        }
        let _ = self.reply.send(Ok(Fetched::Begun {
            hit,
            stored: Box::new(stored),
            place,
            awaited,
            next_hop: answered.next_hop,
        }));
        let body = answered.exchange.response.into_body();
        range_fetch::pump(
            worker,
            claim.writer,
            claim.guard,
            body,
            skip,
            &self.byte_count,
        )
        .await;
    }

    /// Stores the whole response while readers follow.
    async fn store(self, answered: Box<Answered>, begun: BegunPut) {
        let Self {
            worker,
            spec,
            leader,
            reply,
            byte_count,
        } = self;
        worker.common.not_stored.forget(&spec.place.key);
        let BegunPut {
            writer,
            stored,
            metadata,
            length,
            response_time,
            row,
        } = begun;
        // Before the reply: requests that arrive after it must find the row.
        if let Some(row) = row {
            add_row(&worker, &spec.place.key, row).await;
        }
        // Before the reply: a fetch without a follower would stop at once.
        let part = wanted_part(&spec, &stored, length, response_time);
        let follower = writer.follow(part.map_or(0, |part| part.first));
        let (head, body) =
            passed_on(answered.exchange.response, response_time, Upgrading::No).into_parts();
        let facts = stored.facts;
        let etag = stored.fields.get(ETAG).cloned();
        let digest =
            ContentDigest::promised(&stored.fields).filter(|_| facts.status == StatusCode::OK);
        let can_resume = facts.flags.has(FactFlags::STRONG_ETAG) && facts.status == StatusCode::OK;
        if let Some(leader) = &leader {
            let shared = SharedResponse {
                stored,
                length,
                ignores_range: !matches!(spec.extent, Extent::AsAsked),
                requester: requester(&spec.fields),
                stream: writer.stream(),
            };
            leader.share(spec.client_and_origin(), shared);
        }
        let response = Response::from_parts(head, ());
        let trailers = Trailers::default();
        let is_stored = writer.is_stored();
        let sent = reply.send(Ok(Fetched::Stored {
            response,
            facts,
            is_stored,
            follower,
            length,
            part,
            trailers: Rc::clone(&trailers),
            next_hop: answered.next_hop,
        }));
        // If the client has left, the follower is returned here. Drop it, because otherwise it
        // would keep the fetch running.
        drop(sent);
        let link = match &spec.route {
            Ok(Some(route)) if route.has_link() => spec.link(),
            _ => LinkCoding::Unchanged,
        };
        let hash = ContentHash::new(&metadata, &body);
        let mut transfer = Transfer {
            etag: etag.filter(|_| can_resume),
            resumes_left: RESUMES_MAX,
            skip: 0,
            link,
            metadata,
            hash,
            length,
            was_announced: length.is_some(),
            earlier_bytes: 0,
            received: 0,
            earlier_link_bytes: 0,
            counted: CountedBytes::default(),
            digest,
            trailers,
            worker,
            spec,
            byte_count,
        };
        transfer.run(writer, body).await;
        drop(leader);
    }
}

fn count(worker: &Worker, byte_count: &ByteCount, response: &Response<ResponseBody>) {
    let bytes = response.body().origin_bytes();
    byte_count.add(bytes);
    worker.metrics.fetched(bytes, 0);
}

fn without_condition(spec: &mut FetchSpec) {
    (spec.selected, spec.choices) = (None, None);
}

fn shared_failure(spec: &FetchSpec, failure: Failure) -> SharedFailure {
    let of = (spec.share.network(), &spec.fields);
    SharedFailure::new(failure, requester(&spec.fields), of)
}

/// Returns true if a response with this status shows that the stored response is obsolete. A server
/// error tells nothing about the resource (RFC 9111 4.3.3, 4.2.4: the stored response may still
/// stand in), and any other client error is about the request: a client that may not see a page
/// must not remove it for the others.
fn replaces_stored(status: StatusCode) -> bool {
    status.is_success()
        || status.is_redirection()
        || matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

/// The stored response that a 304 selects. It is taken out of the spec, so that a second attempt
/// has no conditions.
async fn spoken_of(
    worker: &Rc<Worker>,
    spec: &mut FetchSpec,
    not_modified: &HeaderMap,
) -> Option<Box<SelectedResponse>> {
    let (selected, choices) = (spec.selected.take(), spec.choices.take());
    if let Some(selected) = selected {
        let confirms = not_modified_confirms(&selected.stored.fields, not_modified);
        return confirms.then_some(selected);
    }
    chosen(worker, spec, &choices?, not_modified).await
}

async fn ask_origin(
    worker: &Rc<Worker>,
    spec: &mut FetchSpec,
) -> Result<Box<Answered>, AskFailure> {
    let route = match std::mem::replace(&mut spec.route, Ok(None))? {
        Some(route) => route,
        None => plan(worker, spec).await?,
    };
    let mut fields = upstream_fields(
        worker,
        &spec.target,
        copy_for_upstream(&spec.fields),
        spec.version,
        Upgrading::No,
    );
    if let Some(selected) = &spec.selected {
        // The owner may have a newer response from the same second, which a date does not
        // distinguish from the copy: without an entity tag the copy is replaced.
        let is_copy = selected.hit.storage() == Storage::Memory || route.first().member().is_some();
        if !is_copy || selected.stored.fields.contains_key(ETAG) {
            set_validators(&mut fields, &selected.stored.facts, &selected.stored.fields);
        }
    } else if let Some(choices) = &spec.choices {
        choices.set_choices(&mut fields);
    }
    match &spec.extent {
        Extent::AsAsked => {}
        Extent::Around(range) => {
            fields.remove(IF_RANGE);
            fields.insert(RANGE, range.clone());
        }
        Extent::Whole => {
            fields.remove(IF_RANGE);
            fields.remove(RANGE);
        }
    }
    let mut options = SendOptions {
        informational: spec.informational.clone(),
        client: Some(spec.share.clone()),
        ends: Some(spec.ends),
        pinning: spec.pinning.clone(),
        ..SendOptions::default()
    };
    if route.has_link() {
        let link = spec.link();
        options.link = link.offering(spec.offered()).finding(spec.named(worker));
        options.hints = spec.hints(worker);
    }
    let request = request(&spec.target, fields);
    let answered = ask(worker, &route, request, &options).await;
    spec.route = Ok(Some(route));
    answered
}

/// The route for a fetch, after queries to the peers that may have the response.
async fn plan(worker: &Rc<Worker>, spec: &FetchSpec) -> Result<Route, AskFailure> {
    // A validation is for the origin, or for a parent that validates there. If no other variant has
    // an entity tag, there is nothing to validate.
    let has_tag = |table: &VariantTable| table.rows().iter().any(|row| row.etag.is_some());
    let siblings = if spec.selected.is_some() || spec.choices.as_ref().is_some_and(has_tag) {
        Siblings::NotAsked
    } else {
        spec.siblings
    };
    let planned = || worker.route_of_fetch(spec.space, &spec.target, &spec.fields, siblings);
    let mut route = planned()?;
    if !route.unlearned().is_empty() {
        Box::pin(learn::learn_first(worker, &route)).await;
        route = planned()?;
    }
    if route.queries().next().is_none() {
        return Ok(route);
    }
    // Boxed, because otherwise every transfer would keep room for this future until it is over.
    let queries = &worker.common.queries;
    Ok(Box::pin(queries.ask(&spec.target, &spec.fields, route)).await)
}

fn hint_clock(worker: &Worker, spec: &FetchSpec, answered: &Answered, now: UnixTime) {
    // The origin of a site has another authority than the resource.
    let (scheme, authority) = match &spec.route {
        Ok(Some(route)) if route.site().is_some() => {
            let origin = &route.first().endpoint;
            (origin.scheme, &origin.authority)
        }
        _ => (spec.target.scheme, &spec.target.authority),
    };
    let exchange = &answered.exchange;
    let fields = exchange.response.headers();
    // The Date of a plain response proves nothing: any device on the path, or any page that names
    // hosts, can produce it. A peer may send a stored response with an old Date.
    if scheme == Scheme::Https
        && answered.next_hop.peer.is_none()
        && !fields.contains_key(AGE)
        && let Some(date) = fields
            .get(DATE)
            .and_then(|date| parse_http_date(date.as_bytes(), now))
    {
        let (host, peer) = (&authority.host, exchange.peer.ip());
        worker.common.clock.hint(host, peer, date.0);
    }
}

/// The range that the client requested, if it is a single range.
fn wanted_part(
    spec: &FetchSpec,
    stored: &StoredResponse,
    length: Option<u64>,
    now: UnixTime,
) -> Option<ByteRange> {
    match answer_range(&spec.fields, &stored.facts, &stored.fields, length?, now) {
        RangeAnswer::Part(range) => Some(range),
        RangeAnswer::Whole | RangeAnswer::Parts(_) | RangeAnswer::NotSatisfiable => None,
    }
}

/// Up to this length, a 206 that was requested with a rounded range and covers the whole
/// representation is stored whole, because every range can follow that single transfer. Longer
/// content is stored in parts, because a client may want a part far ahead of the transfer.
const WHOLE_PART_MAX: u64 = 4 << 20;
