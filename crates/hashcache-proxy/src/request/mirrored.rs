//! Requests to a mirror: answered like any other request, between two changes of fields.
//!
//! A request for `/mirror/NAME/…` is looked up, fetched and stored as a resource of the registry,
//! in a separate key space. If the response contains links, the client's conditions are translated
//! before the lookup and the content is rewritten after it. The steps in between do not know about
//! mirrors.
//!
//! `request` calls [`translate_request`] before it answers, and [`rewrite_response`] after.
//!
//! Invariant: the store holds exactly the response that the registry sent.

use hashcache_base::failure::Failure;
use hashcache_http::{Space, Target};
use hashcache_site::mirror::{
    LinkRewriting, Links, Mirror, MirrorKind, MirrorLookup, REWRITING_BYTES, Rewriting, Route,
    ask_plainly, coding, rewrite_fields, take_out_of_request, translate_conditions,
};
use hashcache_wire::{ClientBody, HeadInfo};
use http::{Method, Request, Response, StatusCode};

use super::body::Body;
use super::transaction::ClientRequest;
use crate::connection::Connection;
use crate::metrics::Limit;

/// The mirror resource for `target`, a URL of this proxy; `None` outside `/mirror/`.
pub(super) fn resolve(connection: &Connection, target: &Target) -> Option<MirrorLookup> {
    let live = connection.worker.common.live();
    live.mirrors.resolve(&target.path_and_query)
}

/// The key space and the resource for a purge of `target`: those in the registry if the URL belongs
/// to a mirror.
pub(super) fn purge_target(connection: &Connection, target: &Target) -> (Space, Target) {
    let common = &connection.worker.common;
    let is_ours = !common.is_reverse() && common.is_us(&target.authority);
    match is_ours.then(|| resolve(connection, target)).flatten() {
        Some(MirrorLookup::To(_, space, route)) => (space, route.target),
        _ => (common.space(), target.clone()),
    }
}

/// Parameters for rewriting the response to a mirror request.
pub(super) struct MirrorRewrite {
    links: Links,
    dressing: LinkRewriting,
    is_head: bool,
}

/// Turns a request for the mirror URL `asked` into a request for a resource of the registry.
/// `None`: the method is not allowed there.
pub(super) fn translate_request(
    connection: &Connection,
    mut request: Request<ClientBody>,
    info: &HeadInfo,
    asked: &Target,
    found: MirrorLookup,
) -> Result<Option<(Box<ClientRequest>, MirrorRewrite)>, Failure> {
    let not_found = |reason| {
        let status = StatusCode::NOT_FOUND;
        Err(Failure::Refused { status, reason })
    };
    let (mirror, space, route) = match found {
        MirrorLookup::NoMirror => return not_found("this proxy has no mirror of this name"),
        MirrorLookup::Nowhere => {
            return not_found("the path is not part of this mirror's registry");
        }
        MirrorLookup::Refused => {
            return Err(Failure::Refused {
                status: StatusCode::BAD_REQUEST,
                reason: "the path could leave this mirror's registry",
            });
        }
        MirrorLookup::To(mirror, space, route) => (mirror, space, route),
    };
    if !may_ask(&mirror, request.method(), &route) {
        return Ok(None);
    }
    let is_head = *request.method() == Method::HEAD;
    let Route { target, links } = route;
    let dressing = if links {
        LinkRewriting::Renamed
    } else {
        LinkRewriting::Plain
    };
    let base = connection
        .worker
        .common
        .base(&asked.authority, connection.scheme);
    let links = Links::new(&mirror, &base.to_string(), target.clone());
    let fields = request.headers_mut();
    take_out_of_request(fields);
    if dressing == LinkRewriting::Renamed {
        ask_plainly(mirror.kind(), fields);
        translate_conditions(&links, fields);
    }
    let request = ClientRequest::new(space, target, request, info);
    let rewrite = MirrorRewrite {
        links,
        dressing,
        is_head,
    };
    Ok(Some((request, rewrite)))
}

/// Turns the registry's response into a response of the mirror: changes fields and rewrites links.
pub(super) async fn rewrite_response(
    connection: &Connection,
    MirrorRewrite {
        links,
        dressing,
        is_head,
    }: MirrorRewrite,
    response: Response<Body>,
) -> Result<Response<Body>, Failure> {
    let (mut head, body) = response.into_parts();
    let has_content = !is_head && head.status != StatusCode::NOT_MODIFIED;
    if dressing == LinkRewriting::Plain || !has_content {
        rewrite_fields(&links, dressing, &mut head.headers);
        return Ok(Response::from_parts(head, body));
    }
    if head.status == StatusCode::PARTIAL_CONTENT {
        let reason = "a partial response to a request without a range";
        return Err(Failure::ResponseMalformed(reason));
    }
    let coding = coding(&head.headers)?;
    // A slow client holds this memory for as long as its content, so it is charged as bulk memory.
    let memory = connection.worker.cache.reserve_bulk(REWRITING_BYTES);
    let memory = memory.ok_or_else(|| {
        connection.worker.metrics.limit(Limit::Memory);
        Failure::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "no memory for another index",
        }
    })?;
    let rewriting = Rewriting::new(links.clone(), coding, &head.headers);
    rewrite_fields(&links, dressing, &mut head.headers);
    // Set the payer now, because `rewritten` already reads the first bytes.
    let body = body.paid_by(&connection.allowance);
    let body = Body::rewritten(body, rewriting, memory).await?;
    Ok(Response::from_parts(head, body))
}

/// Returns true if the mirror accepts this method. Publishing through a mirror is not supported.
/// npm sends a POST to check whether the packages that it installs have known vulnerabilities.
fn may_ask(mirror: &Mirror, method: &Method, route: &Route) -> bool {
    match *method {
        Method::GET | Method::HEAD => true,
        Method::POST => {
            mirror.kind() == MirrorKind::Npm && route.target.path().contains("/-/npm/v1/security/")
        }
        _ => false,
    }
}
