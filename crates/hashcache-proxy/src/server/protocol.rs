//! Which protocol a new connection speaks: TLS with ALPN, or the clear with or without a preface.
//!
//! Called by `cores` before it serves a connection.
//!
//! Invariant: what was read to find out is read again by whoever serves. Cost: nothing for plain
//! listeners of HTTP/1.1.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::identity::{HTTP_2, Identity};
use crate::settings::Speaks;
use crate::wire::{PREFACE, Socket};

/// How requests are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Why a connection is not served.
#[derive(Debug)]
pub(super) enum NotServed {
    /// The client said nothing, or not enough, in time.
    Late,
    /// The handshake failed, or the socket.
    Broken(io::Error),
}

/// Finds out what a client speaks on a listener for `speaks`, within `limit`.
pub(super) async fn settle(
    socket: TcpStream,
    speaks: Speaks,
    identity: Option<Identity>,
    limit: Duration,
) -> Result<(Socket, Protocol), NotServed> {
    let settled = match (speaks, identity) {
        (Speaks::Http, _) => return Ok((socket.into(), Protocol::Http1)),
        (Speaks::H2c, _) => timeout(limit, preface(socket)).await,
        (Speaks::Tls, Some(identity)) => timeout(limit, handshake(socket.into(), &identity)).await,
        (Speaks::Tls, None) => Ok(Err(io::ErrorKind::NotFound.into())),
    };
    settled
        .map_err(|_| NotServed::Late)?
        .map_err(NotServed::Broken)
}

/// Reads until it is clear whether the client begins with the preface of HTTP/2.
async fn preface(mut socket: TcpStream) -> io::Result<(Socket, Protocol)> {
    let mut begun = BytesMut::with_capacity(PREFACE.len());
    let protocol = loop {
        if begun[..] == PREFACE[..] {
            break Protocol::Http2;
        }
        if !PREFACE.starts_with(&begun) {
            break Protocol::Http1;
        }
        let mut page = [0; PREFACE.len()];
        let room = PREFACE.len() - begun.len();
        let read = socket.read(&mut page[..room]).await?;
        if read == 0 {
            break Protocol::Http1;
        }
        begun.extend_from_slice(&page[..read]);
    };
    Ok((Socket::from(socket).begun_with(begun.freeze()), protocol))
}

/// Shakes hands; who offers HTTP/2 gets it.
async fn handshake(socket: Socket, identity: &Identity) -> io::Result<(Socket, Protocol)> {
    let mut stream = identity.acceptor().accept(socket).await?;
    // What a client has not taken waits above, where it is counted.
    stream.get_mut().1.set_buffer_limit(Some(RECORD_BYTES));
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(HTTP_2) => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok((stream.into(), protocol))
}

/// The largest content of one record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
