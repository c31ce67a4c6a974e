//! Logins that belong to a connection (NTLM, Negotiate), through the real proxy: they work for the
//! client that makes them, and no other client gets a connection on which one was made.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::Home;
use crate::proxy_intercept::{
    Clients, HTTP_1, Program, Site, authority, login, pair, proxy as intercepting,
};
use crate::proxy_link::Pair;
use crate::proxy_members::{Boxes, URLS};
use crate::proxy_process::Proxy;
use crate::proxy_sites::{WWW, front, site};

/// An origin that logs in connections: `T1` begins a handshake, and `T3 NAME` behind its challenge
/// ends it. `/close` ends the connection after the response; `/public` is stored.
async fn origin() -> Origin {
    let users: Mutex<HashMap<usize, String>> = Mutex::default();
    let answer = move |request: &RawRequest| answer(&mut users.lock().unwrap(), request);
    Origin::start(answer).await.unwrap()
}

fn answer(users: &mut HashMap<usize, String>, request: &RawRequest) -> Script {
    let credentials = request.field("authorization").unwrap_or_default();
    let (scheme, token) = credentials.split_once(' ').unwrap_or_default();
    let challenge = format!("{scheme} CHALLENGE");
    let begun = users.get(&request.connection).cloned();
    let response = if request.target().ends_with("/public") {
        Script::response(200, &[("Cache-Control", "public, max-age=600")], "public")
    } else if let Some(user) = begun.as_ref().filter(|user| !user.is_empty()) {
        let text = format!("hello {user}");
        Script::response(200, &[("Cache-Control", "public, max-age=600")], text)
    } else if token == "T1" {
        users.insert(request.connection, String::new());
        Script::response(401, &[("WWW-Authenticate", &challenge)], "")
    } else if let (Some(name), Some(_)) = (token.strip_prefix("T3"), begun) {
        users.insert(request.connection, name.to_owned());
        Script::response(200, &[], format!("hello {name}"))
    } else {
        let offers = [
            ("WWW-Authenticate", "Basic realm=\"a, b\", NTLM"),
            ("WWW-Authenticate", "Negotiate"),
        ];
        Script::response(401, &offers, "who is there?")
    };
    let whole = Script::new().read_body().then(response);
    if request.target().ends_with("/close") {
        whole.close()
    } else {
        whole
    }
}

/// One client connection, and how it names the origin.
struct Person {
    client: Client,
    base: String,
    fields: Vec<(&'static str, &'static str)>,
}

impl Person {
    async fn ask(&mut self, method: &str, path: &str, credentials: Option<&str>) -> Response {
        let mut fields = self.fields.clone();
        fields.extend(credentials.map(|credentials| ("Authorization", credentials)));
        if method == "POST" {
            fields.push(("Content-Length", "3"));
        }
        let url = format!("{}{path}", self.base);
        self.client.request(method, &url, &fields).await.unwrap();
        if method == "POST" {
            self.client.send(b"abc").await.unwrap();
        }
        let response = self.client.read_response(method).await.unwrap();
        assert_eq!(response.end, BodyEnd::Complete);
        response
    }

    /// The statuses of a handshake.
    async fn log_in(&mut self, scheme: &str, name: &str) -> [u16; 3] {
        let first = format!("{scheme} T1");
        let third = format!("{scheme} T3{name}");
        [
            self.ask("GET", "/a", None).await.status,
            self.ask("GET", "/a", Some(&first)).await.status,
            self.ask("GET", "/a", Some(&third)).await.status,
        ]
    }
}

fn text(response: &Response) -> &str {
    std::str::from_utf8(&response.body).unwrap()
}

/// Where clients come in, and what they call the origin.
struct Way<'a> {
    at: SocketAddr,
    base: String,
    fields: &'a [(&'static str, &'static str)],
}

impl Way<'_> {
    async fn person(&self) -> Person {
        Person {
            client: Client::connect(self.at).await.unwrap(),
            base: self.base.clone(),
            fields: self.fields.to_vec(),
        }
    }
}

