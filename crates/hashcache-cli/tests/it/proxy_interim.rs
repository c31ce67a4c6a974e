//! Interim responses of origins, as clients of the real proxy see them, in each combination of
//! HTTP/1.1 and HTTP/2.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_rustls::server::TlsStream;

use crate::Home;
use crate::operation::Running;
use crate::proxy_tls::{Pair, handshake, pair, write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

use Version::{Http1, Http2};

impl Version {
    fn alpn(self) -> &'static [u8] {
        match self {
            Http1 => b"http/1.1",
            Http2 => b"h2",
        }
    }
}

/// An origin of uploads, which hints, is busy and asks for the content before it answers with it.
async fn origin(pair: &Pair, version: Version) -> SocketAddr {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![pair.cert.der().clone()], key);
    let mut config = config.unwrap();
    config.alpn_protocols = vec![version.alpn().to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // The proxy offers HTTP/1.1 only where it must.
            if let Ok(stream) = acceptor.accept(socket).await {
                match version {
                    Http1 => drop(tokio::spawn(answer_1(stream))),
                    Http2 => drop(tokio::spawn(answer_2(stream))),
                }
            }
        }
    });
    address
}

async fn answer_1(mut stream: TlsStream<TcpStream>) {
    let head = until_empty_line(&mut stream).await;
    assert!(
        head.to_ascii_lowercase().contains("expect: 100-continue"),
        "{head}"
    );
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
                   HTTP/1.1 100 Continue\r\n\r\n";
    stream.write_all(interim.as_bytes()).await.unwrap();
    let mut content = [0; 5];
    stream.read_exact(&mut content).await.unwrap();
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
    stream.write_all(answer).await.unwrap();
    stream.write_all(&content).await.unwrap();
    stream.shutdown().await.unwrap();
}

async fn answer_2(stream: TlsStream<TcpStream>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut reply))) = connection.accept().await {
        tokio::spawn(async move {
            assert_eq!(request.headers()["expect"], "100-continue");
            for (status, link) in [(103, Some("</a>")), (102, None), (100, None)] {
                let mut interim = Response::builder().status(status);
                if let Some(link) = link {
                    interim = interim.header("link", link);
                }
                reply.send_informational(interim.body(()).unwrap()).unwrap();
            }
            let mut content = Vec::new();
            let mut body = request.into_body();
            while let Some(data) = body.data().await {
                content.extend(data.unwrap());
            }
            let response = Response::builder().header("content-length", 5);
            let response = response.body(()).unwrap();
            let mut stream = reply.send_response(response, false).unwrap();
            stream.send_data(Bytes::from(content), true).unwrap();
        });
    }
}

/// Responses that a client of one version receives: statuses in order, Link of the 103, content.
type Heard = (Vec<u16>, Vec<String>, Vec<u8>);

async fn ask(version: Version, stream: ClientStream<TcpStream>) -> Heard {
    match version {
        Http1 => ask_1(stream).await,
        Http2 => ask_2(stream).await,
    }
}

async fn ask_1(mut stream: ClientStream<TcpStream>) -> Heard {
    let request = "PUT /x HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n\
                   Content-Length: 5\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut statuses, mut links) = (Vec::new(), Vec::new());
    loop {
        let head = until_empty_line(&mut stream).await;
        let status = head["HTTP/1.1 ".len()..][..3].parse().unwrap();
        statuses.push(status);
        let link = head.lines().find_map(|line| line.strip_prefix("Link: "));
        links.extend(link.map(str::to_owned));
        match status {
            100 => stream.write_all(b"hello").await.unwrap(),
            200 => break,
            _ => {}
        }
    }
    let mut content = Vec::new();
    stream.read_to_end(&mut content).await.unwrap();
    (statuses, links, content)
}

async fn ask_2(stream: ClientStream<TcpStream>) -> Heard {
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::put("https://a.test/x").header("expect", "100-continue");
    let request = request.header("content-length", 5).body(()).unwrap();
    let (mut response, mut content) = sender.send_request(request, false).unwrap();
    let (mut statuses, mut links) = (Vec::new(), Vec::new());
    while let Some(interim) = std::future::poll_fn(|cx| response.poll_informational(cx)).await {
        let interim = interim.unwrap();
        statuses.push(interim.status().as_u16());
        let link = interim.headers().get("link");
        links.extend(link.map(|link| link.to_str().unwrap().to_owned()));
        if interim.status() == 100 {
            let hello = Bytes::from_static(b"hello");
            content.send_data(hello, true).unwrap();
        }
    }
    let response = response.await.unwrap();
    statuses.push(response.status().as_u16());
    let (mut content, mut body) = (Vec::new(), response.into_body());
    while let Some(data) = body.data().await {
        content.extend(data.unwrap());
    }
    (statuses, links, content)
}

async fn until_empty_line(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

const WAIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn interim_responses_pass_between_all_versions() {
    let (home, site, at_origin) = (Home::new(), pair("a.test"), pair("localhost"));
    write(&home, &site, &site);
    home.file("origin.pem", &at_origin.cert.pem());
    for to in [Http1, Http2] {
        let port = origin(&at_origin, to).await.port();
        let flags = [
            "--config=/dev/null",
            "--upstream-ca=origin.pem",
            &format!("--accelerate=https://localhost:{port}"),
            "--accelerate-host=a.test",
            "--tls-cert=site.pem",
            "--tls-key=site.key",
        ];
        let proxy = Running::start(&home, &flags);
        for from in [Http1, Http2] {
            let stream = handshake(proxy.listen, &site, from.alpn()).await.unwrap();
            let asking = timeout(WAIT, ask(from, stream)).await;
            let (mut statuses, links, content) = asking.expect("an answer");
            assert_eq!(statuses.pop(), Some(200), "{from:?} to {to:?}");
            // The 100 is sent by whoever reads the content next.
            statuses.sort_unstable();
            assert_eq!(statuses, [100, 102, 103], "{from:?} to {to:?}");
            assert_eq!(
                (&links[..], &content[..]),
                (&["</a>".to_owned()][..], &b"hello"[..])
            );
        }
        proxy.end();
    }
}
