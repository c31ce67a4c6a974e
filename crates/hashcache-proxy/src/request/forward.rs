//! Entry of a request to the forward proxy: checks, own pages, and the access rules. The result is
//! the request that the store or an origin answers.
//!
//! Called by `request`; `site` is the counterpart in front of a site. The steps in their order;
//! each step can answer the request:
//!
//! | step | reason for its place |
//! |---|---|
//! | client allowed, loop | cheapest, and no rule is about them |
//! | target, `OPTIONS *`, `CONNECT` | a tunnel has separate rules, error pages and log lines |
//! | refused interception, self-test | before the rules: the client must see the reason |
//! | PURGE | has a separate access list (`allow_purge`) |
//! | gateway, redirected connection | errors in the request itself, for any client |
//! | own pages, digest, quota, mirrors | the rules are about origins behind the proxy |
//! | Max-Forwards 0 | the request is not forwarded, so no rule is about it |
//! | rules, login, quotas | last, because a login or a quota costs time or usage |
//!
//! Invariant: Proxy-Authorization is removed before the request is checked any further: it never
//! reaches an origin or a peer.

use std::rc::Rc;

use hashcache_access::AccessAction;
use hashcache_base::failure::Failure;
use hashcache_base::net::address::check_port;
use hashcache_http::{Authority, RequestTarget, Scheme, Target};
use hashcache_site::mirror::MirrorLookup;
use hashcache_upstream::gateway;
use hashcache_wire::{ClientBody, HeadInfo, RequestForm};
use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION};
use http::{Method, Request, Response, StatusCode};

use super::body::Body;
use super::target::{max_forwards, may_use_gateway, not_admin, parse};
use super::transaction::{Answer, ClientRequest};
use super::{answer, digest, mirrored, own, prepare, purge, transparent};
use crate::connect;
use crate::connection::Connection;
use crate::log_entry::LogEntryBuilder;
use crate::permission::{LoginField, Permission, permit};

/// Answers one request.
pub(super) async fn serve(
    connection: &Rc<Connection>,
    mut request: Box<Request<ClientBody>>,
    info: &HeadInfo,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    let is_from_member = connection.is_from_member(request.headers());
    if let Some(failure) = connection.denied().filter(|_| !is_from_member) {
        return Err(failure);
    }
    let login = LoginField::Asked(request.headers_mut().remove(PROXY_AUTHORIZATION));
    if let Some(intercepted) = &connection.intercepted {
        intercepted.note_request(&connection.worker);
        log_entry.set_authority(intercepted.host_field());
    }
    prepare(connection, &mut request, info)?;
    let target = match parse(connection, &mut request, info)? {
        RequestTarget::Resource(target) => target,
        // Boxed, so that other requests keep no room for this future.
        RequestTarget::Tunnel(authority) => {
            let opening = tunnel(connection, (&request, info), authority, login, log_entry);
            return Box::pin(opening).await;
        }
        RequestTarget::Server(authority) => {
            log_entry.set_authority(authority.host_field(Scheme::Http));
            return Ok(own::options(log_entry));
        }
    };
    log_entry.set_target(&target, target.scheme);
    let refused = connection.intercepted.as_ref().and_then(|it| it.refusal());
    if let Some(refused) = refused {
        connection.cell.end_with_this();
        return Err(refused.tell());
    }
    if is_self_test(connection, &target) {
        return Ok(own::self_test(log_entry));
    }
    if request.method().as_str() == "PURGE" {
        let (space, target) = mirrored::purge_target(connection, &target);
        return purge::answer(connection, &request, (space, &target), log_entry).await;
    }
    may_use_gateway(connection, &mut request, &target, info)?;
    if connection.plain_destination().is_some() {
        transparent::check(connection, &target)?;
    }
    // Other connections lead to a fixed host, whatever a request names.
    if connection.intercepted.is_none() && connection.destination.is_none() {
        not_admin(connection, &target.authority)?;
        if info.form == RequestForm::Origin
            && let Some(answer) = digest::answer(connection, &request, &target, log_entry)
        {
            return answer;
        }
        if let Some(own) = own_resource(connection, &target, info)? {
            let answering = answer_own(
                connection,
                (request, info),
                (own, &target),
                login,
                log_entry,
            );
            return Box::pin(answering).await;
        }
    }
    if let Some(answer) = max_forwards(&mut request, log_entry) {
        return answer;
    }
    let asked = (request.method(), &target.authority);
    let (permission, only_server) = match connection.plain_destination() {
        // Boxed, because few requests arrive in this way.
        Some(destination) => Box::pin(transparent::permit(connection, destination, asked)).await?,
        None if is_from_member => (Permission::OF_MEMBER, None),
        None => (permit(connection, asked, login, log_entry).await?, None),
    };
    let common = &connection.worker.common;
    if let Some(page) = gateway::own_page(&target) {
        let ports = &common.live().settings.allow_port;
        check_port(ports, target.scheme, target.authority.port)?;
        return Ok(own::of_gateway(page, log_entry));
    }
    let mut request = ClientRequest::new(common.space(), target, *request, info);
    request.only_server = only_server;
    // With a login, a name may be another file for each user, which the key does not distinguish.
    request.is_bypass = permission.action == AccessAction::NoCache
        || request.only_server.is_some()
        || request.target.scheme.needs_gateway() && request.fields.contains_key(AUTHORIZATION);
    request.limits = permission.limits;
    request.note_page(connection);
    answer(connection, request, log_entry).await
}

