//! HTCP of the real proxy: which objects are fetched from siblings, which senders get which
//! answers, what a key protects, and which CLR requests are obeyed and sent.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use hashcache_peers::htcp::auth::{Ends, Key, Signature};
use hashcache_peers::htcp::{
    Body, Cleared, ClrReason, Failure, MINOR, Operation, Response, Specifier, datagram, parse,
};
use hashcache_testkit::{Client, Origin, Script};

use crate::Home;
use crate::cache_box::{CacheBox, Place, origin};

/// A peer that is a script: it sends what a test wants and returns the answer.
struct Scripted {
    socket: UdpSocket,
    to: Place,
    key: Option<Key>,
}

static TRANSACTION: AtomicU32 = AtomicU32::new(100);

impl Scripted {
    fn at(own: Place, to: Place) -> Self {
        let socket = UdpSocket::bind(own.htcp).unwrap();
        let time = Some(Duration::from_secs(5));
        socket.set_read_timeout(time).unwrap();
        Self {
            socket,
            to,
            key: None,
        }
    }

    fn ends(&self) -> Ends {
        Ends {
            source: self.socket.local_addr().unwrap(),
            destination: self.to.htcp,
        }
    }

    fn request(&self, operation: Operation<'_>, wants_response: bool) -> (u32, Vec<u8>) {
        let transaction = TRANSACTION.fetch_add(1, Ordering::Relaxed);
        let signature = self.key.as_ref().map(|key| Signature {
            key,
            ends: self.ends(),
            time: now(),
            expiry: now() + 30,
        });
        let body = Body::Request {
            operation,
            wants_response,
        };
        let datagram = datagram(MINOR, transaction, &body, signature.as_ref()).unwrap();
        (transaction, datagram)
    }

    /// Sends a request and waits for its answer, which must not be longer unless it is signed.
    fn ask(&self, operation: Operation<'_>) -> Said {
        let (transaction, datagram) = self.request(operation, true);
        self.send(&datagram);
        self.answer(transaction, datagram.len())
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.to.htcp).unwrap();
    }

    fn answer(&self, transaction: u32, asked: usize) -> Said {
        let mut buffer = [0; 20_000];
        loop {
            let (length, from) = self.socket.recv_from(&mut buffer).unwrap();
            let message = parse(&buffer[..length]).unwrap();
            let Body::Response(response) = message.body else {
                // The proxy probes its peer.
                continue;
            };
            assert_eq!((message.transaction, from), (transaction, self.to.htcp));
            assert!(message.is_signed() || length <= asked, "{length} > {asked}");
            if let Some(key) = self.key.as_ref().filter(|_| message.is_signed()) {
                let ends = Ends {
                    source: self.to.htcp,
                    destination: self.socket.local_addr().unwrap(),
                };
                message.check(key, &ends, now()).unwrap();
            }
            return match response {
                Response::Nop => Said::Nop,
                Response::Present(_) => Said::Present,
                Response::Absent { .. } => Said::Absent,
                Response::Clr(cleared) => Said::Clr(cleared),
                Response::Refused { failure, .. } => Said::Refused(failure),
            };
        }
    }
}

/// An answer of the proxy.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Nop,
    Present,
    Absent,
    Clr(Cleared),
    Refused(Failure),
}

#[expect(clippy::disallowed_methods, reason = "a peer has a clock")]
fn now() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs().try_into().unwrap()
}

fn tst<'a>(url: &'a str, fields: &'a str) -> Operation<'a> {
    Operation::Tst(Specifier::get(url.as_bytes(), fields.as_bytes()))
}

fn clr(url: &str) -> Operation<'_> {
    Operation::Clr {
        reason: ClrReason::Unspecified,
        specifier: Specifier::get(url.as_bytes(), b""),
    }
}

/// An origin whose responses vary by one field.
async fn varying_origin(by: &'static str) -> Origin {
    let origin = Origin::start(move |request| {
        let value = request.field(by).unwrap_or_default();
        let fields = [("Cache-Control", "max-age=600"), ("Vary", by)];
        Script::response(200, &fields, format!("for {value}"))
    });
    origin.await.unwrap()
}

async fn purge(at: &CacheBox, url: &str) {
    let mut client = Client::connect(at.proxy.address()).await.unwrap();
    client.request("PURGE", url, &[]).await.unwrap();
    assert_eq!(client.read_response("PURGE").await.unwrap().status, 200);
}

