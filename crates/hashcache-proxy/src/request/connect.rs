//! CONNECT: a tunnel to a port that is allowed, at an address that is allowed.

use std::io::Cursor;
use std::rc::Rc;

use hashcache_http::Authority;
use http::Response;
use tokio::io::AsyncReadExt;

use super::body::Body;
use super::note::Note;
use super::{Answer, Connection};
use crate::failure::Failure;
use crate::tunnel::{self, Carried, Ended};
use crate::upstream::address::{Purpose, check_connect_port};
use crate::upstream::connect::Endpoint;

/// Connects first, so that the client hears of a failure; then answers 200 and becomes a pipe.
pub(super) async fn tunnel(
    connection: &Rc<Connection>,
    authority: Authority,
    note: &mut Note,
) -> Answer {
    let worker = &connection.worker;
    if worker.common.is_us(&authority) {
        return Err(Failure::Loop);
    }
    check_connect_port(&worker.common.live().connect_ports, authority.port)?;
    let endpoint = Endpoint { authority, purpose: Purpose::Forward };
    let (upstream, peer) = worker.upstream().connect(&endpoint).await?;
    note.upstream(Some(peer));
    let client = connection.cell.upgraded();
    let note = note.hand_over();
    let connection = Rc::clone(connection);
    let open = worker.metrics.tunnel();
    tokio::task::spawn_local(async move {
        let worker = &connection.worker;
        let mut told = Carried::default();
        let Ok(client) = client.await else {
            note.write(worker, 0, 0, true);
            return;
        };
        // What the client sent along with its CONNECT belongs to the tunnel.
        let (read, write) = tokio::io::split(client.socket);
        let client = tokio::io::join(Cursor::new(client.read).chain(read), write);
        let mut drained = connection.drained.clone();
        let stop = async move {
            let _ = drained.wait_for(|drained| *drained).await;
        };
        let idle_time = worker.limits.tunnel_idle_time;
        let (carried, ended) = tunnel::run(client, upstream, idle_time, stop, |carried| {
            note.write(worker, carried.to_client - told.to_client, carried.to_client - told.to_client, false);
            told = carried;
        })
        .await;
        let passed = carried.to_client - told.to_client;
        let broke = matches!(ended, Ended::ClientBroke | Ended::UpstreamBroke);
        note.write(worker, passed, passed, broke);
        drop(open);
    });
    Ok(Response::new(Body::empty()))
}
