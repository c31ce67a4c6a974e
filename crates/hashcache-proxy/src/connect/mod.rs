//! CONNECT and protocol upgrades (WebSocket): tunnels to allowed ports at allowed addresses.
//!
//! A tunnel passes bytes unchanged (`tunnel`), unless a child offers to code them (`chunked`).

pub(crate) mod chunked;
mod dial;
pub(crate) mod intercepted;
mod metered;
pub(crate) mod transparent;
pub(crate) mod tunnel;

use std::rc::Rc;
use std::sync::Arc;

use hashcache_access::AccessAction;
use hashcache_access::quota::RequestLimits;
use hashcache_base::failure::Failure;
use hashcache_base::net::address::check_connect_port;
use hashcache_base::task::spawn_local;
use hashcache_http::{Authority, HASHCACHE_LINK};
use hashcache_link::chunk_field::ChunkField;
use hashcache_upstream::Upgrade;
use hashcache_upstream::channel::Channel;
use hashcache_wire::Http2Kind;
use http::{HeaderMap, Version};

use self::chunked::{ChunkPair, Ended, Moved};
use self::dial::Destination;
use self::metered::Metered;
use self::tunnel::Side;
use crate::connection::Connection;
use crate::log_entry::{LogEntryBuilder, TunnelEntryBuilder};
use crate::permission::Permission;

/// Opens a tunnel. Connects first, so that the client gets an error response if that fails. Then
/// answers 200 with these fields and forwards bytes.
pub(crate) async fn tunnel(
    connection: &Rc<Connection>,
    authority: Authority,
    (fields, version): (&HeaderMap, Version),
    Permission {
        action,
        user,
        limits,
    }: Permission,
    log_entry: &mut LogEntryBuilder,
) -> Result<HeaderMap, Failure> {
    let worker = &connection.worker;
    if worker.common.is_us(&authority) {
        return Err(Failure::Loop);
    }
    check_ports(connection, authority.port)?;
    let to = Destination::new(worker, &authority, (fields, version))?;
    // A program behind a child does not know our certificate authority, so the tunnel is not
    // intercepted.
    if connection.child.is_none()
        && action != AccessAction::Tunnel
        && let Some(candidate) = intercepted::candidate(connection, &authority, user.as_ref(), &to)?
    {
        let candidate = candidate.within(limits);
        let candidate = if intercepted::is_browser(connection, fields) {
            candidate.of_browser()
        } else {
            candidate
        };
        intercepted::begin(connection, candidate, log_entry).await?;
        return Ok(HeaderMap::new());
    }
    if let Some(limits) = &limits {
        limits.check_quota()?;
    }
    let share = connection.allowance.share();
    let (upstream, next_hop) = to.dial(worker, share).await?;
    log_entry.set_next_hop(Some(next_hop));
    let offer = ChunkField::from_fields(fields);
    if let Some((pair, answer)) = offer.and_then(|offer| accept_chunks(connection, &offer)) {
        carry_chunks(connection, log_entry.begin_tunnel(), upstream, pair);
        return Ok(HeaderMap::from_iter([(HASHCACHE_LINK, answer.to_value())]));
    }
    switch(
        connection,
        log_entry.begin_tunnel(),
        async move { Some(upstream) },
        limits,
        (),
    );
    Ok(HeaderMap::new())
}

/// Shows a browser the error page for `failure`, the reason for refusing this tunnel: browsers show
/// no content of a refused CONNECT. If the host may be intercepted, the CONNECT is accepted, this
/// proxy terminates TLS, and a request inside gets the page. Nothing is sent to the host.
///
/// # Errors
/// `failure`: the page cannot be shown.
pub(crate) async fn refuse(
    connection: &Rc<Connection>,
    authority: &Authority,
    (fields, version): (&HeaderMap, Version),
    failure: Failure,
    log_entry: &mut LogEntryBuilder,
) -> Result<(), Failure> {
    let worker = &connection.worker;
    let live = worker.common.live();
    let can_be_seen = matches!(failure, Failure::RuleDenied(_))
        && intercepted::is_browser(connection, fields)
        && !worker.common.is_us(authority)
        && check_ports(connection, authority.port).is_ok()
        && intercepted::is_listed(&live, authority)
        && !connection.access.may_be_tunnel(&live, authority);
    let user = log_entry.user().cloned();
    let candidate = || {
        let to = Destination::new(worker, authority, (fields, version)).ok()?;
        let candidate = intercepted::candidate(connection, authority, user.as_ref(), &to);
        Some(candidate.ok()??.refused(failure.clone()))
    };
    match can_be_seen.then(candidate).flatten() {
        Some(candidate) => intercepted::begin(connection, candidate, log_entry).await,
        None => Err(failure),
    }
}

