//! One client of a child takes all it can of a link: the other clients of that child continue.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hashcache_testkit::{Client, Origin, Script};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::proxy_link::{CacheBox, Pair};

/// Streams of the greedy client: twice as many as fill the windows of a link.
const STREAMS: usize = 8;
/// Content of each: as much as the window of a connection has room for.
const BYTES: usize = 8 << 20;
const GREEDY: [u8; 4] = [127, 0, 0, 9];

async fn site() -> Origin {
    let long = vec![b'x'; BYTES];
    let site = Origin::start(move |request| {
        if request.target().starts_with("/long") {
            Script::response(200, &[("Cache-Control", "no-store")], &long)
        } else {
            Script::response(200, &[("Cache-Control", "max-age=600")], "short")
        }
    });
    site.await.unwrap()
}

async fn greedy(cache_box: &CacheBox) -> Client {
    let address = cache_box.proxy.address();
    Client::connect_from(IpAddr::from(GREEDY), address)
        .await
        .unwrap()
}

/// Waits until the link carries nothing more: what the greedy client may have is under way.
async fn wait_for_silence(pair: &Pair) {
    let carried = || {
        let (_, status, _) = pair.child.status(&pair.home);
        let link = &status["parents"][0];
        link["bytes_in"].as_u64().unwrap() + link["bytes_out"].as_u64().unwrap()
    };
    let (mut before, mut silent) = (carried(), 0);
    for _ in 0..400 {
        tokio::time::sleep(Duration::from_millis(25)).await;
        let now = carried();
        // PINGs are no content.
        silent = if now - before < 1000 { silent + 1 } else { 0 };
        before = now;
        if silent == 8 {
            return;
        }
    }
    panic!("the link is never silent");
}

/// Another client of the child gets pages, and can upload.
async fn others_go_on(pair: &Pair, site: &Origin) {
    for n in 0..5 {
        let asking = async {
            let mut client = pair.child.client().await;
            client.get(&site.url(&format!("/short{n}")), &[]).await
        };
        let answered = timeout(Duration::from_secs(20), asking).await;
        assert_eq!(answered.expect("an answer in time").unwrap().status, 200);
    }
    let uploading = async {
        let mut client = pair.child.client().await;
        let url = site.url("/upload");
        let host = site.address();
        let head = format!("POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100000\r\n\r\n");
        client.send(head.as_bytes()).await.unwrap();
        client.send(&[b'u'; 100_000]).await.unwrap();
        client.read_response("POST").await
    };
    let answered = timeout(Duration::from_secs(20), uploading).await;
    assert_eq!(answered.expect("an answer in time").unwrap().status, 200);
}

/// A server that accepts connections, writes without an end and reads nothing, or reads a head only
/// when it is `silent`.
async fn server(is_silent: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            if is_silent {
                kept.push(socket);
                continue;
            }
            tokio::spawn(async move {
                let piece = vec![b'y'; 64 << 10];
                while socket.write_all(&piece).await.is_ok() {}
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_downloads_of_one_client_leave_the_link_to_others_of_its_child() {
    let pair = Pair::start(&[], &[]).await;
    let site = site().await;
    let mut unread = Vec::new();
    for n in 0..STREAMS {
        let mut client = greedy(&pair.child).await;
        let url = site.url(&format!("/long{n}"));
        client.request("GET", &url, &[]).await.unwrap();
        unread.push(client);
    }
    wait_for_silence(&pair).await;
    others_go_on(&pair, &site).await;
    // A response that waited for its turn arrives whole as soon as it is read.
    let mut first = unread.remove(0);
    drop(unread);
    let response = first.read_response("GET").await.unwrap();
    assert_eq!((response.status, response.body.len()), (200, BYTES));
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_an_origin_does_not_read_leave_the_link_to_others_of_the_child() {
    let pair = Pair::start(&[], &[]).await;
    let (site, sink) = (site().await, server(true).await);
    let mut sending = Vec::new();
    for n in 0..STREAMS {
        let mut client = greedy(&pair.child).await;
        let head = format!(
            "POST http://{sink}/{n} HTTP/1.1\r\nHost: {sink}\r\nContent-Length: {BYTES}\r\n\r\n"
        );
        client.send(head.as_bytes()).await.unwrap();
        let mut socket = client.into_socket();
        sending.push(tokio::spawn(async move {
            // Ends with the test.
            let _ = socket.write_all(&vec![b'z'; BYTES]).await;
            let _ = socket.read(&mut [0]).await;
        }));
    }
    wait_for_silence(&pair).await;
    others_go_on(&pair, &site).await;
    sending.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_that_nobody_reads_leave_the_link_to_others_of_the_child() {
    let (source, sink) = (server(false).await, server(true).await);
    let ports = format!("--allow-connect-port={},{}", source.port(), sink.port());
    let pair = Pair::start(&[&ports], &[&ports]).await;
    let site = site().await;
    let mut tunnels = Vec::new();
    let mut sending = Vec::new();
    for n in 0..2 * STREAMS {
        let to = [source, sink][n % 2];
        let mut client = greedy(&pair.child).await;
        let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
        client.send(head.as_bytes()).await.unwrap();
        assert_eq!(client.read_response("CONNECT").await.unwrap().status, 200);
        if to == sink {
            sending.push(tokio::spawn(async move {
                // Ends with the test.
                let _ = client.send(&vec![b'z'; BYTES]).await;
                let _ = client.read_close().await;
            }));
        } else {
            tunnels.push(client);
        }
    }
    wait_for_silence(&pair).await;
    others_go_on(&pair, &site).await;
    sending.iter().for_each(tokio::task::JoinHandle::abort);
}
