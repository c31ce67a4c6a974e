//! The life of a request, from its head to its line in the log.
//!
//! ```text
//! head ─▶ refused? ─▶ target ─▶ ours? tunnel? ─▶ look up ─▶ fresh ──────────────▶ hit
//!                                                   │  └──▶ stale ─▶ validate ─▶ confirmed
//!                                                   └──▶ miss ─▶ join or begin a fetch ─▶ follow
//! ```
//!
//! Called by `server` through hyper, once a request. A hit is answered in [`hit`].
//!
//! Invariant: every request ends in exactly one answer and one log entry.

pub(crate) mod assembly;
pub(crate) mod body;
mod connect;
mod follow;
mod forward;
mod hit;
pub(crate) mod intercepted;
mod look_up;
mod mirrored;
mod note;
mod own;
mod partial;
mod purge;
mod ranged;
mod validate;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use hashcache::Hit;
use hashcache_http::{
    Authority, FactFlags, OnError, RequestFacts, RequestTarget, Reuse, Scheme, Space,
    StaleAllowance, Target, TargetError, Upgrading, asks_for_upgrade, cache_key, parse_target,
    reuse, strip_request,
};
use http::header::{HOST, MAX_FORWARDS};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tokio::time::Instant;

use self::body::{Body, Tally};
use self::forward::{Order, Why};
use self::intercepted::Within;
use self::look_up::{LookedUp, look_up};
use self::note::Note;
use crate::access_log::Outcome;
use crate::failure::Failure;
use crate::fetch::Known;
use crate::fetch::variant::with_objects;
use crate::metrics::Limit;
use crate::page::{self, PageContext, Reader};
use crate::related::Asked;
use crate::share::Allowance;
use crate::store::StoredResponse;
use crate::upstream::address::{Purpose, check_port};
use crate::upstream::connect::Endpoint;
use crate::wire::{Cell, ClientBody, Head, HeadInfo};
use crate::worker::Worker;

/// One client's connection, as far as its requests must know of it; in HTTP/2, one stream of it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) cell: Rc<Cell>,
    /// What the client may take.
    pub(crate) allowance: Allowance,
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    /// What the client speaks: https where there is TLS.
    pub(crate) scheme: Scheme,
    /// Why this client is served nothing, if it is.
    pub(crate) denied: Option<Failure>,
    /// Whose requests these are, where TLS to a host ended here.
    pub(crate) within: Option<Rc<Within>>,
    /// Tells who serves requests to end with the one under way.
    pub(crate) stopping: tokio::sync::watch::Receiver<bool>,
    /// Tells tunnels that the time to end has come.
    pub(crate) drained: tokio::sync::watch::Receiver<bool>,
}

/// An answer on its way, or why there is none.
type Answer = Result<Response<Body>, Failure>;

/// Answers one request.
pub(crate) async fn handle(
    connection: Rc<Connection>,
    request: Request<ClientBody>,
) -> Result<Response<Body>, Infallible> {
    let head = connection.cell.next_head();
    let mut note = Note::new(&connection, &request, &head);
    let reader = Reader::of(request.headers());
    let answer = match head {
        Head::Refused(failure) => Err(failure),
        Head::Accepted(info) => serve(&connection, request, &info, &mut note).await,
    };
    let response =
        answer.unwrap_or_else(|failure| failed(&connection, &failure, reader, &mut note));
    // Until the client has taken it, a head is in a buffer of hyper's, which is up to twice as
    // large, and in the map before that; buffers that grow leave holes in the heap behind.
    let head = head_bytes(response.headers());
    let response = if head <= HEAD_FREE || connection.cell.hold_until_sent(HEAD_COPIES * head) {
        response
    } else {
        connection.worker.metrics.limit(Limit::Memory);
        failed(&connection, &NO_MEMORY, reader, &mut note)
    };
    let counted = Tally::default();
    let response = response.map(|body| body.counted(&connection.worker.metrics, &counted));
    note.finish(&connection, &response, counted);
    Ok(response)
}

/// About what the fields of an answer take in memory, bytes.
fn head_bytes(fields: &HeaderMap) -> usize {
    let sizes = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    sizes.sum()
}

