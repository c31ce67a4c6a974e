//! Tunnels: CONNECT to a port that is allowed, at an address that is allowed, and connections that
//! change to another protocol (WebSocket).

pub(crate) mod intercepted;
mod tunnel;

use std::rc::Rc;

use hashcache_http::{Authority, Scheme};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::log_entry::{LogEntryBuilder, TunnelEntryBuilder};
use crate::upstream::Upgrade;
use crate::upstream::address::{Purpose, check_connect_port};
use crate::upstream::endpoint::Endpoint;

/// Connects first, so that the client hears of a failure; then the answer is 200 and the connection
/// becomes a pipe.
pub(crate) async fn tunnel(
    connection: &Rc<Connection>,
    authority: Authority,
    log_entry: &mut LogEntryBuilder,
) -> Result<(), Failure> {
    let worker = &connection.worker;
    if worker.common.is_us(&authority) {
        return Err(Failure::Loop);
    }
    check_connect_port(&worker.common.live().connect_ports, authority.port)?;
    let endpoint = Endpoint {
        authority,
        purpose: Purpose::Forward,
        // Whatever is spoken inside is the client's.
        scheme: Scheme::Http,
    };
    if let Some(candidate) = intercepted::candidate(connection, &endpoint) {
        return intercepted::begin(connection, candidate, log_entry).await;
    }
    let (upstream, peer) = worker.upstream().connect(&endpoint).await?;
    log_entry.set_upstream(Some(peer));
    switch(
        connection,
        log_entry.begin_tunnel(),
        async move { Some(upstream) },
        (),
    );
    Ok(())
}

/// Makes a pipe of the client's connection and the one upstream that has agreed to change protocol.
pub(crate) fn upgrade(
    connection: &Rc<Connection>,
    upgrade: Upgrade,
    log_entry: &mut LogEntryBuilder,
) {
    let Upgrade { stream, permit } = upgrade;
    let upstream = async move { stream.await.ok().map(TokioIo::new) };
    switch(connection, log_entry.begin_tunnel(), upstream, permit);
}

/// Carries bytes both ways once the answer has gone to the client. `held` is kept until the end.
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
        // What the client sent along with its request belongs to the tunnel.
        let client = client.socket.begun_with(client.read);
        tunnel::carry(&connection, log_entry, client, upstream, (open, held)).await;
    });
}
