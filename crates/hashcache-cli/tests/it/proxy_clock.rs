//! Origins whose `Date` is wrong, in front of the real proxy.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use hashcache_testkit::Client;

use crate::Home;
use crate::operation::Running;

const FAR: &str = "Tue, 01 Jan 2041 00:00:00 GMT";
const FAR_SECONDS: u64 = 2_240_524_800;

/// A plain origin on this loopback address whose `Date` is in 2041.
fn liar(address: [u8; 4], proxy: &Running) -> SocketAddr {
    // The proxy takes its own port on any loopback address for itself, and answers 404.
    let listener = loop {
        let listener = TcpListener::bind((std::net::Ipv4Addr::from(address), 0)).unwrap();
        if listener.local_addr().unwrap().port() != proxy.listen.port() {
            break listener;
        }
    };
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if socket.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                head.push(byte[0]);
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\nDate: {FAR}\r\nCache-Control: no-store\r\n\
                 Content-Length: 2\r\nConnection: close\r\n\r\nok"
            );
            let _ = socket.write_all(answer.as_bytes());
        }
    });
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_origins_of_three_networks_do_not_move_the_clock() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null"]);
    for network in 0..3 {
        let at = liar([127, 0, network, 1], &proxy);
        let mut client = Client::connect(proxy.listen).await.unwrap();
        let url = format!("http://{at}/page");
        let answer = client
            .get(&url, &[("Host", &at.to_string())])
            .await
            .unwrap();
        assert_eq!(answer.status, 200);
    }
    assert_eq!(proxy.figure("hashcache_clock_suspect").await, "0");
    proxy.end();
    let kept = fs::read_to_string(home.path().join("c.clock")).unwrap();
    let kept: u64 = kept.trim_end().parse().unwrap();
    assert!(kept < FAR_SECONDS, "{kept}");
}
