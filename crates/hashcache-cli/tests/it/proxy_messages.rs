//! Messages that are unusual and have one meaning, through the real proxy.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use hashcache_testkit::{BodyEnd, Client, Gate, Origin, Response, Script};
use tokio::net::TcpListener;

use crate::Home;
use crate::proxy_process::Proxy;

/// A forward proxy and an origin that answers each path with what `script` says.
struct Setup {
    _home: Home,
    proxy: Proxy,
    origin: Origin,
}

impl Setup {
    async fn start(
        script: impl Fn(&hashcache_testkit::RawRequest) -> Script + Send + Sync + 'static,
        flags: &[&str],
    ) -> Self {
        let origin = Origin::start(script).await.unwrap();
        let home = Home::new();
        let proxy = Proxy::start(&home.path().join("cache"), flags).unwrap();
        Self {
            _home: home,
            proxy,
            origin,
        }
    }

    /// The response to a request whose URL has this path, in bytes.
    async fn get(&self, path: &[u8], fields: &str) -> Response {
        let host = self.origin.address();
        let begin = format!("GET http://{host}");
        let end = format!(" HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let head = [begin.as_bytes(), path, end.as_bytes()];
        self.raw(&head.concat()).await
    }

    async fn raw(&self, request: &[u8]) -> Response {
        let mut client = Client::connect(self.proxy.address()).await.unwrap();
        client.send(request).await.unwrap();
        let method = request.split(|&byte| byte == b' ').next().unwrap();
        let method = std::str::from_utf8(method).unwrap().to_owned();
        client.read_response(&method).await.unwrap()
    }

    /// Targets that the origin was asked for, as Latin-1.
    fn targets(&self) -> Vec<String> {
        let requests = self.origin.requests();
        requests.iter().map(|it| it.target().to_owned()).collect()
    }
}

fn stored(body: &str) -> Script {
    Script::response(200, &[("Cache-Control", "max-age=600")], body)
}

fn latin_1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

#[tokio::test]
async fn any_bytes_of_a_target_reach_the_origin_and_select_what_is_stored() {
    let setup = Setup::start(
        |request| stored(&request.head.start_line.len().to_string()),
        &[],
    )
    .await;
    let paths = [
        &b"/a\"<>|^`{}\\?\"<>|^`{}\\"[..],
        b"/a%22%3C%3E%7C%5E%60%7B%7D%5C?%22%3C%3E%7C%5E%60%7B%7D%5C",
        b"/\xe4?\xff",
        "/\u{e4}?\u{ff}".as_bytes(),
        "/\u{10ffe4}?\u{10ffff}".as_bytes(),
        b"/%E4?%FF",
    ];
    for path in paths {
        for hit in [false, true] {
            let response = setup.get(path, "").await;
            assert_eq!(response.status, 200, "{}", path.escape_ascii());
            let status = response.field("Cache-Status").unwrap();
            assert_eq!(
                status.contains("; hit"),
                hit,
                "{}: {status}",
                path.escape_ascii()
            );
        }
    }
    assert_eq!(setup.targets(), paths.map(latin_1));
    assert!(setup.origin.complaints().is_empty());
}

#[tokio::test]
async fn a_purge_names_any_bytes_and_only_them() {
    let setup = Setup::start(|_| stored("x"), &["--allow-purge=127.0.0.0/8"]).await;
    let host = setup.origin.address();
    for path in [&b"/<\xe4>"[..], "/<\u{e4}>".as_bytes()] {
        setup.get(path, "").await;
    }
    let begin = format!("PURGE http://{host}");
    let end = format!(" HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let purge = [begin.as_bytes(), b"/<\xe4>", end.as_bytes()];
    assert_eq!(setup.raw(&purge.concat()).await.status, 200);
    let is_hit = |response: Response| response.field("Cache-Status").unwrap().contains("; hit");
    assert!(!is_hit(setup.get(b"/<\xe4>", "").await));
    assert!(is_hit(setup.get("/<\u{e4}>".as_bytes(), "").await));
}

#[tokio::test]
async fn connect_with_a_length_of_zero_and_with_any_host_opens_a_tunnel() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = server.local_addr().unwrap();
    let port = format!("--allow-connect-port={}", to.port());
    let setup = Setup::start(|_| stored("x"), &[&port]).await;
    for fields in [
        "Content-Length: 0\r\n".to_owned(),
        "Host:\r\n".to_owned(),
        format!("Host: {to}\r\nhost: {to}\r\nContent-Length: 0, 0\r\n"),
        "Host: 127.0.0.1\r\nContent-Length: 0\r\nProxy-Connection: Keep-Alive\r\n".to_owned(),
    ] {
        for version in ["HTTP/1.0", "HTTP/1.1"] {
            let request = format!("CONNECT {to} {version}\r\n{fields}\r\nhello");
            let mut client = Client::connect(setup.proxy.address()).await.unwrap();
            client.send(request.as_bytes()).await.unwrap();
            let response = client.read_response("CONNECT").await.unwrap();
            assert_eq!(response.status, 200, "{request}");
            let mut server = server.accept().await.unwrap().0;
            let mut received = [0; 5];
            tokio::io::AsyncReadExt::read_exact(&mut server, &mut received)
                .await
                .unwrap();
            assert_eq!(
                &received, b"hello",
                "what follows the head is for the server"
            );
        }
    }
    let refused = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(setup.raw(refused.as_bytes()).await.status, 400);
}

#[tokio::test]
async fn a_client_that_closes_its_side_after_the_request_gets_the_response() {
    let gate = Gate::new();
    let opened = gate.clone();
    let setup = Setup::start(move |_| Script::new().wait(&gate).then(stored("late")), &[]).await;
    let host = setup.origin.address();
    let mut client = Client::connect(setup.proxy.address()).await.unwrap();
    let request = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(request.as_bytes()).await.unwrap();
    client.finish().await.unwrap();
    setup.origin.wait_for_requests(1).await;
    opened.open();
    let response = client.read_response("GET").await.unwrap();
    assert_eq!((response.status, &response.body[..]), (200, &b"late"[..]));
    client.read_close().await.unwrap();
}

#[tokio::test]
async fn trailers_reach_a_client_that_asks_for_them_and_no_other() {
    let script = |_: &hashcache_testkit::RawRequest| {
        let chunked = [
            ("Transfer-Encoding", "chunked"),
            ("Cache-Control", "no-store"),
        ];
        let script = Script::new().head(200, &chunked);
        let script = script.chunk("content").chunk("more ".repeat(1000));
        script.bytes("0\r\nX-Sum: 7\r\nContent-Length: 3\r\nConnection: close\r\n\r\n")
    };
    let setup = Setup::start(script, &[]).await;
    let expected = [("X-Sum".to_owned(), "7".to_owned())];
    for (fields, trailers) in [
        ("TE: trailers\r\nConnection: TE\r\n", &expected[..]),
        (
            "TE: gzip;q=0.5, Trailers\r\nConnection: te\r\n",
            &expected[..],
        ),
        ("", &[]),
        ("TE: gzip\r\nConnection: TE\r\n", &[]),
    ] {
        let response = setup.get(b"/", fields).await;
        assert_eq!(response.trailers, trailers, "{fields}");
        assert!(response.body == ["content", &"more ".repeat(1000)].concat().into_bytes());
        assert_eq!(response.end, BodyEnd::Complete);
        assert!(response.complaints.is_empty(), "{:?}", response.complaints);
    }
}

#[tokio::test]
async fn via_names_the_version_in_which_a_response_was_received() {
    let script = |request: &hashcache_testkit::RawRequest| {
        let head = "Content-Length: 1\r\nCache-Control: max-age=600\r\n\r\nx";
        match request.target() {
            "/1.0" => Script::new()
                .bytes(format!("HTTP/1.0 200 OK\r\n{head}"))
                .close(),
            _ => Script::new().bytes(format!("HTTP/1.1 200 OK\r\n{head}")),
        }
    };
    let setup = Setup::start(script, &["--name=box"]).await;
    for (path, via) in [(b"/1.0", "1.0 box"), (b"/1.1", "1.1 box")] {
        for _ in 0..2 {
            assert_eq!(setup.get(path, "").await.field("Via"), Some(via));
        }
    }
    let host = setup.origin.address();
    setup
        .raw(format!("GET http://{host}/v HTTP/1.0\r\n\r\n").as_bytes())
        .await;
    let requests = setup.origin.requests();
    assert_eq!(requests.last().unwrap().field("Via"), Some("1.0 box"));
}

#[tokio::test]
async fn what_another_cache_says_stays_only_if_it_is_a_list() {
    let script = |request: &hashcache_testkit::RawRequest| {
        let said = match request.target() {
            "/good" => "origin; hit",
            _ => "HIT from cache:3128, =",
        };
        let fields = [("Cache-Status", said), ("Cache-Control", "max-age=600")];
        Script::response(200, &fields, "x")
    };
    let setup = Setup::start(script, &["--name=box"]).await;
    for (path, count) in [(&b"/good"[..], 2), (b"/broken", 1)] {
        for _ in 0..2 {
            let response = setup.get(path, "").await;
            let lines: Vec<_> = response.head.fields_named("Cache-Status").collect();
            assert_eq!(lines.len(), count, "{lines:?}");
            assert!(lines[count - 1].starts_with("box; "), "{lines:?}");
        }
    }
}

#[tokio::test]
async fn a_412_for_a_condition_of_the_proxy_is_not_the_clients() {
    let script = |request: &hashcache_testkit::RawRequest| {
        let fields = [("ETag", "\"a\""), ("Cache-Control", "max-age=0")];
        match request.field("If-None-Match") {
            Some(_) => Script::response(412, &[], "no"),
            None => Script::response(200, &fields, "content"),
        }
    };
    let setup = Setup::start(script, &[]).await;
    for _ in 0..3 {
        let response = setup.get(b"/", "").await;
        assert_eq!(
            (response.status, &response.body[..]),
            (200, &b"content"[..])
        );
    }
}

#[tokio::test]
async fn two_different_dates_are_no_condition_and_reach_nobody() {
    let script = |request: &hashcache_testkit::RawRequest| match request.field("If-Modified-Since")
    {
        Some(_) => Script::response(304, &[], ""),
        None => Script::response(
            200,
            &[
                ("Cache-Control", "max-age=600"),
                ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"),
            ],
            "x",
        ),
    };
    let setup = Setup::start(script, &[]).await;
    let dates = "If-Modified-Since: Tue, 02 Jan 2024 00:00:00 GMT\r\n\
                 If-Modified-Since: Wed, 03 Jan 2024 00:00:00 GMT\r\n";
    for _ in 0..2 {
        assert_eq!(setup.get(b"/", dates).await.status, 200);
    }
    let one = "If-Modified-Since: Tue, 02 Jan 2024 00:00:00 GMT\r\n".repeat(2);
    assert_eq!(setup.get(b"/", &one).await.status, 304);
}

#[tokio::test]
async fn an_error_of_the_proxy_names_the_installation() {
    let setup = Setup::start(|_| stored("x"), &["--name=box"]).await;
    let refused = setup
        .raw(b"GET http://a.test/#x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        .await;
    assert!(refused.field("Proxy-Status").unwrap().starts_with("box; "));
    let unnamed = Setup::start(|_| stored("x"), &[]).await;
    let refused = unnamed
        .raw(b"GET http://a.test/#x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        .await;
    let via = unnamed.get(b"/", "").await;
    let name = via.field("Via").unwrap().strip_prefix("1.1 ").unwrap();
    assert!(
        refused
            .field("Proxy-Status")
            .unwrap()
            .starts_with(&format!("{name}; "))
    );
}

#[tokio::test]
async fn an_upgrade_in_http_1_0_is_ignored_and_a_large_max_forwards_counted_down() {
    let setup = Setup::start(|_| stored("x"), &[]).await;
    let host = setup.origin.address();
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    for version in ["1.0", "1.1"] {
        let request = format!("GET http://{host}/ HTTP/{version}\r\nHost: {host}\r\n{upgrade}\r\n");
        setup.raw(request.as_bytes()).await;
    }
    for forwards in ["4294967296", "99999999999999999999999"] {
        let fields = format!("Max-Forwards: {forwards}\r\n");
        let request = format!("OPTIONS http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        setup.raw(request.as_bytes()).await;
    }
    let requests = setup.origin.requests();
    let upgrades: Vec<_> = requests.iter().map(|it| it.field("Upgrade")).collect();
    // The first response is stored, but the second request is not answered from the store.
    assert_eq!(upgrades, [None, Some("websocket"), None, None]);
    let forwards: Vec<_> = requests
        .iter()
        .filter_map(|it| it.field("Max-Forwards"))
        .collect();
    assert_eq!(forwards, ["4294967295", "18446744073709551614"]);
}
