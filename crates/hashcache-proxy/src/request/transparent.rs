//! Requests on a connection to another server that the network has sent here.
//!
//! Called by `request`. The client chooses the field Host freely. A malicious program could connect
//! to its own server and send the name of another site. The response of its server would then be
//! stored under URLs of that site (CVE-2009-0801). Or it could name a server that it may not reach.
//! So a name counts only if it resolves to the original destination of the connection. If it does
//! not, the request is sent to that destination, and the store is not used. The access rules must
//! then permit both the name and the address, and the limits of both hold.
//!
//! Invariant: what is stored, or given from the store, is of a name that leads to the original
//! destination of the connection.
//! Cost: a lookup of the name, usually from memory.

use std::net::SocketAddr;

use hashcache_base::failure::Failure;
use hashcache_http::{Authority, Scheme, Target};
use http::{Method, StatusCode};

use crate::connection::Connection;
use crate::permission::{Permission, decide_without_login, permission};

/// Refuses what no web server would be asked for, and what would come back here.
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

/// What the client may do, and the only server that may answer a request for `named`; `None`: the
/// client had connected to the server that it names.
///
/// # Errors
/// The rules refuse the name, or that server by its address, or a limit on requests is reached.
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
