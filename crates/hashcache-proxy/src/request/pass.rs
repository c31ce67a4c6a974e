//! Forwarding: requests with responses that are not stored.
//!
//! Called by the loop in `request`, and by `validate` for a HEAD.
//!
//! A request that has or follows a login of the connection (NTLM, Negotiate) is always forwarded,
//! on the upstream connection of that client.
//!
//! Invariants: after an unsafe request, the stored responses that it may have changed are no longer
//! served. The response to a HEAD is compared with the stored response to GET.

use std::rc::Rc;
use std::sync::Arc;

use hashcache_base::failure::Failure;
use hashcache_base::task::spawn_local;
use hashcache_http::{
    CacheStatus, Forward, Handling, Space, Target, Upgrading, asks_for_upgrade, cache_key,
    grants_other_protocol, invalidated, invalidated_groups, is_unsafe, logs_in_connection,
};
use hashcache_link::coding::{LinkCoding, StoredHere};
use hashcache_store::{StoreLookup, look_up};
use hashcache_upstream::pinned::{Pinning, Turn};
use hashcache_upstream::{RequestBody, SendOptions, set_target};
use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::body::Body;
use super::own_fields::{add_own, offer_login, outcome_of};
use super::purge_members::purge_at_members;
use super::transaction::{Answer, ClientRequest, Login, Transaction};
use crate::connect;
use crate::connection::Connection;
use crate::fetch::confirm::{self, Times};
use crate::fetch::{self, AskFailure, SelectedResponse};
use crate::log_entry::LogEntryBuilder;
use crate::route::Route;

/// Forwards a request and returns the response; nothing is stored.
pub(super) async fn pass(transaction: Transaction<'_>, forward: Forward) -> Answer {
    let informational = transaction.informational();
    let Transaction {
        connection,
        request,
        log_entry,
        ..
    } = transaction;
    let worker = &connection.worker;
    log_entry.set_outcome(outcome_of(forward));
    let upgrades = asks_for_upgrade(&request.method, &request.fields);
    let (space, target) = (request.space, &request.target);
    let route = match (request.site_route(worker, None)?, &request.only_server) {
        (Some(route), _) => route,
        (None, Some(server)) => worker.route_to_server(target, server, &request.fields)?,
        (None, None) if upgrades => worker.route_for_upgrade(space, target, &request.fields)?,
        (None, None) if request.is_for_origin() => {
            worker.route_past_members(space, target, &request.fields)?
        }
        (None, None) => worker.route_to(space, target, &request.fields)?,
    };
    let pinning = match &request.login {
        Login::None => request.pinning(connection),
        Login::Pinned(key) => {
            let client = connection.allowance.share();
            let limit = worker.limits.connect_time;
            let turn = Box::pin(connection.pins.turn(key, client, limit));
            Pinning::Turn(turn.await?)
        }
        Login::Alone => Pinning::Alone,
    };
    let is_login = pinning.is_login();
    let is_one_client = request.is_one_client(connection);
    let may_override = request.may_override(worker);
    let route = match &pinning {
        Pinning::Turn(turn) => route_of_login(connection, turn, route, &request.fields)?,
        _ => route,
    };
    let ClientRequest {
        space,
        target,
        method,
        fields,
        version,
        body,
        has_content,
        is_bypass,
        limits,
        only_server,
        ..
    } = *request;
    let upgrading = if asks_for_upgrade(&method, &fields) {
        Upgrading::Yes
    } else {
        Upgrading::No
    };
    // With an override, nobody knows to which resource a HEAD applies.
    let is_comparable = !has_content && !is_bypass && !is_login && !may_override;
    let wanted = (method == Method::HEAD && is_comparable).then(|| fields.clone());
    let fields = fetch::upstream_fields(worker, &target, fields, version, upgrading);
    let mut request = Request::new(match body {
        Some(body) => RequestBody::streamed(body),
        None => RequestBody::empty(),
    });
    *request.method_mut() = method.clone();
    set_target(&mut request, &target.path_and_query);
    *request.headers_mut() = fields;
    // The response is compared with the stored response, which was fetched with this coding.
    let link = match &wanted {
        Some(fields) => LinkCoding::new(fields, StoredHere::No).in_plain(),
        None => LinkCoding::Unchanged,
    };
    let options = SendOptions {
        informational: Some(informational),
        client: Some(connection.allowance.share().clone()),
        ends: Some(connection.ends()),
        link,
        pinning,
        ..SendOptions::default()
    };
    let request_time = worker.common.now();
    let sent = fetch::ask(worker, &route, request, &options).await;
    let answered = sent.map_err(|failed| {
        if let Pinning::Turn(turn) = &options.pinning {
            turn.give_up();
            connection.cell.end_with_this();
        }
        connection
            .cell
            .body_failure()
            .unwrap_or_else(|| send_failed(connection, log_entry, failed))
    })?;
    log_entry.byte_count().set_free(answered.is_stored_nearby());
    log_entry.set_next_hop(Some(answered.next_hop));
    let exchange = answered.exchange;
    if is_login && !exchange.may_leave_connection() {
        // Otherwise the client would believe that its own connection is logged in.
        connection.cell.end_with_this();
    }
    if exchange.upgrade.is_some() && !grants_other_protocol(exchange.response.headers()) {
        return Err(Failure::ResponseMalformed(
            "switch to a protocol that was not offered",
        ));
    }
    let response = fetch::passed_on(exchange.response, worker.common.now(), upgrading);
    if let Some(upgrade) = exchange.upgrade {
        connect::upgrade(connection, upgrade, limits, log_entry);
    }
    // A response from another server than the named one gives no information about the objects
    // stored for that name.
    if is_unsafe(&method) && only_server.is_none() {
        let (status, fields) = (response.status(), response.headers());
        let targets = invalidated(&method, &target, status, fields);
        let groups = invalidated_groups(&method, status, fields);
        let purger = worker.common.purger.within(space);
        let client = connection.allowance.share().network();
        if is_login {
            purge_at_owner(connection, &target);
        }
        purger.invalidate_in_turn(client, targets, groups).await;
    }
    let (mut head, body) = response.into_parts();
    if let Some(fields) = wanted.filter(|_| head.status == StatusCode::OK) {
        let times = (request_time, worker.common.now());
        let asked = (&target, &fields);
        head_came(connection, space, asked, &head.headers, times).await;
    }
    let status = CacheStatus {
        detail: match only_server {
            Some(_) => Some("other-address"),
            None => is_login.then_some("connection-login"),
        },
        ..CacheStatus::from_handling(Handling::Forwarded(forward))
    };
    add_own(connection, (&mut head.headers, head.version), status);
    offer_login(connection, is_one_client, &mut head.headers);
    let body = Body::passed(body, log_entry.byte_count(), Arc::clone(&worker.metrics));
    Ok(Response::from_parts(head, body))
}