fn key_line(path: &Path) -> String {
    format!("htcp_key_file = \"{}\"\n", path.display())
}

/// How the log says that a sibling had the response.
const FROM_SIBLING: &str = " SIBLING_HIT/127.0.0.2";
/// Objects of which one must come from the sibling in time.
const URLS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_a_sibling_has_is_fetched_from_it() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let has = CacheBox::start(&home, other, &near.htcp_sibling(""));
    let asks = CacheBox::start(&home, near, &other.htcp_sibling(""));
    let urls = has.store(&origin, "/", URLS).await;
    asks.wait_for_metric("hashcache_htcp_replies_total{reply=\"miss\"}", 1)
        .await;
    let (url, answer, late) = asks.ask_until(&urls, &[], FROM_SIBLING).await;
    let wanted = url.replace(&origin.url(""), "the origin's ");
    assert_eq!(answer.body, wanted.as_bytes());
    assert_eq!(origin.request_count(), URLS + late);
    let hits = |at: &CacheBox, name: &str| at.metric(&format!("{name}{{reply=\"hit\"}}"));
    let possible = 1..=1 + late as u64;
    assert!(possible.contains(&hits(&asks, "hashcache_htcp_replies_total")));
    assert!(possible.contains(&hits(&has, "hashcache_htcp_answers_total")));
    let timeouts = || asks.metric("hashcache_htcp_timeouts_total");
    assert!(timeouts() <= late as u64);
    let new = origin.url("/new");
    let before = timeouts();
    assert_eq!(asks.get(&new).await.status, 200);
    let line = asks.line_about(&new).await;
    let is_direct = line.contains(" HIER_DIRECT/127.0.0.1");
    assert!(is_direct || timeouts() > before, "{line}");
    assert_eq!(asks.metric("hashcache_icp_queries_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_names_the_fields_by_which_responses_vary() {
    let (home, origin) = (Home::new(), varying_origin("Accept-Language").await);
    let (near, other) = (Place::at(1), Place::at(2));
    let has = CacheBox::start(&home, other, &near.htcp_sibling(""));
    let asks = CacheBox::start(&home, near, &other.htcp_sibling(""));
    let urls: Vec<_> = (0..URLS).map(|n| origin.url(&format!("/{n}"))).collect();
    let english = [("Accept-Language", "en"), ("Cookie", "a=1")];
    for url in &urls {
        assert_eq!(has.get_with(url, &english).await.body, b"for en");
    }
    asks.wait_for_metric("hashcache_htcp_replies_total{reply=\"miss\"}", 1)
        .await;
    let german = [("Accept-Language", "de")];
    assert_eq!(asks.get_with(&urls[0], &german).await.body, b"for de");
    let line = asks.line(1).await;
    assert!(line.contains("HIER_DIRECT/"), "{line}");
    let (_, answer, late) = asks.ask_until(&urls[1..], &english, FROM_SIBLING).await;
    assert_eq!(answer.body, b"for en");
    assert_eq!(asks.metric("hashcache_peer_false_hits_total"), 0);
    assert_eq!(origin.request_count(), URLS + 1 + late);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_told_what_the_rules_let_it_have() {
    let (home, origin) = (Home::new(), origin().await);
    let (place, peer) = (Place::at(2), Place::at(1));
    let peers = peer.htcp_sibling("");
    let has = CacheBox::start(&home, place, &peers);
    let url = origin.url("/a");
    assert_eq!(has.get(&url).await.status, 200);
    let script = Scripted::at(peer, place);
    assert_eq!(script.ask(tst(&url, "")), Said::Present);
    let denied = || Said::Refused(Failure::Disallowed);
    for (rule, nop, test) in [
        (
            "action = \"deny\"\nmethods = [\"POST\"]",
            Said::Nop,
            Said::Present,
        ),
        (
            "action = \"deny\"\nmethods = [\"GET\"]",
            Said::Nop,
            Said::Absent,
        ),
        (
            "action = \"no-cache\"\nports = [\"1-65535\"]",
            Said::Nop,
            Said::Absent,
        ),
        // The peer is no client any more.
        ("action = \"deny\"", denied(), denied()),
    ] {
        has.reload(place, &format!("{peers}[[access]]\n{rule}\n"))
            .await;
        assert_eq!(script.ask(Operation::Nop), nop, "{rule}");
        assert_eq!(script.ask(tst(&url, "")), test, "{rule}");
    }
    assert_eq!(origin.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_alone_get_answers_and_no_answer_is_longer_than_its_question() {
    let (home, origin) = (Home::new(), origin().await);
    let (place, peer) = (Place::at(2), Place::at(1));
    let has = CacheBox::start(&home, place, &peer.htcp_sibling(""));
    let url = origin.url("/a");
    assert_eq!(has.get(&url).await.status, 200);
    let script = Scripted::at(peer, place);
    let gzip = "Accept-Encoding: gzip\r\n";
    let long = format!("http://x.test/{}", "y".repeat(9000));
    let secure = url.replace("http:", "https:");
    for (operation, wanted) in [
        (Operation::Nop, Said::Nop),
        (tst(&url, ""), Said::Present),
        (tst(&url, gzip), Said::Present),
        // The request that follows would be forwarded.
        (tst(&url, "Cache-Control: no-cache\r\n"), Said::Absent),
        (tst(&url, "no field\r\n"), Said::Absent),
        (tst("http://x.test/none", gzip), Said::Absent),
        (tst(&long, ""), Said::Absent),
        (tst(&secure, ""), Said::Absent),
        (tst("no url", ""), Said::Absent),
        (Operation::Other(2), Said::Refused(Failure::NotImplemented)),
        (Operation::Other(3), Said::Refused(Failure::NotImplemented)),
        (clr(&url), Said::Refused(Failure::Disallowed)),
    ] {
        let shown = format!("{operation:?}");
        assert_eq!(script.ask(operation), wanted, "{shown}");
    }
    let post = Specifier {
        method: b"POST",
        ..Specifier::get(url.as_bytes(), b"")
    };
    assert_eq!(script.ask(Operation::Tst(post)), Said::Absent);
    // Questions that want no answer, and no questions.
    for operation in [Operation::Nop, tst(&url, ""), Operation::Other(2)] {
        script.send(&script.request(operation, false).1);
    }
    let damaged: [(&[u8], &str); 3] = [
        (b"", "malformed"),
        (&[0; 40], "malformed"),
        (&[0, 4, 1, 0], "version"),
    ];
    for (datagram, _) in damaged {
        script.send(datagram);
    }
    // A response that nobody asked for.
    let response = Body::Response(Response::Nop);
    script.send(&datagram(MINOR, 7, &response, None).unwrap());
    let ignored = |reason: &str| format!("hashcache_htcp_ignored_total{{reason=\"{reason}\"}}");
    for (reason, count) in [
        ("unanswerable", 3),
        ("malformed", 2),
        ("version", 1),
        ("unasked", 1),
    ] {
        has.wait_for_metric(&ignored(reason), count).await;
    }
    // The answer to this one would stand behind those of the others.
    assert_eq!(script.ask(Operation::Nop), Said::Nop);
    let stranger = UdpSocket::bind("127.0.0.9:0").unwrap();
    let (_, question) = script.request(Operation::Nop, true);
    stranger.send_to(&question, place.htcp).unwrap();
    has.wait_for_metric(&ignored("stranger"), 1).await;
    stranger
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    assert!(stranger.recv_from(&mut [0; 100]).is_err());
    // The object is still there.
    assert_eq!(has.get(&url).await.status, 200);
    assert_eq!(origin.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_gets_a_thousand_answers_a_second_and_may_clear_a_hundred_urls() {
    let home = Home::new();
    let (place, peer) = (Place::at(2), Place::at(1));
    let has = CacheBox::start(&home, place, &peer.htcp_sibling("clear = true"));
    let script = Scripted::at(peer, place);
    assert_eq!(script.ask(Operation::Nop), Said::Nop);
    let (_, clear) = script.request(clr("http://x.test/"), false);
    // A busy machine may need several seconds for them.
    for _ in 0..2000 {
        script.send(&clear);
    }
    let clears = |result: &str| format!("hashcache_htcp_clears_total{{result=\"{result}\"}}");
    has.wait_for_metric(&clears("rate"), 1).await;
    assert!(has.metric(&clears("absent")) >= 100);
    let ignored = "hashcache_htcp_ignored_total{reason=\"rate\"}";
    let (_, question) = script.request(Operation::Nop, true);
    for _ in 0..50 {
        for _ in 0..2000 {
            script.send(&question);
        }
        if has.metric(ignored) > 0 {
            return;
        }
    }
    panic!("no limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_is_obeyed_only_if_the_settings_say_so() {
    let (home, origin) = (Home::new(), origin().await);
    let (place, peer) = (Place::at(2), Place::at(1));
    let has = CacheBox::start(&home, place, &peer.htcp_sibling(""));
    let (one, other) = (origin.url("/a"), origin.url("/b"));
    assert_eq!(has.get(&one).await.status, 200);
    assert_eq!(has.get(&other).await.status, 200);
    let script = Scripted::at(peer, place);
    // As Squid sends it.
    script.send(&script.request(clr(&one), false).1);
    has.wait_for_metric("hashcache_htcp_clears_total{result=\"refused\"}", 1)
        .await;
    assert_eq!(script.ask(tst(&one, "")), Said::Present);

    has.reload(place, &peer.htcp_sibling("clear = true")).await;
    script.send(&script.request(clr(&one), false).1);
    has.wait_for_metric("hashcache_htcp_clears_total{result=\"gone\"}", 1)
        .await;
    assert_eq!(script.ask(tst(&one, "")), Said::Absent);
    assert_eq!(script.ask(tst(&other, "")), Said::Present);
    assert_eq!(script.ask(clr(&other)), Said::Clr(Cleared::Gone));
    assert_eq!(script.ask(clr(&other)), Said::Clr(Cleared::Absent));
    let secure = other.replace("http:", "https:");
    assert_eq!(script.ask(clr(&secure)), Said::Refused(Failure::Disallowed));
    assert_eq!(has.get(&one).await.status, 200);
    assert_eq!(origin.request_count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_is_passed_on_to_the_peers_that_want_it() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let has = CacheBox::start(&home, other, &near.htcp_sibling("clear = true"));
    let purges = CacheBox::start(&home, near, &other.htcp_sibling("send_clear = true"));
    let (one, kept) = (origin.url("/a"), origin.url("/b"));
    for url in [&one, &kept] {
        assert_eq!(has.get(url).await.status, 200);
    }
    // Its address is known from now on.
    purges
        .wait_for_metric("hashcache_htcp_replies_total{reply=\"miss\"}", 1)
        .await;
    let sent = |result: &str| format!("hashcache_htcp_clears_sent_total{{result=\"{result}\"}}");
    purge(&purges, &one).await;
    purges.wait_for_metric(&sent("gone"), 1).await;
    purge(&purges, &one).await;
    purges.wait_for_metric(&sent("absent"), 1).await;
    let clears = || -> u64 {
        let results = ["gone", "absent", "kept", "refused"];
        let names = results.map(|it| format!("hashcache_htcp_clears_total{{result=\"{it}\"}}"));
        names.iter().map(|name| has.metric(name)).sum()
    };
    // One whose answer is late is sent again.
    let before = clears();
    assert!((2..=6).contains(&before), "{before}");
    // Unsafe requests of clients, and purges that HTCP cannot express, are not passed on.
    let mut client = Client::connect(purges.proxy.address()).await.unwrap();
    let fields = [("Content-Length", "0")];
    client.request("POST", &kept, &fields).await.unwrap();
    assert_eq!(client.read_response("POST").await.unwrap().status, 200);
    purge(&purges, &format!("{}*", origin.url("/"))).await;
    purge(&purges, &kept.replace("http:", "https:")).await;
    assert_eq!(has.get(&kept).await.status, 200);
    assert_eq!(has.get(&one).await.status, 200);
    // Both objects, the POST, and the object that was purged.
    assert_eq!(origin.request_count(), 4);
    assert_eq!(clears(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_that_is_not_answered_is_sent_three_times() {
    let home = Home::new();
    let (near, other) = (Place::at(1), Place::at(2));
    let script = Scripted::at(other, near);
    let purges = CacheBox::start(&home, near, &other.htcp_sibling("send_clear = true"));
    let mut buffer = [0; 2000];
    let mut received = |wanted: fn(&Operation<'_>) -> bool| loop {
        let (length, _) = script.socket.recv_from(&mut buffer).unwrap();
        let message = parse(&buffer[..length]).unwrap();
        let Body::Request {
            operation,
            wants_response: true,
        } = message.body
        else {
            panic!("no question: {message:?}");
        };
        if wanted(&operation) {
            return message.transaction;
        }
    };
    // A probe: the address is known.
    received(|operation| matches!(operation, Operation::Tst(_)));
    purge(&purges, "http://x.test/").await;
    let mut numbers: Vec<u32> = (0..3)
        .map(|_| received(|operation| matches!(operation, Operation::Clr { .. })))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "each has a number of its own");
    purges
        .wait_for_metric("hashcache_htcp_clears_sent_total{result=\"no_reply\"}", 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_with_the_same_key_believe_each_other_and_others_are_refused() {
    let (home, origin) = (Home::new(), origin().await);
    let (near, other) = (Place::at(1), Place::at(2));
    let key = home.file("key", "west:a long and random secret\n");
    let line = key_line(&key);
    let clear = format!("{line}clear = true");
    let has = CacheBox::start(&home, other, &near.htcp_sibling(&clear));
    let url = origin.url("/a");
    assert_eq!(has.get(&url).await.status, 200);
    let ignored = "hashcache_htcp_ignored_total{reason=\"signature\"}";
    {
        let mut script = Scripted::at(near, other);
        let required = Said::Refused(Failure::AuthenticationRequired);
        assert_eq!(script.ask(tst(&url, "")), required);
        assert_eq!(script.ask(clr(&url)), required);
        let unsatisfied = Said::Refused(Failure::AuthenticationUnsatisfactory);
        for (name, secret) in [("west", "another"), ("east", "a long and random secret")] {
            script.key = Some(Key::new(name.as_bytes(), secret.as_bytes()).unwrap());
            assert_eq!(script.ask(clr(&url)), unsatisfied);
        }
        script.key = Some(Key::new(b"west", b"a long and random secret").unwrap());
        assert_eq!(script.ask(tst(&url, "")), Said::Present);
        // A response that is not signed is not believed.
        let response = Body::Response(Response::Nop);
        script.send(&datagram(MINOR, 7, &response, None).unwrap());
        has.wait_for_metric("hashcache_htcp_ignored_total{reason=\"unasked\"}", 1)
            .await;
        // A message that was overheard, from another port.
        let (_, signed) = script.request(clr(&url), false);
        let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
        forger.send_to(&signed, other.htcp).unwrap();
        has.wait_for_metric("hashcache_htcp_clears_total{result=\"refused\"}", 4)
            .await;
        assert_eq!(script.ask(tst(&url, "")), Said::Present);
    }
    let sends = format!("{line}send_clear = true");
    let asks = CacheBox::start(&home, near, &other.htcp_sibling(&sends));
    asks.wait_for_metric("hashcache_htcp_replies_total{reply=\"miss\"}", 1)
        .await;
    let urls = has.store(&origin, "/", URLS).await;
    let (url, ..) = asks.ask_until(&urls, &[], FROM_SIBLING).await;
    purge(&asks, url).await;
    asks.wait_for_metric("hashcache_htcp_clears_sent_total{result=\"gone\"}", 1)
        .await;
    assert_eq!(asks.metric(ignored), 0);

    // The file is read again; with another key nothing is believed.
    home.file("key", "west:changed\n");
    asks.reload(near, &other.htcp_sibling(&sends)).await;
    let new = origin.url("/b");
    assert_eq!(asks.get(&new).await.status, 200);
    let line = asks.line_about(&new).await;
    assert!(line.contains("HIER_DIRECT/"), "{line}");
    asks.wait_for_metric(ignored, 1).await;
}

#[test]
fn a_check_names_peers_that_may_clear_without_a_key() {
    let home = Home::new();
    home.file("key", "us:0123456789abcdef0123456789abcdef\n");
    let peer = |name: &str, more: &str| {
        format!(
            "[[peer]]\nname = \"{name}\"\nkind = \"sibling\"\nurl = \"http://{name}.test\"\n\
             htcp = 4827\n{more}\n"
        )
    };
    let config = [
        "htcp = \"127.0.0.1:4827\"\n".to_owned(),
        peer("open", "clear = true"),
        peer("signed", "clear = true\nhtcp_key_file = \"key\""),
        peer("silent", ""),
    ];
    home.file("h.toml", &config.concat());
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    assert!(
        checked
            .stderr
            .contains("`clear` of the peers `open` without"),
        "{checked:?}"
    );
}
