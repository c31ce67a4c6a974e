//! Users of the real proxy: which requests are answered with 407, and what a login changes.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;

use hashcache_testkit::{Client, Origin, Response, Script};
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Home;
use crate::operation::Running;
use crate::proxy_tls::{handshake, pair, write};

const CONFIG: &str = "--config=h.toml";
/// Both have the password `right:1`.
pub const USERS: &str = "\
anna:$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.
bert:$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.
";
/// `anna:right:1`, `bert:right:1`, `anna:wrong`, and a user whose name is not UTF-8.
pub const ANNA: &str = "Basic YW5uYTpyaWdodDox";
pub const BERT: &str = "Basic YmVydDpyaWdodDox";
const WRONG: &str = "Basic YW5uYTp3cm9uZw==";
const NO_TEXT: &str = "Basic /zpyaWdodDox";

/// Staff may use everything, others nothing at `/staff` of this machine.
const RULES: &str = "
    htpasswd = [\"users\"]
    access_log = \"log\"
    log_format = \"squid\"
    [[group]]
    name = \"staff\"
    users = [\"anna\"]
    [[access]]
    action = \"allow\"
    groups = [\"staff\"]
    [[access]]
    name = \"others\"
    action = \"deny\"
    reason = \"For staff.\"
";

async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=600")];
    Origin::start(move |_| Script::response(200, &fields, "page"))
        .await
        .unwrap()
}

fn start(home: &Home, more: &str, flags: &[&str]) -> Running {
    home.file("users", USERS);
    home.file("h.toml", &format!("{more}{RULES}"));
    Running::start(home, &[&[CONFIG], flags].concat())
}

async fn get(proxy: &Running, url: &str, login: Option<&str>) -> Response {
    let mut client = Client::connect(proxy.listen).await.unwrap();
    let field = login.map(|login| ("Proxy-Authorization", login));
    client.get(url, field.as_slice()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_asked_for_and_never_sent_on() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "", &[]);
    let url = origin.url("/a");
    for login in [
        None,
        Some(WRONG),
        Some(NO_TEXT),
        Some("Bearer x"),
        Some("Basic"),
    ] {
        let asked = get(&proxy, &url, login).await;
        assert_eq!(asked.status, 407, "{login:?}");
        let challenge = "Basic realm=\"HashCache proxy\", charset=\"UTF-8\"";
        assert_eq!(asked.field("Proxy-Authenticate"), Some(challenge));
    }
    assert_eq!(origin.request_count(), 0);
    for _ in 0..3 {
        assert_eq!(get(&proxy, &url, Some(ANNA)).await.status, 200);
    }
    assert_eq!(origin.request_count(), 1);
    assert_eq!(origin.requests()[0].field("Proxy-Authorization"), None);
    // The response is stored, and still not for those who do not log in.
    assert_eq!(get(&proxy, &url, None).await.status, 407);
    let refused = get(&proxy, &url, Some(BERT)).await;
    assert_eq!(refused.status, 403);
    assert!(String::from_utf8_lossy(&refused.body).contains("For staff."));
    let mut client = Client::connect(proxy.listen).await.unwrap();
    client.request("CONNECT", "a.test:443", &[]).await.unwrap();
    let asked = client.read_response("CONNECT").await.unwrap();
    assert_eq!(asked.status, 407);
    assert!(asked.field("Proxy-Authenticate").is_some());
    proxy.end();
    let log = fs::read_to_string(home.path().join("log")).unwrap();
    let users: Vec<&str> = log
        .lines()
        .map(|line| line.split_whitespace().nth(7).unwrap())
        .collect();
    assert_eq!(
        users.iter().filter(|user| **user == "anna").count(),
        3,
        "{log}"
    );
    assert_eq!(
        users.iter().filter(|user| **user == "-").count(),
        7,
        "{log}"
    );
    assert!(users.contains(&"bert"), "{log}");
    assert!(log.contains("TCP_DENIED/407"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_an_exception_are_asked_for_a_login_and_others_stay_refused() {
    let (home, origin) = (Home::new(), origin().await);
    home.file("users", USERS);
    let rules = "
        htpasswd = [\"users\"]
        [[access]]
        action = \"deny\"
        except = { users = [\"anna\"] }";
    home.file("h.toml", rules);
    let proxy = Running::start(&home, &[CONFIG]);
    let url = origin.url("/a");
    for _ in 0..3 {
        for (login, status) in [(Some(ANNA), 200), (Some(BERT), 403), (None, 407)] {
            assert_eq!(get(&proxy, &url, login).await.status, status, "{login:?}");
        }
    }
    proxy.end();
    // Where nobody can be asked, the rule refuses everybody.
    home.file(
        "h.toml",
        &format!("login_networks = [\"192.0.2.0/24\"]{rules}"),
    );
    let proxy = Running::start(&home, &[CONFIG]);
    for login in [Some(ANNA), None] {
        assert_eq!(get(&proxy, &url, login).await.status, 403, "{login:?}");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_nobody_is_asked_outside_of_the_trusted_networks() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "login_networks = [\"192.0.2.0/24\"]\n", &[]);
    // A password that came in clear is not looked at.
    for login in [None, Some(ANNA)] {
        let refused = get(&proxy, &origin.url("/a"), login).await;
        assert_eq!(
            (refused.status, refused.field("Proxy-Authenticate")),
            (403, None)
        );
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_a_login_is_asked_for_and_the_plain_listener_stays_plain() {
    let (home, origin) = (Home::new(), origin().await);
    let certificate = pair("a.test");
    write(&home, &certificate, &certificate);
    let more = "login_networks = [\"192.0.2.0/24\"]\ntls_cert = [\"site.pem\"]\n\
                tls_key = [\"site.key\"]\n";
    let proxy = start(&home, more, &["--listen=https://127.0.0.1:0"]);
    // The second address of the greeting.
    let secure = proxy.admin;
    assert_eq!(get(&proxy, &origin.url("/a"), None).await.status, 403);
    let url = origin.url("/a");
    for (login, status) in [("", "407"), (ANNA, "200"), (BERT, "403")] {
        let mut stream = handshake(secure, &certificate, b"http/1.1").await.unwrap();
        let host = origin.address();
        let field = match login {
            "" => String::new(),
            login => format!("Proxy-Authorization: {login}\r\n"),
        };
        let head =
            format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n{field}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hit_in_memory_is_no_way_around_a_login_in_http_2() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "", &["--listen=h2c://127.0.0.1:0"]);
    let url = origin.url("/a");
    for _ in 0..3 {
        assert_eq!(get(&proxy, &url, Some(ANNA)).await.status, 200);
    }
    // The second address of the greeting.
    let socket = TcpStream::connect(proxy.admin).await.unwrap();
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    for (login, status) in [
        (None, 407),
        (Some(ANNA), 200),
        (Some(BERT), 403),
        (Some(WRONG), 407),
        (None, 407),
    ] {
        let mut request = Request::get(&url);
        if let Some(login) = login {
            request = request.header("Proxy-Authorization", login);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{login:?}");
    }
    assert_eq!(origin.request_count(), 1);
    drop(sender);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_wrong_passwords_is_answered_without_checking_them() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "", &[]);
    let url = origin.url("/a");
    let mut client = Client::connect(proxy.listen).await.unwrap();
    let mut statuses = vec![];
    for letter in ('A'..='Z').chain('a'..='z') {
        // `a:` and a password of one character, another one each time.
        let login = format!("Basic YTp{letter}");
        let response = client
            .get(&url, &[("Proxy-Authorization", &login)])
            .await
            .unwrap();
        statuses.push(response.status);
    }
    assert!(
        statuses.contains(&407) && statuses.contains(&429),
        "{statuses:?}"
    );
    assert!(
        statuses.iter().all(|status| [407, 429].contains(status)),
        "{statuses:?}"
    );
    assert_eq!(origin.request_count(), 0);
    proxy.end();
}
