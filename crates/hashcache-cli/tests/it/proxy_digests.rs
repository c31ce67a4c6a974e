//! Cache digests and their updates between real proxies: what is fetched from a sibling without a
//! query, what a digest that lies costs, and which clients get the digest.
//!
//! As with ICP, the proxy that clients use is at 127.0.0.1, and its sibling at 127.0.0.2: to the
//! sibling, everybody on 127.0.0.1 is its peer, the clients of these tests too.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hashcache_peers::digest::{self, BLOCK_BYTES, ControlBlock, PATH};
use hashcache_peers::filter::{Filter, Size};
use hashcache_peers::key::Key;
use hashcache_testkit::{Origin, Script};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::{Instant, timeout};

use crate::Home;
use crate::cache_box::{CacheBox, Place};

/// Responses that a summary announces.
async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=86400")];
    let origin = Origin::start(move |request| {
        let body = format!("the origin's {}", request.target());
        Script::response(200, &fields, body)
    });
    origin.await.unwrap()
}

/// A sibling without ICP.
fn sibling(place: Place, more: &str) -> String {
    format!(
        "[[peer]]\nname = \"s{0}\"\nkind = \"sibling\"\nurl = \"http://{0}\"\n{more}\n",
        place.http
    )
}

/// A response to a request in origin-form, sent from 127.0.0.`host`.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