/// Accepts a child's offer to code a stream in chunks, and returns the answer field. `None`: there
/// is too little memory, or the client is no child; then the stream passes unchanged.
fn accept_chunks(connection: &Connection, offer: &ChunkField) -> Option<(ChunkPair, ChunkField)> {
    let child = connection.child.as_ref()?;
    let Http2Kind::Link { counters, .. } = &child.kind else {
        return None;
    };
    let common = &connection.worker.common;
    let key = common.live().link.as_ref()?.names.key(&child.pin);
    let (own, memory) = chunked::reserve(&connection.allowance, common.shares.memory_max())?;
    let cache = connection.worker.cache.clone();
    let pair = ChunkPair {
        key,
        windows: chunked::agreed(own, offer),
        known: common.chunks.of(child.pin, key, &cache),
        cache,
        counters: Arc::clone(counters),
        _memory: memory,
    };
    let answer = ChunkField {
        window: own.receive,
        key: Some(key),
    };
    Some((pair, answer))
}

/// Forwards a stream's content in chunks, once the child has the response.
fn carry_chunks(
    connection: &Rc<Connection>,
    log_entry: TunnelEntryBuilder,
    upstream: Channel,
    pair: ChunkPair,
) {
    let client = connection.cell.upgraded();
    let connection = Rc::clone(connection);
    let open = connection.worker.metrics.tunnel();
    spawn_local(async move {
        let Ok(client) = client.await else {
            return log_entry.write(&connection.worker, 0, true);
        };
        let client = client.socket.begun_with(client.read);
        let worker = &connection.worker;
        let mut drained = connection.drained.clone();
        let stop = async move {
            let _ = drained.wait_for(|drained| *drained).await;
        };
        let mut reported = 0;
        let progress = |moved: Moved| {
            log_entry.write(worker, moved.from_near - reported, false);
            reported = moved.from_near;
        };
        let idle_time = worker.limits.tunnel_idle_time;
        // Boxed, because the future is large.
        let running = chunked::run(upstream, client, pair, idle_time, stop, progress);
        let (moved, ended) = Box::pin(running).await;
        log_entry.write(worker, moved.from_near - reported, ended == Ended::Broke);
        drop(open);
    });
}

/// Returns `Ok` if a tunnel may lead to `port`. A child has already checked the clients. It may
/// also use the ports that are allowed for requests, because it opens a tunnel when a client
/// changes the protocol (WebSocket).
fn check_ports(connection: &Connection, port: u16) -> Result<(), Failure> {
    let live = connection.worker.common.live();
    let checked = check_connect_port(&live.settings.allow_connect_port, port);
    match &connection.child {
        Some(_) => checked.or_else(|refused| {
            check_connect_port(&live.settings.allow_port, port).map_err(|_| refused)
        }),
        None => checked,
    }
}

/// Joins the client connection with an upstream connection that has switched protocols.
pub(crate) fn upgrade(
    connection: &Rc<Connection>,
    upgrade: Upgrade,
    limits: Option<RequestLimits>,
    log_entry: &mut LogEntryBuilder,
) {
    let Upgrade { stream, permit } = upgrade;
    let upstream = std::future::ready(Some(stream));
    let log_entry = log_entry.begin_tunnel();
    switch(connection, log_entry, upstream, limits, permit);
}

/// Forwards bytes both ways once the client has the response, within the limits. `held` is dropped
/// when the tunnel closes.
fn switch<U: Side + 'static>(
    connection: &Rc<Connection>,
    log_entry: TunnelEntryBuilder,
    upstream: impl Future<Output = Option<U>> + 'static,
    limits: Option<RequestLimits>,
    held: impl Sized + 'static,
) {
    let client = connection.cell.upgraded();
    let connection = Rc::clone(connection);
    let open = connection.worker.metrics.tunnel();
    spawn_local(async move {
        let (client, upstream) = tokio::join!(client, upstream);
        let (Ok(client), Some(upstream)) = (client, upstream) else {
            return log_entry.write(&connection.worker, 0, true);
        };
        // Bytes that the client sent after its request belong to the tunnel.
        let client = client.socket.begun_with(client.read);
        let upstream = Metered::new(upstream, limits);
        tunnel::carry(&connection, log_entry, client, upstream, (open, held)).await;
    });
}
