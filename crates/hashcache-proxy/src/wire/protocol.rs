//! The two protocols that a client's connection may speak, and the handshake that decides.

use std::io;

use tokio_rustls::TlsAcceptor;

use super::socket::Socket;
use crate::tls::HTTP_2;

/// How requests are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Shakes hands; who offers HTTP/2 gets it.
pub(crate) async fn handshake(
    socket: Socket,
    acceptor: TlsAcceptor,
) -> io::Result<(Socket, Protocol)> {
    let mut stream = acceptor.accept(socket).await?;
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

/// What TLS takes beside: its state, 9 KiB by measurement, and a record on its way out.
pub(crate) const TLS_BYTES: u64 = 24 << 10;
/// What HTTP/2 takes beside: hyper's state, its buffers and tables of fields; of 200 connections at
/// rest each took 23 KiB more than the first of these, with TLS 30.
pub(crate) const HTTP_2_BYTES: u64 = 28 << 10;
/// What both take together, on a connection that began in the clear.
pub(crate) const INTERCEPTED_BYTES: u64 = TLS_BYTES + HTTP_2_BYTES;