async fn ask(cache: SocketAddr, host: u8, path: &str, fields: &str) -> Answer {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(SocketAddr::from(([127, 0, 0, host], 0)))
        .unwrap();
    let mut stream = socket.connect(cache).await.unwrap();
    let head = format!("GET {path} HTTP/1.0\r\nHost: any.test\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = vec![];
    let reading = stream.read_to_end(&mut response);
    timeout(Duration::from_secs(20), reading)
        .await
        .unwrap()
        .unwrap();
    let end = response
        .windows(4)
        .position(|it| it == b"\r\n\r\n")
        .unwrap()
        + 4;
    let head = String::from_utf8(response[..end].to_vec()).unwrap();
    Answer {
        status: head[9..12].parse().unwrap(),
        body: response[end..].to_vec(),
        head,
    }
}

/// Waits until the digest of a proxy has these URLs.
async fn wait_for_digest(cache: &CacheBox, urls: &[String]) {
    for _ in 0..400 {
        let answer = ask(cache.proxy.address(), 1, PATH, "").await;
        if answer.status == 200 {
            let filter = digest::parse(&answer.body).unwrap();
            let has = |url: &String| filter.contains(&Key::of_get(url.as_bytes()));
            if urls.iter().all(has) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the digest never has {urls:?}");
}

/// The number of requests for the digest, once the log says nothing new about them for a second:
/// each thread of the proxy writes its lines in its own time.
async fn digest_requests(cache: &CacheBox) -> usize {
    let mut last = (0, 0);
    while last.1 < 10 {
        let text = fs::read_to_string(&cache.log).unwrap_or_default();
        let count = text.lines().filter(|line| line.contains(PATH)).count();
        last = (count, if count == last.0 { last.1 + 1 } else { 0 });
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    last.0
}

/// How the log says that a digest named the sibling that had the response.
const FROM_DIGEST: &str = " CD_SIBLING_HIT/127.0.0.2";
/// Objects of which one must come from the sibling in time.
const URLS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn an_object_in_a_siblings_digest_is_fetched_from_it_without_a_query() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let has = CacheBox::start(&home, other, &sibling(near, "digest = true"));
    let asks = CacheBox::start(&home, near, &sibling(other, "digest = true"));
    let urls = has.store(&origin, "/a?b=", URLS).await;
    wait_for_digest(&has, &urls).await;
    // The first request that needs the digest waits for it, but not for long.
    let (url, answer, late) = asks.ask_until(&urls, &[], FROM_DIGEST).await;
    let wanted = url.replace(&origin.url(""), "the origin's ");
    assert_eq!(answer.body, wanted.as_bytes());
    assert_eq!(origin.request_count(), URLS + late);
    let name = format!("{{peer=\"s{}\"}}", other.http);
    assert_eq!(
        asks.metric(&format!("hashcache_peer_digest_entries{name}")),
        URLS as u64
    );
    // A peer is not queried for an object that is not in the digest.
    let new = origin.url("/new");
    assert_eq!(asks.get(&new).await.status, 200);
    let line = asks.line_about(&new).await;
    assert!(line.contains(" HIER_DIRECT/127.0.0.1"), "{line}");
    let log = fs::read_to_string(&has.log).unwrap();
    assert!(!log.contains("/new"), "{log}");
    let name = format!("hashcache_peer_digest_false_hits_total{name}");
    assert_eq!(asks.metric(&name), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_alone_get_the_digest_and_a_known_one_is_not_sent_again() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let has = CacheBox::start(&home, other, &sibling(near, "digest = true"));
    let at = has.proxy.address();
    let url = origin.url("/a");
    assert_eq!(has.get(&url).await.status, 200);
    wait_for_digest(&has, std::slice::from_ref(&url)).await;
    let answer = ask(at, 1, PATH, "").await;
    let tag = answer.field("etag").unwrap();
    let modified = answer.field("last-modified").unwrap();
    assert_eq!(
        answer.field("content-type"),
        Some("application/cache-digest")
    );
    assert!(answer.field("expires").is_some() && answer.field("date").is_some());
    for (fields, status) in [
        (format!("If-None-Match: \"0-0\", {tag}\r\n"), 304),
        (format!("If-Modified-Since: {modified}\r\n"), 304),
        ("If-None-Match: \"0-0\"\r\n".to_owned(), 200),
        (
            format!("If-None-Match: \"0-0\"\r\nIf-Modified-Since: {modified}\r\n"),
            200,
        ),
    ] {
        assert_eq!(ask(at, 1, PATH, &fields).await.status, status, "{fields}");
    }
    let netdb = ask(at, 1, "/squid-internal-dynamic/netdb", "").await;
    assert_eq!(netdb.status, 404);
    // Others learn nothing: any path gives the same.
    let stranger = ask(at, 9, PATH, "").await;
    let nothing = ask(at, 9, "/squid-internal-periodic/nothing", "").await;
    assert_eq!((stranger.status, nothing.status), (400, 400));
    // An origin's own page of that name is fetched like any other.
    let of_origin = has.get(&origin.url(PATH)).await;
    assert_eq!(of_origin.body, format!("the origin's {PATH}").into_bytes());
    // A new object is in the digest, under another tag.
    let second = origin.url("/b");
    assert_eq!(has.get(&second).await.status, 200);
    wait_for_digest(&has, &[second]).await;
    let fields = format!("If-None-Match: {tag}\r\n");
    assert_eq!(ask(at, 1, PATH, &fields).await.status, 200);
}

/// A peer whose digest is a script, and which has nothing. Returns how often it was asked for the
/// digest, and for any other resource.
fn scripted(at: SocketAddr, digest: Vec<u8>) -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(at).unwrap();
    let counts = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (digests, others) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
    // The thread runs until the test process exits.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = vec![];
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                head.push(byte[0]);
            }
            let wants_digest = head.starts_with(format!("GET {PATH} HTTP/1.1").as_bytes());
            let missing = b"HTTP/1.1 504 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let answer = if wants_digest {
                &digest[..]
            } else {
                &missing[..]
            };
            if wants_digest {
                digests.fetch_add(1, Ordering::Relaxed);
            } else if head.starts_with(b"GET ") {
                // A probe whether it is there is no GET.
                others.fetch_add(1, Ordering::Relaxed);
            }
            // A client that does not want all of it may have left.
            let _ = stream.write_all(answer);
        }
    });
    counts
}

fn response(body: &[u8]) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nETag: \"7-1\"\r\nConnection: close\r\n\r\n";
    [head.as_bytes(), body].concat()
}

fn body_of(filter: &Filter) -> Vec<u8> {
    [
        &ControlBlock::from_filter(filter).octets()[..],
        filter.octets(),
    ]
    .concat()
}

/// A digest that says that its cache has these URLs.
fn digest_of(urls: &[String]) -> Vec<u8> {
    let mut filter = Filter::empty(Size::new(1000, 10).unwrap()).unwrap();
    for url in urls {
        filter.insert(&Key::of_get(url.as_bytes()));
    }
    body_of(&filter)
}