/// Opens a tunnel to `authority`; the response has no content.
async fn tunnel(
    connection: &Rc<Connection>,
    (request, info): (&Request<ClientBody>, &HeadInfo),
    authority: Authority,
    login: LoginField,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    if connection.plain_destination().is_some() {
        return Err(Failure::NotImplemented("CONNECT to a web server"));
    }
    log_entry.set_authority(authority.to_string());
    if connection.gets_stored_only() {
        return Err(Failure::NotCached);
    }
    not_admin(connection, &authority)?;
    let head = (request.headers(), info.version);
    let asked = (&Method::CONNECT, &authority);
    let mut response = Response::new(Body::empty());
    match permit(connection, asked, login, log_entry).await {
        Ok(permission) => {
            let opening = connect::tunnel(connection, authority, head, permission, log_entry);
            *response.headers_mut() = opening.await?;
        }
        Err(failure) => connect::refuse(connection, &authority, head, failure, log_entry).await?,
    }
    Ok(response)
}

/// Returns true if the request is for the page that shows a client whether it trusts our
/// certificate authority.
fn is_self_test(connection: &Connection, target: &Target) -> bool {
    match &connection.intercepted {
        Some(intercepted) => intercepted.is_self_test(),
        None => connection.is_self_test(&target.authority),
    }
}

/// A resource of the proxy itself.
enum OwnResource {
    /// `OPTIONS *`.
    Options,
    /// The page with the rest of the client's quotas.
    Quota,
    /// Another page of the proxy, or none.
    Page,
    Mirrored(MirrorLookup),
}

/// The requested resource of this proxy itself; `None`: a resource behind the proxy.
///
/// # Errors
/// A request in origin-form names a host that is not this proxy: the client takes this proxy for a
/// web server.
fn own_resource(
    connection: &Connection,
    target: &Target,
    info: &HeadInfo,
) -> Result<Option<OwnResource>, Failure> {
    if own::is_quota(connection, target) {
        return Ok(Some(OwnResource::Quota));
    }
    if connection.worker.common.is_us(&target.authority) {
        if target.path() == "*" {
            return Ok(Some(OwnResource::Options));
        }
        return Ok(Some(match mirrored::resolve(connection, target) {
            Some(found) => OwnResource::Mirrored(found),
            None => OwnResource::Page,
        }));
    }
    if info.form != RequestForm::Origin {
        return Ok(None);
    }
    // Clients that search for a proxy request `wpad` in their own domain. The proxy cannot know
    // that name, so it answers the path on any host.
    if own::is_pac(target) {
        return Ok(Some(OwnResource::Page));
    }
    if target.path().starts_with("/mirror/") {
        return Err(Failure::Refused {
            status: StatusCode::BAD_REQUEST,
            reason: "mirrors answer at the address that `public_url` names",
        });
    }
    Err(Failure::OriginForm)
}

/// Answers with a resource of the proxy itself, at the URL `target`.
async fn answer_own(
    connection: &Rc<Connection>,
    (request, info): (Box<Request<ClientBody>>, &HeadInfo),
    (own, target): (OwnResource, &Target),
    login: LoginField,
    log_entry: &mut LogEntryBuilder,
) -> Answer {
    let found = match own {
        OwnResource::Options => return Ok(own::options(log_entry)),
        OwnResource::Quota => return own::quota(connection, &request, login, log_entry).await,
        OwnResource::Page => return own::page(connection, &request, target, log_entry),
        OwnResource::Mirrored(found) => found,
    };
    let entered = mirrored::translate_request(connection, *request, info, target, found)?;
    let Some((mut request, rewrite)) = entered else {
        return Ok(own::not_allowed());
    };
    log_entry.set_registry(&request.target);
    // The rules apply to the registry, because its content is fetched for this client.
    let named = (&request.method, &request.target.authority);
    let permission = permit(connection, named, LoginField::NotAsked, log_entry).await?;
    request.is_bypass |= permission.action == AccessAction::NoCache;
    request.limits = permission.limits;
    let response = answer(connection, request, log_entry).await?;
    mirrored::rewrite_response(connection, rewrite, response).await
}
