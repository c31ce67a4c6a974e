//! The life of a request, from the head to the log entry.
//!
//! ```text
//! head ─▶ refused? ─▶ target ─▶ ours? tunnel? ─▶ look up ─▶ fresh ──────────────▶ hit
//!                                                   │  └──▶ stale ─▶ validate ─▶ confirmed
//!                                                   └──▶ miss ─▶ join or begin a fetch ─▶ follow
//! ```
//!
//! Called by `hashcache-wire`, once a request. [`forward`] and [`site`] turn it into a request that
//! the store or an origin can answer. A hit is answered in [`hit`]; a hit in memory for a plain
//! request is answered in [`memory_hit`] before this is called.
//!
//! Invariant: every request gets exactly one answer and one log entry.

pub(crate) mod assembly;
pub(crate) mod body;
mod digest;
mod follow;
mod forward;
mod framed;
mod hit;
mod linked;
pub(crate) mod memory_hit;
mod mirrored;
mod miss;
mod named;
mod own;
mod own_fields;
mod page_object;
mod pass;
mod purge;
mod purge_members;
mod range_miss;
mod site;
mod stored_form;
mod target;
mod transaction;
mod transparent;
mod validate;

use std::rc::Rc;

use hashcache_base::failure::Failure;
use hashcache_base::net::address::check_port;
use hashcache_http::{
    Forward, Reuse, Space, StaleAllowance, answers_overrides, asks_for_upgrade, cache_key,
};
use hashcache_store::{StoreLookup, look_up};
use hashcache_wire::{ClientBody, HeadInfo, RequestHead};
use http::{HeaderMap, Request, Response, StatusCode};

use self::body::Body;
use self::linked::LinkedRequest;
use self::page_object::note_object;
use self::target::strip;
use self::transaction::{
    Answer, ClientRequest, ForwardReason, Found, Login, Next, Served, Transaction,
};
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::fetch::SelectedResponse;
use crate::fetch::counters::ByteCount;
use crate::fetch::variant::with_objects;
use crate::log_entry::LogEntryBuilder;
use crate::metrics::Limit;
use crate::page::{self, PageContext, PageReader};
use crate::reuse::may_stand_in;

/// Answers one request.
pub(crate) async fn handle(
    connection: Rc<Connection>,
    mut request: Box<Request<ClientBody>>,
) -> Response<Body> {
    let head = connection.cell.next_head();
    let mut log_entry = LogEntryBuilder::new(&connection, &request, &head);
    let reader = PageReader::from_request(request.headers());
    let linked = LinkedRequest::take(&connection, &mut request);
    let answer = match head {
        RequestHead::Refused(failure) => Err(failure),
        RequestHead::Accepted(info) if connection.worker.common.is_reverse() => {
            site::serve(&connection, request, &info, &mut log_entry).await
        }
        RequestHead::Accepted(info) => {
            forward::serve(&connection, request, &info, &mut log_entry).await
        }
    };
    let response =
        answer.unwrap_or_else(|failure| failed(&connection, &failure, reader, &mut log_entry));
    // A waiting head is first in a map, then in a buffer that may be twice as large; growing
    // buffers leave holes in the heap. Reserve memory for all that until the client has taken the
    // head.
    let head = head_bytes(response.headers());
    let response = if head <= HEAD_FREE || connection.cell.hold_until_sent(HEAD_COPIES * head) {
        response
    } else {
        connection.worker.metrics.limit(Limit::Memory);
        failed(&connection, &NO_MEMORY, reader, &mut log_entry)
    };
    let response = match linked {
        Some(linked) => {
            let received = log_entry.byte_count();
            Box::pin(linked.respond(&connection, response, received)).await
        }
        None => response,
    };
    let counted = ByteCount::default();
    let allowance = &connection.allowance;
    let response = response.map(|body| {
        body.counted(&connection.worker.metrics, &counted)
            .paid_by(allowance)
    });
    log_entry.finish(&connection, &response, counted);
    response
}

/// Approximate memory of a response's fields, bytes.
fn head_bytes(fields: &HeaderMap) -> usize {
    let sizes = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    sizes.sum()
}

