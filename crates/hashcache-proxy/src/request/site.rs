//! Requests to a site: answered like any other request, between two changes of fields.
//!
//! Called by `request` for every request to a reverse proxy. Fields in which the client describes
//! itself are reduced to the trusted parts, the site's rules are applied, and the request is
//! answered under the URL that the client used. The steps in between know about the site through
//! the route.
//!
//! Invariants: the store holds the response as the origin sent it, without a content coding if the
//! site compresses. A request for a host that no site has gets 421.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::share::Allowance;
use hashcache_http::{
    Authority, RequestTarget, Scheme, Target, TargetError, is_forwarded, octets, parse_target,
};
use hashcache_site::encode::{self, AcceptEncoding, Encoder, Verdict};
use hashcache_site::forwarded::{Forwarding, Speaker, strip_forwarded};
use hashcache_site::live::{LiveSite, Sender, SiteRequest};
use hashcache_wire::{ClientBody, HeadInfo};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, PROXY_AUTHORIZATION, VARY};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tokio::time::Instant;

use super::body::Body;
use super::target::{max_forwards, target_and_host, target_failure};
use super::transaction::{Answer, ClientRequest};
use super::{answer, own, prepare, purge};
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::log_entry::LogEntryBuilder;
use crate::members::MemberList;
use crate::page::PageReader;

/// Answers a request to a reverse proxy.
pub(super) async fn serve(
    connection: &Rc<Connection>,
    mut request: Box<Request<ClientBody>>,
    info: &HeadInfo,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    if let Some(failure) = connection.denied() {
        return Err(failure);
    }
    // No rule demands a login in front of a site, and the field is for the next proxy only.
    request.headers_mut().remove(PROXY_AUTHORIZATION);
    prepare(connection, &mut request, info)?;
    let target = match named(connection, &request, info)? {
        RequestTarget::Tunnel(_) => return Err(Failure::NotImplemented("CONNECT to a site")),
        RequestTarget::Server(authority) => {
            log_entry.set_authority(authority.host_field(connection.scheme));
            return Ok(own::options(log_entry));
        }
        RequestTarget::Resource(target) => target,
    };
    let live = connection.worker.common.live();
    let site = live.sites.find(&target.authority).cloned();
    drop(live);
    let Some(site) = site else {
        log_entry.set_target(&target, connection.scheme);
        return Err(Failure::Refused {
            status: StatusCode::MISDIRECTED_REQUEST,
            reason: "this proxy does not serve a site of this name",
        });
    };
    let has_own_page = site.error_page.is_some()
        && PageReader::from_request(request.headers()) == PageReader::Browser;
    let (target, site_request) = enter(connection, &site, &mut request, target)?;
    log_entry.set_target(&target, target.scheme);
    let connection = &for_client(connection, &site_request.forwarding);
    log_entry.set_client(connection.client);
    let site_request = Arc::new(site_request);
    let answered = match begin(connection, &site_request, target, request, info, log_entry) {
        Begun::Answered(answered) => answered,
        Begun::Purge(request, target) => {
            let space = connection.worker.common.space();
            purge::answer(connection, &request, (space, &target), log_entry).await
        }
        Begun::Request(request, accepted) => {
            let method = request.method.clone();
            let accepted = accepted.as_ref().map(|accepted| (&method, accepted));
            let answered = answer(connection, request, log_entry).await;
            answered.map(|response| finish(connection, &site_request, accepted, response))
        }
    };
    match (answered, &site.error_page) {
        (Err(failure), Some(page)) if has_own_page => {
            log_entry.set_failure(&failure);
            Ok(error_page(connection, &failure, page))
        }
        (answered, _) => answered,
    }
}

/// The target that a client names. HTTP/1.0 clients may omit Host.
fn named(
    connection: &Connection,
    request: &Request<ClientBody>,
    info: &HeadInfo,
) -> Result<RequestTarget, Failure> {
    let (text, host) = target_and_host(request, info)?;
    let host = host.unwrap_or(NO_HOST);
    let named = parse_target(request.method(), &text, Some(host), connection.scheme);
    match named {
        Ok(RequestTarget::Resource(target)) if target.scheme.needs_gateway() => {
            Err(target_failure(TargetError::Scheme))
        }
        named => named.map_err(target_failure),
    }
}

