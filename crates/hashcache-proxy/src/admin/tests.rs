//! The admin listener, asked over sockets.

use hashcache_base::clock::Clock;
use hashcache_intercept::InterceptState;
use hashcache_intercept::refusals::ClientProgram;
use hashcache_upstream::UpstreamFigures;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::access_log::AccessLogger;
use crate::dashboard::dashboard_of_tests;
use crate::metrics::{EngineFigures, Metrics, StoreState};

fn admin(store: StoreState) -> Arc<Admin> {
    Arc::new(Admin::with_dashboard(
        exposition(store),
        dashboard_of_tests(),
    ))
}

fn exposition(store: StoreState) -> Exposition {
    let (clock, log) = (Arc::new(Clock::start(None)), Arc::new(AccessLogger::none()));
    let engine = move || EngineFigures {
        store,
        ..EngineFigures::default()
    };
    let upstream = UpstreamFigures::default;
    Exposition::new(Metrics::new(1), clock, log, engine, upstream)
}

const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 3180);

/// A client on this machine.
const LOCAL_CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn request(method: Method, host: Option<&str>, target: &str) -> http::request::Parts {
    let mut request = http::Request::builder().method(method).uri(target);
    if let Some(host) = host {
        request = request.header(header::HOST, host);
    }
    request.body(()).unwrap().into_parts().0
}

fn answer(admin: &Admin, head: &http::request::Parts) -> Response<Bytes> {
    let refusal = admin.refusal(head, LOCAL);
    refusal.unwrap_or_else(|| admin.answer(head, LOCAL_CLIENT))
}

fn get(admin: &Admin, target: &str) -> Response<Bytes> {
    answer(admin, &request(Method::GET, Some("localhost:3180"), target))
}

fn json(response: &Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).unwrap()
}

#[test]
fn only_names_and_addresses_of_this_machine_are_answered() {
    let admin = admin(StoreState::Ready);
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST:3180", 200),
        ("localhost.:3180", 200),
        ("box.localhost:1", 200),
        ("127.0.0.1:3180", 200),
        ("127.9.9.9", 200),
        ("[::1]:3180", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("192.0.2.1:3180", 200),
        ("192.0.2.2:3180", 421),
        ("[2001:db8::1]:3180", 421),
        ("evil.test:3180", 421),
        ("localhost.evil.test", 421),
        ("notlocalhost", 421),
        ("127.0.0.1.evil.test", 421),
        ("127.1", 421),
        ("", 421),
        (":3180", 421),
        ("[::1", 421),
        // A user name, or another host behind a name of ours.
        ("user@127.0.0.1", 421),
        ("user@localhost:3180", 421),
        ("localhost:1@evil.test", 421),
        ("127.0.0.1:@evil.test", 421),
        ("[::1]@evil.test", 421),
        ("[::1].evil.test", 421),
        ("localhost:80.evil.test", 421),
        ("@localhost", 421),
    ] {
        for path in [
            "/",
            "/dashboard",
            "/-/view",
            "/stats",
            "/metrics",
            "/-/healthy",
            "/-/ready",
            "/none",
        ] {
            let response = answer(&admin, &request(Method::GET, Some(host), path));
            let expected = if path == "/none" && status == 200 {
                404
            } else {
                status
            };
            assert_eq!(response.status(), expected, "{host} {path}");
        }
    }
}

#[test]
fn a_target_with_an_authority_is_checked_by_it() {
    let admin = admin(StoreState::Ready);
    let head = request(Method::GET, Some("localhost"), "http://evil.test/stats");
    assert_eq!(answer(&admin, &head).status(), 421);
    let head = request(Method::GET, Some("localhost"), "http://a@localhost/stats");
    assert_eq!(answer(&admin, &head).status(), 421);
    let head = request(Method::GET, Some("a@localhost"), "http://localhost/stats");
    assert_eq!(answer(&admin, &head).status(), 421);
}

#[test]
fn one_host_it_must_be_but_for_http_1_0() {
    let admin = admin(StoreState::Ready);
    let mut head = request(Method::GET, None, "/-/healthy");
    assert_eq!(answer(&admin, &head).status(), 400);
    head.version = Version::HTTP_10;
    assert_eq!(answer(&admin, &head).status(), 200);
    for host in ["localhost", "localhost"] {
        head.headers
            .append(header::HOST, HeaderValue::from_static(host));
    }
    assert_eq!(answer(&admin, &head).status(), 400);
}

#[test]
fn nothing_is_changed_by_anything_but_get_and_head() {
    let admin = admin(StoreState::Ready);
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::CONNECT,
    ] {
        let response = answer(&admin, &request(method, Some("localhost"), "/-/ready"));
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers()[header::ALLOW], "GET, HEAD");
    }
    let head = request(Method::HEAD, Some("localhost"), "/-/ready");
    assert_eq!(answer(&admin, &head).status(), 200);
}

