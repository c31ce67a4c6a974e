//! The PROXY protocol. From a load balancer: access rules and the access log apply to the client
//! that the header names. To servers: the header names the client. Also: the response to a client
//! that takes the proxy for a web server.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client, Origin, Response, Script};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{sleep, timeout};

use crate::Home;
use crate::operation::Running;
use crate::proxy_process::Proxy;

const FLAGS: [&str; 3] = [
    "--proxy-protocol-from=127.0.0.2",
    "--allow-client=198.51.100.7",
    "--log-format=json",
];

struct Balanced {
    home: Home,
    origin: Origin,
    proxy: Proxy,
}

impl Balanced {
    async fn start() -> Self {
        let home = Home::new();
        let origin = Origin::start(|_| Script::response(200, &[], "page")).await;
        let log = format!("--access-log={}", home.path().join("log").display());
        let flags = [&FLAGS[..], &[log.as_str()]].concat();
        Self {
            origin: origin.unwrap(),
            proxy: Proxy::start(&home.path().join("cache"), &flags).unwrap(),
            home,
        }
    }

    /// A connection from 127.0.0.`host` that begins with `header`.
    async fn connect(&self, host: u8, header: &[u8]) -> Client {
        let from = [127, 0, 0, host].into();
        let connecting = Client::connect_from(from, self.proxy.address());
        let mut client = connecting.await.unwrap();
        client.send(header).await.unwrap();
        client
    }

    async fn get(&self, host: u8, header: &[u8]) -> Response {
        let mut client = self.connect(host, header).await;
        client.get(&self.origin.url("/"), &[]).await.unwrap()
    }