/// The error page for a failed request.
fn failed(
    connection: &Connection,
    failure: &Failure,
    reader: PageReader,
    log_entry: &mut LogEntryBuilder,
) -> Response<Body> {
    log_entry.set_failure(failure);
    let context = PageContext {
        name: connection.worker.common.name.as_str(),
        deployment: connection.worker.common.via.as_str(),
        host: Some(log_entry.server()).filter(|host| !host.is_empty()),
        request_id: log_entry.id(),
        reader,
    };
    page::failure(failure, &context).map(Body::full)
}

/// Removes the last hop's fields from a request, and refuses a request that has already passed
/// through this proxy.
fn prepare(
    connection: &Connection,
    request: &mut Request<ClientBody>,
    info: &HeadInfo,
) -> Result<(), Failure> {
    strip(request, info)?;
    let common = &connection.worker.common;
    // A forward proxy is in no CDN, and passes on the fields that CDNs on the way to others have
    // added.
    let is_in_cdn_loop = common.is_reverse() && common.via.is_in_cdn_loop(request.headers());
    if is_in_cdn_loop || common.via.is_in_via(request.headers()) {
        return Err(Failure::Loop);
    }
    Ok(())
}

/// Answers within the limits of the request.
async fn answer(
    connection: &Rc<Connection>,
    mut request: Box<ClientRequest>,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    request.find_login(connection);
    let Some(limits) = request.limits.clone() else {
        return answer_unlimited(connection, request, log_entry).await;
    };
    log_entry.byte_count().charge_to(&limits);
    // Boxed, so that the future of requests without limits does not have room for it twice.
    let response = Box::pin(answer_unlimited(connection, request, log_entry)).await?;
    Ok(response.map(|body| body.within(&limits)))
}

/// Answers from the store if allowed, otherwise from upstream: carries out one step after another
/// until there is a response. The large futures of rare steps are boxed, because every request
/// moves its future several times.
async fn answer_unlimited(
    connection: &Rc<Connection>,
    request: Box<ClientRequest>,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    if let Some(linked) = request
        .linked
        .as_ref()
        .filter(|_| request.login == Login::None)
    {
        linked.note(request.space, &request.target, &request.fields);
    }
    let mut transaction = Transaction::new(connection, request, log_entry);
    let mut next = first(&transaction)?;
    loop {
        // A separate `let`, because a `match` would keep temporary values in the future for as long
        // as its arms wait.
        let step = within_quota(&mut transaction, next)?;
        next = match step {
            Next::LookUp(key) => {
                let looked_up =
                    look_up(&connection.worker.cache, key, &transaction.request.fields).await;
                decide(&mut transaction, looked_up)?
            }
            Next::Serve(found) => hit::answer(&mut transaction, found).await?,
            Next::Validate(selected, forward, on_error) => {
                let step = validate::validate(&mut transaction, selected, (forward, on_error));
                Box::pin(step).await?
            }
            Next::Miss(place, reason) => miss::miss(&mut transaction, place, reason).await?,
            Next::Fetch(fetch) => miss::fetch(&mut transaction, fetch).await?,
            Next::Pass(forward) => return Box::pin(pass::pass(transaction, forward)).await,
            Next::Answer(response) => return Ok(response),
        };
    }
}

/// The step, if a quota allows it.
fn within_quota(transaction: &mut Transaction<'_>, next: Next) -> Result<Next, Failure> {
    let limits = transaction.request.limits.as_ref();
    let Some(limits) = limits.filter(|_| next.needs_origin()) else {
        return Ok(next);
    };
    match next {
        Next::Validate(selected, forward, on_error)
            if may_stand_in(&transaction.facts, forward, on_error) && limits.refuses_origins() =>
        {
            Ok(validate::without_origin(transaction, *selected))
        }
        next => limits.check_quota().map(|()| next),
    }
}

/// The first step: forwarding if the store must not answer, otherwise a lookup.
fn first(transaction: &Transaction<'_>) -> Result<Next, Failure> {
    let (connection, request) = (transaction.connection, &transaction.request);
    // On an intercepted connection the port was checked at CONNECT, which has a separate port list.
    if request.space == Space::Own && connection.intercepted.is_none() {
        let ports = &connection.worker.common.live().settings.allow_port;
        check_port(ports, request.target.scheme, request.target.authority.port)?;
    }
    let forward = match transaction.facts.lookup() {
        Err(forward) => forward,
        Ok(()) if request.is_bypass || request.login != Login::None => Forward::Bypass,
        Ok(()) if asks_for_upgrade(&request.method, &request.fields) => Forward::Bypass,
        // The owner combines ranges; here they would not be stored.
        Ok(()) if transaction.facts.has_range && is_of_member(transaction) => Forward::Bypass,
        Ok(()) => match cache_key(request.space, &request.target) {
            Some(key) => return Ok(Next::LookUp(key.into())),
            None => Forward::Bypass,
        },
    };
    if transaction.facts.directives.only_if_cached {
        Err(Failure::NotCached)
    } else {
        Ok(Next::Pass(forward))
    }
}

