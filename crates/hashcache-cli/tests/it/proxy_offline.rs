//! While the line counts as down: what is served, what is not, and that nothing is asked.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::net::SocketAddr;
use std::time::Duration;

use hashcache_testkit::{Client, Origin, RawRequest, Response, Script};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::explain::explain;
use crate::proxy_process::Proxy;
use crate::{Home, Outcome};

struct Served {
    home: Home,
    origin: Origin,
    proxy: Proxy,
}

/// A page whose path says how long it may be used.
fn answer(request: &RawRequest) -> Script {
    let control = match request.target() {
        "/fresh" => "max-age=600",
        "/stale" => "max-age=0",
        "/strict" => "max-age=0, must-revalidate",
        "/shared" => "s-maxage=0",
        "/no-cache" => "max-age=600, no-cache",
        _ => "no-store",
    };
    Script::response(
        200,
        &[("Cache-Control", control), ("ETag", "\"1\"")],
        "page",
    )
}

impl Served {
    async fn start(flags: &[&str]) -> Self {
        Self::configured("", flags).await
    }

    async fn configured(config: &str, flags: &[&str]) -> Self {
        let home = Home::new();
        home.file("token", "a-token-for-this-test-alone\n");
        let token = format!("--admin-token-file={}", home.path().join("token").display());
        let config = home.file("h.toml", config);
        let config = format!("--config={}", config.display());
        let flags = [flags, &[token.as_str(), config.as_str()]].concat();
        Self {
            origin: Origin::start(answer).await.unwrap(),
            proxy: Proxy::start(&home.path().join("cache"), &flags).unwrap(),
            home,
        }
    }

    fn offline(&self, arguments: &[&str]) -> Outcome {
        let admin = format!("--admin={}", self.proxy.admin());
        let token = self.home.path().join("token");
        let token = format!("--admin-token-file={}", token.display());
        let all = [
            &["offline", "--config=/dev/null", &admin, &token],
            arguments,
        ]
        .concat();
        self.home.hashcache(&all, &[])
    }

    /// By its name, because an address that `allow_destination` lists lies on this side of the
    /// line.
    fn host(&self) -> String {
        format!("localhost:{}", self.origin.address().port())
    }

    async fn get(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.proxy.address()).await.unwrap();
        let url = format!("http://{}{path}", self.host());
        client.get(&url, fields).await.unwrap()
    }
}

const STORED: [&str; 5] = ["/fresh", "/stale", "/strict", "/shared", "/no-cache"];

