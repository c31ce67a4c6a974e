//! Detects the protocol of a new connection: TLS with ALPN, or plain HTTP/1.1 or HTTP/2.
//!
//! Called by `cores` before it serves a connection.
//!
//! Invariant: bytes that were read for the detection are read again by the server. Cost: nothing on
//! plain HTTP/1.1 listeners.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use hashcache_base::tls::identity::Identity;
use hashcache_wire::{PREFACE, Protocol, Socket, handshake};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::settings::Speaks;

/// Reason why a connection is not served.
#[derive(Debug)]
pub(super) enum NotServed {
    /// The client did not send enough bytes in time.
    Late,
    /// The handshake or the socket failed.
    Broken(io::Error),
}

/// Detects the protocol on a listener for `speaks`, within `limit`.
pub(super) async fn detect_protocol(
    socket: TcpStream,
    speaks: Speaks,
    identity: Option<Identity>,
    limit: Duration,
) -> Result<(Socket, Protocol), NotServed> {
    let settled = match (speaks, identity) {
        (Speaks::Http | Speaks::Transparent(_), _) => {
            return Ok((socket.into(), Protocol::Http1));
        }
        (Speaks::H2c, _) => timeout(limit, preface(socket)).await,
        (Speaks::Tls, Some(identity)) => {
            timeout(limit, handshake(socket.into(), identity.acceptor())).await
        }
        (Speaks::Tls, None) => Ok(Err(io::ErrorKind::NotFound.into())),
    };
    settled
        .map_err(|_| NotServed::Late)?
        .map_err(NotServed::Broken)
}

/// Reads until it is clear if the client starts with the HTTP/2 connection preface.
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// The result for a client that sends these pieces and then closes.
    async fn settled(pieces: &[&[u8]]) -> (Protocol, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (mut client, server) = (client.unwrap(), accepted.unwrap().0);
        client.set_nodelay(true).unwrap();
        let limit = Duration::from_secs(10);
        let settling = detect_protocol(server, Speaks::H2c, None, limit);
        let sending = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
        };
        let (settled, ()) = tokio::join!(settling, sending);
        let (mut socket, protocol) = settled.unwrap();
        let mut read = Vec::new();
        socket.read_to_end(&mut read).await.unwrap();
        (protocol, read)
    }

    #[tokio::test]
    async fn the_preface_tells_http_2_and_is_read_again_by_whoever_serves() {
        let request = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
        for (pieces, expected) in [
            (&[&PREFACE[..], b"frames"][..], Protocol::Http2),
            (
                &[&PREFACE[..3], &PREFACE[3..20], &PREFACE[20..]],
                Protocol::Http2,
            ),
            (&[&request[..]], Protocol::Http1),
            (&[&PREFACE[..16], b"Host: a.test\r\n\r\n"], Protocol::Http1),
            (&[&PREFACE[..5]], Protocol::Http1),
            (&[], Protocol::Http1),
        ] {
            let (protocol, read) = settled(pieces).await;
            assert_eq!((protocol, read), (expected, pieces.concat()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_not_waited_for_longer_than_for_a_head() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (_client, accepted) = tokio::join!(client, listener.accept());
        let server = accepted.unwrap().0;
        let settled = detect_protocol(server, Speaks::H2c, None, Duration::from_secs(10)).await;
        assert!(matches!(settled, Err(NotServed::Late)));
    }
}
