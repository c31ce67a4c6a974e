//! The link between a child and a parent: two real proxies, with a relay between them.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hashcache_testkit::relay::{Fault, Relay};
use hashcache_testkit::{Client, Gate, Origin, Response, Script};
use rustix::process::{Pid, Signal, kill_process};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Home;
use crate::proxy_intercept::{Clients, Program, Site, authority, pair, pem};
use crate::proxy_process::Proxy;

/// Makes a key in this directory below the home; its pin.
pub fn key(home: &Home, directory: &str) -> String {
    let made = home.hashcache(&["link", "init", "--json", "--dir", directory], &[]);
    assert_eq!((made.status, made.stderr.as_str()), (Some(0), ""));
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    made["pin"].as_str().unwrap().to_owned()
}

/// A proxy with a log and a key.
pub(crate) struct CacheBox {
    pub(crate) proxy: Proxy,
    log: PathBuf,
}

impl CacheBox {
    pub fn start(home: &Home, name: &str, config: &str, flags: &[&str]) -> Self {
        let log = home.path().join(format!("{name}.log"));
        let file = home.file(&format!("{name}.toml"), config);
        let own = [
            format!("--config={}", file.display()),
            format!("--access-log={}", log.display()),
            format!("--name={name}"),
            format!("--link-dir={}", home.path().join(name).display()),
        ];
        let own = own.iter().map(String::as_str);
        let flags: Vec<&str> = own.chain(flags.iter().copied()).collect();
        let proxy = Proxy::start(&home.path().join(format!("{name}.img")), &flags).unwrap();
        Self { proxy, log }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.proxy.address()).await.unwrap()
    }

    pub(crate) async fn get(&self, url: &str) -> Response {
        self.client().await.get(url, &[]).await.unwrap()
    }

    /// The log, once it has `lines` lines.
    pub(crate) async fn log(&self, lines: usize) -> String {
        for _ in 0..400 {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            if text.lines().count() >= lines {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{lines} lines are not in {}", self.log.display());
    }

    pub(crate) fn status(&self, home: &Home) -> (Option<i32>, Value, String) {
        let admin = self.proxy.admin().to_string();
        let json = home.hashcache(&["link", "status", "--json", "--admin", &admin], &[]);
        let told = home.hashcache(&["link", "status", "--admin", &admin], &[]);
        let status = serde_json::from_str(&json.stdout);
        (json.status, status.expect(&json.stderr), told.stdout)
    }

    /// The status of its link to a parent, once `test` accepts it. A child may pause for 20
    /// seconds before it connects again.
    pub(crate) async fn wait_for(&self, home: &Home, test: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..2400 {
            let (_, status, _) = self.status(home);
            if test(&status["parents"][0]) {
                return status["parents"][0].clone();
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{:?}: {}", self.status(home), self.proxy.said());
    }
}

/// A child and its parent.
pub(crate) struct Pair {
    pub(crate) home: Home,
    pub(crate) parent: CacheBox,
    pub(crate) relay: Relay,
    pub(crate) child: CacheBox,
    pins: [String; 2],
}

impl Pair {
    pub(crate) fn parent_pin(&self) -> &str {
        &self.pins[0]
    }

    pub(crate) fn child_pin(&self) -> &str {
        &self.pins[1]
    }

    pub(crate) async fn start(parent_flags: &[&str], child_flags: &[&str]) -> Self {
        Self::start_in(Home::new(), parent_flags, child_flags).await
    }

    pub async fn start_in(home: Home, parent_flags: &[&str], child_flags: &[&str]) -> Self {
        let pins = ["parent", "child"].map(|name| key(&home, name));
        let children = format!("--link-children={}", pins[1]);
        let own = ["--link-listen=127.0.0.1:0", children.as_str()];
        let parent = CacheBox::start(&home, "parent", "", &[&own, parent_flags].concat());
        let relay = Relay::tcp(parent.proxy.link_address().unwrap()).unwrap();
        let config = child_of(relay.address(), &pins[0]);
        let child = CacheBox::start(&home, "child", &config, child_flags);
        let pair = Self {
            home,
            parent,
            relay,
            child,
            pins,
        };
        let is_up = |link: &Value| link["up"] == true;
        pair.child.wait_for(&pair.home, is_up).await;
        pair
    }
}

pub fn child_of(parent: SocketAddr, pin: &str) -> String {
    format!(
        "direct = \"never\"\n[[peer]]\nname = \"hub\"\nurl = \"https://{parent}\"\n\
         pin = \"{pin}\"\nhttps = \"fetch\"\n"
    )
}

async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=600")];
    let origin = Origin::start(move |_| Script::response(200, &fields, "the origin"));
    origin.await.unwrap()
}

#[test]
fn a_key_is_made_once_and_its_pin_is_told_again() {
    let home = Home::new();
    let made = home.hashcache(&["link", "init", "--directory=key"], &[]);
    assert_eq!((made.status, made.stderr.as_str()), (Some(0), ""));
    let pin = home.hashcache(&["link", "pin", "--dir=key"], &[]);
    let pin = pin.stdout.trim();
    assert!(pin.starts_with("sha256:") && pin.len() == 51, "{pin}");
    for line in [
        format!("link_children = [\"{pin}\"]"),
        format!("parent_pin = \"{pin}\""),
        "direct = \"never\"".to_owned(),
    ] {
        assert!(made.stdout.contains(&line), "{}", made.stdout);
    }
    let again = home.hashcache(&["link", "init", "--dir=key"], &[]);
    assert_eq!((again.status, again.stdout.as_str()), (Some(2), ""));
    assert!(
        again.stderr.contains("\nhint: the other side knows"),
        "{}",
        again.stderr
    );
    // Without a directory, the one that the proxy uses.
    let variables = [("HASHCACHE_LINK_DIR", "usual")];
    let usual = home.hashcache(&["link", "init"], &variables);
    assert_eq!((usual.status, usual.stderr.as_str()), (Some(0), ""));
    assert!(home.path().join("usual/link.pem").exists());
}

#[test]
fn a_configuration_with_a_wrong_link_is_refused_before_the_start() {
    let home = Home::new();
    let pin = key(&home, "key");
    let checked = |config: &str| {
        let file = home.file("c.toml", &format!("cache = \"c.img\"\n{config}"));
        let checked = home.hashcache(&["config", "check", file.to_str().unwrap()], &[]);
        (
            checked.status,
            format!("{}{}", checked.stdout, checked.stderr),
        )
    };
    let peer = |more: &str| format!("[[peer]]\nname = \"hub\"\npin = \"{pin}\"\n{more}\n");
    for (config, told) in [
        (peer("url = \"http://127.0.0.1:1\""), "not https://"),
        (
            peer("url = \"https://127.0.0.1:1\"\nkind = \"member\""),
            "is for parents",
        ),
        (
            peer("url = \"https://127.0.0.1:1\"\nicp = 3130"),
            "in clear",
        ),
        (peer("url = \"https://127.0.0.1:1\""), "link init"),
        (format!("parent_pin = \"{pin}\""), "one `parent`"),
        ("parent_pin = \"sha256:x\"".to_owned(), "is not a pin"),
        (
            "link_listen = \"127.0.0.1:3129\"".to_owned(),
            "serves nobody",
        ),
        (
            format!("link_children = [\"{pin}\"]"),
            "needs `link_listen`",
        ),
    ] {
        let (status, said) = checked(&config);
        assert!(status == Some(1) && said.contains(told), "{config}: {said}");
    }
    let right = format!(
        "link_dir = \"key\"\n{}",
        peer("url = \"https://127.0.0.1:1\"")
    );
    let (status, said) = checked(&right);
    assert_eq!(status, Some(0), "{said}");
    home.mode("key/link.pem", 0o644);
    let (status, said) = checked(&right);
    assert!(
        status == Some(1) && said.contains("other users can read"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_store_what_went_over_the_link() {
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let home = Home::new();
    home.file("origin.pem", &pem(&site.certificate));
    let ca = format!("--upstream-ca={}", home.path().join("origin.pem").display());
    // The parent alone knows the authority of the origin.
    let pair = Pair::start_in(home, &[&ca], &[]).await;
    let plain = origin().await;
    let https = format!("https://a.localhost:{}/page", site.port());
    for (url, body) in [(plain.url("/a?b=c"), "the origin"), (https, "the page")] {
        for _ in 0..2 {
            let answer = pair.child.get(&url).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(String::from_utf8_lossy(&answer.body), body);
        }
        assert_eq!(pair.parent.get(&url).await.status, 200);
    }
    assert_eq!((plain.request_count(), site.requests()), (1, 1));
    let log = pair.child.log(4).await;
    let hop = format!("FIRSTUP_PARENT/{}", pair.relay.address().ip());
    assert_eq!(log.matches(&hop).count(), 2, "{log}");
    let log = pair.parent.log(4).await;
    assert_eq!(log.matches("HIER_DIRECT").count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_from_all_cores_share_one_connection() {
    let pair = Pair::start(&["--workers=3"], &["--workers=3"]).await;
    let origin = origin().await;
    let mut requests = JoinSet::new();
    for n in 0..60 {
        let (address, url) = (pair.child.proxy.address(), origin.url(&format!("/{n}")));
        requests.spawn(async move {
            let mut client = Client::connect(address).await.unwrap();
            client.get(&url, &[]).await.unwrap().status
        });
    }
    assert!(
        requests
            .join_all()
            .await
            .into_iter()
            .all(|status| status == 200)
    );
    assert_eq!(origin.request_count(), 60);
    assert_eq!(pair.relay.accepted(), 1);
    let (code, status, told) = pair.child.status(&pair.home);
    let link = &status["parents"][0];
    assert_eq!(
        (code, &link["streams_in_all"]),
        (Some(0), &60.into()),
        "{status}"
    );
    assert!(link["bytes_in"].as_u64().unwrap() > 60 * 50, "{link}");
    assert!(link["round_trip_seconds"].as_f64().unwrap() > 0.0);
    assert!(told.contains("parent hub, https://"), "{told}");
    let (_, status, told) = pair.parent.status(&pair.home);
    assert_eq!(status["children"][0]["pin"], pair.pins[1].as_str());
    assert_eq!(status["children"][0]["up"], true);
    assert!(told.contains("up for "), "{told}");
    let mut admin = Client::connect(pair.child.proxy.admin()).await.unwrap();
    let metrics = admin
        .get("/metrics", &[("Host", "localhost")])
        .await
        .unwrap();
    let metrics = String::from_utf8(metrics.body).unwrap();
    for line in [
        "hashcache_link_up{link=\"hub\"} 1",
        "hashcache_link_bytes_total{link=\"hub\",direction=\"out\"} ",
        "hashcache_link_round_trip_seconds{link=\"hub\"} ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_a_request_arrives_whole_or_not_at_all() {
    let pair = Pair::start(&[], &[]).await;
    let origin = Origin::start(|_| {
        Script::new()
            .read_body()
            .then(Script::response(200, &[], ""))
    });
    let origin = origin.await.unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let length = content.len();
    let mut client = pair.child.client().await;
    let url = origin.url("/upload");
    let host = origin.address();
    let head = format!("POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
    client
        .send(&[head.as_bytes(), &content].concat())
        .await
        .unwrap();
    assert_eq!(client.read_response("POST").await.unwrap().status, 200);
    assert!(origin.bytes_read() > length as u64);
    // A client that stops in the middle: the origin must not take the half for the whole.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let mut half = pair.child.client().await;
    let head =
        format!("POST http://{to}/ HTTP/1.1\r\nHost: {to}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let begun = [head.as_bytes(), b"5\r\nhalf \r\n"].concat();
    half.send(&begun).await.unwrap();
    let mut socket = listener.accept().await.unwrap().0;
    let mut received = Vec::new();
    while !received.ends_with(b"half \r\n") {
        received.push(socket.read_u8().await.unwrap());
    }
    half.reset().unwrap();
    // A reset is an end too.
    let _ = socket.read_to_end(&mut received).await;
    assert!(received.ends_with(b"half \r\n"), "{received:?}");
}

/// A server that reads to the end, and then answers with what it has read.
async fn echo_at_the_end() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                socket.read_to_end(&mut all).await?;
                socket.write_all(&all).await?;
                socket.shutdown().await
            });
        }
    });
    address
}

async fn tunnel(proxy: SocketAddr, to: SocketAddr) -> TcpStream {
    let mut client = Client::connect(proxy).await.unwrap();
    let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    client.send(head.as_bytes()).await.unwrap();
    assert_eq!(client.read_response("CONNECT").await.unwrap().status, 200);
    client.into_socket()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_carries_every_byte_and_each_end_of_its_own() {
    let to = echo_at_the_end().await;
    let allow = format!("--allow-connect-port={}", to.port());
    let pair = Pair::start(&[], &[&allow]).await;
    let mut tunnels = JoinSet::new();
    for seed in 0..4_u32 {
        let proxy = pair.child.proxy.address();
        tunnels.spawn(async move {
            // More than all windows together.
            let sent: Vec<u8> = (0..12_000_000_u32)
                .map(|n| ((n * 31 + seed) % 251) as u8)
                .collect();
            let socket = tunnel(proxy, to).await;
            let (mut read, mut write) = socket.into_split();
            let mut received = Vec::new();
            let sending = async {
                write.write_all(&sent).await.unwrap();
                // The server answers only after this.
                write.shutdown().await.unwrap();
            };
            let (read, ()) = tokio::join!(read.read_to_end(&mut received), sending);
            read.unwrap();
            sent == received
        });
    }
    assert!(tunnels.join_all().await.into_iter().all(|equal| equal));
    assert_eq!(pair.relay.accepted(), 1);
    assert!(pair.parent.log(4).await.contains("TCP_TUNNEL/200"));
    assert!(pair.child.log(4).await.contains("FIRSTUP_PARENT/127.0.0.1"));
    let is_done = |link: &Value| link["streams"] == 0;
    pair.child.wait_for(&pair.home, is_done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_that_breaks_on_one_side_is_reset_on_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let allow = format!("--allow-connect-port={}", to.port());
    let pair = Pair::start(&[], &[&allow]).await;
    for (server_breaks, is_half_closed) in
        [(true, false), (true, true), (false, false), (false, true)]
    {
        let mut client = tunnel(pair.child.proxy.address(), to).await;
        let mut server = listener.accept().await.unwrap().0;
        server.write_all(b"half").await.unwrap();
        let mut read = [0; 4];
        client.read_exact(&mut read).await.unwrap();
        client.write_all(b"half").await.unwrap();
        server.read_exact(&mut read).await.unwrap();
        let (mut broken, mut whole) = if server_breaks {
            (server, client)
        } else {
            (client, server)
        };
        if is_half_closed {
            whole.shutdown().await.unwrap();
            assert_eq!(broken.read(&mut read).await.unwrap(), 0);
        }
        broken.set_zero_linger().unwrap();
        drop(broken);
        let error = whole.read(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    let is_done = |link: &Value| link["streams"] == 0;
    pair.child.wait_for(&pair.home, is_done).await;
    for _ in 0..400 {
        let (_, status, _) = pair.parent.status(&pair.home);
        if status["children"][0]["streams"] == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{:?}", pair.parent.status(&pair.home));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_socket_goes_through_a_tunnel_of_the_link() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await?);
                }
                let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                               Upgrade: websocket\r\n\r\n";
                socket.write_all(switch).await?;
                let (mut read, mut write) = socket.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    // The parent allows tunnels to 443 alone, and requests to every high port.
    let pair = Pair::start(&[], &[]).await;
    let mut socket = TcpStream::connect(pair.child.proxy.address())
        .await
        .unwrap();
    let head = format!(
        "GET http://{to}/ws HTTP/1.1\r\nHost: {to}\r\nConnection: upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.unwrap());
    }
    assert!(
        answer.starts_with(b"HTTP/1.1 101 "),
        "{:?}",
        String::from_utf8(answer)
    );
    socket.write_all(b"a frame").await.unwrap();
    let mut echoed = [0; 7];
    socket.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"a frame");
    drop(socket);
    assert!(pair.parent.log(1).await.contains("TCP_TUNNEL/200"));
}

/// A server that notes what it receives and answers nothing.
async fn recorder() -> (SocketAddr, Arc<std::sync::Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let received = Arc::<std::sync::Mutex<Vec<u8>>>::default();
    let to = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let to = Arc::clone(&to);
            tokio::spawn(async move {
                let mut page = [0; 4096];
                while let Ok(read @ 1..) = socket.read(&mut page).await {
                    to.lock().unwrap().extend_from_slice(&page[..read]);
                    socket
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
                        .await?;
                }
                io::Result::Ok(())
            });
        }
    });
    (address, received)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_matching_pin_nothing_of_a_request_leaves_the_child() {
    let home = Home::new();
    let pins = ["parent", "child", "other"].map(|name| key(&home, name));
    let origin = origin().await;
    let children = format!("--link-children={}", pins[1]);
    let flags = ["--link-listen=127.0.0.1:0", children.as_str()];
    let parent = CacheBox::start(&home, "parent", "", &flags);
    let at = parent.proxy.link_address().unwrap();
    let (clear, received) = recorder().await;

    // Another key than the parent's, a child that it does not know, and a server without TLS.
    let wrong = CacheBox::start(&home, "child", &child_of(at, &pins[2]), &[]);
    let unknown = CacheBox::start(&home, "other", &child_of(at, &pins[0]), &[]);
    key(&home, "third");
    let plain = CacheBox::start(&home, "third", &child_of(clear, &pins[0]), &[]);
    for (child, failure, advice) in [
        (&wrong, "not the pinned one", "link pin"),
        (&unknown, "does not accept the key", "link_children"),
        (&plain, "not the link listener", "link_listen"),
    ] {
        let failed = |link: &Value| link["failure"].is_string();
        child.wait_for(&home, failed).await;
        let answer = child.get(&origin.url("/secret")).await;
        assert_eq!(answer.status, 502, "{answer:?}");
        let to = origin.address();
        let mut client = child.client().await;
        let head = format!("CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: {to}\r\n\r\n");
        client.send(head.as_bytes()).await.unwrap();
        assert_eq!(client.read_response("CONNECT").await.unwrap().status, 502);
        let (code, status, told) = child.status(&home);
        let link = &status["parents"][0];
        assert_eq!((code, &link["up"]), (Some(1), &false.into()));
        assert!(
            link["failure"].as_str().unwrap().contains(failure),
            "{link}"
        );
        assert!(link["advice"].as_str().unwrap().contains(advice), "{link}");
        assert!(told.contains(failure) && told.contains(advice), "{told}");
        let said = child.proxy.said();
        assert!(said.contains("no link to the parent"), "{said}");
    }
    assert_eq!(
        (origin.request_count(), fs::read(&parent.log).unwrap().len()),
        (0, 0)
    );
    let received = received.lock().unwrap().clone();
    assert_eq!(received[0], 22, "a TLS handshake");
    let has = |text: &str| received.windows(text.len()).any(|it| it == text.as_bytes());
    assert!(!has("secret") && !has("CONNECT") && !has("Via"));
    // The first hop has no link; the next one of the route is used as configured.
    let config = child_of(at, &pins[2]).replace("never", "allow");
    drop(wrong);
    let allowed = CacheBox::start(&home, "child", &config, &[]);
    assert_eq!(allowed.get(&origin.url("/direct")).await.status, 200);
}

/// The bytes that a client without a pinned key gets from the link listener after the handshake.
async fn served(
    at: SocketAddr,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> io::Result<Vec<u8>> {
    let config = ClientConfig::builder_with_protocol_versions(versions)
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    let mut stream = connected(at, config).await?;
    stream.flush().await?;
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await?;
    Ok(read)
}

/// A connection to the link listener on which HTTP/2 has begun.
async fn connected(at: SocketAddr, mut config: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = "a.localhost".try_into().unwrap();
    let socket = TcpStream::connect(at).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, socket).await?;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    stream.write_all(preface).await?;
    Ok(stream)
}

/// Accepts every certificate: that of a link has no name.
#[derive(Debug)]
struct Anyone;

impl rustls::client::danger::ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The link listener's answer to a request of the child with the key in this directory: the block
/// of fields that it begins with.
async fn answer_to_child(
    home: &Home,
    key: &str,
    at: SocketAddr,
    (method, url): (&str, &str),
) -> Vec<u8> {
    let file = home.path().join(key).join("link.pem");
    let certificate = CertificateDer::from_pem_file(&file).unwrap();
    let key = PrivateKeyDer::from_pem_file(&file).unwrap();
    let config = ClientConfig::builder_with_protocol_versions(&[&TLS13])
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    let mut stream = connected(at, config).await.unwrap();
    let (host, path) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let path = format!("/{path}");
    let mut fields = vec![0x86]; // :scheme http
    for (name, value) in [(2, method), (4, path.as_str()), (1, host)] {
        fields.extend([name, u8::try_from(value.len()).unwrap()]);
        fields.extend(value.as_bytes());
    }
    let length = u8::try_from(fields.len()).unwrap();
    let head = [&[0, 0, length, 1, 5, 0, 0, 0, 1], &fields[..]].concat();
    stream.write_all(&head).await.unwrap();
    stream.flush().await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if kind == 1 {
            return payload;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_of_a_child_gives_it_no_right_to_purge() {
    let pair = Pair::start(&["--allow-purge=127.0.0.0/8"], &[]).await;
    let origin = origin().await;
    let url = origin.url("/x");
    let mut client = pair.parent.client().await;
    let host = origin.address();
    let head = format!("PURGE {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(head.as_bytes()).await.unwrap();
    assert_eq!(client.read_response("PURGE").await.unwrap().status, 200);
    let at = pair.parent.proxy.link_address().unwrap();
    let answer = |method| answer_to_child(&pair.home, "child", at, (method, &url));
    // Static entries of HPACK (RFC 7541, appendix A), and 403 in the code of appendix B.
    assert!(answer("GET").await.starts_with(&[0x88]), "200");
    let refused = answer("PURGE").await;
    assert!(
        refused.starts_with(&[0x48, 0x83, 0x68, 0x0c, 0xff]),
        "{refused:x?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_no_child_gets_nothing_from_the_link_listener() {
    let pair = Pair::start(&[], &[]).await;
    let at = pair.parent.proxy.link_address().unwrap();
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let served = served(at, versions).await;
        let error = served.unwrap_err().to_string();
        assert!(
            error.contains("alert") || error.contains("reset"),
            "{error}"
        );
    }
    let mut socket = TcpStream::connect(at).await.unwrap();
    let head = "GET http://192.0.2.1/ HTTP/1.1\r\nHost: x\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // An alert at most.
    let _ = socket.read_to_end(&mut answer).await;
    assert!(
        answer.len() < 16 && !answer.starts_with(b"HTTP"),
        "{answer:?}"
    );
    assert_eq!(fs::read(&pair.parent.log).unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_silent_strangers_do_not_keep_a_child_out() {
    let pair = Pair::start(&[], &[]).await;
    let at = pair.parent.proxy.link_address().unwrap();
    let mut strangers = Vec::new();
    for _ in 0..100 {
        strangers.push(TcpStream::connect(at).await.unwrap());
    }
    let origin = origin().await;
    assert_eq!(pair.child.get(&origin.url("/old")).await.status, 200);
    pair.relay.kill_connections();
    assert_eq!(pair.child.get(&origin.url("/new")).await.status, 200);
    drop(strangers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_cut_in_the_middle_never_makes_half_a_response_look_whole() {
    let pair = Pair::start(&[], &[]).await;
    // One for each path: what has opened does not close again.
    let paths = ["/length", "/chunked", "/resumed"];
    let gates = paths.map(|_| Gate::new());
    let (first, second) = (vec![b'a'; 700_000], vec![b'b'; 700_000]);
    let waiting = gates.clone();
    let bodies = (first.clone(), second.clone());
    let origin = Origin::start(move |request| {
        let (first, second) = &bodies;
        let path = paths.iter().position(|path| *path == request.target());
        let waits = &waiting[path.unwrap()];
        let tagged = [
            ("Content-Length", "1400000"),
            ("ETag", "\"v1\""),
            ("Cache-Control", "max-age=600"),
        ];
        match (request.target(), request.field("Range")) {
            ("/length", _) => Script::new()
                .head(
                    200,
                    &[("Content-Length", "1400000"), ("Cache-Control", "no-store")],
                )
                .bytes(first)
                .wait(waits)
                .bytes(second),
            ("/chunked", _) => Script::new()
                .head(200, &[("Transfer-Encoding", "chunked")])
                .chunk(first)
                .wait(waits)
                .chunk(second)
                .chunk(""),
            (_, None) => Script::new()
                .head(200, &tagged)
                .bytes(first)
                .wait(waits)
                .bytes(second),
            (_, Some(range)) => {
                let from: usize = range
                    .trim_start_matches("bytes=")
                    .split('-')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap();
                let all = [&first[..], second].concat();
                let fields = format!("bytes {from}-1399999/1400000");
                Script::response(
                    206,
                    &[("Content-Range", fields.as_str()), ("ETag", "\"v1\"")],
                    &all[from..],
                )
            }
        }
    });
    let origin = origin.await.unwrap();
    for (path, gate) in paths.into_iter().zip(&gates) {
        let mut socket = TcpStream::connect(pair.child.proxy.address())
            .await
            .unwrap();
        let url = origin.url(path);
        let host = origin.address();
        let head = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        // The head and some content have arrived over the link.
        let mut begun = vec![0; 100_000];
        socket.read_exact(&mut begun).await.unwrap();
        pair.relay.kill_connections();
        gate.open();
        let mut client = Vec::new();
        let rest = socket.read_to_end(&mut client).await;
        let received = begun.len() + client.len();
        match rest {
            // The connection ended with a reset, or before the last chunk.
            Err(_) => assert_ne!(path, "/resumed"),
            Ok(_) if path == "/chunked" => assert!(!client.ends_with(b"0\r\n\r\n")),
            Ok(_) => assert!(
                path == "/resumed" || received < 1_400_000,
                "{path} {received}"
            ),
        }
        if path == "/resumed" {
            assert!(received > 1_400_000, "{received}");
        }
        let is_up = |link: &Value| link["up"] == true;
        pair.child.wait_for(&pair.home, is_up).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_dead_for_a_while_comes_back_without_a_restart() {
    let mut pair = Pair::start(&[], &[]).await;
    let origin = origin().await;
    assert_eq!(pair.child.get(&origin.url("/1")).await.status, 200);
    pair.relay.stop().await;
    let is_down = |link: &Value| link["up"] == false && link["failure"].is_string();
    pair.child.wait_for(&pair.home, is_down).await;
    assert_eq!(pair.child.get(&origin.url("/2")).await.status, 502);
    assert_eq!(
        pair.child.get(&origin.url("/1")).await.status,
        200,
        "stored"
    );
    pair.relay.start().unwrap();
    let is_up = |link: &Value| link["up"] == true;
    let link = pair.child.wait_for(&pair.home, is_up).await;
    assert_eq!(link["connections"], 2);
    assert_eq!(pair.child.get(&origin.url("/2")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_is_restarted_gets_its_child_back() {
    let Pair {
        home,
        parent,
        relay,
        child,
        pins,
    } = Pair::start(&[], &[]).await;
    let origin = origin().await;
    assert_eq!(child.get(&origin.url("/1")).await.status, 200);
    let at = parent.proxy.link_address().unwrap();
    parent.proxy.end_well();
    let flags = [
        format!("--link-listen={at}"),
        format!("--link-children={}", pins[1]),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let parent = CacheBox::start(&home, "parent", "", &flags);
    child
        .wait_for(&home, |link| link["up"] == true && link["connections"] != 1)
        .await;
    assert_eq!(child.get(&origin.url("/2")).await.status, 200);
    drop((relay, parent));
}

#[tokio::test(flavor = "multi_thread")]
async fn intercepted_hosts_and_mirrors_go_over_the_link() {
    let home = Home::new();
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let root = authority(&home, &[]);
    home.file("origin.pem", &pem(&site.certificate));
    let port = site.port();
    let ca = format!("--upstream-ca={}", home.path().join("origin.pem").display());
    let authority = format!("--intercept-ca={}", home.path().join("ca").display());
    let allow = format!("--allow-connect-port={port}");
    let mirror = format!("--mirror=npm=https://a.localhost:{port}/");
    let child = [&ca, &authority, &allow, "--intercept=a.localhost", &mirror];
    let pair = Pair::start_in(home, &[&ca], &child).await;
    let to = format!("a.localhost:{port}");
    let mut client = pair.child.client().await;
    let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    client.send(head.as_bytes()).await.unwrap();
    assert_eq!(client.read_response("CONNECT").await.unwrap().status, 200);
    let program = Program::new(&root, &[b"http/1.1"]);
    let mut inside = program
        .shake("a.localhost", client.into_socket())
        .await
        .unwrap();
    let head = format!("GET /inside HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    inside.write_all(head.as_bytes()).await.unwrap();
    inside.flush().await.unwrap();
    let mut answer = String::new();
    inside.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("the page"), "{answer}");
    // The parent has fetched and stored it.
    let stored = pair.parent.get(&format!("https://{to}/inside")).await;
    let status = stored.field("Cache-Status").unwrap();
    assert!(status.contains("hit"), "{status}");
    let own = pair.child.proxy.address();
    let mirrored = pair.child.get(&format!("http://{own}/mirror/npm/x")).await;
    assert_eq!(mirrored.status, 200);
    let stored = pair.parent.get(&format!("https://{to}/x")).await;
    assert!(stored.field("Cache-Status").unwrap().contains("hit"));
    assert_eq!(pair.relay.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_not_read_keeps_no_other_one_from_the_link() {
    let pair = Pair::start(&[], &[]).await;
    let origin = Origin::start(|request| match request.target() {
        "/large" => Script::response(200, &[], vec![b'x'; 20_000_000]),
        _ => Script::response(200, &[], "small"),
    });
    let origin = origin.await.unwrap();
    let hang = Some(Fault::HangAfter(2_000_000));
    pair.relay.change(|link| link.to_client.fault = hang);
    let mut large = pair.child.client().await;
    let url = origin.url("/large");
    let head = format!("GET {url} HTTP/1.1\r\nHost: {}\r\n\r\n", origin.address());
    large.send(head.as_bytes()).await.unwrap();
    let mut socket = large.into_socket();
    let mut begun = vec![0; 1_000_000];
    socket.read_exact(&mut begun).await.unwrap();
    pair.relay.change(|link| link.to_client.fault = None);
    // The large one is not read on, so its window fills; the connection is not taken from others.
    for n in 0..20 {
        let small = pair.child.get(&origin.url(&format!("/{n}"))).await;
        assert_eq!(&small.body[..], b"small");
    }
    let mut rest = vec![0; 18_000_000];
    socket.read_exact(&mut rest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_the_parent_ends_and_begins_the_rights_of_a_child() {
    let home = Home::new();
    let pins = ["parent", "child", "other"].map(|name| key(&home, name));
    let config = |pin: &str| format!("link_children = [\"{pin}\"]\n");
    let flags = ["--link-listen=127.0.0.1:0"];
    let parent = CacheBox::start(&home, "parent", &config(&pins[1]), &flags);
    let at = parent.proxy.link_address().unwrap();
    let far = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let allow = format!("--allow-connect-port={}", far.local_addr().unwrap().port());
    let child = CacheBox::start(&home, "child", &child_of(at, &pins[0]), &[&allow]);
    let origin = origin().await;
    assert_eq!(child.get(&origin.url("/1")).await.status, 200);
    let steps = [
        (1, config(&pins[2]), 502),
        (2, config(&pins[1]), 200),
        // The last one: this side serves nobody then.
        (3, String::new(), 502),
        (4, config(&pins[1]), 200),
    ];
    for (reloads, config, status) in steps {
        let may_use = status == 200;
        let mut running = None;
        if !may_use {
            let is_up = |link: &Value| link["up"] == true;
            child.wait_for(&home, is_up).await;
            let to = far.local_addr().unwrap();
            // A tunnel, and a response whose content is still to arrive.
            let open = tunnel(child.proxy.address(), to).await;
            let head = format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n");
            let mut response = child.client().await;
            response.send(head.as_bytes()).await.unwrap();
            let mut ends = [far.accept().await.unwrap().0, far.accept().await.unwrap().0];
            // The tunnel was first. An answer before its request would be refused.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(ends[1].read_u8().await.unwrap());
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
            for end in &mut ends {
                end.write_all(answer).await.unwrap();
            }
            let mut sockets = [open, response.into_socket()];
            for socket in &mut sockets {
                let mut begun = Vec::new();
                while !begun.ends_with(b"half") {
                    begun.push(socket.read_u8().await.unwrap());
                }
            }
            running = Some((sockets, ends));
        }
        home.file("parent.toml", &config);
        let id = Pid::from_raw(parent.proxy.pid().try_into().unwrap()).unwrap();
        kill_process(id, Signal::HUP).unwrap();
        let is_reloaded = || {
            parent
                .proxy
                .said()
                .matches("configuration reloaded")
                .count()
        };
        for _ in 0..400 {
            if is_reloaded() == reloads {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        if let Some(([mut open, mut response], _ends)) = running {
            let ended = open.read_to_end(&mut Vec::new()).await;
            assert!(ended.is_err(), "a reset");
            let mut rest = Vec::new();
            let _ = response.read_to_end(&mut rest).await;
            assert!(rest.len() < 5, "not the rest of the content");
        }
        if may_use {
            child
                .wait_for(&home, |link: &Value| link["up"] == true)
                .await;
        }
        let answer = child.get(&origin.url(&format!("/after{reloads}"))).await;
        assert_eq!(answer.status, status, "{}", parent.proxy.said());
    }
    assert_eq!(origin.request_count(), 3);
}