/// Reads and removes the fields in which the client describes itself, and applies the key rules.
/// The target is then the URL that the client used: the scheme is part of it, because an origin
/// that redirects plain requests to https must not have that redirect served to https clients.
fn enter(
    connection: &Connection,
    site: &Arc<LiveSite>,
    request: &mut Request<ClientBody>,
    target: Target,
) -> Result<(Target, SiteRequest), Failure> {
    let spec = &site.spec;
    let is_trusted = |address| spec.trust_forwarded.iter().any(|it| it.contains(address));
    let peer = connection.client.ip();
    let live = connection.worker.common.live();
    let fields = request.headers_mut();
    let is_member = |it: &MemberList| is_trusted(peer) && it.have_sent(peer, fields);
    let sender = if live.routes.members().is_some_and(is_member) {
        Sender::Member
    } else {
        Sender::Client
    };
    drop(live);
    let forwarding = Forwarding::read(peer, connection.scheme, fields, is_trusted);
    // Two clients behind the same front may share an address: that of an office, or of a carrier.
    let is_shared = match forwarding.speaker {
        Speaker::Trusted => !spec.front_keeps_logins,
        Speaker::Untrusted => is_forwarded(fields),
    };
    strip_forwarded(fields, forwarding.speaker, &spec.pass_fields);
    site.mark_key(fields);
    let authority = match spec.any_host_authority() {
        Some(authority) => authority.clone(),
        None => {
            let said = forwarding.host.clone();
            let said = said.filter(|it| spec.hosts.contains(&it.host));
            said.unwrap_or_else(|| with_scheme(target.authority, target.scheme, forwarding.scheme))
        }
    };
    let path_and_query = match spec.key.path_and_query(&target.path_and_query) {
        Cow::Borrowed(same) if same.len() == target.path_and_query.len() => target.path_and_query,
        Cow::Borrowed(part) => part.into(),
        Cow::Owned(changed) => changed.into(),
    };
    let request = SiteRequest {
        site: Arc::clone(site),
        host: (!spec.hosts.is_empty()).then(|| authority.clone()),
        forwarding,
        sender,
        is_shared,
    };
    let target = Target {
        scheme: request.forwarding.scheme,
        authority,
        path_and_query,
    };
    Ok((target, request))
}

/// The authority of a URL with the scheme `from`, converted to the scheme `to`: a default port
/// stays a default port.
pub(super) fn with_scheme(authority: Authority, from: Scheme, to: Scheme) -> Authority {
    let Authority { host, port } = authority;
    let port = if port == from.default_port() {
        to.default_port()
    } else {
        port
    };
    Authority { host, port }
}

/// The connection with the address and share of the client itself, if a trusted proxy made it,
/// because limits and the log are about the client.
fn for_client(connection: &Rc<Connection>, forwarding: &Forwarding) -> Rc<Connection> {
    if forwarding.client == connection.client.ip().to_canonical() {
        return Rc::clone(connection);
    }
    let worker = &connection.worker;
    let share = worker.common.shares.of(forwarding.client);
    Rc::new(Connection {
        allowance: Allowance::new(share, worker.cache.clone()),
        client: SocketAddr::new(forwarding.client, 0),
        ..(**connection).clone()
    })
}

/// Kind of a request to a site.
enum Begun {
    /// Answered by the site without the store and the origins.
    Answered(Answer),
    /// A purge of this URL.
    Purge(Box<Request<ClientBody>>, Target),
    /// A resource, and the codings that the client accepts if the site encodes and the method
    /// reads.
    Request(Box<ClientRequest>, Option<AcceptEncoding>),
}

fn begin(
    connection: &Connection,
    site_request: &Arc<SiteRequest>,
    target: Target,
    mut request: Box<Request<ClientBody>>,
    info: &HeadInfo,
    log_entry: &mut LogEntryBuilder,
) -> Begun {
    let spec = &site_request.site.spec;
    if request.method().as_str() == "PURGE" {
        return Begun::Purge(request, target);
    }
    if spec.redirect_to_https
        && target.scheme == Scheme::Http
        && !target.path_and_query.starts_with(ACME)
    {
        log_entry.set_outcome(Outcome::Own);
        return Begun::Answered(redirect(&target));
    }
    if let Some(answer) = max_forwards(&mut request, log_entry) {
        return Begun::Answered(answer);
    }
    let accepted = if spec.compress.is_empty() {
        None
    } else {
        Some(encode::take_accept_encoding(request.headers_mut()))
    };
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let common = &connection.worker.common;
    let mut request = ClientRequest::new(common.space(), target, *request, info);
    request.is_bypass = spec.key.is_bypass(&request.fields);
    request.site = Some(Arc::clone(site_request));
    request.note_page(connection);
    Begun::Request(request, accepted.filter(|_| is_read))
}

