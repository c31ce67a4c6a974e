//! Sites of the real proxy over time and over other protocols: reload while requests run, HTTP/2
//! clients, WebSocket, lifetimes, and the numbers of origins.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hashcache_testkit::{Client, Gate, Origin, RawRequest, Script};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::Home;
use crate::proxy_process::Proxy;
use crate::proxy_sites::{WWW, ask, front, get, origin, plain, site, site_at};

fn site_of(host: &str, origins: &[&Origin]) -> String {
    let urls: Vec<String> = origins
        .iter()
        .map(|origin| format!("\"http://{}\"", origin.address()))
        .collect();
    format!(
        "[[site]]\nhosts = [\"{host}\"]\norigins = [{}]\n",
        urls.join(", ")
    )
}

/// Writes another configuration, sends HUP, and waits until a request shows that it is in effect.
async fn reload(proxy: &Proxy, (file, config): (&Path, &str), shows: (&str, u16)) {
    std::fs::write(file, config).unwrap();
    let pid = Pid::from_raw(i32::try_from(proxy.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let begun = tokio::time::Instant::now();
    let (host, status) = shows;
    while ask(proxy, "GET", "/shows", &[("Host", host)]).await.status != status {
        assert!(begun.elapsed() < Duration::from_secs(20), "no reload");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An origin that names itself and stores nothing.
async fn named(name: &'static str) -> Origin {
    origin(move |_| Script::response(200, &[("Cache-Control", "no-store")], name)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_adds_changes_and_removes_sites_while_requests_run() {
    let home = Home::new();
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let gate = Gate::new();
    let held = {
        let gate = gate.clone();
        origin(move |_| {
            Script::new()
                .wait(&gate)
                .then(Script::response(200, &[], "held"))
        })
        .await
    };
    let before = site_of("www.a.test", &[&one]) + &site_of("slow.test", &[&held]);
    let proxy = Arc::new(front(&home, &before));
    let file = home.path().join("site.toml");

    // A request of a site that the reload removes, under way all the time.
    let mut slow = Client::connect(proxy.address()).await.unwrap();
    slow.request("GET", "/", &[("Host", "slow.test")])
        .await
        .unwrap();
    held.wait_for_requests(1).await;
    // Requests of a site whose origins the reload changes.
    let (stop, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let load = {
        let (proxy, stop, count) = (Arc::clone(&proxy), Arc::clone(&stop), Arc::clone(&count));
        tokio::spawn(async move {
            let mut client = Client::connect(proxy.address()).await.unwrap();
            let mut bad = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                client.request("GET", "/load", &[WWW]).await.unwrap();
                let answer = client.read_response("GET").await.unwrap();
                if answer.status != 200 {
                    bad.push(answer.status);
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            bad
        })
    };
    let some_more = async |requests: usize| {
        let enough = count.load(Ordering::Relaxed) + requests;
        while count.load(Ordering::Relaxed) < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    some_more(20).await;
    assert_eq!(
        ask(&proxy, "GET", "/", &[("Host", "c.test")]).await.status,
        421
    );

    let after = site_of("www.a.test", &[&two, &three]) + &site_of("c.test", &[&one]);
    reload(&proxy, (&file, &after), ("c.test", 200)).await;
    let old = one
        .requests()
        .iter()
        .filter(|it| it.target() == "/load")
        .count();
    some_more(40).await;
    // At most the one that was under way went to the origin that the site no longer has.
    let now = one
        .requests()
        .iter()
        .filter(|it| it.target() == "/load")
        .count();
    assert!(now <= old + 1, "{now} {old}");
    assert!(two.request_count() >= 10 && three.request_count() >= 10);
    let gone = ask(&proxy, "GET", "/", &[("Host", "slow.test")]).await;
    assert_eq!(gone.status, 421);
    gate.open();
    assert_eq!(slow.read_response("GET").await.unwrap().body, b"held");

    // A configuration with a fault changes nothing.
    let wrong = site_of("d.test", &[&one]) + &site_of("d.test", &[&two]);
    std::fs::write(&file, &wrong).unwrap();
    let pid = Pid::from_raw(i32::try_from(proxy.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let failed = "hashcache_config_reload_success 0";
    let begun = tokio::time::Instant::now();
    while !metrics(&proxy).await.contains(failed) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        ask(&proxy, "GET", "/", &[("Host", "d.test")]).await.status,
        421
    );
    some_more(20).await;
    stop.store(true, Ordering::Relaxed);
    assert_eq!(load.await.unwrap(), [0_u16; 0]);
}

async fn metrics(proxy: &Proxy) -> String {
    let mut client = Client::connect(proxy.admin()).await.unwrap();
    let admin = proxy.admin().to_string();
    client
        .request("GET", "/metrics", &[("Host", &admin)])
        .await
        .unwrap();
    let response = client.read_response("GET").await.unwrap();
    String::from_utf8(response.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_http2_get_the_site_of_each_request() {
    let (home, one, two) = (Home::new(), plain("one").await, plain("two").await);
    let config = site(&[&one], "") + &site_of("b.test", &[&two]);
    let config = home.file("site.toml", &config);
    let config = format!("--config={}", config.display());
    let cache = home.path().join("cache.img");
    let proxy = Proxy::start(&cache, &[&config, "--listen=h2c://127.0.0.1:0"]).unwrap();
    let socket = TcpStream::connect(proxy.second_address().unwrap())
        .await
        .unwrap();
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (client, connection) = builder.handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    // All streams of one connection, at the same time.
    let hosts = ["www.a.test", "b.test", "c.test", "a.test:8443"];
    let mut asked = Vec::new();
    for n in 0..40 {
        let mut client = client.clone();
        let host = hosts[n % hosts.len()];
        asked.push(tokio::spawn(async move {
            let request = Request::get(format!("http://{host}/{n}"));
            let request = request
                .header("x-forwarded-for", "192.0.2.1")
                .body(Empty::<Bytes>::new())
                .unwrap();
            client.ready().await.unwrap();
            let answer = client.send_request(request).await.unwrap();
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (host, status, body)
        }));
    }
    for answer in asked {
        let (host, status, body) = answer.await.unwrap();
        let expected: (u16, &[u8]) = match host {
            "b.test" => (200, b"two"),
            "c.test" => (421, b""),
            _ => (200, b"one"),
        };
        assert_eq!(status, expected.0, "{host}");
        assert!(status == 421 || *body == *expected.1, "{host}");
    }
    assert_eq!((one.request_count(), two.request_count()), (20, 10));
    for request in one.requests() {
        let host = request.field("Host").unwrap().to_owned();
        assert!(host == "www.a.test" || host == "a.test:8443", "{host}");
        assert_eq!(request.field("X-Forwarded-For"), Some("127.0.0.1"));
        assert_eq!(request.field("X-Forwarded-Host"), Some(&*host));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes_through_a_site_with_the_fields_of_a_site() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("\"http://{}\"", listener.local_addr().unwrap());
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let head = read_head(&mut socket).await;
        let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nServer: secret\r\n\r\n";
        socket.write_all(switching.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        loop {
            match socket.read(&mut buffer).await.unwrap() {
                0 => return head,
                read => socket.write_all(&buffer[..read]).await.unwrap(),
            }
        }
    });
    let more = "response_headers = { remove = [\"Server\"] }\nbypass_cookie = [\"session\"]";
    let proxy = front(&home, &site_at(&url, more));
    let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
    let request = "GET /chat?room=1 HTTP/1.1\r\nHost: www.a.test\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nX-Forwarded-For: 192.0.2.1\r\n\
                   Cookie: session=1\r\n\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let answer = read_head(&mut socket).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(!answer.contains("secret"), "{answer}");
    for word in ["first", "a second message"] {
        socket.write_all(word.as_bytes()).await.unwrap();
        let mut echoed = vec![0; word.len()];
        socket.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, word.as_bytes());
    }
    drop(socket);
    let head = tokio::time::timeout(Duration::from_secs(20), echo).await;
    let head = head.unwrap().unwrap();
    for line in [
        "get /chat?room=1 http/1.1\r\n",
        "\r\nhost: www.a.test\r\n",
        "\r\nx-forwarded-for: 127.0.0.1\r\n",
        "\r\nsec-websocket-key: x\r\n",
        "\r\ncookie: session=1\r\n",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
}

/// A head in lower case.
async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_lifetime_is_not_for_clients_with_cookies_unless_the_site_says_so() {
    let home = Home::new();
    let origin = origin(|request: &RawRequest| {
        let user = request.field("Cookie").unwrap_or("nobody").to_owned();
        Script::response(200, &[("Content-Type", "text/html")], user)
    })
    .await;
    let more = "lifetime = [{ path = \"/static/**\", default = \"1h\", ignore_cookies = true }, \
                { default = \"1h\" }]";
    let proxy = front(&home, &site(&[&origin], more));
    for (asked, content) in [
        (None, "nobody"),
        (Some("user=a"), "user=a"),
        (Some("user=b"), "user=b"),
        (None, "nobody"),
        (Some("user=a"), "user=a"),
    ] {
        let fields: Vec<_> = asked.map(|cookie| ("Cookie", cookie)).into_iter().collect();
        let answer = get(&proxy, "/page", &fields).await;
        assert_eq!(answer.body, content.as_bytes());
        assert_eq!(answer.field("Vary"), Some("cookie"));
    }
    assert_eq!(origin.request_count(), 4, "the page for nobody is a hit");
    for cookie in ["user=a", "user=b"] {
        let answer = get(&proxy, "/static/a.css", &[("Cookie", cookie)]).await;
        assert_eq!(answer.body, b"user=a");
        assert_eq!(answer.field("Vary"), None);
    }
    assert_eq!(origin.request_count(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_client_with_a_cookie_does_not_share_its_page_with_followers() {
    let home = Home::new();
    let gate = Gate::new();
    let origin = {
        let gate = gate.clone();
        origin(move |request: &RawRequest| {
            let user = request.field("Cookie").unwrap_or("nobody").to_owned();
            Script::new()
                .wait(&gate)
                .then(Script::response(200, &[], user))
        })
        .await
    };
    let config = site(&[&origin], "lifetime = [{ default = \"1h\" }]");
    let proxy = Arc::new(front(&home, &config));
    let mut asked = Vec::new();
    for cookie in ["user=a", "user=b", "user=c"] {
        let proxy = Arc::clone(&proxy);
        asked.push(tokio::spawn(async move {
            let answer = get(&proxy, "/page", &[("Cookie", cookie)]).await;
            assert_eq!(answer.body, cookie.as_bytes());
        }));
        if asked.len() == 1 {
            origin.wait_for_requests(1).await;
        }
    }
    gate.open();
    for answer in asked {
        answer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_shortens_what_the_origin_states_and_clients_still_see_that() {
    let home = Home::new();
    let origin = plain("x").await;
    let proxy = front(&home, &site(&[&origin], "lifetime = [{ max = \"0s\" }]"));
    for count in 1..4 {
        let answer = get(&proxy, "/a", &[]).await;
        assert_eq!(answer.field("Cache-Control"), Some("max-age=600"));
        assert_eq!(origin.request_count(), count);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_each_origin_of_a_site_did() {
    let home = Home::new();
    let (good, bad) = (named("x").await, origin(|_| Script::new().close()).await);
    let proxy = front(&home, &site(&[&good, &bad], ""));
    for n in 0..20 {
        assert_eq!(get(&proxy, &format!("/{n}"), &[]).await.status, 200);
    }
    let page = metrics(&proxy).await;
    let figure = |family: &str, origin: &Origin| -> f64 {
        let labels = format!("site=\"www.a.test\",origin=\"http://{}\"", origin.address());
        let name = format!("hashcache_site_origin_{family}{{{labels}}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{name} in {page}"))
            .parse()
            .unwrap()
    };
    let is = |value: f64, expected: usize| {
        assert!((value - expected as f64).abs() < 0.5, "{value} {expected}");
    };
    is(figure("requests_total", &good), 20);
    is(figure("responses_total", &good), 20);
    is(figure("failures_total", &good), 0);
    is(figure("out", &good), 0);
    assert!(figure("response_seconds_total", &good) > 0.0);
    is(figure("requests_total", &bad), 3);
    is(figure("responses_total", &bad), 0);
    is(figure("failures_total", &bad), 3);
    is(figure("outs_total", &bad), 1);
    is(figure("out", &bad), 1);
    assert!(!page.contains("site=\"other\""));
}
