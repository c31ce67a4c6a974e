//! Responses from memory mixed with responses from the service, on the same connection.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use hashcache_base::share::{Share, Shares};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::cell::OnSent;

/// Answers each target `/mN` with N bytes of content, and records the end of each response.
#[derive(Default)]
struct Memory {
    ends: Rc<RefCell<Vec<ExchangeEnd>>>,
    /// The charge for all content, if any.
    share: Option<Share>,
}

impl MemoryHits for Memory {
    fn answer(
        &self,
        request: &PlainRequest<'_>,
        head: &mut ResponseHead<'_>,
    ) -> Option<MemoryResponse> {
        let size = request.target.strip_prefix("/m")?.parse().unwrap();
        let content = content(size);
        head.begin();
        head.push_length(size as u64);
        head.end();
        let ends = Rc::clone(&self.ends);
        let on_sent: OnSent = Box::new(move |end| ends.borrow_mut().push(end));
        let cut = content.len() / 3;
        let pieces = [content.slice(..cut), Bytes::new(), content.slice(cut..)];
        Some(MemoryResponse {
            content: pieces.into(),
            charge: self.share.as_ref().and_then(|it| it.take(size as u64)),
            on_sent,
        })
    }
}

fn content(size: usize) -> Bytes {
    (0..size).map(|n| b"0123456789"[n % 10]).collect()
}

fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

/// Runs `client` against a connection until `stop`. Returns the reason for closing it, and the
/// recorded ends of the responses from memory.
async fn talk_with_memory<CF: Future>(
    stopping: watch::Receiver<bool>,
    client: impl FnOnce(DuplexStream) -> CF,
) -> (Ending, CF::Output, Vec<ExchangeEnd>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (serving, ends) = serve_with_memory(far, stopping);
    let (ending, output) = tokio::join!(serving, client(near));
    let ends = ends.borrow().clone();
    (ending, output, ends)
}

/// Serves `socket`; the list gets the recorded ends of the responses from memory.
fn serve_with_memory(
    socket: impl Into<Socket>,
    stopping: watch::Receiver<bool>,
) -> (impl Future<Output = Ending>, Rc<RefCell<Vec<ExchangeEnd>>>) {
    serve_from(Memory::default(), socket, stopping)
}

fn serve_from(
    memory: Memory,
    socket: impl Into<Socket>,
    stopping: watch::Receiver<bool>,
) -> (impl Future<Output = Ending>, Rc<RefCell<Vec<ExchangeEnd>>>) {
    let ends = Rc::clone(&memory.ends);
    let socket = socket.into();
    let serving = async move {
        let cell = Cell::new();
        let service = |request| echo(request, cell.clone());
        let limits = Rc::new(Limits::default());
        let memory = Some(Rc::new(memory) as Rc<dyn MemoryHits>);
        serve_connection(socket, &limits, &cell, memory, service, stopping).await
    };
    (serving, ends)
}

