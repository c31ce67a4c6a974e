//! CONNECT and protocol upgrades (WebSocket): tunnels to allowed ports at allowed addresses.

mod dial;
pub(crate) mod intercepted;
mod tunnel;

use std::rc::Rc;

use hashcache_http::{Authority, Scheme, via_members};
use http::{HeaderMap, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use self::dial::Destination;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::log_entry::{LogEntryBuilder, TunnelEntryBuilder};
use crate::route::{RouteRequest, Siblings};
use crate::upstream::Upgrade;
use crate::upstream::address::{Purpose, check_connect_port};

/// Connects first, so that the client gets an error response if that fails. Then answers 200 and
/// forwards bytes.
pub(crate) async fn tunnel(
    connection: &Rc<Connection>,
    authority: Authority,
    (fields, version): (&HeaderMap, Version),
    log_entry: &mut LogEntryBuilder,
) -> Result<(), Failure> {
    let worker = &connection.worker;
    if worker.common.is_us(&authority) {
        return Err(Failure::Loop);
    }
    check_connect_port(&worker.common.live().connect_ports, authority.port)?;
    let route = worker.route(RouteRequest {
        // The protocol inside the tunnel is not known here.
        scheme: Scheme::Http,
        authority: &authority,
        path: "",
        purpose: Purpose::Forward,
        is_tunnel: true,
        via_members: via_members(fields),
        siblings: Siblings::NotAsked,
    })?;
    let via = route
        .has_peer()
        .then(|| worker.common.via.chain(fields, version));
    let to = Destination { route, via };
    if let Some(candidate) = intercepted::candidate(connection, &authority, &to) {
        return intercepted::begin(connection, candidate, log_entry).await;
    }
    let share = connection.allowance.share();
    let (upstream, next_hop) = to.dial(worker, share).await?;
    log_entry.set_next_hop(Some(next_hop));
    switch(
        connection,
        log_entry.begin_tunnel(),
        async move { Some(upstream) },
        (),
    );
    Ok(())
}

/// Joins the client's connection with an upstream connection that has switched protocols.
pub(crate) fn upgrade(
    connection: &Rc<Connection>,
    upgrade: Upgrade,
    log_entry: &mut LogEntryBuilder,
) {
    let Upgrade { stream, permit } = upgrade;
    let upstream = async move { stream.await.ok().map(TokioIo::new) };
    switch(connection, log_entry.begin_tunnel(), upstream, permit);
}

/// Forwards bytes both ways once the client has the response. `held` is dropped at the end.
fn switch<U: AsyncRead + AsyncWrite + Unpin + 'static>(
    connection: &Rc<Connection>,
    log_entry: TunnelEntryBuilder,
    upstream: impl Future<Output = Option<U>> + 'static,
    held: impl Sized + 'static,
) {
    let client = connection.cell.upgraded();
    let connection = Rc::clone(connection);
    let open = connection.worker.metrics.tunnel();
    tokio::task::spawn_local(async move {
        let (client, upstream) = tokio::join!(client, upstream);
        let (Ok(client), Some(upstream)) = (client, upstream) else {
            return log_entry.write(&connection.worker, 0, true);
        };
        // Bytes that the client sent behind its request belong to the tunnel.
        let client = client.socket.begun_with(client.read);
        tunnel::carry(&connection, log_entry, client, upstream, (open, held)).await;
    });
}