/// Checks that a login works only for the client that has logged in.
async fn logins_are_kept_apart(way: &Way<'_>, origin: &Origin, scheme: &str) {
    let mut alice = way.person().await;
    let (first, last) = (origin.request_count(), |count| {
        origin.requests()[count..]
            .iter()
            .map(|it| it.connection)
            .collect::<Vec<_>>()
    });
    assert_eq!(alice.log_in(scheme, "alice").await, [401, 401, 200]);
    // A mirror takes no POST.
    let method = if way.base.starts_with("/mirror/") {
        "GET"
    } else {
        "POST"
    };
    for method in ["GET", method, "GET"] {
        let again = alice.ask(method, "/b", None).await;
        assert_eq!(text(&again), "hello alice", "{scheme} {method}");
    }
    let connections = last(first);
    assert!(
        connections[1..].iter().all(|it| *it == connections[1]),
        "{scheme}: {connections:?}"
    );
    let mut bob = way.person().await;
    for path in ["/a", "/b", "/c"] {
        // Not even what her responses allow to be stored.
        let answered = way.person().await.ask("GET", path, None).await;
        assert_eq!(answered.status, 401, "{scheme} {path}: {}", text(&answered));
        assert_eq!(bob.ask("GET", path, None).await.status, 401);
    }
    assert_eq!(bob.log_in(scheme, "bob").await, [401, 401, 200]);
    assert_eq!(text(&bob.ask("GET", "/b", None).await), "hello bob");
    assert_eq!(text(&alice.ask("GET", "/b", None).await), "hello alice");
    drop(alice);
    for path in ["/a", "/b", "/d"] {
        let answered = way.person().await.ask("GET", path, None).await;
        assert_eq!(answered.status, 401, "{scheme} {path}: {}", text(&answered));
    }
}

fn start(home: &Home, name: &str, flags: &[&str]) -> Proxy {
    Proxy::start(&home.path().join(name), flags).unwrap()
}