#[tokio::test(flavor = "multi_thread")]
async fn stored_pages_are_served_without_asking_unless_that_is_forbidden() {
    let served = Served::start(&[]).await;
    for path in STORED {
        assert_eq!(served.get(path, &[]).await.status, 200, "{path}");
    }
    let told = served.offline(&["on"]);
    assert_eq!(told.stdout, "offline: the line counts as down (mode on)\n");
    let before = served.origin.request_count();
    for path in ["/fresh", "/stale"] {
        let page = served.get(path, &[]).await;
        assert_eq!((page.status, &page.body[..]), (200, &b"page"[..]), "{path}");
        assert!(page.field("Age").is_some(), "{path}");
        assert_eq!(page.field("Warning"), None, "{path}");
        // A reload is answered too: there is nobody else to ask.
        let reload = [("Cache-Control", "no-cache")];
        assert_eq!(served.get(path, &reload).await.status, 200, "{path}");
    }
    for path in ["/strict", "/shared", "/no-cache", "/new"] {
        let page = served.get(path, &[("Accept", "text/html")]).await;
        assert_eq!(page.status, 504, "{path}");
        let text = String::from_utf8_lossy(&page.body);
        for word in [
            "line to the Internet is down",
            "localhost",
            "hashcache offline off",
        ] {
            assert!(text.contains(word), "{path}: {text}");
        }
    }
    assert_eq!(served.origin.request_count(), before);
    let told = served.offline(&["off", "--json"]);
    assert_eq!(told.stdout, "{\"mode\":\"off\",\"offline\":false}\n");
    for path in ["/strict", "/new"] {
        assert_eq!(served.get(path, &[]).await.status, 200, "{path}");
    }
    assert_eq!(served.origin.request_count(), before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_explained_while_the_line_is_down_is_what_happens() {
    let served = Served::start(&["--allow-connect-port=1-65535"]).await;
    for path in STORED {
        assert_eq!(served.get(path, &[]).await.status, 200, "{path}");
    }
    let ask = |arguments: &[&str]| explain(&served.home, served.proxy.admin(), arguments);
    let url = |path: &str| format!("http://{}{path}", served.host());
    served.offline(&["on"]);
    for (path, field, outcome, status) in [
        ("/fresh", None, "answered from the store; fresh", 200),
        (
            "/stale",
            None,
            "answered from the store, not validated",
            200,
        ),
        (
            "/fresh",
            Some("no-cache"),
            "answered from the store, not validated",
            200,
        ),
        ("/strict", None, "answered with 504 (offline)", 504),
        ("/new", None, "answered with 504 (offline)", 504),
        (
            "/new",
            Some("only-if-cached"),
            "answered with 504: the client wants",
            504,
        ),
    ] {
        let header = field.map(|value| format!("--header=Cache-Control: {value}"));
        let url = url(path);
        let arguments: Vec<&str> = [url.as_str()]
            .into_iter()
            .chain(header.as_deref())
            .collect();
        let (answer, told) = ask(&arguments);
        let happens = answer["outcome"].as_str().unwrap();
        assert!(happens.starts_with(outcome), "{path} {field:?}: {told}");
        assert!(
            told.contains("not asked: the line counts as down"),
            "{told}"
        );
        let fields: Vec<(&str, &str)> = field.map(|it| ("Cache-Control", it)).into_iter().collect();
        assert_eq!(served.get(path, &fields).await.status, status, "{path}");
    }
    let post = [&url("/new"), "--method=POST"];
    for arguments in [&post[..], &[&served.host(), "--method=CONNECT"]] {
        let (answer, told) = ask(arguments);
        let happens = answer["outcome"].as_str().unwrap();
        assert!(happens.starts_with("answered with 504 (offline)"), "{told}");
    }
    // Origins in the own network still get requests.
    let inside = served.origin.url("/new");
    let (answer, told) = ask(&[&inside]);
    assert_eq!(answer["route"]["cut_off"], false, "{told}");
    assert!(told.contains("fetched from the next hop"), "{told}");
    served.offline(&["off"]);
    let (answer, told) = ask(&[&url("/new")]);
    let happens = answer["outcome"].as_str().unwrap();
    assert!(happens.starts_with("fetched from the next hop"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_and_posts_fail_at_once_and_the_own_network_is_still_reached() {
    let port = "--allow-connect-port=1-65535";
    let served = Served::start(&[port, "--offline=on"]).await;
    let mut client = Client::connect(served.proxy.address()).await.unwrap();
    let connect = client.request("CONNECT", &served.host(), &[]).await;
    connect.unwrap();
    assert_eq!(client.read_response("CONNECT").await.unwrap().status, 504);
    let mut client = Client::connect(served.proxy.address()).await.unwrap();
    let url = format!("http://{}/new", served.host());
    let post = client.request("POST", &url, &[("Content-Length", "0")]);
    post.await.unwrap();
    assert_eq!(client.read_response("POST").await.unwrap().status, 504);
    assert_eq!(served.origin.connections(), 0);
    let mut client = Client::connect(served.proxy.address()).await.unwrap();
    let inside = client.get(&served.origin.url("/new"), &[]).await.unwrap();
    assert_eq!(inside.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_denies_still_denies_what_is_stored_and_what_is_not() {
    let rules = "[[access]]\nname = \"not you\"\naction = \"deny\"\nclients = [\"127.0.0.9\"]\n";
    let served = Served::configured(rules, &[]).await;
    for _ in 0..3 {
        assert_eq!(served.get("/fresh", &[]).await.status, 200);
    }
    served.offline(&["on"]);
    assert_eq!(served.get("/fresh", &[]).await.status, 200);
    for path in ["/fresh", "/new"] {
        let from = [127, 0, 0, 9].into();
        let connecting = Client::connect_from(from, served.proxy.address());
        let mut client = connecting.await.unwrap();
        let url = format!("http://{}{path}", served.host());
        let page = client.get(&url, &[]).await.unwrap();
        assert_eq!(page.status, 403, "{path}");
        let text = String::from_utf8_lossy(&page.body);
        assert!(text.contains("not you"), "{path}: {text}");
    }
    assert_eq!(served.origin.request_count(), 1);
}

/// A port at which no connection is made: its queue is full.
async fn silent_port() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(FULL_TIME, TcpStream::connect(address)).await {
        queued.push(connected.unwrap());
    }
    (address, listener, queued)
}

/// A queue that takes no connection within this time is full.
const FULL_TIME: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn what_one_client_cannot_reach_keeps_no_other_client_offline() {
    let served = Served::configured("[limits]\nconnect_time = \"1s\"\n", &["--offline=auto"]).await;
    let (silent, _listener, _queued) = silent_port().await;
    let ask = async |host: u8, url: &str| {
        let from = [127, 0, 0, host].into();
        let connecting = Client::connect_from(from, served.proxy.address());
        let mut client = connecting.await.unwrap();
        client.get(url, &[]).await.unwrap().status
    };
    let is_offline = || served.offline(&[]).stdout.starts_with("offline");
    // Each name once: what could not be reached is not tried again for a while.
    let unreachable = async |names: [&str; 5]| {
        for name in names {
            let url = format!("http://{name}.localhost:{}/", silent.port());
            assert_eq!(ask(9, &url).await, 504, "{name}");
        }
    };
    // Nothing was reached yet, so nothing speaks for the line, or against it.
    unreachable(["a", "b", "c", "d", "e"]).await;
    sleep(Duration::from_secs(6)).await;
    assert!(!is_offline());
    // A client reaches a server of its own, which then ends.
    let own = Origin::start(answer).await.unwrap();
    let url = format!("http://own.localhost:{}/new", own.address().port());
    assert_eq!(ask(9, &url).await, 200);
    drop(own);
    unreachable(["f", "g", "h", "i", "j"]).await;
    let offline = async {
        while !is_offline() {
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(Duration::from_secs(60), offline).await.unwrap();
    // Another one wants a server that nobody has asked for before.
    let online = async {
        let url = format!("http://{}/new", served.host());
        while ask(1, &url).await != 200 {
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(Duration::from_secs(60), online).await.unwrap();
    assert!(!is_offline());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_button_of_the_dashboard_needs_the_token_and_its_own_page() {
    let served = Served::start(&[]).await;
    let admin = served.proxy.admin();
    let press = async |origin: &str, login: &str, form: &str| {
        let mut client = Client::connect(admin).await.unwrap();
        let length = form.len();
        let request = format!(
            "POST /-/offline HTTP/1.1\r\nHost: {admin}\r\nOrigin: {origin}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\
             {login}\r\n{form}"
        );
        client.send(request.as_bytes()).await.unwrap();
        client.read_response("POST").await.unwrap()
    };
    // "any:a-token-for-this-test-alone"
    let login = "Authorization: Basic YW55OmEtdG9rZW4tZm9yLXRoaXMtdGVzdC1hbG9uZQ==\r\n";
    let own = format!("http://{admin}");
    let asked = press(&own, "", "mode=on").await;
    assert_eq!(asked.status, 401);
    assert!(
        asked
            .field("WWW-Authenticate")
            .unwrap()
            .starts_with("Basic ")
    );
    for foreign in ["http://evil.test", "null", "http://localhost:1"] {
        assert_eq!(
            press(foreign, login, "mode=on").await.status,
            403,
            "{foreign}"
        );
    }
    assert_eq!(press(&own, login, "mode=maybe").await.status, 400);
    let state = || served.offline(&["--json"]).stdout;
    assert_eq!(state(), "{\"mode\":\"off\",\"offline\":false}\n");
    let page = async || {
        let mut client = Client::connect(admin).await.unwrap();
        let page = client.get("/dashboard", &[]).await.unwrap();
        String::from_utf8(page.body).unwrap()
    };
    assert!(
        page()
            .await
            .contains("<button name=mode value=off disabled>")
    );
    let pressed = press(&own, login, "mode=on").await;
    assert_eq!(
        (pressed.status, pressed.field("Location")),
        (303, Some("/dashboard"))
    );
    assert_eq!(state(), "{\"mode\":\"on\",\"offline\":true}\n");
    // Although the figures of the page before are not a second old.
    let page = page().await;
    assert!(
        page.contains("<button name=mode value=on disabled>"),
        "{page}"
    );
    assert!(page.contains("<button name=mode value=auto>"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_is_shown_to_all_and_changed_only_with_the_token() {
    let served = Served::start(&["--offline=auto"]).await;
    let shown = served.offline(&[]);
    assert_eq!(shown.stdout, "online: the line counts as up (mode auto)\n");
    served.home.file("token-2", "another-token-of-letters\n");
    let wrong = served.home.path().join("token-2");
    let wrong = format!("--admin-token-file={}", wrong.display());
    let admin = format!("--admin={}", served.proxy.admin());
    let all = ["offline", "--config=/dev/null", &admin, &wrong, "on"];
    let refused = served.home.hashcache(&all, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("token"), "{refused:?}");
    assert_eq!(served.offline(&[]).stdout, shown.stdout);
}
