//! Purges through the real proxy: by the method PURGE, by the admin listener and from the command
//! line; and what many purges cost hits on a slow disk.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashcache::device::{DiskModel, MemoryDevice, Pace, ThrottleDevice};
use hashcache::{Cache, Clock, Config};
use hashcache_testkit::scenario::purges::{self, Options};
use hashcache_testkit::{Client, Gate, Origin, RawRequest, Script};

use crate::Home;
use crate::proxy_groups::start;
use crate::proxy_process::{Proxy, Restarted};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_purged_never_answers_again_and_nothing_else_goes() {
    let home = Home::new();
    let cache = home.path().join("cache");
    let mut victim = Restarted {
        cache: &cache,
        running: None,
    };
    let options = Options {
        objects: 12,
        kills: 1,
    };
    let verdicts = purges::play(&mut victim, &options).await;
    let verdicts = verdicts.expect("the proxy starts");
    let ill: Vec<_> = verdicts.iter().filter(|it| !it.is_well()).collect();
    assert!(ill.is_empty() && verdicts.len() == 25, "{ill:#?}");
}

/// A proxy in front of an origin that counts its requests.
struct Served {
    proxy: Proxy,
    origin: Origin,
    home: Home,
    log: std::path::PathBuf,
}

const TOKEN: &str = "a-token-of-many-letters";

async fn served(flags: &[&str]) -> Served {
    let home = Home::new();
    home.file("token", &format!("{TOKEN}\n"));
    let log = home.path().join("access.log");
    let origin = Origin::start(|request: &RawRequest| {
        let fields = [
            ("Cache-Control", "max-age=3600"),
            ("ETag", "\"e\""),
            ("Cache-Groups", "\"g\""),
            ("xkey", "k"),
        ];
        Script::response(200, &fields, request.target())
    });
    let origin = origin.await.expect("a free port");
    let token = format!("--admin-token-file={}", home.path().join("token").display());
    let access = format!("--access-log={}", log.display());
    let flags = [flags, &[&*token, &*access, "--log-format=json"]].concat();
    let proxy = Proxy::start(&home.path().join("cache"), &flags).expect("the proxy starts");
    Served {
        proxy,
        origin,
        home,
        log,
    }
}

impl Served {
    /// Returns true if a request for `path` reaches the origin.
    async fn is_asked_for(&self, path: &str) -> bool {
        let before = self.origin.request_count();
        let mut client = Client::connect(self.proxy.address())
            .await
            .expect("the proxy is there and answers");
        let response = client
            .get(&self.origin.url(path), &[])
            .await
            .expect("the proxy is there and answers");
        assert_eq!(response.status, 200);
        self.origin.request_count() > before
    }

    fn purge(&self, arguments: &[&str]) -> crate::Outcome {
        let admin = format!("--admin={}", self.proxy.admin());
        let token = self.home.path().join("token");
        let token = format!("--admin-token-file={}", token.display());
        let all = [&["purge", "--config=/dev/null", &admin, &token], arguments].concat();
        self.home.hashcache(&all, &[])
    }
}

/// Status and content of a request to the admin listener.
fn ask(admin: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).expect("the proxy is there and answers");
    stream
        .write_all(request.as_bytes())
        .expect("the proxy is there and answers");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the proxy is there and answers");
    let (head, content) = answer
        .split_once("\r\n\r\n")
        .expect("the proxy is there and answers");
    let status = head
        .split(' ')
        .nth(1)
        .expect("the proxy is there and answers")
        .parse()
        .expect("the proxy is there and answers");
    (status, content.to_owned())
}

