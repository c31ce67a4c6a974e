//! CONNECT to a peer for a tunnel to an origin (RFC 9110, section 9.3.6), and the request of a
//! probe.
//!
//! Called by `Upstream::connect` for endpoints with `through`, and by `Upstream::probe`.
//!
//! Invariant: a byte after the head of the peer's 2xx belongs to the origin and is kept.
//! Cost: a round trip to the peer, and at most [`HEAD_MAX`] of memory for the answer.

use bytes::{Bytes, BytesMut};
use hashcache_base::failure::Failure;
use hashcache_http::Authority;
use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::peer::Peer;

/// Requests a tunnel to `to` from the peer at the other end of `stream`. Returns the bytes after
/// the head of the answer. `via` are the members of Via, this proxy's own included.
pub(super) async fn open_tunnel<S>(
    stream: &mut S,
    to: &Authority,
    peer: &Peer,
    via: &HeaderValue,
) -> Result<Bytes, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let terminated = |_| Failure::ConnectionTerminated;
    let head = request_head(to, peer, via);
    stream.write_all(&head).await.map_err(terminated)?;
    stream.flush().await.map_err(terminated)?;
    let mut read = BytesMut::with_capacity(READ_SIZE);
    loop {
        match parse(&read)? {
            Answer::Incomplete if read.len() >= HEAD_MAX => {
                return Err(Failure::ResponseMalformed("the peer's head is too large"));
            }
            Answer::Incomplete => {
                if stream.read_buf(&mut read).await.map_err(terminated)? == 0 {
                    return Err(Failure::ConnectionTerminated);
                }
            }
            Answer::Interim(length) => drop(read.split_to(length)),
            Answer::Tunnel(length) => {
                let _head = read.split_to(length);
                return Ok(read.freeze());
            }
            Answer::Refused(status) => return Err(Failure::PeerStatus { status }),
        }
    }
}

/// Sends OPTIONS to the peer at the other end of `stream`. Any answer in HTTP is a success.
pub(super) async fn ask_options<S>(
    stream: &mut S,
    peer: &Peer,
    via: &HeaderValue,
) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let terminated = |_| Failure::ConnectionTerminated;
    let to = &peer.settings.url.authority;
    let mut head = format!("OPTIONS * HTTP/1.1\r\nHost: {to}\r\nVia: ").into_bytes();
    head.extend_from_slice(via.as_bytes());
    head.extend_from_slice(b"\r\nMax-Forwards: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(&head).await.map_err(terminated)?;
    stream.flush().await.map_err(terminated)?;
    let mut begun = [0; 5];
    stream.read_exact(&mut begun).await.map_err(terminated)?;
    if &begun == b"HTTP/" {
        Ok(())
    } else {
        Err(Failure::ResponseMalformed("the peer does not answer HTTP"))
    }
}

fn request_head(to: &Authority, peer: &Peer, via: &HeaderValue) -> Vec<u8> {
    let mut head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nVia: ").into_bytes();
    head.extend_from_slice(via.as_bytes());
    head.extend_from_slice(b"\r\n");
    if let Some(authorization) = &peer.authorization {
        head.extend_from_slice(b"Proxy-Authorization: ");
        head.extend_from_slice(authorization.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// The answer in the bytes read so far.
enum Answer {
    Incomplete,
    /// An interim response; the value is the length in bytes.
    Interim(usize),
    /// The tunnel starts after this number of bytes.
    Tunnel(usize),
    Refused(u16),
}

fn parse(read: &[u8]) -> Result<Answer, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(read) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(Answer::Incomplete),
        Err(_) => return Err(Failure::ResponseMalformed("the peer does not answer HTTP")),
    };
    Ok(match response.code {
        Some(100 | 102..=199) => Answer::Interim(length),
        Some(200..=299) => Answer::Tunnel(length),
        Some(status) => Answer::Refused(status),
        None => Answer::Incomplete,
    })
}

/// Maximum size for the answer's head, bytes.
const HEAD_MAX: usize = 16 << 10;
const READ_SIZE: usize = 1 << 10;
const FIELDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Credentials, PeerHttps, PeerKind, PeerMisses, PeerSettings, PeerSummary};

    fn peer(credentials: Credentials) -> Peer {
        let settings = PeerSettings {
            name: "isp".into(),
            kind: PeerKind::Parent,
            url: "http://192.0.2.1:3128".parse().unwrap(),
            credentials,
            https: PeerHttps::Tunnel,
            icp: None,
            htcp: None,
            summary: PeerSummary::None,
            misses: PeerMisses::Fetched,
            weight: 1,
            pin: None,
        };
        settings.load(None).unwrap()
    }

    /// What the peer received, and the outcome, for a peer that answers with `answer`, cut after
    /// `first` bytes.
    async fn ask(answer: &'static [u8], first: usize) -> (String, Result<Bytes, Failure>) {
        let (mut near, mut far) = tokio::io::duplex(64 << 10);
        let serve = async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(far.read_u8().await.unwrap());
            }
            let first = first.min(answer.len());
            far.write_all(&answer[..first]).await.unwrap();
            tokio::task::yield_now().await;
            far.write_all(&answer[first..]).await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let to = Authority::parse("origin.test", hashcache_http::Scheme::Https).unwrap();
        let peer = peer(Credentials::Given("u:p".into()));
        let via = HeaderValue::from_static("1.1 us");
        tokio::join!(serve, open_tunnel(&mut near, &to, &peer, &via))
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_behind_the_answer_belong_to_the_origin() {
        let answer =
            b"HTTP/1.1 103 Wait\r\n\r\nHTTP/1.1 200 Connection established\r\nX: y\r\n\r\nSSH-2.0";
        for first in [0, 1, 20, 22, 40, answer.len()] {
            let (asked, begun) = ask(answer, first).await;
            assert_eq!(
                asked,
                "CONNECT origin.test:443 HTTP/1.1\r\nHost: origin.test:443\r\nVia: 1.1 us\r\n\
                 Proxy-Authorization: Basic dTpw\r\n\r\n"
            );
            let begun = begun.unwrap();
            assert!(b"SSH-2.0".starts_with(&begun), "{begun:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_other_than_2xx_is_a_failure_with_its_status() {
        let (_, refused) = ask(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", 5).await;
        assert_eq!(refused, Err(Failure::PeerStatus { status: 407 }));
        let (_, cut) = ask(b"HTTP/1.1 200", 5).await;
        assert_eq!(cut, Err(Failure::ConnectionTerminated));
        let (_, other) = ask(b"SSH-2.0-x\r\n\r\n", 5).await;
        assert!(matches!(other, Err(Failure::ResponseMalformed(_))));
        let long: &'static [u8] =
            Vec::leak([&b"HTTP/1.1 200 OK\r\nX: "[..], &[b'a'; 32 << 10]].concat());
        let (_, long) = ask(long, 5).await;
        assert!(matches!(long, Err(Failure::ResponseMalformed(_))));
    }
}