/// The route for a request that has or follows a login: the hop with that login.
///
/// # Errors
/// The connection of a handshake is closed, and the request has the next message of the handshake.
/// That message is valid only on the closed connection, so the request is not sent, and the client
/// starts the login again.
fn route_of_login(
    connection: &Connection,
    turn: &Turn,
    route: Route,
    fields: &HeaderMap,
) -> Result<Route, Failure> {
    if let Some(route) = turn.leads_to().and_then(|to| route.only(&to)) {
        return Ok(route);
    }
    turn.leave();
    if turn.is_half_done() && logs_in_connection(fields) {
        turn.give_up();
        connection.cell.end_with_this();
        return Err(Failure::ConnectionTerminated);
    }
    Ok(route)
}

/// Invalidates at the other members the response that an unsafe request may have changed, because
/// they did not see the request.
fn purge_at_owner(connection: &Rc<Connection>, target: &Target) {
    if connection.worker.common.live().routes.members().is_none() {
        return;
    }
    let (connection, target) = (Rc::clone(connection), target.clone());
    spawn_local(async move {
        purge_at_members(&connection, &HeaderMap::new(), &target, &[]).await;
    });
}

/// Updates or invalidates the stored response to GET by the response to a HEAD (RFC 9111 4.3.5).
async fn head_came(
    connection: &Connection,
    space: Space,
    asked: (&Target, &HeaderMap),
    head: &HeaderMap,
    times: Times,
) {
    let Some(key) = cache_key(space, asked.0) else {
        return;
    };
    let found = look_up(&connection.worker.cache, key, asked.1).await;
    if let StoreLookup::Found {
        hit, stored, place, ..
    } = found
    {
        let selected = SelectedResponse {
            hit,
            stored,
            place,
            alias: None,
        };
        confirm::head_came(&connection.worker, asked, &selected, head, times).await;
    }
}

fn send_failed(
    connection: &Connection,
    log_entry: &mut LogEntryBuilder,
    failed: AskFailure,
) -> Failure {
    log_entry.set_next_hop(failed.next_hop);
    connection.worker.metrics.fetched(failed.origin_bytes, 0);
    failed.failure
}