/// Returns true if another member stores the resource, and may get the request.
fn is_of_member(transaction: &Transaction<'_>) -> bool {
    let (worker, request) = (&transaction.connection.worker, &transaction.request);
    let hops = || worker.member_hops(request.space, &request.target, &request.fields);
    !transaction.facts.directives.only_if_cached && !hops().is_empty()
}

/// The next step after a lookup.
fn decide(transaction: &mut Transaction<'_>, looked_up: StoreLookup) -> Result<Next, Failure> {
    if let (Some(linked), StoreLookup::Found { hit, stored, .. }) =
        (&transaction.request.linked, &looked_up)
    {
        linked.note_stored(hit, stored);
    }
    let (hit, stored, place, from) = match looked_up {
        StoreLookup::Found {
            hit,
            stored,
            place,
            from,
        } => (hit, stored, place, from),
        StoreLookup::VaryMiss { place, table } => {
            let worker = &transaction.connection.worker;
            let choices = table.filter(|_| transaction.may_share());
            let choices = choices.map(|table| with_objects(worker, &place, table));
            let reason = ForwardReason {
                choices,
                ..ForwardReason::from_forward(Forward::VaryMiss)
            };
            return Ok(Next::Miss(place, reason));
        }
        StoreLookup::Nothing(place) => {
            return Ok(Next::Miss(
                place,
                ForwardReason::from_forward(Forward::UriMiss),
            ));
        }
    };
    let request = &transaction.request;
    if transaction.facts.has_override
        && !answers_overrides(&request.fields, request.exempt(), stored.row.as_ref())
    {
        // Neither validated nor replaced, because the response to this request gives no information
        // about others.
        return Ok(Next::Miss(
            place,
            ForwardReason::from_forward(Forward::Bypass),
        ));
    }
    let served = match hit::reuse_hit(transaction, &hit, &stored) {
        Reuse::Fresh { age, ttl } => {
            let outcome = hit::outcome(stored.facts.status, from);
            transaction.log_entry.set_outcome(outcome);
            Served::fresh(age, ttl)
        }
        Reuse::Stale {
            age,
            ttl,
            allowed_by,
        } => {
            if allowed_by == StaleAllowance::WhileRevalidating {
                validate::revalidate(transaction, &place, &hit, &stored);
            }
            transaction.log_entry.set_outcome(Outcome::StaleHit);
            Served::fresh(age, ttl)
        }
        Reuse::Validate { forward, on_error } => {
            let selected = Box::new(SelectedResponse {
                hit,
                stored,
                place,
                alias: None,
            });
            return Ok(Next::Validate(selected, forward, on_error));
        }
        Reuse::Miss { forward } => {
            let reason = ForwardReason {
                replaces: Some(hit),
                ..ForwardReason::from_forward(forward)
            };
            return Ok(transaction.fetch_alone(place, reason));
        }
        Reuse::Unsatisfiable => return Err(Failure::NotCached),
    };
    let request = &transaction.request;
    if request.linked.is_none() && stored.facts.status == StatusCode::OK {
        let of = (request.space, &request.target);
        let length = stored.content_len(&hit);
        note_object(
            transaction.connection,
            of,
            &request.fields,
            (&stored.fields, length),
        );
    }
    Ok(Next::Serve(Box::new(Found {
        hit,
        stored,
        place,
        served,
    })))
}

/// Memory for a response head that needs no reservation: every connection has this much.
const HEAD_FREE: usize = 4 << 10;

/// Memory of a waiting head, as a multiple of its size. With `--memory 64MiB` and 2,500 clients,
/// resident memory peaked at 103 MiB with 2 copies, 95 with 3 and 92 with 4.
const HEAD_COPIES: usize = 6;

/// The failure when there is no memory for a response head.
const NO_MEMORY: Failure = Failure::Refused {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for the response head",
};
