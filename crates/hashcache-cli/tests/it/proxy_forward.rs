//! Forwarded ports: TCP over the link in chunks, between two real proxies with a relay.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hashcache_testkit::Client;
use hashcache_testkit::relay::{Fault, Link};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::Home;
use crate::proxy_link::{CacheBox, Pair, child_of, key};
use crate::proxy_process::Proxy;

/// A child that forwards a port to a server of the test.
struct Forwarded {
    pair: Pair,
    server: TcpListener,
}

impl Forwarded {
    /// With memory for all streams of a test.
    async fn start() -> Self {
        Self::start_with(&["--memory=256MiB"], &["--memory=256MiB"]).await
    }

    async fn start_with(parent_flags: &[&str], child_flags: &[&str]) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = server.local_addr().unwrap();
        let port = format!("--allow-connect-port={}", to.port());
        let forward = format!("--link-forward=0={to}");
        let parent = [&[port.as_str()], parent_flags].concat();
        let child = [&[forward.as_str()], child_flags].concat();
        let pair = Pair::start(&parent, &child).await;
        Self { pair, server }
    }

    fn address(&self) -> SocketAddr {
        self.pair.child.proxy.forward_address().unwrap()
    }

    /// Both ends of a new connection.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.address()).await.unwrap();
        let accepting = timeout(Duration::from_secs(60), self.server.accept()).await;
        (client, accepting.expect("a connection").unwrap().0)
    }

    /// The status of the child's link.
    fn link(&self) -> Value {
        let (_, status, _) = self.pair.child.status(&self.pair.home);
        status["parents"][0].clone()
    }

    /// Sends `up` to the server and `down` back, each until its end; the bytes on the link.
    async fn carry(&self, up: &[u8], down: &[u8]) -> u64 {
        let bytes = |link: Value| {
            let number = |name: &str| link[name].as_u64().unwrap();
            number("bytes_in") + number("bytes_out")
        };
        let before = bytes(self.link());
        let (client, server) = self.connect().await;
        let (received_up, received_down) = tokio::join!(
            exchange(server, down, Order::AnswersLast),
            exchange(client, up, Order::AsksFirst)
        );
        assert!(received_up.unwrap() == up, "what the server received");
        assert!(received_down.unwrap() == down, "what the client received");
        // The log line follows the last byte that was counted.
        bytes(self.link()) - before
    }
}

#[derive(PartialEq)]
enum Order {
    AsksFirst,
    AnswersLast,
}

