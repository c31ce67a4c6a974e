//! The two protocols of a client's connection, and the TLS handshake that selects the protocol.

use std::io;
use std::sync::Arc;

use hashcache_base::tls::HTTP_2;
use hashcache_link::counters::LinkCounters;
use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsAcceptor;

use super::linger::{LINGER, linger};
use super::socket::Socket;
use super::stream::ClientSide;

/// How requests are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and HTTP/1.0.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Accepts a TLS handshake; a client that offers HTTP/2 gets it.
pub async fn handshake(socket: Socket, acceptor: TlsAcceptor) -> io::Result<(Socket, Protocol)> {
    let mut stream = acceptor.accept(socket).await?;
    // Limited, because unsent bytes must wait above this layer, where they are accounted.
    stream.get_mut().1.set_buffer_limit(Some(RECORD_BYTES));
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(HTTP_2) => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok((stream.into(), protocol))
}

/// Accepts the TLS handshake of a child. `counters` looks up the link counters by the child's
/// certificate.
pub async fn link_handshake<T>(
    socket: Socket,
    acceptor: TlsAcceptor,
    counters: impl FnOnce(&CertificateDer<'static>) -> io::Result<(T, Arc<LinkCounters>)>,
) -> io::Result<(Socket, T, Arc<LinkCounters>)> {
    let mut stream = match acceptor.accept(socket).into_fallible().await {
        Ok(stream) => stream,
        Err((error, socket)) => {
            // The child has sent more by now, and a RST would discard the alert, which carries the
            // reason.
            linger(socket, ClientSide::MaySend, &LINGER).await;
            return Err(error);
        }
    };
    let (socket, connection) = stream.get_mut();
    connection.set_buffer_limit(Some(RECORD_BYTES));
    let certificates = connection.peer_certificates().unwrap_or_default();
    let certificate = certificates
        .first()
        .ok_or(io::ErrorKind::PermissionDenied)?;
    let (child, counters) = counters(certificate)?;
    if connection.alpn_protocol() != Some(HTTP_2) {
        return Err(io::Error::other("the child does not offer HTTP/2"));
    }
    socket.count_in(&counters);
    Ok((stream.into(), child, counters))
}

/// The largest content of a TLS record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;

/// Memory for TLS: the state, 9 KiB as measured, and a record to send.
pub const TLS_BYTES: u64 = 24 << 10;
/// Memory for HTTP/2: hyper's state, buffers and field tables. Measured on 200 idle connections:
/// each took 23 KiB more than a connection without HTTP/2, and 30 KiB more with TLS.
pub const HTTP_2_BYTES: u64 = 28 << 10;
/// Memory for both on a connection that started without them.
pub const INTERCEPTED_BYTES: u64 = TLS_BYTES + HTTP_2_BYTES;