/// The response as the client gets it.
fn finish(
    connection: &Rc<Connection>,
    site_request: &SiteRequest,
    accepted: Option<(&Method, &AcceptEncoding)>,
    mut response: Response<Body>,
) -> Response<Body> {
    let fields = response.headers_mut();
    site_request.unmark(fields);
    if site_request.sender == Sender::Client {
        site_request.site.spec.response_headers.apply(fields);
    }
    match accepted {
        Some(accepted) => encoded(connection, site_request, accepted, response),
        None => response,
    }
}

/// The response in the coding that the client accepts, if it is text and there is room to encode
/// it.
fn encoded(
    connection: &Rc<Connection>,
    site_request: &SiteRequest,
    (method, accepted): (&Method, &AcceptEncoding),
    response: Response<Body>,
) -> Response<Body> {
    let coding = accepted.choose(&site_request.site.spec.compress);
    let (mut head, body) = response.into_parts();
    if head.status == StatusCode::NOT_MODIFIED {
        // The client may have the encoded form.
        if coding.is_some() {
            encode::weaken_tag(&mut head.headers);
            for name in encode::ABOUT_IDENTITY {
                head.headers.remove(name);
            }
        }
        // The `Vary` of a 304 replaces the `Vary` that a cache has stored.
        if head.headers.contains_key(VARY) {
            encode::add_vary(&mut head.headers);
        }
    }
    if !encode::is_encodable(head.status, &head.headers) {
        return Response::from_parts(head, body);
    }
    encode::add_vary(&mut head.headers);
    let Some(coding) = coding else {
        return Response::from_parts(head, body);
    };
    let worker = &connection.worker;
    let client = connection.allowance.share().network().without_client();
    let has_time = worker.encode_budget.borrow().ask(client, Instant::now()) == Verdict::Now;
    let memory = connection.allowance.reserve_bulk(coding.memory());
    // Without room the client gets the identity form, which is always right.
    let Some(memory) = memory.filter(|_| has_time) else {
        return Response::from_parts(head, body);
    };
    encode::encoded_fields(coding.name(), &mut head.headers);
    let body = match *method {
        // An encoder would write the header of its format. In addition, an HTTP/2 origin states the
        // content length without the coding.
        Method::HEAD => Body::empty(),
        _ => body.encoded(Encoder::new(coding), (Rc::clone(worker), client), memory),
    };
    Response::from_parts(head, body)
}

/// A redirect to the same URL with https, on the usual port.
fn redirect(target: &Target) -> Answer {
    let server = format!("https://{}", target.authority.host);
    let url = [server.as_bytes(), &octets(&target.path_and_query)].concat();
    let mut response = own::text(StatusCode::PERMANENT_REDIRECT, Bytes::new());
    let location = HeaderValue::from_bytes(&url);
    let location = location.map_err(|_| Failure::Internal("a URL that is no field value"))?;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

/// The error page from the operator in place of the page from the proxy.
fn error_page(connection: &Connection, failure: &Failure, page: &Bytes) -> Response<Body> {
    let mut response = own::text(failure.status(), page.clone());
    let fields: &mut HeaderMap = response.headers_mut();
    let name = connection.worker.common.via.as_str();
    fields.insert(hashcache_http::PROXY_STATUS, failure.proxy_status(name));
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    if let Some(time) = failure.retry_after() {
        let seconds = HeaderValue::from(time.as_secs());
        fields.insert(http::header::RETRY_AFTER, seconds);
    }
    response
}

/// Path at which certificate authorities look for proofs, over plain HTTP (RFC 8555, section 8.3).
const ACME: &str = "/.well-known/acme-challenge/";
/// The host for requests without a host: no valid site name.
const NO_HOST: &str = "_";
