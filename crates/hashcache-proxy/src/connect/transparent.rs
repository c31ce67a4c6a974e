//! TLS connections to other servers that the network redirected here: each becomes a tunnel, or is
//! intercepted.
//!
//! Called by `server` for connections to port 443. The server name in the ClientHello is used like
//! the host of a CONNECT if it resolves to the original destination address. Otherwise (no name,
//! another name, no TLS) the address itself is used.
//!
//! Invariants: a client that is not intercepted reaches the original destination address, or
//! another address to which the same name resolves. The decision to intercept a host is the same as
//! for a CONNECT. The access rules must permit both that server and the name that the client sent,
//! and the limits of both apply.
//! Cost: that of a CONNECT, a name lookup, and the time of `intercepted::peek_time` if the client
//! waits for the server.

use std::net::SocketAddr;
use std::rc::Rc;

use hashcache_access::AccessAction;
use hashcache_access::quota::RequestLimits;
use hashcache_base::failure::Failure;
use hashcache_http::{Authority, Host};
use hashcache_intercept::Reason;
use hashcache_intercept::client_hello::ParsedHello;
use hashcache_intercept::peek::peek;
use hashcache_wire::Socket;
use http::{HeaderMap, Method, Version};

use super::dial::{self, Destination};
use super::intercepted::{Candidate, HIDDEN_HOST, hides_host};
use super::{check_ports, intercepted};
use crate::connection::Connection;
use crate::log_entry::TunnelEntryBuilder;
use crate::permission::{self, Permission};

/// Serves a redirected connection with the original destination `address`.
pub(crate) async fn serve(connection: Rc<Connection>, socket: Socket, address: SocketAddr) {
    let worker = &connection.worker;
    let server = Authority::from(address);
    let client = connection.client;
    let mut log_entry = TunnelEntryBuilder::of_transparent(worker, client, server.to_string());
    let mut client = socket;
    // The client has no other sign that something failed.
    client.reset_on_drop(true);
    if let Some(failure) = connection.denied() {
        return log_entry.refused(worker, &failure);
    }
    let mut drained = connection.drained.clone();
    let time = intercepted::peek_time(&connection);
    let peeking = Box::pin(peek(&mut client, time, &connection.allowance));
    let peeked = tokio::select! {
        peeked = peeking => peeked,
        _ = drained.wait_for(|drained| *drained) => return,
    };
    if peeked.bytes.is_empty() && matches!(peeked.seen, Err(Reason::Ended)) {
        // Browsers open connections that they may not need.
        return;
    }
    // The connection becomes a tunnel, or gets a new cell: it must not be closed because of a slow
    // head.
    connection.cell.leave_heads();
    let client = client.begun_with(peeked.bytes).until_read(peeked.memory);
    let named = match &peeked.seen {
        Ok(hello) => named(&connection, hello, address).await,
        Err(reason) => Err(*reason),
    };
    let authority = named.clone().unwrap_or(server);
    log_entry.set_authority(authority.to_string());
    let (to, candidate, limits) = match way(&connection, &authority, &peeked.seen, named) {
        Ok(way) => way,
        Err(failure) => return log_entry.refused(worker, &failure),
    };
    client.reset_on_drop(false);
    match candidate {
        Some(candidate) => {
            let begun = (client, peeked.seen);
            let candidate = candidate.within(limits);
            intercepted::answer(&connection, candidate, begun, None, log_entry).await;
        }
        None => dial::carry(&connection, (client, None), (&to, limits), log_entry).await,
    }
}

/// The destination for `authority`, the interception candidate if TLS may be intercepted, and the
/// limits for a tunnel. `named` is an error if `authority` is not the name that the client sent.
///
/// # Errors
/// The client may not have a tunnel, or there is no route.
fn way(
    connection: &Connection,
    authority: &Authority,
    hello: &Result<ParsedHello, Reason>,
    named: Result<Authority, Reason>,
) -> Result<(Destination, Option<Candidate>, Option<RequestLimits>), Failure> {
    let worker = &connection.worker;
    if connection.gets_stored_only() {
        return Err(Failure::NotCached);
    }
    check_ports(connection, authority.port)?;
    let Permission { action, limits, .. } = permit(connection, authority, hello)?;
    let to = Destination::new(worker, authority, (&HeaderMap::new(), Version::HTTP_11))?;
    let candidate = match named {
        Ok(_) if action == AccessAction::Tunnel => None,
        Ok(_) => intercepted::candidate(connection, authority, None, &to)?,
        Err(reason) => {
            if worker.common.live().intercept.is_some() {
                worker.metrics.not_intercepted(reason);
            }
            None
        }
    };
    Ok((to, candidate, limits))
}

/// Applies the access rules to a tunnel to `authority`. If the name in the ClientHello does not
/// resolve there, the rules judge that name too: many servers answer for several names, and DNS may
/// give other clients other addresses.
fn permit(
    connection: &Connection,
    authority: &Authority,
    hello: &Result<ParsedHello, Reason>,
) -> Result<Permission, Failure> {
    let may_open = |authority| {
        let request = (&Method::CONNECT, authority);
        permission::decide_without_login(connection, request)
    };
    let mut decided = may_open(authority)?;
    let name = match hello {
        Ok(hello) => hello.name.as_deref(),
        Err(reason) if hides_host(*reason, connection) => return Err(HIDDEN_HOST),
        Err(_) => None,
    };
    if let Some(host) = name.and_then(|name| Host::parse(name).ok())
        && host != authority.host
    {
        let port = authority.port;
        decided = decided.with_limits_of(may_open(&Authority { host, port })?);
    }
    permission::permission(connection, decided, None)
}

/// The server by the name in the ClientHello, if that name resolves to `address`.
async fn named(
    connection: &Connection,
    hello: &ParsedHello,
    address: SocketAddr,
) -> Result<Authority, Reason> {
    let name = hello.name.as_deref().ok_or(Reason::NoName)?;
    let host = Host::parse(name).map_err(|_| Reason::OtherAddress)?;
    let client = connection.allowance.share().network();
    let upstream = connection.worker.upstream();
    if upstream.leads_to(&host, address.ip(), client).await {
        Ok(Authority {
            host,
            port: address.port(),
        })
    } else {
        Err(Reason::OtherAddress)
    }
}