/// Sends `content` and a FIN, and reads to the end. A server that answers does so after the end of
/// the request: so each direction has to end by itself.
async fn exchange(mut socket: TcpStream, content: &[u8], order: Order) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    let reading = async {
        if order == Order::AnswersLast {
            socket.read_to_end(&mut received).await?;
        }
        socket.write_all(content).await?;
        socket.shutdown().await?;
        if order == Order::AsksFirst {
            socket.read_to_end(&mut received).await?;
        }
        Ok::<_, io::Error>(())
    };
    timeout(Duration::from_secs(120), reading)
        .await
        .expect("it ends")?;
    Ok(received)
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn content_arrives_both_ways_and_is_sent_once() {
    let forwarded = Forwarded::start().await;
    let content = noise(1, 3_000_000);
    let all = content.len() as u64;
    let first = forwarded.carry(&content, b"").await;
    assert!(first > all && first < all * 102 / 100, "{first} bytes");
    let second = forwarded.carry(&content, b"").await;
    assert!(second < all / 50, "{second} bytes");
    // If the parent sends back content that it has received, it sends only references.
    let back = forwarded.carry(b"again", &content).await;
    assert!(back < all / 50, "{back} bytes");
    let edited = [&content[..1_000_000], b"an edit", &content[1_000_000..]].concat();
    let third = forwarded.carry(&edited, &edited).await;
    assert!(third < all / 25, "{third} bytes");
    let chunks = &forwarded.link()["chunks"];
    assert!(
        chunks["saved_bytes"].as_u64().unwrap() > 3 * all,
        "{chunks}"
    );
    assert_eq!(forwarded.link()["opaque_bytes"], 0);
    let (_, status, told) = forwarded.pair.child.status(&forwarded.pair.home);
    assert!(told.contains("forwarded ports: "), "{told}: {status}");
    let mut admin = Client::connect(forwarded.pair.parent.proxy.admin())
        .await
        .unwrap();
    let metrics = admin
        .get("/metrics", &[("Host", "localhost")])
        .await
        .unwrap();
    let metrics = String::from_utf8(metrics.body).unwrap();
    for name in [
        "hashcache_link_chunk_bytes_total{",
        "hashcache_link_chunk_coded_bytes_total{",
        "hashcache_link_chunk_saved_bytes{",
        "hashcache_link_opaque_bytes_total{",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    let log = forwarded.pair.child.log(4).await;
    assert_eq!(log.matches("FIRSTUP_PARENT").count(), 4, "{log}");
    forwarded.pair.parent.log(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dialogue_of_small_messages_waits_for_nothing() {
    let forwarded = Forwarded::start().await;
    let (mut client, mut server) = forwarded.connect().await;
    for round in 0..100_u32 {
        let mut received = [0; 4];
        client.write_all(&round.to_le_bytes()).await.unwrap();
        server.read_exact(&mut received).await.unwrap();
        server.write_all(&received).await.unwrap();
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, round.to_le_bytes());
    }
    // The server ends first, and still receives.
    server.shutdown().await.unwrap();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    client.write_all(b"more").await.unwrap();
    let mut more = [0; 4];
    server.read_exact(&mut more).await.unwrap();
    assert_eq!(&more, b"more");
    client.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
}

/// Reads to the end, which must be an error: a reset of the other side.
async fn is_reset(socket: &mut TcpStream) {
    let reading = async {
        let mut buffer = vec![0; 65536];
        loop {
            match socket.read(&mut buffer).await {
                Ok(0) => panic!("an end in place of a reset"),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let error = timeout(Duration::from_secs(60), reading)
        .await
        .expect("it ends");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

fn reset(socket: TcpStream) {
    socket.set_zero_linger().unwrap();
    drop(socket);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_one_end_is_a_reset_of_the_other() {
    let forwarded = Forwarded::start().await;
    for round in 0..2 {
        let (mut client, mut server) = forwarded.connect().await;
        client.write_all(b"hello").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
        match round {
            0 => {
                reset(client);
                is_reset(&mut server).await;
            }
            _ => {
                reset(server);
                is_reset(&mut client).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_the_parent_does_not_allow_is_not_reached() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let forward = format!("--link-forward=0={}", server.local_addr().unwrap());
    let ports = ["--allow-port=80", "--allow-connect-port=443"];
    let pair = Pair::start(&ports, &[&forward]).await;
    let address = pair.child.proxy.forward_address().unwrap();
    // The reset may arrive before the system has reported the connection.
    if let Ok(mut client) = TcpStream::connect(address).await {
        is_reset(&mut client).await;
    }
    let log = pair.parent.log(1).await;
    assert!(log.contains("TCP_DENIED"), "{log}");
    pair.child.log(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_memory_for_chunks_pass_unchanged() {
    let forwarded = Forwarded::start_with(&[], &[]).await;
    let mut open = Vec::new();
    for round in 0..24_u8 {
        let (mut client, mut server) = forwarded.connect().await;
        let content = noise(round.into(), 40_000);
        client.write_all(&content).await.unwrap();
        let mut received = vec![0; content.len()];
        server.read_exact(&mut received).await.unwrap();
        assert!(received == content);
        open.push((client, server));
    }
    let link = forwarded.link();
    assert!(link["opaque_bytes"].as_u64().unwrap() > 40_000, "{link}");
    assert!(
        link["chunks"]["coded_bytes"].as_u64().unwrap() > 40_000,
        "{link}"
    );
    for (mut client, mut server) in open {
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_receiver_has_lost_is_sent_again() {
    let mut forwarded = Forwarded::start().await;
    let content = noise(2, 2_000_000);
    let all = content.len() as u64;
    forwarded.carry(&content, b"").await;
    // The parent returns with its key and an empty store.
    let address = forwarded.pair.parent.proxy.link_address().unwrap();
    let port = forwarded.server.local_addr().unwrap().port();
    let children = format!("--link-children={}", forwarded.pair.child_pin());
    let flags = [
        "--memory=256MiB".to_owned(),
        format!("--link-listen={address}"),
        format!("--allow-connect-port={port}"),
        children,
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let home = &forwarded.pair.home;
    forwarded.pair.parent.proxy.stop();
    std::fs::remove_file(home.path().join("parent.img")).unwrap();
    std::fs::remove_file(home.path().join("parent.chunks")).unwrap();
    forwarded.pair.parent = CacheBox::start(home, "parent", "", &flags);
    forwarded
        .pair
        .child
        .wait_for(home, |link| link["up"] == true)
        .await;
    let second = forwarded.carry(&content, b"").await;
    assert!(second > all, "{second} bytes");
    let answered = &forwarded.link()["chunks"]["answer_bytes"];
    assert!(answered.as_u64().unwrap() > 0);
    forwarded.carry(&content, b"").await;
    let last = forwarded.carry(&content, b"").await;
    assert!(last < all / 50, "{last} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_both_know_outlives_a_restart_of_the_child() {
    let mut forwarded = Forwarded::start().await;
    let content = noise(3, 2_000_000);
    forwarded.carry(&content, b"").await;
    let to = forwarded.server.local_addr().unwrap();
    let flag = format!("--link-forward=0={to}");
    let home = &forwarded.pair.home;
    let config = child_of(forwarded.pair.relay.address(), forwarded.pair.parent_pin());
    forwarded.pair.child.proxy.stop();
    forwarded.pair.child = CacheBox::start(home, "child", &config, &["--memory=256MiB", &flag]);
    let child = &forwarded.pair.child;
    child.wait_for(home, |link| link["up"] == true).await;
    let second = forwarded.carry(&content, b"").await;
    assert!(second < content.len() as u64 / 50, "{second} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_breaks_resets_both_ends_and_gives_no_wrong_byte() {
    let forwarded = Forwarded::start().await;
    for round in 0..3_u64 {
        let content = noise(round + 10, 3_000_000);
        let relay = &forwarded.pair.relay;
        if round == 1 {
            // Before the link is there: its byte must not have passed.
            let (byte, bit) = (700_000, 3);
            relay.change(|link| link.to_server.fault = Some(Fault::FlipBit { byte, bit }));
        }
        let (mut client, mut server) = forwarded.connect().await;
        let sending = content.clone();
        let sender = tokio::spawn(async move {
            // The write fails in the middle.
            let _ = client.write_all(&sending).await;
            client
        });
        let mut received = vec![0; 200_000];
        server.read_exact(&mut received).await.unwrap();
        assert!(content.starts_with(&received));
        match round {
            0 => relay.kill_connections(),
            1 => {}
            _ => relay.change(|link| link.to_server.fault = Some(Fault::CutAfter(900_000))),
        }
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(60), server.read_to_end(&mut rest)).await;
        let ended = ended.expect("it ends");
        received.extend_from_slice(&rest);
        assert!(content.starts_with(&received), "round {round}");
        assert!(ended.is_err(), "round {round}: an end in place of a reset");
        let mut client = sender.await.unwrap();
        is_reset(&mut client).await;
        relay.change(|link| *link = Link::default());
        relay.kill_connections();
        let home = &forwarded.pair.home;
        let child = &forwarded.pair.child;
        child.wait_for(home, |link| link["up"] == true).await;
    }
    let content = noise(10, 3_000_000);
    forwarded.carry(&content, &content).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_that_is_killed_resets_the_end_of_the_other() {
    let mut forwarded = Forwarded::start().await;
    let (mut client, mut server) = forwarded.connect().await;
    client.write_all(b"hello").await.unwrap();
    server.read_exact(&mut [0; 5]).await.unwrap();
    forwarded.pair.parent.proxy.kill_now();
    is_reset(&mut client).await;
    let mut forwarded = Forwarded::start().await;
    let (mut client, mut server) = forwarded.connect().await;
    client.write_all(b"hello").await.unwrap();
    server.read_exact(&mut [0; 5]).await.unwrap();
    forwarded.pair.child.proxy.kill_now();
    is_reset(&mut server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_forwards_ports_without_being_a_proxy() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = server.local_addr().unwrap();
    let port = format!("--allow-connect-port={}", to.port());
    let pair = Pair::start_in(Home::new(), &[&port], &[]).await;
    let home = &pair.home;
    let forward = format!("--forward=0={to}");
    let parent = format!(
        "--parent=https://{}",
        pair.parent.proxy.link_address().unwrap()
    );
    let pin = format!("--parent-pin={}", pair.parent_pin());
    let directory = format!("--link-dir={}", home.path().join("child").display());
    let flags = [forward, parent, pin, directory];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let wan = Proxy::start_as("wan", &home.path().join("wan.img"), &flags).unwrap();
    let client = TcpStream::connect(wan.forward_address().unwrap())
        .await
        .unwrap();
    let (accepted, _) = server.accept().await.unwrap();
    let (up, down) = tokio::join!(
        exchange(accepted, b"answer", Order::AnswersLast),
        exchange(client, b"question", Order::AsksFirst)
    );
    assert_eq!(
        (up.unwrap(), down.unwrap()),
        (b"question".to_vec(), b"answer".to_vec())
    );
}

#[test]
fn a_forwarded_port_without_a_link_is_refused() {
    let home = Home::new();
    let file = home.file(
        "c.toml",
        "cache = \"c.img\"\nlink_forward = [\"1=db.example:1\"]\n",
    );
    let checked = home.hashcache(&["config", "check", file.to_str().unwrap()], &[]);
    let said = format!("{}{}", checked.stdout, checked.stderr);
    assert!(
        checked.status == Some(1) && said.contains("needs a parent with a pin"),
        "{said}"
    );
    let pin = key(&home, "key");
    let wan = home.hashcache(
        &[
            "wan",
            "--config=/dev/null",
            "--parent=https://127.0.0.1:1",
            &format!("--parent-pin={pin}"),
        ],
        &[],
    );
    assert!(
        wan.status == Some(2) && wan.stderr.contains("--forward"),
        "{}",
        wan.stderr
    );
}