/// Our own page for a request that failed.
fn failed(
    connection: &Connection,
    failure: &Failure,
    reader: Reader,
    note: &mut Note,
) -> Response<Body> {
    note.fail(failure);
    let context = PageContext {
        name: connection.worker.common.name.as_str(),
        host: Some(note.authority()).filter(|host| !host.is_empty()),
        request_id: note.id(),
        reader,
    };
    page::failure(failure, &context).map(Body::full)
}

async fn serve(
    connection: &Rc<Connection>,
    mut request: Request<ClientBody>,
    info: &HeadInfo,
    note: &mut Note,
) -> Answer {
    if let Some(failure) = &connection.denied {
        return Err(failure.clone());
    }
    strip(&mut request)?;
    let common = &connection.worker.common;
    if let Some(within) = &connection.within {
        within.asked(&connection.worker);
        note.set_authority(within.host_field());
    }
    if common.via.is_in_via(request.headers()) {
        return Err(Failure::Loop);
    }
    let target = match parse(connection, &request, info)? {
        RequestTarget::Tunnel(authority) => {
            note.set_authority(authority.to_string());
            not_admin(connection, &authority)?;
            return connect::tunnel(connection, authority, note).await;
        }
        RequestTarget::Server(authority) => {
            note.set_authority(authority.display(Scheme::Http).to_string());
            return Ok(own::options(note));
        }
        RequestTarget::Resource(target) => target,
    };
    let scheme = match common.accelerated() {
        Some(_) => connection.scheme,
        None => target.scheme,
    };
    note.set_target(&target, scheme);
    if connection
        .within
        .as_ref()
        .is_some_and(|it| it.is_self_test())
    {
        return Ok(own::self_test(note));
    }
    if connection.within.is_none() && own::is_self_test(connection, &target.authority) {
        return Ok(own::self_test(note));
    }
    if request.method().as_str() == "PURGE" {
        let (space, target) = mirrored::purged(connection, &target);
        return purge::answer(connection, &request, (space, &target), note).await;
    }
    let names_host = common.accelerated().is_none() && connection.within.is_none();
    if names_host {
        not_admin(connection, &target.authority)?;
    }
    if names_host && common.is_us(&target.authority) {
        if target.path() == "*" {
            return Ok(own::options(note));
        }
        let Some(led) = mirrored::lead(connection, &target) else {
            return own::page(connection, &request, &target, note);
        };
        let mirrored = mirrored::serve(connection, request, info, (&target, led), note);
        return Box::pin(mirrored).await;
    }
    if names_host && info.form == crate::wire::Form::Origin {
        // Who looks for a proxy asks `wpad` in its own domain, a name we cannot know.
        if own::is_pac(&target) {
            return own::page(connection, &request, &target, note);
        }
        let reason = "this is a proxy: name the whole URL, as clients do that know of it";
        return Err(Failure::Refused {
            status: StatusCode::BAD_REQUEST,
            reason,
        });
    }
    if let Some(answer) = max_forwards(&mut request, note) {
        return answer;
    }
    let order = Order::new(common.space(), target, request, info);
    let asked = Asked {
        client: connection.client.ip(),
        target: &order.target,
        fields: &order.fields,
    };
    common.related.asked(&asked, Instant::now());
    answer(connection, order, note).await
}

/// Takes out what belongs to the client's connection, before anything is read from the fields: what
/// `Connection` names does not go upstream, so it may not select a variant, a range, a condition or
/// anything else here. A response to `Connection: Origin` would otherwise be stored for requests
/// with that `Origin`, which the origin has never seen.
fn strip(request: &mut Request<ClientBody>) -> Result<(), Failure> {
    let upgrading = match asks_for_upgrade(request.method(), request.headers()) {
        true => Upgrading::Yes,
        false => Upgrading::No,
    };
    // `wire` has refused such a request already, with the same status.
    strip_request(request.headers_mut(), upgrading).map_err(|_| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason: "Connection names an end-to-end field",
    })
}

/// Whoever may use this proxy must not come to its figures by it, even where loopback is allowed as
/// a destination.
fn not_admin(connection: &Connection, authority: &Authority) -> Result<(), Failure> {
    if !connection.worker.common.is_admin(authority) {
        return Ok(());
    }
    Err(Failure::Refused {
        status: StatusCode::MISDIRECTED_REQUEST,
        reason: "the admin pages cannot be reached through the proxy",
    })
}