async fn wait_for(count: &AtomicUsize, least: usize) {
    for _ in 0..400 {
        if count.load(Ordering::Relaxed) >= least {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{} instead of {least}", count.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_lies_costs_a_hop_each_and_then_its_peer_is_left_alone() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let urls: Vec<String> = (0..60).map(|n| origin.url(&format!("/{n}"))).collect();
    let (digests, others) = scripted(other.http, response(&digest_of(&urls)));
    let asks = CacheBox::start(&home, near, &sibling(other, "digest = true"));
    let name = format!(
        "hashcache_peer_digest_false_hits_total{{peer=\"s{}\"}}",
        other.http
    );
    // A hop that is late is none of the 17 that are too many.
    let mut asked = 0;
    while asks.metric(&name) < 17 {
        let answer = asks.get(&urls[asked]).await;
        assert_eq!(
            (answer.status, answer.body),
            (200, format!("the origin's /{asked}").into_bytes())
        );
        let line = asks.line_about(&urls[asked]).await;
        assert!(line.contains(" HIER_DIRECT/127.0.0.1"), "{line}");
        asked += 1;
        assert!(others.load(Ordering::Relaxed) <= asked);
    }
    // Too many: its digest is fetched anew, and it is not asked.
    wait_for(&digests, 2).await;
    let before = others.load(Ordering::Relaxed);
    for url in &urls[asked..asked + 3] {
        assert_eq!(asks.get(url).await.status, 200);
    }
    assert_eq!(others.load(Ordering::Relaxed), before);
    assert_eq!(asks.metric(&name), 17);
    assert_eq!(digests.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_that_are_cut_off_wrong_too_large_or_full_are_not_used() {
    let (home, origin) = (Home::new(), origin().await);
    let urls: Vec<String> = (0..20).map(|n| origin.url(&format!("/{n}"))).collect();
    let good = digest_of(&urls);
    let changed = |at: usize, octet: u8| {
        let mut body = good.clone();
        body[at] = octet;
        body
    };
    let large = Size::new(14_000_000, 10).unwrap();
    let entries = 1;
    let large = ControlBlock {
        size: large,
        entries,
    };
    let mut full = good.clone();
    full[BLOCK_BYTES..].fill(0xff);
    let cut = good[..good.len() - 1].to_vec();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", good.len());
    let said = [head.as_bytes(), &cut];
    let wrong = [
        said.concat(),
        response(&cut),
        response(&[&good[..], &[0]].concat()),
        response(&good[..100]),
        response(&changed(3, 6)),
        response(&changed(21, 3)),
        response(&changed(19, 1)),
        response(&large.octets()),
        response(&full),
        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        b"no HTTP\r\n\r\n".to_vec(),
    ];
    let mut peers = String::new();
    let mut counts = vec![];
    for digest in wrong {
        let place = Place::at(2);
        counts.push(scripted(place.http, digest));
        peers += &sibling(place, "digest = true");
    }
    // The good one shows that this test can fail.
    let place = Place::at(3);
    let used = scripted(place.http, response(&good));
    let asks = CacheBox::start(
        &home,
        Place::at(1),
        &format!("{peers}{}", sibling(place, "digest = true")),
    );
    let begun = Instant::now();
    // The first request waits for the digests, but not for long.
    let mut asked = 0;
    while used.1.load(Ordering::Relaxed) == 0 {
        let answer = asks.get(&urls[asked]).await;
        assert_eq!(
            (answer.status, answer.body),
            (200, format!("the origin's /{asked}").into_bytes())
        );
        asked += 1;
    }
    for (n, (digests, _)) in counts.iter().enumerate() {
        wait_for(digests, 1).await;
        let other = format!("/other{n}");
        assert_eq!(asks.get(&origin.url(&other)).await.status, 200);
    }
    for (n, (digests, others)) in counts.iter().enumerate() {
        assert_eq!(others.load(Ordering::Relaxed), 0, "{n}");
        // Pauses that double, from 225 ms on.
        let pauses = 1 + begun.elapsed().as_millis() / 225;
        let most = 1 + pauses.ilog2() as usize;
        let asked = digests.load(Ordering::Relaxed);
        assert!(asked <= most, "{n}: {asked} of {most}");
    }
    assert_eq!(used.0.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_tell_a_sibling_what_is_new_and_a_restart_makes_it_fetch_the_digest_anew() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let peers = near.sibling("summary = true");
    let has = CacheBox::start(&home, other, &peers);
    let asks = CacheBox::start(&home, near, &other.sibling("summary = true"));
    let of_peer = |name: &str, place: Place| format!("{name}{{peer=\"s{}\"}}", place.http);
    let received = of_peer("hashcache_peer_updates_received_total", other);
    let missed = of_peer("hashcache_peer_updates_missed_total", other);
    let entries = of_peer("hashcache_peer_digest_entries", other);
    let first = has.store(&origin, "/first", URLS).await;
    wait_for_digest(&has, &first).await;
    let (_, _, late) = asks.ask_until(&first, &[], FROM_DIGEST).await;
    // An update that does not follow on the digest, because it was on its way while that was
    // fetched, makes the digest due again some seconds later. It then has all that is stored.
    let mut stored = URLS;
    let (urls, fetched) = loop {
        let fetched = digest_requests(&has).await;
        // More than a datagram of bits.
        let urls = has.store(&origin, &format!("/{stored}-"), 200).await;
        stored += 200;
        let coming = asks.wait_for_metric(&received, 1);
        if timeout(Duration::from_secs(8), coming).await.is_ok() {
            break (urls, (stored == URLS + 200).then_some(fetched));
        }
        // On a busy machine a digest may be fetched between two updates several times, and the
        // pause until the next fetch doubles each time (`GAP_PAUSE`).
        assert!(stored < URLS + 6000, "no update came");
    };
    assert!(has.metric(&of_peer("hashcache_peer_updates_sent_total", near)) >= 1);
    let before = asks.metric(&missed);
    // The first update need not have all of them, if the requests took more than half a second.
    let (_, _, too_early) = asks.ask_until(&urls[..40], &[], FROM_DIGEST).await;
    if let Some(fetched) = fetched {
        assert_eq!(digest_requests(&has).await, fetched);
    }
    let direct = late + too_early;
    assert_eq!(origin.request_count(), stored + direct);
    // No query by ICP was needed: only probes.
    assert_eq!(asks.metric("hashcache_icp_replies_total{reply=\"hit\"}"), 0);

    has.proxy.end_well();
    fs::remove_file(&has.log).unwrap();
    let has = CacheBox::start(&home, other, &peers);
    asks.wait_for_metric(&missed, before + 1).await;
    has.line_with(&[PATH]).await;
    asks.wait_for_metric(&entries, stored as u64).await;
    assert_eq!(digest_requests(&has).await, 1);
    let (_, _, late) = asks.ask_until(&urls[190..], &[], FROM_DIGEST).await;
    assert_eq!(origin.request_count(), stored + direct + late);
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_of_no_use_wait_for_a_minute_until_a_stored_response_is_asked_for() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let has = CacheBox::start(&home, other, &near.sibling("summary = true"));
    let _asks = CacheBox::start(&home, near, &other.sibling("summary = true"));
    let sent = format!(
        "hashcache_peer_updates_sent_total{{peer=\"s{}\"}}",
        near.http
    );
    let first = origin.url("/first");
    assert_eq!(has.get(&first).await.status, 200);
    wait_for_digest(&has, std::slice::from_ref(&first)).await;
    // Of so few objects, one is more than the threshold.
    let mut waits = false;
    for n in 0..20 {
        let before = has.metric(&sent);
        assert_eq!(has.get(&origin.url(&format!("/{n}"))).await.status, 200);
        let sent_soon = has.wait_for_metric(&sent, before + 1);
        waits = timeout(Duration::from_secs(3), sent_soon).await.is_err();
        if waits {
            break;
        }
    }
    assert!(waits, "all updates were sent soon");
    let before = has.metric(&sent);
    let only = [("Cache-Control", "only-if-cached")];
    assert_eq!(has.get_with(&first, &only).await.status, 200);
    let sent_soon = has.wait_for_metric(&sent, before + 1);
    let sent_soon = timeout(Duration::from_secs(5), sent_soon).await;
    sent_soon.expect("it waited as if nobody had asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_begins_and_ends_the_exchange_of_digests() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    // The box must be a recognised peer before, so that its requests are answered at all.
    let without = sibling(near, "digest = true").replace("digest = true", "icp = 9");
    let has = CacheBox::start(&home, other, &without);
    let url = origin.url("/a");
    assert_eq!(has.get(&url).await.status, 200);
    assert_eq!(ask(has.proxy.address(), 1, PATH, "").await.status, 404);
    has.reload(other, &sibling(near, "digest = true")).await;
    wait_for_digest(&has, std::slice::from_ref(&url)).await;
    has.reload(other, &without).await;
    for _ in 0..400 {
        if ask(has.proxy.address(), 1, PATH, "").await.status == 404 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the digest is still served");
}

#[test]
fn digests_need_a_policy_with_lists() {
    let home = Home::new();
    let peer = sibling(Place::at(2), "digest = true");
    for (policy, works) in [("log", true), ("log-lru", true), ("set-mem", false)] {
        home.file("a.toml", &format!("policy = \"{policy}\"\n{peer}"));
        let outcome = home.hashcache(&["config", "check", "a.toml"], &[]);
        assert_eq!(outcome.status == Some(0), works, "{outcome:?}");
        let says_why = outcome.stderr.contains("the policy `set-mem` cannot do");
        assert_eq!(says_why, !works, "{outcome:?}");
    }
}
