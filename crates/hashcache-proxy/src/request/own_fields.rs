//! Adds the proxy's own fields to a response from upstream, and gives the outcome for the log.

use std::rc::Rc;
use std::sync::Arc;

use hashcache_http::{CacheStatus, Forward, PROXY_SUPPORT, SESSION_BASED, binds_connection};
use hashcache_upstream::ResponseBody;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, Response, Version};

use super::body::Body;
use super::transaction::{Next, Transaction};
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::fetch::Rest;
use crate::route::NextHop;

/// The step that answers with an upstream response that is not stored.
pub(super) fn passed(
    transaction: &mut Transaction<'_>,
    (response, rest): (Response<ResponseBody>, Option<Rc<Rest>>),
    next_hop: NextHop,
    status: CacheStatus<'_>,
) -> Next {
    let (connection, log_entry) = (transaction.connection, &mut *transaction.log_entry);
    log_entry.set_next_hop(Some(next_hop));
    let (mut head, body) = response.into_parts();
    add_own(connection, (&mut head.headers, head.version), status);
    let is_one_client = transaction.request.is_one_client(connection);
    offer_login(connection, is_one_client, &mut head.headers);
    let metrics = Arc::clone(&connection.worker.metrics);
    let body = Body::passed(body, log_entry.byte_count(), metrics).resumed_by(rest);
    Next::Answer(Response::from_parts(head, body))
}

/// Adds Via and Cache-Status to an upstream response that was received in this HTTP version.
pub(super) fn add_own(
    connection: &Connection,
    (fields, received): (&mut HeaderMap, Version),
    status: CacheStatus<'_>,
) {
    let common = &connection.worker.common;
    common.via.append_via(fields, received);
    status.append(&common.name, fields);
}

/// Adds Proxy-Support to a response that requires a connection login, if the connection has the
/// requests of a single client only (`is_one_client`).
pub(super) fn offer_login(connection: &Connection, is_one_client: bool, fields: &mut HeaderMap) {
    let common = &connection.worker.common;
    // A client that knows the proxy may answer the challenge only if the proxy announces that it
    // keeps the connection for this client (RFC 4559, section 6).
    let knows_proxy = !common.is_reverse()
        && connection.intercepted.is_none()
        && connection.destination.is_none();
    if is_one_client
        && knows_proxy
        && fields.contains_key(WWW_AUTHENTICATE)
        && binds_connection(fields)
    {
        fields.insert(PROXY_SUPPORT, SESSION_BASED);
    }
}

pub(super) fn outcome_of(forward: Forward) -> Outcome {
    match forward {
        Forward::Bypass => Outcome::Bypass,
        Forward::Method => Outcome::Method,
        Forward::VaryMiss => Outcome::VaryMiss,
        Forward::Request => Outcome::Request,
        Forward::Stale => Outcome::Stale,
        Forward::Partial => Outcome::Partial,
        Forward::UriMiss | Forward::Miss => Outcome::Miss,
    }
}