/// What the request is about. Errors are the client's.
fn parse(
    connection: &Connection,
    request: &Request<ClientBody>,
    info: &HeadInfo,
) -> Result<RequestTarget, Failure> {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    let text = std::str::from_utf8(&info.target).map_err(|_| refused("the target is not ASCII"))?;
    let host = request.headers().get(HOST).map(HeaderValue::to_str);
    let host = host.transpose().map_err(|_| refused("Host is not ASCII"))?;
    if let Some(origin) = connection.worker.common.accelerated() {
        if *request.method() == Method::CONNECT {
            return Err(Failure::NotImplemented("CONNECT to an accelerated site"));
        }
        // One site: its resources are named by the path, by whichever of its names they are asked
        // for.
        let named = parse_target(request.method(), text, host.or(Some("_")), origin.scheme);
        let named = named.map_err(target_failure)?;
        if let RequestTarget::Resource(Target { authority, .. }) = &named
            && !connection.worker.common.is_site(&authority.host)
        {
            return Err(Failure::Refused {
                status: StatusCode::MISDIRECTED_REQUEST,
                reason: "this proxy does not serve a site of this name",
            });
        }
        return Ok(match named {
            RequestTarget::Resource(named) => RequestTarget::Resource(Target {
                scheme: origin.scheme,
                authority: origin.authority.clone(),
                path_and_query: named.path_and_query,
            }),
            other => other,
        });
    }
    let Some(within) = &connection.within else {
        return parse_target(request.method(), text, host, connection.scheme)
            .map_err(target_failure);
    };
    // HTTP/1.0 need not say what the CONNECT has said.
    let named = within.host_field();
    let host = host.or(Some(&*named));
    let named = parse_target(request.method(), text, host, Scheme::Https);
    let named = named.map_err(target_failure)?;
    match intercepted::refusal(within, &named) {
        Some(failure) => Err(failure),
        None => Ok(named),
    }
}

fn target_failure(error: TargetError) -> Failure {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    match error {
        TargetError::Scheme => Failure::NotImplemented("schemes other than http and https"),
        TargetError::NoHost => refused("the request names no host"),
        TargetError::Host => refused("the host is no name and no address in its usual spelling"),
        TargetError::Port => refused("the port is not a number from 1 to 65535"),
        TargetError::Userinfo => refused("a user name in the URL"),
        TargetError::Fragment => refused("a fragment in the request target"),
        _ => refused("the request target has no form this method may use"),
    }
}

/// OPTIONS and TRACE count the proxies they may pass (RFC 9110 7.6.2).
fn max_forwards(request: &mut Request<ClientBody>, note: &mut Note) -> Option<Answer> {
    if !matches!(*request.method(), Method::OPTIONS | Method::TRACE) {
        return None;
    }
    let value = request.headers().get(MAX_FORWARDS)?;
    let left = value
        .to_str()
        .ok()
        .and_then(|left| left.parse::<u32>().ok())?;
    if left == 0 {
        return Some(match *request.method() {
            Method::OPTIONS => Ok(own::options(note)),
            _ => Err(Failure::NotImplemented("TRACE to this proxy")),
        });
    }
    request
        .headers_mut()
        .insert(MAX_FORWARDS, HeaderValue::from(left - 1));
    None
}

/// From the store if it may be, else from upstream.
async fn answer(connection: &Rc<Connection>, order: Order, note: &mut Note) -> Answer {
    // Inside an intercepted connection it was the port of CONNECT, which has a list of its own.
    if order.space == Space::Own && connection.within.is_none() {
        let ports = &connection.worker.common.live().ports;
        check_port(ports, order.target.authority.port)?;
    }
    let facts = order.facts();
    if let Err(forward) = facts.lookup() {
        return forward::pass(connection, order, forward, note).await;
    }
    if asks_for_upgrade(&order.method, &order.fields) {
        let bypass = hashcache_http::Forward::Bypass;
        return forward::pass(connection, order, bypass, note).await;
    }
    let Some(key) = cache_key(order.space, &order.target) else {
        let bypass = hashcache_http::Forward::Bypass;
        return forward::pass(connection, order, bypass, note).await;
    };
    look_up_and_decide(connection, order, key, &facts, note).await
}

async fn look_up_and_decide(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
    facts: &RequestFacts,
    note: &mut Note,
) -> Answer {
    let looked_up = look_up(connection, &key, &order.fields).await;
    decide(connection, order, facts, looked_up, note).await
}