    /// The clients in the log, once it has `lines` lines. Threads write their lines at different
    /// times, so they are in the order of the addresses.
    async fn clients(&self, lines: usize) -> Vec<String> {
        for _ in 0..200 {
            let text = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            if text.lines().count() >= lines {
                let client = |line: &str| {
                    let line: Value = serde_json::from_str(line).unwrap();
                    line["client.ip"].as_str().unwrap().to_owned()
                };
                let mut clients: Vec<String> = text.lines().map(client).collect();
                clients.sort();
                return clients;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("the log has no {lines} lines");
    }
}

/// A header of version 2 for a client with this IPv4 address.
fn version_2(client: [u8; 4]) -> Vec<u8> {
    let begin = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    [&begin[..], &client, &[10, 0, 0, 1, 0x30, 0x39, 0, 80]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_and_log_are_those_of_the_client_that_the_balancer_names() {
    let balanced = Balanced::start().await;
    let named = b"PROXY TCP4 198.51.100.7 10.0.0.1 12345 80\r\n";
    assert_eq!(balanced.get(2, named).await.status, 200);
    assert_eq!(
        balanced.get(2, &version_2([198, 51, 100, 7])).await.status,
        200
    );
    let refused = balanced.get(2, &version_2([198, 51, 100, 8])).await;
    assert_eq!(refused.status, 403);
    assert!(String::from_utf8_lossy(&refused.body).contains("198.51.100.8"));
    // A check of the balancer itself, and a client without a balancer.
    assert_eq!(balanced.get(2, b"PROXY UNKNOWN\r\n").await.status, 200);
    assert_eq!(balanced.get(1, b"").await.status, 200);
    let clients = balanced.clients(5).await;
    let expected = [
        "127.0.0.1",
        "127.0.0.2",
        "198.51.100.7",
        "198.51.100.7",
        "198.51.100.8",
    ];
    assert_eq!(clients, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_is_read_from_a_balancer_alone_and_a_balancer_has_to_send_one() {
    let balanced = Balanced::start().await;
    // A client that claims to be a balancer has sent a bad request.
    let forged = balanced.get(1, b"PROXY TCP4 198.51.100.7 10.0.0.1 1 2\r\n");
    assert_eq!(forged.await.status, 400);
    let mut client = balanced.connect(2, b"").await;
    let unanswered = client.get(&balanced.origin.url("/"), &[]).await;
    let is_closed = match &unanswered {
        Ok(response) => response.end != BodyEnd::Complete,
        Err(_) => true,
    };
    assert!(is_closed, "{unanswered:?}");
    assert_eq!(balanced.origin.request_count(), 0);
}

/// Everything but what a rule says for the client at 198.51.100.7, and for one user.
const RULES: &str = "
    proxy_protocol_from = [\"127.0.0.2\"]
    allow_client = [\"198.51.100.0/24\"]
    htpasswd = [\"users\"]
    [[access]]
    name = \"that one\"
    action = \"deny\"
    clients = [\"198.51.100.7\"]
    [[access]]
    action = \"allow\"
    clients = [\"all\"]
    users = [\"anna\"]
    [[access]]
    name = \"others\"
    action = \"deny\"
    methods = [\"GET\"]
";

#[tokio::test(flavor = "multi_thread")]
async fn access_rules_are_about_the_client_that_the_balancer_names() {
    let home = Home::new();
    let origin = Origin::start(|_| Script::response(200, &[], "page"));
    let origin = origin.await.unwrap();
    home.file("h.toml", RULES);
    home.file("users", USERS);
    let proxy = Running::start(&home, &["--config=h.toml"]);
    let ask = async |header: &str, fields: &[(&str, &str)]| {
        let from = [127, 0, 0, 2].into();
        let mut client = Client::connect_from(from, proxy.listen).await.unwrap();
        client.send(header.as_bytes()).await.unwrap();
        let response = client.get(&origin.url("/"), fields).await.unwrap();
        (
            response.status,
            String::from_utf8_lossy(&response.body).into_owned(),
        )
    };
    let login = [("Proxy-Authorization", "Basic YW5uYTpyaWdodDox")];
    let (status, page) = ask("PROXY TCP4 198.51.100.7 10.0.0.1 1 2\r\n", &login).await;
    assert_eq!(status, 403);
    assert!(page.contains("that one"), "{page}");
    // The balancer is on this machine, where a login may be asked for without TLS. Its client is
    // not, so nobody asks it for a password that others could read.
    let (status, page) = ask("PROXY TCP4 198.51.100.8 10.0.0.1 1 2\r\n", &login).await;
    assert_eq!(status, 403);
    assert!(page.contains("others"), "{page}");
    let here = "PROXY TCP4 127.0.0.9 10.0.0.1 1 2\r\n";
    assert_eq!(ask(here, &[]).await.0, 407);
    assert_eq!(ask(here, &login).await.0, 200);
    assert_eq!(origin.request_count(), 1);
    proxy.end();
}

/// `anna` has the password `right:1`.
const USERS: &str = "anna:$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_drips_ends_with_the_time_for_heads_and_a_long_one_at_once() {
    let home = Home::new();
    let config = "proxy_protocol_from = [\"127.0.0.2\"]\n[limits]\nhead_time = \"1s\"\n";
    let config = format!("--config={}", home.file("h.toml", config).display());
    let proxy = Proxy::start(&home.path().join("cache"), &[&config]).unwrap();
    let balancer = TcpSocket::new_v4().unwrap();
    balancer.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut dripping = balancer.connect(proxy.address()).await.unwrap();
    dripping.write_all(b"PROXY UNKNOWN ").await.unwrap();
    let ended = timeout(Duration::from_secs(60), async {
        let (mut read, mut write) = dripping.split();
        let mut answer = Vec::new();
        let drip = async {
            // Fewer bytes than a line may have, so only the time can end it.
            for _ in 0..60 {
                let _ = write.write_all(b"x").await;
                sleep(Duration::from_millis(500)).await;
            }
        };
        tokio::select! {
            _ = read.read_to_end(&mut answer) => answer.is_empty(),
            () = drip => false,
        }
    });
    assert!(ended.await.unwrap(), "a header took 30 s");
    let balancer = TcpSocket::new_v4().unwrap();
    balancer.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut long = balancer.connect(proxy.address()).await.unwrap();
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff";
    long.write_all(header).await.unwrap();
    // The head is refused by its length, before any of it has arrived.
    let mut answer = Vec::new();
    let _reset = long.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_that_names_no_client_makes_room_for_others() {
    let home = Home::new();
    let origin = Origin::start(|_| Script::response(200, &[], "page")).await;
    let url = origin.as_ref().unwrap().url("/");
    let config = "proxy_protocol_from = [\"127.0.0.2\"]
        [limits]
        clients = 1
        clients_per_address = 1
        head_time = \"1h\"
    ";
    let config = format!("--config={}", home.file("h.toml", config).display());
    let proxy = Proxy::start(&home.path().join("cache"), &[&config]).unwrap();
    let balancer = TcpSocket::new_v4().unwrap();
    balancer.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut silent = balancer.connect(proxy.address()).await.unwrap();
    let mut answer = Vec::new();
    let asking = async {
        // The silent connection may be accepted after the first of these.
        loop {
            let mut client = Client::connect(proxy.address()).await.unwrap();
            let _full = client.get(&url, &[]).await;
            sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = timeout(Duration::from_secs(60), async {
        tokio::select! {
            _ = silent.read_to_end(&mut answer) => {}
            () = asking => {}
        }
    });
    ended.await.expect("the silent connection is given up");
    assert!(answer.is_empty(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_the_proxy_for_a_web_server_is_told_what_to_configure() {
    let balanced = Balanced::start().await;
    let mut client = balanced.connect(1, b"").await;
    let asked = [("Host", "www.example.org"), ("Accept", "text/html")];
    let answer = client.get("/page", &asked).await.unwrap();
    assert_eq!(answer.status, 400);
    let page = String::from_utf8_lossy(&answer.body);
    for word in [
        "www.example.org",
        "http_proxy",
        "/proxy.pac",
        "--listen redirect://",
        "--accelerate",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
}

/// A server that wants a header of version 2; it answers each request with the client in it, and
/// counts connections.
async fn server_behind_a_header() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut header = [0; 28];
                socket.read_exact(&mut header).await.unwrap();
                assert_eq!(header[..16], version_2([0; 4])[..16]);
                let mut reader = BufReader::new(&mut socket);
                loop {
                    let mut line = String::new();
                    while !line.trim().is_empty() || line.is_empty() {
                        line.clear();
                        if reader.read_line(&mut line).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let body = format!("{:?}", &header[16..20]);
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    let answer = head + &body;
                    reader.get_mut().write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (address, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_to_be_told_hears_of_each_client_on_a_connection_of_its_own() {
    let home = Home::new();
    let (server, connections) = server_behind_a_header().await;
    let url = format!("http://{server}");
    let (site, told) = (
        format!("--accelerate={url}"),
        format!("--proxy-protocol-to={url}"),
    );
    let proxy = Proxy::start(&home.path().join("cache"), &[&site, &told, "--workers=1"]).unwrap();
    for (number, host) in [1, 2, 1, 3].into_iter().enumerate() {
        let from = [127, 0, 0, host].into();
        let mut client = Client::connect_from(from, proxy.address()).await.unwrap();
        for _ in 0..2 {
            let page = client.get("/", &[("Host", "a.test")]).await.unwrap();
            let expected = format!("{:?}", [127, 0, 0, host]);
            assert_eq!(String::from_utf8_lossy(&page.body), expected, "{number}");
        }
    }
    assert_eq!(connections.load(Ordering::Relaxed), 8);
}
