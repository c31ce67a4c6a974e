//! The two protocols of a client's connection, and the TLS handshake that chooses one.

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
    // Bytes that the client has not taken wait above this layer, where they are counted.
    stream.get_mut().1.set_buffer_limit(Some(RECORD_BYTES));
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(HTTP_2) => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok((stream.into(), protocol))
}

/// Accepts a TLS handshake of a child. `counters` finds the counters of its link by the certificate
/// that it has shown.
pub async fn link_handshake<T>(
    socket: Socket,
    acceptor: TlsAcceptor,
    counters: impl FnOnce(&CertificateDer<'static>) -> io::Result<(T, Arc<LinkCounters>)>,
) -> io::Result<(Socket, T, Arc<LinkCounters>)> {
    let mut stream = match acceptor.accept(socket).into_fallible().await {
        Ok(stream) => stream,
        Err((error, socket)) => {
            // It has sent more by now, and a reset would take the alert from it, which tells why.
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

/// The largest content of one record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;

/// Memory of TLS: its state, 9 KiB as measured, and a record to send.
pub const TLS_BYTES: u64 = 24 << 10;
/// Memory of HTTP/2: hyper's state, its buffers and field tables. Of 200 idle connections each took
/// 23 KiB more than one without HTTP/2, with TLS 30.
pub const HTTP_2_BYTES: u64 = 28 << 10;
/// Memory of both on a connection that began without them.
pub const INTERCEPTED_BYTES: u64 = TLS_BYTES + HTTP_2_BYTES;