async fn sent_and_closed(input: Vec<u8>) -> (Ending, String, Vec<ExchangeEnd>) {
    let (_stop, stopping) = watch::channel(false);
    talk_with_memory(stopping, |mut client| async move {
        let (mut read, mut write) = tokio::io::split(&mut client);
        let writing = async {
            write.write_all(&input).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut output = Vec::new();
        let (_, read) = tokio::join!(writing, read.read_to_end(&mut output));
        read.unwrap();
        String::from_utf8(output).unwrap()
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order_whichever_way_each_takes() {
    let sizes = [1, 70_000, 0, 3, 200_000];
    for hyper_first in [false, true] {
        let mut input = Vec::new();
        let mut expected = Vec::new();
        for (n, size) in sizes.into_iter().enumerate() {
            let mut of_hyper = || {
                input.extend(get(&format!("/h{n}")));
                expected.push(format!("<GET /h{n}  0>"));
            };
            if hyper_first {
                of_hyper();
            }
            input.extend(get(&format!("/m{size}")));
            expected.push(String::from_utf8(content(size).into()).unwrap());
        }
        let (ending, output, ends) = sent_and_closed(input).await;
        assert_eq!(ending, Ending::Closed);
        let mut rest = &output[..];
        for body in &expected {
            let (head, after) = rest.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            rest = after.strip_prefix(&body[..]).unwrap();
        }
        assert_eq!(rest, "");
        assert!(ends.iter().all(|end| end.complete));
        let sent: Vec<_> = ends.iter().map(|end| end.bytes_written).collect();
        let of =
            |size: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").len() + size;
        assert_eq!(sent, sizes.map(|size| of(size) as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_charged_until_it_has_read_the_response() {
    let share = Shares::new(1_000_000, 100).of([192, 0, 2, 1].into());
    let memory = Memory {
        share: Some(share.clone()),
        ..Memory::default()
    };
    let (near, far) = tokio::io::duplex(64 << 10);
    let (stop, stopping) = watch::channel(false);
    let (serving, _) = serve_from(memory, far, stopping);
    let (mut read, mut write) = tokio::io::split(near);
    let client = async {
        write.write_all(&get("/m300000")).await.unwrap();
        let mut first = [0; 1000];
        read.read_exact(&mut first).await.unwrap();
        // The client does not read for a while.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(share.take(700_001).is_none());
        assert!(share.take(700_000).is_some());
        let mut rest = vec![0; 300_000 - 1000];
        read.read_exact(&mut rest).await.unwrap();
        write.shutdown().await.unwrap();
        read.read_to_end(&mut rest).await.unwrap();
        assert!(share.take(1_000_000).is_some());
    };
    tokio::join!(serving, client);
    drop(stop);
}

#[tokio::test(start_paused = true)]
async fn only_plain_requests_are_answered_from_memory() {
    for (request, is_plain) in [
        ("GET /m3 HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ("\r\nGET /m3 HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ("HEAD /m3 HTTP/1.1\r\nHost: a\r\n\r\n", false),
        ("GET /m3 HTTP/1.0\r\nHost: a\r\n\r\n", false),
        (
            "GET /m3 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
            false,
        ),
        (
            "GET /m3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            false,
        ),
        ("GET /m3 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", false),
        ("GET /m3 HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", false),
    ] {
        let (_stop, stopping) = watch::channel(false);
        let last = "GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let (_, output, ends) = talk_with_memory(stopping, |mut client| async move {
            client.write_all(request.as_bytes()).await.unwrap();
            client.write_all(last.as_bytes()).await.unwrap();
            rest_of(&mut client).await
        })
        .await;
        assert_eq!(ends.len(), usize::from(is_plain), "{request:?}");
        assert!(!statuses(&output).is_empty(), "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_arrives_byte_by_byte_is_answered_too() {
    let (_stop, stopping) = watch::channel(false);
    let input = [get("/m5"), get("/h"), get("/m2")].concat();
    let (_, output, ends) = talk_with_memory(stopping, |mut client| async move {
        for byte in input {
            client.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        read_until(&mut client, "01234").await
            + &read_until(&mut client, "0>").await
            + &read_until(&mut client, "01").await
    })
    .await;
    assert_eq!(statuses(&output).len(), 3);
    assert!((1..=2).contains(&ends.len()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_or_leaves_gets_no_end() {
    let (_stop, stopping) = watch::channel(false);
    for hyper_first in [false, true] {
        let begun = Instant::now();
        let (ending, (), ends) = talk_with_memory(stopping.clone(), |mut client| async move {
            if hyper_first {
                client.write_all(&get("/h")).await.unwrap();
                read_until(&mut client, "0>").await;
            }
            client.write_all(&get("/m1000000")).await.unwrap();
            tokio::time::sleep(Duration::from_secs(100)).await;
        })
        .await;
        assert_eq!(ending, Ending::SlowWrite);
        assert_eq!(begun.elapsed().as_secs(), 100);
        assert_eq!(ends.len(), 1);
        assert!(!ends[0].complete);
        let (ending, (), ends) = talk_with_memory(stopping.clone(), |mut client| async move {
            client.write_all(&get("/m1000000")).await.unwrap();
            read_until(&mut client, "0123").await;
        })
        .await;
        assert_eq!(ending, Ending::Broken);
        assert!(!ends[0].complete);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_response_from_memory_end_and_begins_no_other() {
    for hyper_first in [false, true] {
        let (stop, stopping) = watch::channel(false);
        let (ending, output, ends) = talk_with_memory(stopping, |mut client| async move {
            if hyper_first {
                client.write_all(&get("/h")).await.unwrap();
                read_until(&mut client, "0>").await;
            }
            client.write_all(&get("/m300000")).await.unwrap();
            let head = read_until(&mut client, "\r\n\r\n").await;
            stop.send(true).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _ = client.write_all(&get("/m7")).await;
            head + &rest_of(&mut client).await
        })
        .await;
        assert_eq!(ending, Ending::Closed);
        let (_, body) = output.split_once("\r\n\r\n").unwrap();
        assert!(body.as_bytes() == content(300_000), "{} bytes", body.len());
        assert_eq!(ends.len(), 1);
        assert!(ends[0].complete);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_rest_after_a_response_from_memory() {
    let (_stop, stopping) = watch::channel(false);
    let begun = Instant::now();
    let (ending, (), _) = talk_with_memory(stopping, |mut client| async move {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            client.write_all(&get("/m1")).await.unwrap();
            read_until(&mut client, "\r\n\r\n0").await;
        }
        rest_of(&mut client).await;
    })
    .await;
    assert_eq!((ending, begun.elapsed().as_secs()), (Ending::Idle, 210));
}

#[tokio::test(start_paused = true)]
async fn a_tls_client_that_stops_reading_the_end_of_a_response_is_not_kept() {
    let certified = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = || Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    for target in ["/m50000".to_owned(), format!("/h{}", "x".repeat(6000))] {
        // Less than the response, which TLS accepts at once, and more than the session tickets.
        let (near, far) = tokio::io::duplex(2 << 10);
        let accepting = TlsAcceptor::from(Arc::new(server.clone())).accept(Socket::from(far));
        let connector = TlsConnector::from(Arc::new(client.clone()));
        let connecting = connector.connect("a.test".try_into().unwrap(), near);
        let (accepted, connected) = tokio::join!(accepting, connecting);
        let (_stop, stopping) = watch::channel(false);
        let (serving, ends) = serve_with_memory(accepted.unwrap(), stopping);
        let mut connected = connected.unwrap();
        let begun = Instant::now();
        let asking = async {
            connected.write_all(&get(&target)).await.unwrap();
            connected.flush().await.unwrap();
            // Held, and not read.
            tokio::time::sleep(Duration::from_secs(300)).await;
        };
        let ending = tokio::select! {
            ending = serving => ending,
            () = asking => panic!("{target}: it is still served"),
        };
        assert_eq!(ending, Ending::SlowWrite, "{target}");
        assert!((60..120).contains(&begun.elapsed().as_secs()), "{target}");
        assert!(ends.borrow().iter().all(|end| !end.complete));
    }
}
