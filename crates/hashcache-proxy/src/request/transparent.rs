//! Requests on a connection to another server that the network redirected here.
//!
//! Called by `request`. The client chooses the Host field freely. A malicious program could connect
//! to its own server and send the name of another site. The response of that server would then be
//! stored under URLs of the site (CVE-2009-0801). Or the program could name a server that it may
//! not reach. Therefore a name counts only if it resolves to the original destination of the
//! connection. If it does not, the request is sent to that destination, and the store is not used.
//! The access rules must then permit both the name and the address, and the limits of both apply.
//!
//! Invariant: every response that is stored, or served from the store, belongs to a name that
//! resolves to the original destination of the connection.
//! Cost: a name lookup, usually from memory.

use std::net::SocketAddr;

use hashcache_base::failure::Failure;
use hashcache_http::{Authority, Scheme, Target};
use http::{Method, StatusCode};

use crate::connection::Connection;
use crate::permission::{Permission, decide_without_login, permission};

/// Refuses requests that no web server would get, and requests that would return to this proxy.
pub(super) fn check(connection: &Connection, target: &Target) -> Result<(), Failure> {
    if target.scheme != Scheme::Http {
        return Err(Failure::Refused {
            status: StatusCode::BAD_REQUEST,
            reason: "a connection to port 80 carries http URLs only",
        });
    }
    if connection.worker.common.is_us(&target.authority) {
        Err(Failure::Loop)
    } else {
        Ok(())
    }
}

/// The permission of the client, and the only server that may answer a request for `named`; `None`:
/// the client had connected to the server that it names.
///
/// # Errors
/// The rules refuse the name, or that server by address, or a limit on requests is reached.
pub(super) async fn permit(
    connection: &Connection,
    destination: SocketAddr,
    (method, named): (&Method, &Authority),
) -> Result<(Permission, Option<Authority>), Failure> {
    let decided = decide_without_login(connection, (method, named))?;
    let upstream = connection.worker.upstream();
    let client = connection.allowance.share().network();
    let leads_there = upstream.leads_to(&named.host, destination.ip(), client);
    let is_named = named.port == destination.port() && leads_there.await;
    if is_named {
        return Ok((permission(connection, decided, None)?, None));
    }
    let server = Authority::from(destination);
    let decided = decided.with_limits_of(decide_without_login(connection, (method, &server))?);
    Ok((permission(connection, decided, None)?, Some(server)))
}