async fn decide(
    connection: &Rc<Connection>,
    order: Order,
    facts: &RequestFacts,
    looked_up: LookedUp,
    note: &mut Note,
) -> Answer {
    use hashcache_http::Forward;
    let worker = &connection.worker;
    let (hit, stored, place, from) = match looked_up {
        LookedUp::Found {
            hit,
            stored,
            place,
            from,
        } => (hit, stored, place, from),
        LookedUp::VaryMiss { place, table } => {
            let choices = table.filter(|_| forward::may_share(&order, facts));
            let choices = choices.map(|table| with_objects(worker, &place, table));
            let why = Why {
                choices,
                ..Why::of(Forward::VaryMiss)
            };
            return forward::miss(connection, order, place, facts, why, note).await;
        }
        LookedUp::Nothing(place) => {
            let why = Why::of(Forward::UriMiss);
            return forward::miss(connection, order, place, facts, why, note).await;
        }
    };
    let decision = reuse_hit(connection, facts, &hit, &stored);
    match decision {
        Reuse::Fresh { age, ttl } => {
            note.outcome(hit::outcome(stored.facts.status, from));
            let served = hit::Served::fresh(age, ttl);
            let found = partial::Found {
                hit: &hit,
                stored,
                served,
            };
            partial::answer(connection, order, place, facts, found, note).await
        }
        Reuse::Stale {
            age,
            ttl,
            allowed_by,
        } => {
            if allowed_by == StaleAllowance::WhileRevalidating {
                validate::revalidate(connection, &order, &place, &hit, &stored);
            }
            note.outcome(Outcome::StaleHit);
            let served = hit::Served::fresh(age, ttl);
            let found = partial::Found {
                hit: &hit,
                stored,
                served,
            };
            partial::answer(connection, order, place, facts, found, note).await
        }
        Reuse::Validate { forward, on_error } => {
            let known = Known {
                hit,
                stored,
                place,
                alias: None,
            };
            let why = (forward, on_error);
            validate::validate(connection, order, facts, why, known, note).await
        }
        Reuse::Miss { forward } => {
            let why = Why {
                replaces: Some(hit),
                ..Why::of(forward)
            };
            forward::pass_or_store(connection, order, place, why, note).await
        }
        Reuse::Unsatisfiable => Err(Failure::NotCached),
    }
}

/// What a stored response is good for. One that was purged softly is none that is fresh.
fn reuse_hit(
    connection: &Connection,
    facts: &RequestFacts,
    hit: &Hit,
    stored: &StoredResponse,
) -> Reuse {
    let common = &connection.worker.common;
    let decision = reuse(facts, &stored.facts, common.now(), &common.live().reuse);
    match decision {
        Reuse::Fresh { .. } | Reuse::Stale { .. } if hit.is_made_stale() => {
            if facts.directives.only_if_cached {
                return Reuse::Unsatisfiable;
            }
            Reuse::Validate {
                forward: hashcache_http::Forward::Stale,
                // As after its lifetime: if the origin says nothing against it.
                on_error: match stored.facts.flags.has(FactFlags::NEVER_STALE) {
                    true => OnError::Fail,
                    false => OnError::ServeIfError,
                },
            }
        }
        _ => decision,
    }
}

/// Where what is asked for is to be fetched from.
fn endpoint(order: &Order) -> Endpoint {
    let purpose = match order.space {
        Space::Site(_) | Space::Mirror(_) => Purpose::Configured,
        Space::Own => Purpose::Forward,
    };
    Endpoint {
        authority: order.target.authority.clone(),
        purpose,
        scheme: order.target.scheme,
    }
}

/// An authority and its content, empty.
fn text(status: StatusCode, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(content));
    *response.status_mut() = status;
    response
}

/// What an answer's head may take without being set aside: every connection has that much.
const HEAD_FREE: usize = 4 << 10;

/// How many times its size a waiting head takes. With 2,500 clients and `--memory 64MiB`, resident
/// memory peaked at 103 MiB with 2 copies, 95 with 3 and 92 with 4.
const HEAD_COPIES: usize = 6;

/// Said when there is no memory for an answer's head.
const NO_MEMORY: Failure = Failure::Refused {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for the response head",
};
