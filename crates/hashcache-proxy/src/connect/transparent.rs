//! TLS connections to other servers that the network has sent here: a tunnel, or interception.
//!
//! Called by `server` for connections to port 443. The server name of the ClientHello stands for
//! the host of a CONNECT if it leads to the address that the client had connected to. Otherwise
//! (no name, another name, no TLS) the address itself stands for it.
//!
//! Invariants: a client that is not intercepted reaches the address that it had connected to, or
//! another one of the name that leads there. Whether a host may be intercepted is decided as for a
//! CONNECT. Cost: that of a CONNECT, a lookup of the name, and up to three seconds if the client
//! waits for the server.

use std::net::SocketAddr;
use std::rc::Rc;

use hashcache_http::{Authority, Host};
use http::{HeaderMap, Version};

use super::dial::{self, Destination};
use super::{check_ports, intercepted};
use crate::connection::Connection;
use crate::intercept::client_hello::ParsedHello;
use crate::intercept::peek::peek;
use crate::intercept::{PEEK_TIME, Reason};
use crate::log_entry::TunnelEntryBuilder;
use crate::wire::Socket;
use crate::worker::Worker;

/// Serves a connection whose client had connected to `address`.
pub(crate) async fn serve(connection: Rc<Connection>, socket: Socket, address: SocketAddr) {
    let worker = &connection.worker;
    let server = Authority::from(address);
    let client = connection.client;
    let mut log_entry = TunnelEntryBuilder::of_transparent(worker, client, server.to_string());
    if let Some(failure) = connection.denied() {
        return log_entry.failed(worker, &failure);
    }
    let mut client = socket;
    let mut drained = connection.drained.clone();
    let peeking = Box::pin(peek(&mut client, PEEK_TIME, &worker.cache));
    let peeked = tokio::select! {
        peeked = peeking => peeked,
        _ = drained.wait_for(|drained| *drained) => return,
    };
    if peeked.bytes.is_empty() && matches!(peeked.seen, Err(Reason::Ended)) {
        // Browsers open connections that they may not need.
        return;
    }
    let client = client.begun_with(peeked.bytes).until_read(peeked.memory);
    let named = match &peeked.seen {
        Ok(hello) => named(worker, hello, address).await,
        Err(reason) => Err(*reason),
    };
    let authority = named.clone().unwrap_or(server);
    log_entry.set_authority(authority.to_string());
    let said = (&HeaderMap::new(), Version::HTTP_11);
    let to = check_ports(&connection, address.port())
        .and_then(|()| Destination::of(worker, &authority, said));
    let to = match to {
        Ok(to) => to,
        Err(failure) => return log_entry.failed(worker, &failure),
    };
    let candidate = match named {
        Ok(_) => intercepted::candidate(&connection, &authority, &to),
        Err(reason) => {
            if worker.common.live().intercept.is_some() {
                worker.metrics.not_intercepted(reason);
            }
            None
        }
    };
    match candidate {
        Some(candidate) => {
            let begun = (client, peeked.seen);
            intercepted::answer(&connection, candidate, begun, None, log_entry).await;
        }
        None => dial::carry(&connection, (client, None), &to, log_entry).await,
    }
}

/// The server by its name in the ClientHello, if that leads to `address`.
async fn named(
    worker: &Worker,
    hello: &ParsedHello,
    address: SocketAddr,
) -> Result<Authority, Reason> {
    let name = hello.name.as_deref().ok_or(Reason::NoName)?;
    let host = Host::parse(name).map_err(|_| Reason::OtherAddress)?;
    match worker.upstream().leads_to(&host, address.ip()).await {
        true => Ok(Authority {
            host,
            port: address.port(),
        }),
        false => Err(Reason::OtherAddress),
    }
}
