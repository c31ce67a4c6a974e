//! Parents and routes of the real proxy: which next hop gets a request, and what happens when it
//! fails.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use hashcache_testkit::{Client, Origin, Response, Script, reserved_address};

use crate::Home;
use crate::proxy_process::Proxy;

/// A proxy with a log and a configuration of its own.
struct CacheBox {
    proxy: Proxy,
    log: PathBuf,
}

impl CacheBox {
    fn start(home: &Home, name: &str, config: &str, flags: &[&str]) -> Self {
        let log = home.path().join(format!("{name}.log"));
        let file = home.file(&format!("{name}.toml"), config);
        let own = [
            format!("--config={}", file.display()),
            format!("--access-log={}", log.display()),
            format!("--name={name}"),
        ];
        let flags: Vec<&str> = own
            .iter()
            .map(String::as_str)
            .chain(flags.iter().copied())
            .collect();
        let cache = home.path().join(format!("{name}.img"));
        let proxy = Proxy::start(&cache, &flags).unwrap();
        Self { proxy, log }
    }

    async fn get(&self, url: &str) -> Response {
        let mut client = Client::connect(self.proxy.address()).await.unwrap();
        client.get(url, &[]).await.unwrap()
    }

    /// The log, once it has `lines` lines.
    async fn log(&self, lines: usize) -> String {
        for _ in 0..200 {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            if text.lines().count() >= lines {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{lines} lines are not in {}", self.log.display());
    }

    fn url(&self) -> String {
        format!("http://{}", self.proxy.address())
    }
}

async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=600")];
    let origin = Origin::start(move |_| Script::response(200, &fields, "the origin"));
    origin.await.unwrap()
}

/// An address at which nothing listens.
fn nobody() -> SocketAddr {
    reserved_address(Ipv4Addr::LOCALHOST).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_miss_is_fetched_through_the_parent_and_both_store_it() {
    let (home, origin) = (Home::new(), origin().await);
    let parent = CacheBox::start(&home, "above", "", &[]);
    let child = CacheBox::start(&home, "below", "", &[&format!("--parent={}", parent.url())]);
    let url = origin.url("/a?b=c");
    let answer = child.get(&url).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"the origin"[..]));
    assert_eq!(child.get(&url).await.status, 200);
    assert_eq!(parent.get(&url).await.status, 200);
    assert_eq!(origin.request_count(), 1);
    let request = &origin.requests()[0];
    let via: Vec<&str> = request.head.fields_named("Via").collect();
    assert_eq!(via, ["1.1 below", "1.1 above"]);
    let log = child.log(2).await;
    assert!(log.contains("FIRSTUP_PARENT/127.0.0.1"), "{log}");
    let log = parent.log(2).await;
    assert!(log.contains("HIER_DIRECT/127.0.0.1"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_leads_through_the_parent() {
    let (home, origin) = (Home::new(), origin().await);
    let port = origin.address().port();
    let allow = format!("--allow-connect-port={port}");
    let parent = CacheBox::start(&home, "above", "", &[&allow]);
    let flags = [
        &*allow,
        &format!("--parent={}", parent.url()),
        "--direct=never",
    ];
    let child = CacheBox::start(&home, "below", "", &flags);
    let mut client = Client::connect(child.proxy.address()).await.unwrap();
    let head = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    client.send(head.as_bytes()).await.unwrap();
    assert_eq!(client.read_response("CONNECT").await.unwrap().status, 200);
    let inside = client.get("/inside", &[("Host", "x")]).await.unwrap();
    assert_eq!(inside.body, b"the origin");
    drop(client);
    assert!(parent.log(1).await.contains("TCP_TUNNEL/200"));
    let log = child.log(1).await;
    assert!(log.contains("FIRSTUP_PARENT/127.0.0.1"), "{log}");

    let mut refused = Client::connect(child.proxy.address()).await.unwrap();
    let elsewhere = nobody().port();
    let other = CacheBox::start(
        &home,
        "other",
        "",
        &[flags[1], "--allow-connect-port=1-65535"],
    );
    drop(refused);
    refused = Client::connect(other.proxy.address()).await.unwrap();
    let head = format!("CONNECT 127.0.0.1:{elsewhere} HTTP/1.1\r\nHost: x\r\n\r\n");
    refused.send(head.as_bytes()).await.unwrap();
    // The parent does not allow the port, and a direct connection is refused.
    assert_eq!(refused.read_response("CONNECT").await.unwrap().status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_for_the_parent_and_its_407_is_not_for_the_client() {
    let home = Home::new();
    let parent = Origin::start(|request| {
        let given = request.field("Proxy-Authorization");
        if given == Some("Basic dXNlcjpwYXNz") {
            Script::response(200, &[], "let in")
        } else {
            let field = ("Proxy-Authenticate", "Basic realm=\"x\"");
            Script::response(407, &[field], "")
        }
    });
    let parent = parent.await.unwrap();
    let file = home.file("credentials", "user:pass\n");
    let config = |direct: &str| {
        format!(
            "direct = \"{direct}\"\n[[peer]]\nname = \"isp\"\nurl = \"http://{}\"\n\
             credentials_file = \"{}\"\n",
            parent.address(),
            file.display()
        )
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let child = CacheBox::start(&home, "below", &config("never"), &[]);
    let mut client = Client::connect(child.proxy.address()).await.unwrap();
    let own = [("Proxy-Authorization", "Basic b3RoZXI6eA==")];
    let answer = client.get("http://192.0.2.1/x", &own).await.unwrap();
    // An address for documentation is not refused, and the parent alone knows the way.
    assert_eq!((answer.status, &answer.body[..]), (200, &b"let in"[..]));
    let request = &parent.requests()[0];
    assert_eq!(request.target(), "http://192.0.2.1/x");
    assert_eq!(request.field("Host"), Some("192.0.2.1"));

    fs::write(&file, "user:wrong\n").unwrap();
    let wrong = CacheBox::start(&home, "wrong", &config("never"), &[]);
    let answer = wrong.get("http://192.0.2.1/x").await;
    assert_eq!(answer.status, 502);
    assert!(answer.field("Proxy-Authenticate").is_none());
    let said = wrong.proxy.kill();
    assert!(said.contains("does not accept our credentials"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_is_gone_costs_no_request_while_the_origin_can_be_reached() {
    let (home, origin) = (Home::new(), origin().await);
    let gone = nobody();
    let parent = format!("--parent=http://{gone}");
    let child = CacheBox::start(&home, "below", "", &[&parent]);
    for n in 0..3 {
        assert_eq!(child.get(&origin.url(&format!("/{n}"))).await.status, 200);
    }
    assert!(
        child
            .log(3)
            .await
            .lines()
            .all(|line| line.contains("HIER_DIRECT"))
    );
    let only = CacheBox::start(&home, "only", "", &[&parent, "--direct=never"]);
    assert_eq!(only.get(&origin.url("/x")).await.status, 502);
    assert_eq!(origin.request_count(), 3);

    // The parent returns at the same address.
    let listen = format!("--listen={gone}");
    let cache = home.path().join("above.img");
    let back = Proxy::start(&cache, &[&listen]);
    let _back = back.unwrap();
    let begun = tokio::time::Instant::now();
    let mut number = 0;
    loop {
        number += 1;
        assert_eq!(
            child.get(&origin.url(&format!("/b{number}"))).await.status,
            200
        );
        if child.log(3 + number).await.contains("FIRSTUP_PARENT") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(only.get(&origin.url("/y")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_parent_is_the_answer_only_if_no_other_hop_has_one() {
    let (home, origin) = (Home::new(), origin().await);
    let parent = Origin::start(|_| Script::response(503, &[], "no way"))
        .await
        .unwrap();
    let flag = format!("--parent=http://{}", parent.address());
    let child = CacheBox::start(&home, "below", "", &[&flag]);
    assert_eq!(child.get(&origin.url("/a")).await.body, b"the origin");
    let only = CacheBox::start(&home, "only", "", &[&flag, "--direct=never"]);
    let answer = only.get(&origin.url("/a")).await;
    assert_eq!((answer.status, &answer.body[..]), (503, &b"no way"[..]));
    // Nothing listens at the origin either: the parent's answer says more than our own error.
    let dead = format!("http://{}/", nobody());
    assert_eq!(child.get(&dead).await.body, b"no way");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_sent_to_one_hop_only() {
    let (home, origin) = (Home::new(), origin().await);
    let parent = Origin::start(|_| Script::new().read_body().close())
        .await
        .unwrap();
    let flag = format!("--parent=http://{}", parent.address());
    let child = CacheBox::start(&home, "below", "", &[&flag]);
    let post = |at: SocketAddr, url: String| async move {
        let mut client = Client::connect(at).await.unwrap();
        let fields = [("Content-Length", "8")];
        client.request("POST", &url, &fields).await.unwrap();
        client.send(b"an order").await.unwrap();
        client.read_response("POST").await.unwrap().status
    };
    // The parent has read the order and may have passed it on.
    assert_eq!(post(child.proxy.address(), origin.url("/order")).await, 502);
    assert_eq!(origin.request_count(), 0);
    // A parent that refuses connections has read nothing.
    let flag = format!("--parent=http://{}", nobody());
    let other = CacheBox::start(&home, "other", "", &[&flag]);
    assert_eq!(post(other.proxy.address(), origin.url("/order")).await, 200);
    assert_eq!(origin.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_is_not_asked_for_addresses_that_clients_may_not_reach() {
    let home = Home::new();
    let parent = Origin::start(|_| Script::response(200, &[], "inside"))
        .await
        .unwrap();
    let flag = format!("--parent=http://{}", parent.address());
    let flags = [&*flag, "--direct=never", "--deny-destination=127.0.0.0/8"];
    let child = CacheBox::start(&home, "below", "", &flags);
    for url in [
        "http://10.0.0.1/",
        "http://127.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
    ] {
        let status = child.get(url).await.status;
        // Requests for ourselves have pages of ourselves.
        assert!(
            status == 403 || url.contains("localhost"),
            "{url}: {status}"
        );
    }
    assert_eq!(parent.request_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_that_are_each_others_parents_end_the_loop() {
    let home = Home::new();
    let (one_at, other_at) = (nobody(), nobody());
    let start = |name: &str, at: SocketAddr, parent: SocketAddr| {
        let flags = [
            format!("--listen={at}"),
            format!("--parent=http://{parent}"),
            "--direct=never".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Proxy::start(&home.path().join(format!("{name}.img")), &flags).unwrap()
    };
    let _one = start("one", one_at, other_at);
    let _other = start("other", other_at, one_at);
    let mut client = Client::connect(one_at).await.unwrap();
    let answer = client.get("http://192.0.2.1/", &[]).await.unwrap();
    assert_eq!(answer.status, 508);
    let mut client = Client::connect(one_at).await.unwrap();
    let head = b"CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: 192.0.2.1:443\r\n\r\n";
    client.send(head).await.unwrap();
    assert_eq!(client.read_response("CONNECT").await.unwrap().status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_sends_some_hosts_elsewhere() {
    let (home, origin) = (Home::new(), origin().await);
    let parent = Origin::start(|_| Script::response(200, &[], "the parent"))
        .await
        .unwrap();
    let config = format!(
        "direct = \"never\"\n[[peer]]\nname = \"isp\"\nurl = \"http://{}\"\n\
         [[route]]\nhost = \"127.0.0.0/8\"\npeers = []\n",
        parent.address()
    );
    let child = CacheBox::start(&home, "below", &config, &[]);
    assert_eq!(child.get(&origin.url("/")).await.body, b"the origin");
    assert_eq!(child.get("http://192.0.2.1/").await.body, b"the parent");
}

/// A client chooses the origin, and so it chooses whether the parent has a response.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_parent_cannot_answer_do_not_take_it_down() {
    let (home, origin) = (Home::new(), origin().await);
    let parent = Origin::start(|request| match request.target() {
        target if target.contains("bad") => Script::new().close(),
        _ => Script::response(200, &[], "the parent"),
    });
    let parent = parent.await.unwrap();
    let flag = format!("--parent=http://{}", parent.address());
    let child = CacheBox::start(&home, "below", "", &[&flag]);
    for n in 0..6 {
        let answer = child.get(&origin.url(&format!("/bad{n}"))).await;
        assert_eq!(answer.body, b"the origin");
        assert_eq!(
            child.get(&origin.url(&format!("/{n}"))).await.body,
            b"the parent"
        );
    }
    // Without another response, a probe finds out whether the parent answers.
    assert_eq!(child.get(&origin.url("/bad")).await.body, b"the origin");
    let is_probed = || parent.requests().iter().any(|it| it.method() == "OPTIONS");
    for _ in 0..100 {
        if is_probed() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_probed());
    assert_eq!(child.get(&origin.url("/last")).await.body, b"the parent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_response_needs_no_route() {
    let home = Home::new();
    let parent = Origin::start(|_| {
        let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")];
        Script::response(200, &fields, vec![b'x'; 3 << 20])
    });
    let parent = parent.await.unwrap();
    let flags = [
        &*format!("--parent=http://{}", parent.address()),
        "--direct=never",
    ];
    let child = CacheBox::start(&home, "below", "", &flags);
    assert_eq!(child.get("http://192.0.2.1/big").await.body.len(), 3 << 20);
    // So many proxies are between that no peer may be asked.
    let via = (
        "Via",
        "1.1 a, 1.1 b, 1.1 c, 1.1 d, 1.1 e, 1.1 f, 1.1 g, 1.1 h",
    );
    let mut client = Client::connect(child.proxy.address()).await.unwrap();
    let stored = client.get("http://192.0.2.1/big", &[via]).await.unwrap();
    assert_eq!((stored.status, stored.body.len()), (200, 3 << 20));
    let range = [via, ("Range", "bytes=5-9")];
    let part = client.get("http://192.0.2.1/big", &range).await.unwrap();
    assert_eq!((part.status, part.body.len()), (206, 5));
    assert_eq!(
        client
            .get("http://192.0.2.1/x", &[via])
            .await
            .unwrap()
            .status,
        508
    );
}