fn post(admin: SocketAddr, token: &str, body: &str) -> u16 {
    let request = format!(
        "POST /-/purge HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    ask(admin, &request).0
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_unsafe_request_changed_while_the_proxy_stopped_is_asked_for_after_the_start() {
    for policy in ["log", "set-mem"] {
        let home = Home::new();
        let (arrived, stops) = (Gate::new(), Gate::new());
        let (came, goes_on) = (arrived.clone(), stops.clone());
        let origin = Origin::start(move |request: &RawRequest| {
            let fresh = [("Cache-Control", "max-age=3600")];
            let response = Script::response(200, &fresh, request.target());
            match request.method() {
                "POST" => Script::new().open(&came).wait(&goes_on).then(response),
                _ => response,
            }
        });
        let origin = origin.await.expect("a free port");
        let cache = home.path().join("cache");
        let flags = [&*format!("--policy={policy}")];
        let proxy = Proxy::start(&cache, &flags).expect("the proxy starts");
        let mut client = Client::connect(proxy.address()).await.expect("it accepts");
        let url = origin.url("/changed");
        client.get(&url, &[]).await.expect("a response");
        let changing = tokio::spawn(async move {
            client
                .request("POST", &url, &[("Content-Length", "0")])
                .await?;
            client.read_response("POST").await
        });
        arrived.opened().await;
        let address = proxy.address();
        let stopping = tokio::task::spawn_blocking(move || proxy.end_well());
        // The proxy drains when it accepts no client any more.
        let drains = async {
            while TcpStream::connect(address).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let long = Duration::from_secs(30);
        tokio::time::timeout(long, drains).await.expect("it stops");
        stops.open();
        let answer = changing.await.expect("no panic").expect("a response");
        assert_eq!(answer.status, 200);
        stopping.await.expect("it ends well");
        let proxy = Proxy::start(&cache, &flags).expect("the proxy starts");
        let mut client = Client::connect(proxy.address()).await.expect("it accepts");
        let before = origin.request_count();
        client
            .get(&origin.url("/changed"), &[])
            .await
            .expect("a response");
        assert_eq!(origin.request_count(), before + 1, "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_purges_what_it_is_told_to() {
    let served = served(&[]).await;
    let origin = served.origin.url("");
    let origin = origin.trim_end_matches('/');
    for (arguments, gone) in [
        (vec![format!("{origin}/a/1")], [true, false, false]),
        (vec![format!("--prefix={origin}/a/")], [true, true, false]),
        (vec!["--label=k".to_owned()], [true; 3]),
        (
            vec!["--group=g".to_owned(), format!("--origin={origin}")],
            [true; 3],
        ),
        (vec!["--everything".to_owned()], [true; 3]),
        (
            vec!["--everything".to_owned(), "--soft".to_owned()],
            [true; 3],
        ),
        (vec!["--label=other".to_owned()], [false; 3]),
    ] {
        let paths = ["/a/1", "/a/2", "/b"];
        for path in paths {
            served.is_asked_for(path).await;
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let outcome = served.purge(&arguments);
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        for (path, gone) in paths.into_iter().zip(gone) {
            assert_eq!(
                served.is_asked_for(path).await,
                gone,
                "{arguments:?} {path}"
            );
        }
    }
    let outcome = served.purge(&[&format!("{origin}/a/1")]);
    assert_eq!(outcome.stdout, format!("purged: url {origin}/a/1\n"));
    let outcome = served.purge(&["wais://h/"]);
    assert_eq!(outcome.status, Some(2));
    assert!(outcome.stderr.contains("wais://h/"), "{outcome:?}");
    served.proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_purged_without_the_token() {
    let served = served(&[]).await;
    let admin = served.proxy.admin();
    let everything = r#"{"everything": true}"#;
    served.is_asked_for("/a").await;
    for token in ["", "wrong", &TOKEN[1..], &format!("{TOKEN}x")] {
        assert_eq!(post(admin, token, everything), 401);
    }
    let without = format!("POST /-/purge HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    assert_eq!(ask(admin, &without).0, 401);
    let get = without.replace("POST", "GET");
    assert_eq!(ask(admin, &get).0, 405);
    let elsewhere = without.replace(&admin.to_string(), "evil.test");
    assert_eq!(ask(admin, &elsewhere).0, 421);
    for wrong in [
        "",
        "[]",
        "{}",
        r#"{"url": 1}"#,
        r#"{"ban": "x"}"#,
        r#"{"group": "g"}"#,
    ] {
        assert_eq!(post(admin, TOKEN, wrong), 400, "{wrong}");
    }
    assert!(!served.is_asked_for("/a").await);
    assert_eq!(post(admin, TOKEN, everything), 200);
    assert!(served.is_asked_for("/a").await);
    // A file that holds no token opens nothing.
    fs::write(served.home.path().join("token"), "").expect("the proxy is there and answers");
    assert_eq!(post(admin, "", everything), 500);
    served.proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn purges_are_counted_and_logged() {
    let served = served(&[]).await;
    served.is_asked_for("/a").await;
    let mut client = Client::connect(served.proxy.address())
        .await
        .expect("the proxy is there and answers");
    let url = served.origin.url("/a*");
    client
        .request("PURGE", &url, &[("Soft-Purge", "1")])
        .await
        .expect("the proxy is there and answers");
    let answer = client
        .read_response("PURGE")
        .await
        .expect("the proxy is there and answers");
    let report: serde_json::Value =
        serde_json::from_slice(&answer.body).expect("the proxy is there and answers");
    let prefix = served.origin.url("/a");
    assert_eq!(report["purged"][0]["prefix"], prefix);
    assert_eq!(report["soft"], true);
    let metrics = ask(served.proxy.admin(), "GET /metrics HTTP/1.0\r\n\r\n");
    for line in [
        "hashcache_soft_purges_total{kind=\"prefix\"} 1",
        "hashcache_purges_total{kind=\"url\"} 0",
        "hashcache_purge_rules 1",
    ] {
        assert!(metrics.1.contains(line), "{line} in {}", metrics.1);
    }
    let log = served.log.clone();
    served.proxy.end_well();
    let log = fs::read_to_string(log).expect("the proxy is there and answers");
    let line = log
        .lines()
        .find(|line| line.contains("PURGE"))
        .expect("a line for the purge");
    assert!(line.contains("\"purge\"") && line.contains("/a*"), "{line}");
}

/// A proxy with a slow disk, for measuring hits while purges are sent.
struct Load {
    cache: Cache,
    proxy: SocketAddr,
    origin: Arc<Origin>,
}

/// Objects that are requested; far more than memory holds.
const OBJECTS: u64 = 3_000;

fn config() -> (Config, Arc<ThrottleDevice>) {
    let clock = Clock::system();
    let model = DiskModel::seeks_per_second(100).expect("a disk that turns");
    let inner = Arc::new(MemoryDevice::new(256 << 20));
    let device = ThrottleDevice::new(inner, model, Pace::Real(clock), 7);
    let device = Arc::new(device);
    let config = Config {
        memory_bytes: 24 << 20,
        hot_bytes_max: 0,
        ..Config::on_device(device.clone())
    };
    (config, device)
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long hits take is what is measured"
)]
fn now() -> Instant {
    Instant::now()
}

impl Load {
    async fn new() -> Self {
        let (config, _) = config();
        let cache = Cache::open(config).expect("a store that can be opened");
        let origin = Origin::start(|request: &RawRequest| {
            let fields = [("Cache-Control", "max-age=86400")];
            Script::response(
                200,
                &fields,
                format!("{} {}", request.target(), "x".repeat(6_000)),
            )
        });
        let origin = Arc::new(origin.await.expect("a free port"));
        let proxy = start(&cache);
        let load = Self {
            cache,
            proxy,
            origin,
        };
        let mut client = Client::connect(proxy)
            .await
            .expect("the proxy is there and answers");
        for n in 0..OBJECTS {
            client
                .get(&load.origin.url(&format!("/{n}")), &[])
                .await
                .expect("the proxy is there and answers");
        }
        assert!(load.cache.flush().await);
        load
    }

    /// The median latency of hits from disk, one after another, for `time`, with `purges` a minute;
    /// how many purges were made; and how many objects were missing and stored again.
    async fn median_of_hits(&self, time: Duration, purges: u64) -> (Duration, u64, u64) {
        let stop = Arc::new(AtomicBool::new(false));
        let made = Arc::new(AtomicU64::new(0));
        let mut purging = Vec::new();
        // As many at once as are under way when each waits for the disk.
        for first in 0..PURGERS {
            let (stop, made, origin) = (stop.clone(), made.clone(), self.origin.clone());
            let (proxy, every) = (self.proxy, Duration::from_secs(60 * PURGERS));
            purging.push(tokio::spawn(async move {
                if purges == 0 {
                    return;
                }
                let every = every / u32::try_from(purges).expect("the proxy is there and answers");
                let mut client = Client::connect(proxy)
                    .await
                    .expect("the proxy is there and answers");
                let mut ticks = tokio::time::interval(every);
                let mut n = first;
                while !stop.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    // Most purges name objects that were never requested.
                    let url = origin.url(&format!("/purged/{n}"));
                    n += PURGERS;
                    client
                        .request("PURGE", &url, &[])
                        .await
                        .expect("the proxy is there and answers");
                    let answer = client
                        .read_response("PURGE")
                        .await
                        .expect("the proxy is there and answers");
                    assert_eq!(answer.status, 200);
                    made.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let mut client = Client::connect(self.proxy)
            .await
            .expect("the proxy is there and answers");
        let (from, mut took) = (now(), Vec::new());
        let asked = self.origin.request_count();
        let mut random = fastrand::Rng::with_seed(purges);
        while from.elapsed() < time {
            let url = self.origin.url(&format!("/{}", random.u64(..OBJECTS)));
            let begun = now();
            client
                .get(&url, &[])
                .await
                .expect("the proxy is there and answers");
            took.push(begun.elapsed());
        }
        // A few objects may be missing because the disk was behind when they were put; this changes
        // no median.
        let missed = self.origin.request_count() - asked;
        assert!(missed * 20 <= took.len(), "{missed} of {}", took.len());
        stop.store(true, Ordering::Relaxed);
        for task in purging {
            task.await.expect("the proxy is there and answers");
        }
        took.sort_unstable();
        let made = made.load(Ordering::Relaxed);
        (took[took.len() / 2], made, missed as u64)
    }
}

const PURGERS: u64 = 64;

/// Seconds of each run; a campaign, on a machine that does nothing else, sets more.
fn seconds() -> Option<u64> {
    let set = std::env::var("HASHCACHE_TEST_SECONDS").ok();
    set.and_then(|text| text.parse().ok())
}

/// Runs in turn, without purges and with them.
const PAIRS: usize = 5;

/// Whatever the machine does beside, what purges take of the disk is bounded; what that does to
/// hits is measured where nothing else takes time.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_purges_a_minute_take_a_tenth_of_a_disk_of_a_hundred_seeks() {
    let load = Load::new().await;
    let time = Duration::from_secs(seconds().unwrap_or(1));
    let (mut ratios, mut shares, mut purges) = (Vec::new(), Vec::new(), 0);
    let begun = now();
    for _ in 0..PAIRS {
        let (without, ..) = load.median_of_hits(time, 0).await;
        let (before, begun) = (load.cache.stats(), now());
        let (with, made, missed) = load.median_of_hits(time, 10_000).await;
        // An object that is stored again may be a write of its own.
        let writes = load.cache.stats().writes - before.writes;
        let writes = writes.saturating_sub(missed);
        // Each of them is a seek of 10 ms, or less.
        shares.push(writes as f64 * 0.01 / begun.elapsed().as_secs_f64());
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
        purges += made;
        println!("hits took {without:?} alone, {with:?} beside {made} purges and {writes} writes");
    }
    ratios.sort_by(f64::total_cmp);
    shares.sort_by(f64::total_cmp);
    let (ratio, share) = (ratios[PAIRS / 2], shares[PAIRS / 2]);
    let rate = purges as f64 * 60.0 / (PAIRS as f64 * time.as_secs_f64());
    println!("{ratio:.3} times as long, {rate:.0} purges a minute, {share:.3} of the disk");
    assert!(
        purges > 0 && share <= 0.13,
        "{shares:?} in {:?}",
        begun.elapsed()
    );
    if seconds().is_some() {
        assert!(rate > 9_000.0, "{rate}");
        assert!(ratio <= 1.1, "{ratios:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_a_url_takes_its_variants_too() {
    let home = Home::new();
    let origin = Origin::start(|request: &RawRequest| {
        let language = request.field("accept-language").unwrap_or("").to_owned();
        let etag = format!("\"{language}\"");
        let fields = [
            ("Cache-Control", "max-age=3600"),
            ("Vary", "Accept-Language"),
            ("ETag", &*etag),
        ];
        match request.field("if-none-match") {
            Some(asked) if asked == etag => Script::response(304, &fields, ""),
            _ => Script::response(200, &fields, language.as_str()),
        }
    });
    let origin = origin.await.expect("a free port");
    let proxy = Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts");
    let url = origin.url("/page");
    // For each language, true if the request reached the origin.
    let asked = async || {
        let mut asked = [false; 2];
        for (asked, language) in asked.iter_mut().zip(["de", "en"]) {
            let before = origin.request_count();
            let mut client = Client::connect(proxy.address())
                .await
                .expect("the proxy is there and answers");
            let response = client
                .get(&url, &[("Accept-Language", language)])
                .await
                .expect("the proxy is there and answers");
            assert_eq!(
                (response.status, &*response.body),
                (200, language.as_bytes())
            );
            *asked = origin.request_count() > before;
        }
        asked
    };
    assert_eq!(asked().await, [true; 2]);
    assert_eq!(asked().await, [false; 2]);
    for fields in [&[][..], &[("Soft-Purge", "1")]] {
        let mut client = Client::connect(proxy.address())
            .await
            .expect("the proxy is there and answers");
        client
            .request("PURGE", &url, fields)
            .await
            .expect("the proxy is there and answers");
        let response = client.read_response("PURGE").await;
        assert_eq!(response.expect("the proxy answers").status, 200);
        assert_eq!(asked().await, [true; 2], "{fields:?}");
        assert_eq!(asked().await, [false; 2], "{fields:?}");
    }
}