#[test]
fn a_degraded_store_is_told_and_still_ready() {
    for (store, word) in [
        (StoreState::Ready, "ready"),
        (StoreState::Degraded, "degraded"),
        (StoreState::Opening, "opening"),
        (StoreState::Absent, "absent"),
    ] {
        let response = get(&admin(store), "/-/ready");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(json(&response)["store"], word);
        assert_eq!(json(&response)["clock"], "ok");
    }
}

#[test]
fn a_proxy_that_drains_is_healthy_and_not_ready() {
    let admin = admin(StoreState::Ready);
    admin.drain();
    let response = get(&admin, "/-/ready");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(json(&response)["ready"], false);
    assert_eq!(get(&admin, "/-/healthy").status(), StatusCode::OK);
}

#[test]
fn metrics_and_stats_say_what_they_are() {
    let admin = admin(StoreState::Ready);
    let metrics = get(&admin, "/metrics");
    assert_eq!(metrics.headers()[header::CONTENT_TYPE], OPENMETRICS);
    assert!(metrics.body().ends_with(b"# EOF\n"));
    let stats = get(&admin, "/stats?pretty");
    assert_eq!(stats.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(json(&stats)["requests"]["hit"], 0);
}

#[test]
fn stats_name_clients_and_hosts_to_this_machine_alone_without_a_token() {
    let state = Arc::new(InterceptState::default());
    let program = ClientProgram {
        client: IpAddr::from([192, 0, 2, 7]),
        host: "site.example".into(),
        fingerprint: 1,
    };
    let now = Instant::now();
    (0..3).for_each(|_| state.refusals.note_refusal(&program, now));
    let exposition = exposition(StoreState::Ready).with_intercept_state(state);
    let admin = Admin::with_dashboard(exposition, dashboard_of_tests());
    let head = request(Method::GET, Some("localhost"), "/stats");
    for (client, named) in [("127.0.0.1", 1), ("192.0.2.9", 0)] {
        let stats = json(&admin.answer(&head, client.parse().unwrap()));
        assert_eq!(stats["intercept"]["refusing_clients"], 1);
        let refusing = stats["intercept"]["refusing"].as_array().unwrap();
        assert_eq!(refusing.len(), named, "{client}");
    }
}

#[test]
fn the_index_names_every_page() {
    let admin = admin(StoreState::Ready);
    let mut head = request(Method::GET, Some("localhost"), "/");
    for accept in ["*/*", "text/html"] {
        head.headers
            .insert(header::ACCEPT, HeaderValue::from_static(accept));
        let response = answer(&admin, &head);
        let text = std::str::from_utf8(response.body()).unwrap();
        for (path, _) in PATHS {
            assert!(text.contains(path), "{path}");
            let expected = match path {
                "/-/purge" => StatusCode::METHOD_NOT_ALLOWED,
                // This listener has no store and no settings to ask about.
                path if path.starts_with(views::EXPLAIN) || path == views::LIST => {
                    StatusCode::METHOD_NOT_ALLOWED
                }
                _ => StatusCode::OK,
            };
            assert_eq!(get(&admin, path).status(), expected, "{path}");
        }
    }
}

/// A server on loopback and its address.
async fn serving() -> (SocketAddr, tokio::task::JoinHandle<Infallible>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (
        address,
        tokio::spawn(admin(StoreState::Ready).serve(listener)),
    )
}

async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn it_answers_over_a_socket() {
    let (address, server) = serving().await;
    let request =
        format!("GET /-/healthy HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let answer = exchange(address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    server.abort();
}

#[tokio::test]
async fn a_head_has_no_body_and_says_how_long_it_were() {
    let (address, server) = serving().await;
    let request =
        format!("HEAD /-/healthy HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let answer = exchange(address, &request).await;
    assert!(answer.contains("content-length: 3\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    server.abort();
}

#[tokio::test]
async fn connections_that_ask_nothing_do_not_keep_a_monitor_waiting() {
    let (address, server) = serving().await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX + 8 {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    // The most recently used of all connections.
    let keep = format!("GET /-/healthy HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut used = held.pop().unwrap();
    used.write_all(keep.as_bytes()).await.unwrap();
    let mut first = [0; 1];
    used.read_exact(&mut first).await.unwrap();
    let request =
        format!("GET /-/healthy HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    for _ in 0..3 {
        let answer = tokio::time::timeout(HEAD_TIME / 2, exchange(address, &request));
        assert!(answer.await.expect("at once").ends_with("ok\n"));
    }
    // The oldest connections are closed, and the recently used one is not.
    let mut rest = Vec::new();
    held[0].read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    used.write_all(request.as_bytes()).await.unwrap();
    used.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"ok\n"));
    server.abort();
}

#[tokio::test]
async fn connections_end_with_the_server() {
    let (address, server) = serving().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).await.unwrap();
    server.abort();
    let mut rest = Vec::new();
    // Either a FIN or an RST: the test needs the end alone.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.ends_with(b"ok\n"));
}
