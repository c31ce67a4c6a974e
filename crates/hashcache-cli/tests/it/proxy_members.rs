//! Members: boxes with the same list, of which each stores its own part of the URLs.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hashcache_testkit::{Client, Origin, RawRequest, Response, Script, reserved_address};
use tokio::time::Instant;

use crate::Home;
use crate::explain::explain;
use crate::proxy_process::Proxy;

const NAMES: [&str; 3] = ["box-a", "box-b", "box-c"];
const FRESH: (&str, &str) = ("Cache-Control", "max-age=600");
/// URLs of a test: so many that each box owns some (a test shows which).
pub const URLS: usize = 24;

/// Boxes of one site, each with a cache of its own.
pub struct Boxes {
    home: Home,
    running: Vec<Option<Proxy>>,
    pub addresses: Vec<SocketAddr>,
    configs: Vec<String>,
}

impl Boxes {
    /// Three boxes; `names_at` says which of them the list of each has.
    async fn with_lists(more: &str, names_at: impl Fn(usize) -> Vec<usize>) -> Self {
        let addresses: Vec<SocketAddr> = NAMES
            .iter()
            .map(|_| reserved_address(Ipv4Addr::LOCALHOST).unwrap())
            .collect();
        let entry = |n: usize| {
            let (name, at) = (NAMES[n], addresses[n]);
            format!("[[peer]]\nname = \"{name}\"\nkind = \"member\"\nurl = \"http://{at}\"\n")
        };
        let list = |n| names_at(n).into_iter().map(entry).collect::<String>();
        let config = |n: usize| {
            let (name, list) = (NAMES[n], list(n));
            format!("name = \"{name}\"\nallow_purge = [\"127.0.0.0/8\"]\n{list}{more}")
        };
        let configs = (0..NAMES.len()).map(config).collect();
        let mut boxes = Self {
            home: Home::new(),
            running: NAMES.iter().map(|_| None).collect(),
            addresses,
            configs,
        };
        for n in 0..NAMES.len() {
            boxes.start(n);
        }
        boxes
    }

    /// Three boxes that agree.
    pub async fn new(more: &str) -> Self {
        Self::with_lists(more, |_| vec![0, 1, 2]).await
    }

    fn cache(&self, n: usize) -> PathBuf {
        self.home.path().join(format!("{n}.img"))
    }

    fn start(&mut self, n: usize) {
        let file = self.home.file(&format!("{n}.toml"), &self.configs[n]);
        let flags = [
            format!("--config={}", file.display()),
            format!("--listen={}", self.addresses[n]),
            "--allow-connect-port=1-65535".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.running[n] = Some(Proxy::start(&self.cache(n), &flags).unwrap());
    }

    fn kill(&mut self, n: usize) {
        self.running[n].take().unwrap().kill_well();
    }

    async fn ask(&self, n: usize, method: &str, url: &str, fields: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.addresses[n]).await.unwrap();
        client.request(method, url, fields).await.unwrap();
        client.read_response(method).await.unwrap()
    }

    async fn get(&self, n: usize, url: &str) -> Response {
        self.ask(n, "GET", url, &[]).await
    }

    /// The bytes that were counted in the quotas of box `n`.
    async fn quota_bytes(&self, n: usize) -> u64 {
        let admin = self.running[n].as_ref().unwrap().admin();
        let mut client = Client::connect(admin).await.unwrap();
        let metrics = client.get("/metrics", &[("Host", "localhost")]).await;
        let text = String::from_utf8(metrics.unwrap().body).unwrap();
        let name = "hashcache_quota_bytes_total{limit=\"day\"} ";
        let bytes = text.lines().find_map(|line| line.strip_prefix(name));
        bytes.unwrap().parse().unwrap()
    }

    /// Requests all URLs at box `n`.
    async fn get_all(&self, n: usize, origin: &Origin) {
        for url in urls(origin) {
            let answer = self.get(n, &url).await;
            assert_eq!((answer.status, &answer.body[..]), (200, url.as_bytes()));
        }
    }
}

fn urls(origin: &Origin) -> Vec<String> {
    let url = |n: usize| origin.url(&format!("/{n}"));
    (0..URLS).map(url).collect()
}