fn forward<'a>(proxy: &Proxy, origin: &Origin) -> Way<'a> {
    Way {
        at: proxy.address(),
        base: origin.url(""),
        fields: &[],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_proxy_keeps_logins_of_connections_apart() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "cache", &[]);
    let way = forward(&proxy, &origin);
    for scheme in ["NTLM", "negotiate", "Kerberos", "NobodyKnows"] {
        logins_are_kept_apart(&way, &origin, scheme).await;
    }
    let mut person = way.person().await;
    let offered = person.ask("GET", "/a", None).await;
    // Without this field, a program must not answer the challenge through a proxy (RFC 4559, 6).
    assert_eq!(
        offered.field("proxy-support"),
        Some("Session-Based-Authentication")
    );
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_keeps_logins_of_connections_apart() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = front(&home, &site(&[&origin], ""));
    let way = Way {
        at: proxy.address(),
        base: String::new(),
        fields: &[WWW],
    };
    for scheme in ["NTLM", "Negotiate"] {
        logins_are_kept_apart(&way, &origin, scheme).await;
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_of_connections_are_kept_apart_behind_a_parent() {
    let (home, origin) = (Home::new(), origin().await);
    let parent = start(&home, "parent", &["--name=parent"]);
    let to_parent = format!("--parent=http://{}", parent.address());
    let child = start(
        &home,
        "child",
        &["--name=child", &to_parent, "--direct=never"],
    );
    logins_are_kept_apart(&forward(&child, &origin), &origin, "NTLM").await;
    child.kill_well();
    parent.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_of_connections_are_kept_apart_behind_a_link() {
    let (pair, origin) = (Pair::start(&[], &[]).await, origin().await);
    let way = forward(&pair.child.proxy, &origin);
    logins_are_kept_apart(&way, &origin, "NTLM").await;
    assert!(
        origin
            .requests()
            .iter()
            .all(|it| it.field("hashcache-link").is_none()),
        "the number of a login leaves the link"
    );
}

/// Asserts that the login of a client fails, and that no request on the client's connection gets
/// the pages of another client. `fields` are added by a proxy that multiplexes.
async fn no_login_is_carried_across(
    way: &Way<'_>,
    origin: &Origin,
    fields: &[(&'static str, &'static str)],
) {
    let mut many = way.person().await;
    many.fields.extend(fields);
    assert_eq!(many.log_in("NTLM", "alice").await[..2], [401, 401]);
    for path in ["/a", "/b"] {
        let next = many.ask("GET", path, None).await;
        assert_eq!(next.status, 401, "{fields:?}: {}", text(&next));
        assert_eq!(next.field("proxy-support"), None, "{fields:?}");
    }
    // The origin has seen a whole login, for one request. The connection carries no further one.
    let first = origin.request_count();
    let begun = many.ask("GET", "/a", Some("NTLM T1")).await;
    assert_eq!(begun.status, 401);
    let used = origin.requests()[first].connection;
    for _ in 0..3 {
        many.ask("GET", "/c", None).await;
        many.ask("GET", "/c", Some("NTLM T3bob")).await;
    }
    let later = &origin.requests()[first + 1..];
    assert_eq!(later.len(), 6);
    assert!(
        later.iter().all(|it| it.connection != used),
        "{fields:?}: a connection with credentials is used again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_may_pool_carries_no_login_to_another_client() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "cache", &["--workers=1"]);
    let way = forward(&proxy, &origin);
    for field in [
        ("Via", "1.1 varnish"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1"),
    ] {
        no_login_is_carried_across(&way, &origin, &[field]).await;
    }
    // A proxy that says that it keeps the login of a client.
    let kept = [
        ("Via", "1.1 child"),
        ("Connection", "proxy-support"),
        ("Proxy-Support", "Session-Based-Authentication"),
    ];
    let way = Way {
        fields: &kept,
        ..forward(&proxy, &origin)
    };
    logins_are_kept_apart(&way, &origin, "NTLM").await;
    // The statement is about a request: one without it does not follow the login.
    let mut alice = way.person().await;
    assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    alice.fields.truncate(1);
    assert_eq!(alice.ask("GET", "/b", None).await.status, 401);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_of_a_site_carries_no_login_to_another_client_unless_it_keeps_them() {
    let (home, origin) = (Home::new(), origin().await);
    let trust = "trust_forwarded = [\"127.0.0.0/8\"]";
    let proxy = front(&home, &site(&[&origin], trust));
    let way = Way {
        at: proxy.address(),
        base: String::new(),
        fields: &[WWW],
    };
    for fields in [
        &[][..],
        &[("X-Forwarded-For", "192.0.2.1")],
        &[("Via", "1.1 varnish"), ("X-Forwarded-For", "192.0.2.1")],
        // A front that passes on what its clients say of themselves.
        &[
            ("X-Forwarded-For", "192.0.2.1"),
            ("Connection", "proxy-support"),
            ("Proxy-Support", "Session-Based-Authentication"),
        ],
    ] {
        no_login_is_carried_across(&way, &origin, fields).await;
    }
    proxy.kill_well();
    // A front that is not trusted: its fields are dropped, and still show that it is there.
    let (home, origin) = (Home::new(), self::origin().await);
    let proxy = front(&home, &site(&[&origin], ""));
    let way = Way {
        at: proxy.address(),
        ..way
    };
    no_login_is_carried_across(&way, &origin, &[("X-Forwarded-For", "192.0.2.1")]).await;
    proxy.kill_well();
    let (home, origin) = (Home::new(), self::origin().await);
    let keeps = format!("{trust}\nfront_keeps_logins = true");
    let proxy = front(&home, &site(&[&origin], &keeps));
    let way = Way {
        at: proxy.address(),
        base: String::new(),
        fields: &[WWW, ("X-Forwarded-For", "192.0.2.1")],
    };
    logins_are_kept_apart(&way, &origin, "NTLM").await;
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_keeps_logins_of_connections_apart() {
    let (home, origin) = (Home::new(), origin().await);
    let mirrors = ["apt", "apt:two"].map(|name| format!("--mirror={name}={}", origin.url("/")));
    let proxy = start(&home, "cache", &[&mirrors[0], &mirrors[1]]);
    let at = |base: &str| Way {
        at: proxy.address(),
        base: base.to_owned(),
        fields: &[],
    };
    for scheme in ["NTLM", "Negotiate"] {
        logins_are_kept_apart(&at("/mirror/apt"), &origin, scheme).await;
    }
    // Her login at one mirror is none at another one of the same registry, nor past the mirrors.
    let mut alice = at("/mirror/apt").person().await;
    assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    for base in ["/mirror/two", &origin.url("")] {
        assert_eq!(
            at(base).person().await.ask("GET", "/b", None).await.status,
            401
        );
        alice.base = base.to_owned();
        assert_eq!(alice.ask("GET", "/b", None).await.status, 401, "{base}");
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_keep_logins_of_connections_apart_whoever_owns_the_url() {
    let (boxes, origin) = (Boxes::new("").await, origin().await);
    let ways: Vec<_> = boxes
        .addresses
        .iter()
        .map(|&at| Way {
            at,
            base: origin.url(""),
            fields: &[],
        })
        .collect();
    for way in &ways {
        logins_are_kept_apart(way, &origin, "NTLM").await;
    }
    let mut alice = ways[0].person().await;
    assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    for path in (0..URLS).map(|n| format!("/{n}")) {
        assert_eq!(text(&alice.ask("GET", &path, None).await), "hello alice");
        for way in &ways {
            let answered = way.person().await.ask("GET", &path, None).await;
            assert_eq!(answered.status, 401, "{path}: {}", text(&answered));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn intercepted_connections_keep_logins_apart() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = intercepting(&home, &site, "a.localhost", &[]);
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let person = async || {
        let reached = program.reach(&proxy, "a.localhost", site.port()).await;
        reached.unwrap()
    };
    let log_in = async |stream: &mut _, name: &str| {
        let third = format!("NTLM T3{name}");
        for (credentials, expected) in [
            ("", "who is there?"),
            ("NTLM T1", "CHALLENGE"),
            (&third[..], &format!("hello {name}")[..]),
        ] {
            assert_eq!(login(stream, &host, credentials).await, expected);
        }
    };
    let mut alice = person().await;
    log_in(&mut alice, "alice").await;
    assert_eq!(login(&mut alice, &host, "").await, "hello alice");
    let mut bob = person().await;
    for _ in 0..4 {
        assert_eq!(login(&mut bob, &host, "").await, "who is there?");
        assert_eq!(login(&mut person().await, &host, "").await, "who is there?");
    }
    log_in(&mut bob, "bob").await;
    assert_eq!(login(&mut alice, &host, "").await, "hello alice");
    assert_eq!(login(&mut bob, &host, "").await, "hello bob");
    drop((alice, bob));
    for _ in 0..4 {
        assert_eq!(login(&mut person().await, &host, "").await, "who is there?");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_login_is_never_continued_on_another_connection() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "cache", &[]);
    let mut alice = forward(&proxy, &origin).person().await;
    // The origin ends the connection of its challenge without a word about it.
    assert_eq!(
        alice.ask("GET", "/close", Some("NTLM T1")).await.status,
        401
    );
    let before = origin.request_count();
    let refused = alice.ask("GET", "/a", Some("NTLM T3alice")).await;
    assert_eq!(refused.status, 502);
    assert_eq!(refused.field("connection"), Some("close"));
    assert_eq!(origin.request_count(), before, "it was sent");
    // The client begins anew.
    let mut alice = forward(&proxy, &origin).person().await;
    assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    // A login that is complete is lost with its connection.
    assert_eq!(text(&alice.ask("GET", "/close", None).await), "hello alice");
    assert_eq!(alice.ask("GET", "/a", None).await.status, 401);
    assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_of_one_request_leaves_its_connection_to_others() {
    let answer = |request: &RawRequest| {
        let user = request
            .field("authorization")
            .unwrap_or("nobody")
            .to_owned();
        Script::response(200, &[("Cache-Control", "no-store")], user)
    };
    let (home, origin) = (Home::new(), Origin::start(answer).await.unwrap());
    // With one core there is one pool.
    let proxy = start(&home, "cache", &["--workers=1"]);
    let way = forward(&proxy, &origin);
    for credentials in [
        Some("Basic YTpi"),
        None,
        Some("Bearer ntlm"),
        Some("Digest username=\"NTLM\", qop=auth"),
    ] {
        let answered = way.person().await.ask("GET", "/a", credentials).await;
        assert_eq!(text(&answered), credentials.unwrap_or("nobody"));
    }
    assert_eq!(origin.connections(), 1);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_for_guests_does_not_answer_a_user_who_has_logged_in() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "cache", &[]);
    let way = forward(&proxy, &origin);
    let is_hit = |response: &Response| {
        let status = response.field("cache-status").unwrap_or_default();
        status.contains("; hit")
    };
    let mut alice = way.person().await;
    let mut guest = way.person().await;
    let mut tries = 0;
    while !is_hit(&guest.ask("GET", "/public", None).await) {
        tries += 1;
        assert!(tries < 2_000, "it is never stored");
    }
    // The connection of an offer is no login.
    assert_eq!(alice.ask("GET", "/a", None).await.status, 401);
    assert!(is_hit(&alice.ask("GET", "/public", None).await));
    assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    let passed = alice.ask("GET", "/public", None).await;
    assert!(!is_hit(&passed));
    let status = passed.field("cache-status").unwrap();
    assert!(status.contains("detail=connection-login"), "{status}");
    assert!(is_hit(&guest.ask("GET", "/public", None).await));
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_connection_has_at_most_eight_logins() {
    let mut origins = Vec::new();
    for _ in 0..9 {
        origins.push(origin().await);
    }
    let home = Home::new();
    let proxy = start(&home, "cache", &[]);
    let mut alice = forward(&proxy, &origins[0]).person().await;
    for origin in &origins {
        alice.base = origin.url("");
        assert_eq!(alice.log_in("NTLM", "alice").await, [401, 401, 200]);
    }
    for origin in &origins[1..] {
        alice.base = origin.url("");
        assert_eq!(text(&alice.ask("GET", "/b", None).await), "hello alice");
    }
    alice.base = origins[0].url("");
    assert_eq!(alice.ask("GET", "/b", None).await.status, 401);
    proxy.kill_well();
}

type Http2 = SendRequest<Empty<Bytes>>;

async fn http2(at: SocketAddr) -> Http2 {
    let socket = TokioIo::new(TcpStream::connect(at).await.unwrap());
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (client, connection) = builder.handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn http2_get(client: &mut Http2, url: &str, credentials: Option<&str>) -> (u16, String) {
    let mut request = Request::get(url);
    if let Some(credentials) = credentials {
        request = request.header("authorization", credentials);
    }
    let request = request.body(Empty::new()).unwrap();
    let response = client.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_a_client_share_its_login_and_no_other_client_does() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "cache", &["--listen=h2c://127.0.0.1:0"]);
    let at = proxy.second_address().unwrap();
    let (mut alice, mut bob) = (http2(at).await, http2(at).await);
    let url = origin.url("/a");
    for (credentials, status) in [
        (None, 401),
        (Some("NTLM T1"), 401),
        (Some("NTLM T3alice"), 200),
    ] {
        let answered = http2_get(&mut alice, &url, credentials).await;
        assert_eq!(answered.0, status);
    }
    // At once: one after the other uses her connection.
    let mut streams = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (mut alice, url) = (alice.clone(), origin.url(&format!("/{n}")));
        streams.spawn(async move { http2_get(&mut alice, &url, None).await });
    }
    while let Some(answered) = streams.join_next().await {
        assert_eq!(answered.unwrap(), (200, "hello alice".to_owned()));
    }
    assert_eq!(http2_get(&mut bob, &url, None).await.0, 401);
    proxy.kill_well();
}