/// An origin whose responses are fresh and say for which URL they are.
async fn origin() -> Origin {
    let answer = |request: &RawRequest| {
        let host = request.field("Host").unwrap_or_default();
        let content = format!("http://{host}{}", request.target());
        Script::response(200, &[FRESH], content)
    };
    Origin::start(answer).await.unwrap()
}

/// The name last in the Via of a request.
fn last_via(request: &RawRequest) -> String {
    let via: Vec<&str> = request.head.fields_named("Via").collect();
    let last = via.join(",");
    let last = last.rsplit([',', ' ']).next().unwrap_or_default();
    last.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_counts_what_members_fetch_and_not_what_they_have_stored() {
    let limit = "
        [[limit]]
        name = \"day\"
        quota = \"10MiB\"
        every = \"month\"
        [[access]]
        action = \"limit\"
        limits = [\"day\"]
    ";
    let (boxes, origin) = (Boxes::new(limit).await, origin().await);
    boxes.get_all(0, &origin).await;
    let fetched = boxes.quota_bytes(0).await;
    // All of them are counted at the box that the client asked, whoever has fetched them.
    let content: usize = urls(&origin).iter().map(String::len).sum();
    assert!(fetched > content as u64, "{fetched}");
    boxes.get_all(1, &origin).await;
    assert_eq!(boxes.quota_bytes(1).await, 0);
    assert_eq!(origin.request_count(), URLS);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_url_is_fetched_once_and_written_by_its_owner_alone() {
    let (mut boxes, origin) = (Boxes::new("").await, origin().await);
    for n in 0..3 {
        boxes.get_all(n, &origin).await;
    }
    assert_eq!(origin.request_count(), URLS);
    assert!(origin.complaints().is_empty());
    let owned = |name: &str| {
        let requests = origin.requests();
        let of_box = requests.iter().filter(|request| last_via(request) == name);
        of_box.count()
    };
    let shares = NAMES.map(owned);
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    for running in &mut boxes.running {
        running.take().unwrap().end_well();
    }
    // After a restart without the list, a box has what it had written.
    for (n, share) in shares.into_iter().enumerate() {
        let proxy = Proxy::start(&boxes.cache(n), &[]).unwrap();
        let mut stored = 0;
        for url in urls(&origin) {
            let mut client = Client::connect(proxy.address()).await.unwrap();
            let only = [("Cache-Control", "only-if-cached")];
            let answer = client.get(&url, &only).await.unwrap();
            stored += usize::from(answer.status == 200);
        }
        assert_eq!(stored, share, "{}", NAMES[n]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_that_is_explained_is_the_box_that_fetches() {
    let origin = origin().await;
    let boxes = Boxes::new("").await;
    let admin = boxes.running[0].as_ref().unwrap().admin();
    let mut owners = BTreeSet::new();
    for url in urls(&origin) {
        let (answer, told) = explain(&boxes.home, admin, &[&url]);
        let owner = match answer["route"]["owner"].as_str().unwrap() {
            "this box" => NAMES[0],
            name => name,
        };
        assert!(told.contains("owned by: "), "{told}");
        assert_eq!(
            told.contains("the member that owns the URL and stores it"),
            owner != NAMES[0],
            "{told}"
        );
        boxes.get(0, &url).await;
        let requests = origin.requests();
        assert_eq!(last_via(requests.last().unwrap()), owner, "{told}");
        owners.insert(owner.to_owned());
    }
    assert_eq!(owners.len(), NAMES.len(), "{owners:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_box_stands_in_for_an_owner_that_is_down_until_it_is_back() {
    let (mut boxes, origin) = (Boxes::new("").await, origin().await);
    // By the box that will be down: another one would keep copies of what it owns in memory.
    boxes.get_all(2, &origin).await;
    let owned = origin.requests();
    let owned = owned.iter().filter(|request| last_via(request) == NAMES[2]);
    let moved = owned.count();
    boxes.kill(2);
    boxes.get_all(1, &origin).await;
    boxes.get_all(0, &origin).await;
    // Both agree which box stands in, so each URL that moved is fetched once more at the most.
    let fetched = origin.request_count() - URLS;
    assert!((1..=moved).contains(&fetched), "{fetched} of {moved}");
    boxes.start(2);
    let begun = Instant::now();
    let mut n = 0;
    loop {
        n += 1;
        assert_eq!(
            boxes.get(0, &origin.url(&format!("/new{n}"))).await.status,
            200
        );
        let last = origin.requests().last().map(last_via);
        if last.as_deref() == Some(NAMES[2]) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not asked");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_a_member_is_not_sent_to_a_member() {
    let (boxes, origin) = (Boxes::new("").await, origin().await);
    for url in urls(&origin) {
        let via = [("Via", "1.1 BOX-A")];
        assert_eq!(boxes.ask(1, "GET", &url, &via).await.status, 200);
    }
    assert_eq!(origin.request_count(), URLS);
    assert!(origin.requests().iter().all(|it| last_via(it) == NAMES[1]));
    // Nor is a tunnel, or what was asked for through many others.
    let via = [(
        "Via",
        "1.1 q, 1.1 r, 1.1 s, 1.1 t, 1.1 u, 1.1 v, 1.1 w, 1.1 x",
    )];
    for n in 0..URLS {
        let url = origin.url(&format!("/far{n}"));
        assert_eq!(boxes.ask(0, "GET", &url, &via).await.status, 200);
    }
    let far = origin.requests().split_off(URLS);
    assert!(far.iter().all(|it| last_via(it) == NAMES[0]));
}

async fn get_as(from: [u8; 4], at: SocketAddr, url: &str, fields: &[(&str, &str)]) -> Response {
    let mut client = Client::connect_from(from.into(), at).await.unwrap();
    client.get(url, fields).await.unwrap()
}

/// Rules for all boxes, whose own connections are from 127.0.0.1.
const RULES: &str = "
    [[access]]
    action = \"no-cache\"
    clients = [\"127.0.0.6\"]
    [[access]]
    action = \"allow\"
    clients = [\"127.0.0.5\"]
    [[access]]
    action = \"deny\"
";

#[tokio::test(flavor = "multi_thread")]
async fn the_box_that_a_client_asks_decides_for_all_members() {
    let (boxes, origin) = (Boxes::new(RULES).await, origin().await);
    let begun = Instant::now();
    // Until the boxes know each other by their addresses, they refuse each other, which no client
    // notices.
    for round in 0.. {
        let before = origin.request_count();
        for n in 0..URLS {
            let url = origin.url(&format!("/{round}/{n}"));
            let answer = get_as([127, 0, 0, 5], boxes.addresses[0], &url, &[]).await;
            assert_eq!((answer.status, &answer.body[..]), (200, url.as_bytes()));
        }
        let names: Vec<String> = origin.requests()[before..].iter().map(last_via).collect();
        assert_eq!(names.len(), URLS);
        if NAMES.iter().all(|name| names.iter().any(|it| it == name)) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{names:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A client is no member: by its address, or by what it says.
    let url = origin.url("/denied");
    for (from, via) in [([127, 0, 0, 1], "1.1 other"), ([127, 0, 0, 7], "1.1 box-b")] {
        let answer = get_as(from, boxes.addresses[0], &url, &[("Via", via)]).await;
        assert_eq!(answer.status, 403, "{from:?}");
    }
    // Nor does it speak to another box from the address of a member, through a tunnel.
    let client = Client::connect_from([127, 0, 0, 5].into(), boxes.addresses[0]);
    let mut client = client.await.unwrap();
    let other = boxes.addresses[1].to_string();
    client.request("CONNECT", &other, &[]).await.unwrap();
    let answer = client.read_response("CONNECT").await.unwrap();
    assert_eq!(answer.status, 403);
    let why = answer.field("proxy-status").unwrap_or_default();
    assert!(why.contains("destination_ip_prohibited"), "{why}");
    // A request with a response that must not be stored is not sent to the owner, which would store
    // it.
    let before = origin.request_count();
    for url in [urls(&origin), urls(&origin)].concat() {
        let answer = get_as([127, 0, 0, 6], boxes.addresses[0], &url, &[]).await;
        assert_eq!(answer.status, 200);
    }
    let passed = origin.requests().split_off(before);
    assert_eq!(passed.len(), 2 * URLS);
    assert!(passed.iter().all(|it| last_via(it) == NAMES[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_the_rules_of_a_member_is_not_passed_on_but_one_of_the_origin_is() {
    let home = Home::new();
    let real = origin().await;
    let member = Origin::start(|request| {
        let own = ("Proxy-Status", "box-b; error=http_request_denied");
        let of_origin = ("Via", "1.1 box-b");
        let fields = match request.target() {
            target if target.contains("/own/") => vec![own],
            // The origin's, who writes that it is the member's.
            target if target.contains("/forged/") => vec![own, of_origin],
            _ => vec![of_origin],
        };
        Script::response(403, &fields, "no")
    });
    let member = member.await.unwrap();
    let proxy = beside(&home, member.address(), "");
    let (mut refused, mut forged) = (0, 0);
    for n in 0..URLS {
        let get = async |path: &str| {
            let mut client = Client::connect(proxy.address()).await.unwrap();
            let url = real.url(&format!("/{path}/{n}"));
            client.get(&url, &[]).await.unwrap().status
        };
        assert_eq!(get("own").await, 200);
        refused += usize::from(get("origin").await == 403);
        forged += usize::from(get("forged").await == 403);
    }
    assert!((1..URLS).contains(&refused), "{refused}");
    assert!((1..URLS).contains(&forged), "{forged}");
    assert!(member.request_count() > refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_disagree_make_no_loop() {
    // Each knows itself and the next one: a ring.
    let boxes = Boxes::with_lists("", |n| vec![n, (n + 1) % 3]).await;
    let origin = origin().await;
    for n in 0..3 {
        boxes.get_all(n, &origin).await;
    }
    assert!(origin.request_count() <= 2 * URLS);
    let most = origin.requests();
    let most = most.iter().map(|it| it.head.fields_named("Via").count());
    assert!(most.max() <= Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_at_one_box_reaches_all_of_them() {
    let (mut boxes, origin) = (Boxes::new("").await, origin().await);
    for n in 0..3 {
        boxes.get_all(n, &origin).await;
    }
    let prefix = origin.url("/*");
    let purged = boxes.ask(1, "PURGE", &prefix, &[]).await;
    let said = String::from_utf8(purged.body).unwrap();
    assert_eq!(purged.status, 200, "{said}");
    assert!(said.contains("\"box-a\":\"purged\"") && said.contains("\"box-c\":\"purged\""));
    for n in [2, 0, 1] {
        boxes.get_all(n, &origin).await;
    }
    assert_eq!(origin.request_count(), 2 * URLS);
    // A page that many boxes have cannot be purged at one that is away.
    boxes.kill(2);
    let url = origin.url("/1");
    let purged = boxes.ask(0, "PURGE", &url, &[]).await;
    let said = String::from_utf8(purged.body).unwrap();
    assert_eq!(purged.status, 502, "{said}");
    assert!(said.contains("\"box-b\":\"purged\"") && !said.contains("\"box-c\":\"purged\""));
    let page = [("Origin", "http://evil.test")];
    let refused = boxes.ask(0, "PURGE", &url, &page).await;
    assert_eq!(refused.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_request_reaches_the_owner_and_copies_end_within_seconds() {
    let boxes = Boxes::new("").await;
    let posts = AtomicUsize::new(0);
    let origin = Origin::start(move |request| {
        let count = |by| posts.fetch_add(by, Relaxed);
        let count = count(usize::from(request.method() == "POST"));
        let response = Script::response(200, &[FRESH], format!("after {count}"));
        Script::new().read_body().then(response)
    });
    let origin = origin.await.unwrap();
    for url in urls(&origin) {
        // Box b writes this to its own disk, as when it stands in for the owner.
        let member = [("Via", "1.1 box-a")];
        assert_eq!(boxes.ask(1, "GET", &url, &member).await.body, b"after 0");
        for n in 0..3 {
            assert_eq!(boxes.get(n, &url).await.body, b"after 0");
        }
    }
    let begun = Instant::now();
    for url in urls(&origin) {
        let answer = boxes.ask(0, "POST", &url, &[("Content-Length", "0")]).await;
        assert_eq!(answer.status, 200);
    }
    // Box a has seen the requests, and so have the owners.
    for url in urls(&origin) {
        assert_ne!(boxes.get(0, &url).await.body, b"after 0", "{url}");
    }
    let others = [1, 2].map(|n| urls(&origin).into_iter().map(move |url| (n, url)));
    let mut old: Vec<(usize, String)> = others.into_iter().flatten().collect();
    let pairs = old.len();
    while !old.is_empty() {
        let mut still = Vec::new();
        for (n, url) in old {
            if boxes.get(n, &url).await.body == b"after 0" {
                still.push((n, url));
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{still:?}");
        assert!(still.len() < pairs, "no owner has seen a request");
        old = still;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_objects_and_ranges_come_from_the_owner() {
    let boxes = Boxes::new("").await;
    let origin = Origin::start(|_| {
        let fields = [FRESH, ("ETag", "\"1\"")];
        Script::response(200, &fields, vec![b'x'; 300 << 10])
    });
    let origin = origin.await.unwrap();
    for n in 0..3 {
        for url in ["/1", "/2", "/3", "/4"].map(|path| origin.url(path)) {
            let answer = boxes.get(n, &url).await;
            assert_eq!((answer.status, answer.body.len()), (200, 300 << 10));
            let range = [("Range", "bytes=70000-70009")];
            let part = boxes.ask(n, "GET", &url, &range).await;
            assert_eq!((part.status, part.body.len()), (206, 10));
            let head = boxes.ask(n, "HEAD", &url, &[]).await;
            assert_eq!(head.field("Content-Length"), Some("307200"));
        }
    }
    assert_eq!(origin.request_count(), 4);
}

/// One box, `box-a`, whose only other member is at `member`.
fn beside(home: &Home, member: SocketAddr, more: &str) -> Proxy {
    let config = format!(
        "name = \"box-a\"\nallow_purge = [\"127.0.0.0/8\"]\n\
         [[peer]]\nname = \"box-a\"\nkind = \"member\"\nurl = \"http://127.0.0.1:9\"\n\
         [[peer]]\nname = \"box-b\"\nkind = \"member\"\nurl = \"http://{member}\"\n{more}"
    );
    let config = home.file("beside.toml", &config);
    let config = format!("--config={}", config.display());
    Proxy::start(&home.path().join("beside.img"), &[&config]).unwrap()
}

async fn get_from(from: [u8; 4], proxy: SocketAddr, url: &str, via: &str) -> Response {
    let mut client = Client::connect_from(from.into(), proxy).await.unwrap();
    let fields = [("Host", "www.a.test"), ("Via", via)];
    client.request("GET", url, &fields).await.unwrap();
    client.read_response("GET").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_fetched_from_a_member_while_it_purges_is_purged_too() {
    let home = Home::new();
    let real = origin().await;
    let at: Arc<OnceLock<SocketAddr>> = Arc::default();
    let proxy_at = Arc::clone(&at);
    let wanted = urls(&real);
    let is_purged = AtomicBool::new(false);
    // Before it purges, a client of box a fetches everything again.
    let member = Origin::start(move |request| {
        if request.method() != "PURGE" {
            let version = ["old", "new"][usize::from(is_purged.load(Relaxed))];
            return Script::response(200, &[FRESH], version);
        }
        if !is_purged.load(Relaxed) {
            let proxy = *proxy_at.get().unwrap();
            let get = |url: &String| {
                let mut stream = std::net::TcpStream::connect(proxy).unwrap();
                let head = format!("GET {url} HTTP/1.0\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
                let mut response = String::new();
                stream.read_to_string(&mut response).unwrap();
                response.ends_with("old")
            };
            let fetched =
                tokio::task::block_in_place(|| wanted.iter().filter(|url| get(url)).count());
            assert!(fetched > 0, "box b owns no URL");
            is_purged.store(true, Relaxed);
        }
        Script::response(200, &[], "{}")
    });
    let member = member.await.unwrap();
    let proxy = beside(&home, member.address(), "");
    at.set(proxy.address()).unwrap();
    let mut client = Client::connect(proxy.address()).await.unwrap();
    client.request("PURGE", &real.url("/*"), &[]).await.unwrap();
    assert_eq!(client.read_response("PURGE").await.unwrap().status, 200);
    for url in urls(&real) {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        let answer = client.get(&url, &[]).await.unwrap();
        assert_ne!(answer.body, b"old", "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_origin_that_a_member_passes_on_is_final() {
    let home = Home::new();
    let real = origin().await;
    type Fields = &'static [(&'static str, &'static str)];
    const PASSED_ON: Fields = &[("Via", "1.1 origin, 1.1 box-b")];
    const OWN: Fields = &[
        ("Via", "1.1 box-b"),
        ("Proxy-Status", "box-b; error=connection_refused"),
    ];
    const OF_ANOTHER_SERVER: Fields = &[("Via", "1.1 box-b, 1.1 balancer")];
    let said = Arc::new(Mutex::new(PASSED_ON));
    let says = Arc::clone(&said);
    let member = Origin::start(move |_| Script::response(503, *says.lock().unwrap(), "no"));
    let member = member.await.unwrap();
    let proxy = beside(&home, member.address(), "");
    let mut statuses = Vec::new();
    for url in urls(&real) {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        statuses.push(client.get(&url, &[]).await.unwrap().status);
    }
    let passed = statuses.iter().filter(|status| **status == 503).count();
    assert!(passed > 0 && passed < URLS, "{statuses:?}");
    assert_eq!(real.request_count(), URLS - passed);
    // Its own failure is another matter: perhaps its line is down. So is what another server says
    // in its place.
    for (round, fields) in [OWN, OF_ANOTHER_SERVER, &[]].into_iter().enumerate() {
        *said.lock().unwrap() = fields;
        for n in 0..URLS {
            let mut client = Client::connect(proxy.address()).await.unwrap();
            let url = real.url(&format!("/{round}/{n}"));
            assert_eq!(client.get(&url, &[]).await.unwrap().status, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_writes_a_via_of_a_member_is_a_client() {
    let home = Home::new();
    let origin = Origin::start(|_| Script::response(200, &[FRESH], "page"));
    let origin = origin.await.unwrap();
    let site = format!(
        "[[site]]\nhosts = [\"www.a.test\"]\norigins = [\"http://{}\"]\n\
         trust_forwarded = [\"127.0.0.0/8\"]\nresponse_headers = {{ add = {{ X-Out = \"1\" }} }}\n",
        origin.address()
    );
    let unused: SocketAddr = "127.0.0.7:9".parse().unwrap();
    let proxy = beside(&home, unused, &site);
    // The address of a member is known soon after the start.
    let begun = Instant::now();
    while get_from([127, 0, 0, 7], proxy.address(), "/", "1.1 box-b")
        .await
        .field("X-Out")
        .is_some()
    {
        assert!(begun.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answer = get_from([127, 0, 0, 8], proxy.address(), "/", "1.1 box-b").await;
    assert_eq!(answer.field("X-Out"), Some("1"));
    let answer = get_from([127, 0, 0, 7], proxy.address(), "/", "1.1 other").await;
    assert_eq!(answer.field("X-Out"), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_of_a_member_gets_the_default_lifetime_for_no_cookie_alone() {
    let home = Home::new();
    let origin = Origin::start(|_| Script::response(200, &[], "of the origin"));
    let origin = origin.await.unwrap();
    // A member with an older configuration says neither `Vary` nor a lifetime.
    let member = Origin::start(|request| {
        Script::response(200, &[], request.field("Cookie").unwrap_or("nobody"))
    });
    let member = member.await.unwrap();
    let site = format!(
        "[[site]]\nhosts = [\"www.a.test\"]\norigins = [\"http://{}\"]\n\
         trust_forwarded = [\"127.0.0.1/32\"]\nlifetime = [{{ default = \"10m\" }}]\n",
        origin.address()
    );
    let proxy = beside(&home, member.address(), &site);
    let get = async |path: &str, cookie: &str| {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        let fields = [("Host", "www.a.test"), ("Cookie", cookie)];
        client.get(path, &fields).await.unwrap().body
    };
    let mut of_member = 0;
    for path in (0..URLS).map(|n| format!("/{n}")) {
        let first = get(&path, "user=1").await;
        of_member += usize::from(first == b"user=1");
        assert_ne!(get(&path, "user=2").await, b"user=1");
    }
    assert!(of_member > 0);
}

/// A site with a rule for each direction, whose members trust each other.
fn site(origin: &Origin, more: &str) -> String {
    format!(
        "[[site]]\nhosts = [\"www.a.test\"]\norigins = [\"http://{}\"]\n\
         trust_forwarded = [\"127.0.0.1/32\"]\ncompress = [\"gzip\"]\n\
         key = {{ drop_query = [\"utm_*\"], cookies = [\"lang\"] }}\n\
         bypass_cookie = [\"session\"]\n\
         request_headers = {{ add = {{ X-In = \"1\" }} }}\n\
         response_headers = {{ add = {{ X-Out = \"1\" }} }}\n{more}\n",
        origin.address()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_members_of_a_site_apply_its_rules_once() {
    let origin = Origin::start(|request| {
        let fields = [FRESH, ("Content-Type", "text/plain")];
        let lang = request.field("Cookie").unwrap_or("none");
        Script::response(200, &fields, format!("{lang} {}", "text ".repeat(2_000)))
    });
    let origin = origin.await.unwrap();
    let boxes = Boxes::new(&site(&origin, "")).await;
    let client = [("Host", "www.a.test"), ("X-Forwarded-For", "203.0.113.5")];
    let client = [
        &client[..],
        &[("Cookie", "lang=de"), ("Accept-Encoding", "gzip")],
    ]
    .concat();
    for path in (0..URLS).map(|n| format!("/{n}?utm_x=1")) {
        for (n, name) in NAMES.into_iter().enumerate() {
            let answer = boxes.ask(n, "GET", &path, &client).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.field("Content-Encoding"), Some("gzip"));
            let added = answer.head.fields_named("X-Out").count();
            assert_eq!(added, 1, "at {name}");
        }
    }
    assert_eq!(origin.request_count(), URLS);
    for request in origin.requests() {
        assert_eq!(request.head.fields_named("X-In").count(), 1);
        assert_eq!(request.field("Host"), Some("www.a.test"));
        let forwarded = request.field("X-Forwarded-For").unwrap();
        assert!(forwarded.starts_with("203.0.113.5"), "{forwarded}");
        assert!(!request.target().contains("utm_x"));
    }
    let other = [("Host", "www.a.test"), ("Cookie", "lang=en")];
    let answer = boxes.ask(0, "GET", "/1", &other).await;
    assert!(answer.body.starts_with(b"lang=en"));
    // A request with a response that is not stored is sent to the origin without a hop.
    let before = origin.request_count();
    for n in 0..URLS {
        let session = [("Host", "www.a.test"), ("Cookie", "session=1")];
        boxes.ask(0, "GET", &format!("/s{n}"), &session).await;
    }
    let passed = origin.requests().split_off(before);
    assert!(passed.iter().all(|it| last_via(it) == NAMES[0]));
    assert!(origin.complaints().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_members_of_a_site_know_the_scheme_and_survive_the_loss_of_one() {
    let origin = Origin::start(|_| Script::response(200, &[FRESH], "page"))
        .await
        .unwrap();
    let mut boxes = Boxes::new(&site(&origin, "redirect_to_https = true")).await;
    let https = [("Host", "www.a.test"), ("X-Forwarded-Proto", "https")];
    for path in (0..URLS).map(|n| format!("/{n}")) {
        for n in 0..3 {
            let answer = boxes.ask(n, "GET", &path, &https).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"page"[..]));
        }
    }
    assert_eq!(origin.request_count(), URLS);
    boxes.kill(1);
    for path in (0..URLS).map(|n| format!("/other{n}")) {
        for n in [0, 2] {
            assert_eq!(boxes.ask(n, "GET", &path, &https).await.status, 200);
        }
    }
    assert_eq!(origin.request_count(), 2 * URLS);
    let purged = boxes.ask(0, "PURGE", "/other*", &https).await;
    assert_eq!(purged.status, 502, "one box is away");
    for n in 0..URLS {
        boxes.ask(2, "GET", &format!("/other{n}"), &https).await;
    }
    assert_eq!(origin.request_count(), 3 * URLS);
}
