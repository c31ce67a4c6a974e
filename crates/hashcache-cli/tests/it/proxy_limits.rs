//! Quotas, bandwidth and request rates of the real proxy.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use hashcache_testkit::{
    BodyEnd, Client, ContentOptions, ContentOrigin, Origin, Response, Script, Sizes,
};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::Home;
use crate::explain::explain;
use crate::operation::Running;

const CONFIG: &str = "--config=h.toml";
/// All of 127.0.0.0/8 is this machine, so each address is another client.
const PUPIL: [u8; 4] = [127, 0, 0, 2];
const STAFF: [u8; 4] = [127, 0, 0, 3];
/// Bytes of a response.
const SIZE: usize = 100_000;

const QUOTA: &str = "
    contact = \"Ms Abara\"
    allow_connect_port = [\"1-65535\"]
    [[limit]]
    name = \"day\"
    quota = \"300000\"
    every = \"month\"
    [[access]]
    action = \"limit\"
    limits = [\"day\"]
    clients = [\"127.0.0.2\"]";

async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=600")];
    Origin::start(move |_| Script::response(200, &fields, vec![b'x'; SIZE]))
        .await
        .unwrap()
}

fn start(home: &Home, config: &str) -> Running {
    home.file("h.toml", config);
    Running::start(home, &[CONFIG])
}

async fn client(proxy: &Running, from: [u8; 4]) -> Client {
    Client::connect_from(IpAddr::from(from), proxy.listen)
        .await
        .unwrap()
}

async fn get(proxy: &Running, from: [u8; 4], url: &str) -> Response {
    let mut client = client(proxy, from).await;
    in_time(client.get(url, &[])).await.unwrap()
}

/// A transfer that is slowed down must finish all the same.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(Duration::from_secs(60), what).await;
    ended.expect("it ends in time")
}

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_quota_refuses_what_needs_an_origin_and_hits_stay_free() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, QUOTA);
    for path in ["/a", "/b", "/c"] {
        assert_eq!(get(&proxy, PUPIL, &origin.url(path)).await.status, 200);
    }
    let refused = get(&proxy, PUPIL, &origin.url("/d")).await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.field("Retry-After").unwrap().parse().unwrap();
    assert!((1..=31 * 86_400).contains(&wait), "{wait}");
    let status = refused.field("Proxy-Status").unwrap();
    assert!(status.contains("error=http_request_denied"), "{status}");
    let said = text(&refused);
    for part in [
        "the quota “day” of 292.9 KiB per month is used up",
        "It begins anew on ",
        "ask Ms Abara",
        "429 (quota-used)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // A hit costs nothing, however often and by whichever way it is answered.
    let mut kept = client(&proxy, PUPIL).await;
    for path in ["/a", "/b", "/c"].repeat(10) {
        let hit = kept.get(&origin.url(path), &[]).await.unwrap();
        assert_eq!((hit.status, hit.body.len()), (200, SIZE));
    }
    let no_cache = [("Cache-Control", "no-cache")];
    let validated = kept.get(&origin.url("/a"), &no_cache).await.unwrap();
    assert_eq!(validated.status, 429);
    kept.request("CONNECT", &origin.address().to_string(), &[])
        .await
        .unwrap();
    assert_eq!(kept.read_response("CONNECT").await.unwrap().status, 429);
    // Others have no quota.
    assert_eq!(get(&proxy, STAFF, &origin.url("/d")).await.status, 200);
    assert_eq!(get(&proxy, PUPIL, &origin.url("/d")).await.status, 200);
    assert_eq!(origin.request_count(), 4);
    proxy.end();
}

/// Uses the quota of [`PUPIL`] up.
async fn use_up(proxy: &Running, origin: &Origin) {
    for path in ["/a", "/b", "/c"] {
        assert_eq!(get(proxy, PUPIL, &origin.url(path)).await.status, 200);
    }
    assert_eq!(get(proxy, PUPIL, &origin.url("/d")).await.status, 429);
}

/// Waits until the store can answer, which may be later than the response.
async fn until_stored(proxy: &Running, url: &str, fields: &[(&str, &str)]) {
    let only = [("Cache-Control", "only-if-cached, max-stale")];
    let fields = [&only, fields].concat();
    let mut client = client(proxy, STAFF).await;
    in_time(async { while client.get(url, &fields).await.unwrap().status == 504 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_quota_leaves_stored_files_free_and_gets_no_missing_part_of_them() {
    // More bytes than a transfer may still move when the quota is used up.
    const BIG: usize = 2_000_000;
    let (home, small) = (Home::new(), origin().await);
    let options = ContentOptions {
        sizes: Sizes::Fixed(BIG as u64),
        ..ContentOptions::default()
    };
    let origin = ContentOrigin::start(options).await.unwrap();
    let proxy = start(&home, QUOTA);
    let (whole, part) = (origin.url("/whole"), origin.url("/part"));
    assert_eq!(get(&proxy, STAFF, &whole).await.body.len(), BIG);
    until_stored(&proxy, &whole, &[]).await;
    let range = [("Range", "bytes=0-99999")];
    let mut staff = client(&proxy, STAFF).await;
    assert_eq!(staff.get(&part, &range).await.unwrap().status, 206);
    until_stored(&proxy, &part, &range).await;
    use_up(&proxy, &small).await;
    let fetched = origin.counts();
    for _ in 0..2 {
        let hit = get(&proxy, PUPIL, &whole).await;
        assert_eq!((hit.status, hit.end), (200, BodyEnd::Complete));
        assert!(hit.body == origin.content("/whole").bytes());
    }
    let mut pupil = client(&proxy, PUPIL).await;
    let hit = pupil.get(&part, &range).await.unwrap();
    assert_eq!((hit.status, hit.body.len()), (206, 100_000));
    for range in ["bytes=0-", "bytes=50000-1000000", "bytes=1000000-1000099"] {
        let refused = pupil.get(&part, &[("Range", range)]).await.unwrap();
        assert_eq!(refused.status, 429, "{range}");
    }
    assert_eq!(get(&proxy, PUPIL, &part).await.status, 429);
    assert_eq!(origin.counts().requests, fetched.requests);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn background_validations_are_paid_for_and_end_with_the_quota() {
    let home = Home::new();
    let origin = Origin::start(|_| {
        let fields = [
            ("Cache-Control", "max-age=1, stale-while-revalidate=600"),
            ("Age", "2"),
        ];
        Script::response(200, &fields, vec![b'x'; SIZE])
    })
    .await
    .unwrap();
    let proxy = start(&home, QUOTA);
    let url = origin.url("/a");
    let bytes = "hashcache_quota_bytes_total{limit=\"day\"}";
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 200);
    until_stored(&proxy, &url, &[]).await;
    // Two more fetches use the quota up, both in the background.
    in_time(async {
        while proxy.figure(bytes).await.parse::<usize>().unwrap() < 3 * SIZE {
            assert_eq!(get(&proxy, PUPIL, &url).await.status, 200);
        }
    })
    .await;
    let used_up = proxy.figure(bytes).await;
    for _ in 0..10 {
        let hit = get(&proxy, PUPIL, &url).await;
        assert_eq!((hit.status, hit.body.len()), (200, SIZE));
    }
    // The last one has no other request behind it: this one comes after all others.
    assert_eq!(get(&proxy, STAFF, &origin.url("/b")).await.status, 200);
    assert_eq!(origin.request_count(), 4);
    assert_eq!(proxy.figure(bytes).await, used_up);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_quota_does_not_hide_what_may_be_served_stale() {
    let (home, small) = (Home::new(), origin().await);
    let origin = Origin::start(|request| {
        let control = match request.target() {
            "/must" => "max-age=1, must-revalidate",
            _ => "max-age=1, stale-if-error=600",
        };
        let fields = [("Cache-Control", control), ("Age", "2"), ("ETag", "\"1\"")];
        Script::response(200, &fields, vec![b'x'; SIZE])
    })
    .await
    .unwrap();
    let proxy = start(&home, QUOTA);
    let (may, must) = (origin.url("/may"), origin.url("/must"));
    for url in [&may, &must] {
        assert_eq!(get(&proxy, STAFF, url).await.status, 200);
    }
    until_stored(&proxy, &may, &[]).await;
    use_up(&proxy, &small).await;
    let arguments = [&*may, "--client=127.0.0.2"];
    let (explained, _) = explain(&home, proxy.admin, &arguments);
    let outcome = explained["outcome"].as_str().unwrap();
    assert_eq!(
        outcome,
        "answered from the store, not validated: a quota is used up"
    );
    let stale = get(&proxy, PUPIL, &may).await;
    assert_eq!((stale.status, stale.body.len()), (200, SIZE));
    let said = stale.field("Cache-Status").unwrap();
    assert!(said.contains("; hit; ttl=-"), "{said}");
    assert_eq!(get(&proxy, PUPIL, &must).await.status, 429);
    // A client that insists on the answer of the origin gets no other answer.
    let mut pupil = client(&proxy, PUPIL).await;
    let no_cache = [("Cache-Control", "no-cache")];
    assert_eq!(pupil.get(&may, &no_cache).await.unwrap().status, 429);
    assert_eq!(origin.request_count(), 2);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_quota_is_explained() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, QUOTA);
    let ask = |url: &str, more: &[&str]| {
        let arguments = [&[url, "--client=127.0.0.2"], more].concat();
        let (answer, told) = explain(&home, proxy.admin, &arguments);
        (answer["outcome"].as_str().unwrap().to_owned(), told)
    };
    let (outcome, told) = ask(&origin.url("/a"), &[]);
    assert!(outcome.starts_with("fetched from the next hop"), "{told}");
    let left = "limit: yes, `day`: 292.9 KiB of 292.9 KiB per month are left until ";
    assert!(told.contains(left), "{told}");
    for path in ["/a", "/b", "/c"] {
        assert_eq!(get(&proxy, PUPIL, &origin.url(path)).await.status, 200);
    }
    let refused = "refused with 429 (quota-used): `day`: its 292.9 KiB per month are used up until";
    let tunnel = origin.address().to_string();
    for (url, more) in [
        (origin.url("/d"), &[][..]),
        (origin.url("/a"), &["--header=Cache-Control: no-cache"]),
        (origin.url("/a"), &["--method=POST"]),
        (tunnel, &["--method=CONNECT"]),
    ] {
        let (outcome, told) = ask(&url, more);
        assert!(outcome.starts_with(refused), "{told}");
    }
    let (outcome, told) = ask(&origin.url("/a"), &[]);
    assert!(outcome.starts_with("answered from the store"), "{told}");
    assert!(told.contains("are used up until"), "{told}");
    let (outcome, told) = ask(&origin.url("/d"), &["--at=+2h"]);
    assert!(outcome.starts_with("fetched"), "{told}");
    assert!(told.contains("is not known"), "{told}");
    let (answer, told) = explain(&home, proxy.admin, &[&origin.url("/d")]);
    let outcome = answer["outcome"].as_str().unwrap();
    assert!(outcome.starts_with("fetched"), "{told}");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_about_quotas_is_at_the_proxy_and_through_it() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, QUOTA);
    get(&proxy, PUPIL, &origin.url("/a")).await;
    let own = format!("http://{}/quota", proxy.listen);
    for (from, url, part) in [
        (
            PUPIL,
            "http://proxy/quota",
            "of 292.9 KiB per month are left",
        ),
        (PUPIL, "/quota", "of 292.9 KiB per month are left"),
        (PUPIL, &own, "ask Ms Abara"),
        (STAFF, "http://proxy/quota", "No limits apply to you"),
    ] {
        let page = get(&proxy, from, url).await;
        assert_eq!(page.status, 200, "{url}");
        assert_eq!(page.field("Cache-Control"), Some("no-store"));
        assert!(text(&page).contains(part), "{url}: {}", text(&page));
    }
    // Other pages of that host are not ours.
    let page = get(&proxy, PUPIL, "http://proxy/other").await;
    assert!(page.status >= 500, "{}", page.status);
    proxy.end();
    // Without limits there is no such page.
    let proxy = start(&home, "");
    assert_eq!(get(&proxy, PUPIL, "/quota").await.status, 404);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_outlives_a_stop_and_a_kill() {
    let (home, origin) = (Home::new(), origin().await);
    let mut proxy = start(&home, QUOTA);
    for path in ["/a", "/b"] {
        assert_eq!(get(&proxy, PUPIL, &origin.url(path)).await.status, 200);
    }
    // A reload writes the file at once; otherwise that takes 20 s.
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    // This is a kill -9.
    drop(proxy);
    let proxy = start(&home, QUOTA);
    let page = text(&get(&proxy, PUPIL, "/quota").await);
    assert!(!page.contains("292.9 KiB of"), "{page}");
    assert_eq!(get(&proxy, PUPIL, &origin.url("/c")).await.status, 200);
    assert_eq!(get(&proxy, PUPIL, &origin.url("/d")).await.status, 429);
    proxy.end();
    let file = fs::read(home.path().join("c.quotas")).unwrap();
    assert!(file.starts_with(b"HCQUOTA1") && file.len() == 8 + 56);
    let proxy = start(&home, QUOTA);
    assert_eq!(get(&proxy, PUPIL, &origin.url("/d")).await.status, 429);
    proxy.end();
    // A damaged file is no reason not to start.
    fs::write(home.path().join("c.quotas"), b"HCQUOTA1 and other bytes").unwrap();
    let proxy = start(&home, QUOTA);
    assert_eq!(get(&proxy, PUPIL, &origin.url("/d")).await.status, 200);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_ends_in_the_middle_ends_responses_and_tunnels() {
    let home = Home::new();
    let origin = Origin::start(|_| {
        let fields = [("Cache-Control", "no-store")];
        Script::response(200, &fields, vec![b'x'; 30 * SIZE])
    })
    .await
    .unwrap();
    let proxy = start(&home, QUOTA);
    let mut kept = client(&proxy, PUPIL).await;
    let cut = in_time(kept.get(&origin.url("/a"), &[])).await;
    if let Ok(response) = cut {
        assert_ne!(response.end, BodyEnd::Complete);
        // The quota, and one mebibyte to end with.
        assert!(response.body.len() < 20 * SIZE, "{}", response.body.len());
    }
    assert_eq!(get(&proxy, PUPIL, &origin.url("/b")).await.status, 429);
    proxy.end();
    fs::remove_file(home.path().join("c.quotas")).unwrap();
    let proxy = start(&home, QUOTA);
    let mut tunnel = client(&proxy, PUPIL).await;
    let address = origin.address().to_string();
    tunnel.request("CONNECT", &address, &[]).await.unwrap();
    assert_eq!(tunnel.read_response("CONNECT").await.unwrap().status, 200);
    let cut = in_time(tunnel.get("/a", &[])).await;
    if let Ok(response) = cut {
        assert_ne!(response.end, BodyEnd::Complete);
        assert!(response.body.len() < 20 * SIZE, "{}", response.body.len());
    }
    assert_eq!(get(&proxy, PUPIL, &origin.url("/b")).await.status, 429);
    assert_eq!(get(&proxy, STAFF, &origin.url("/b")).await.status, 200);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_rate_get_429_and_other_clients_none() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "
        [[limit]]
        name = \"calm\"
        requests = 1
        requests_burst = 3
        [[access]]
        action = \"limit\"
        limits = [\"calm\"]
        clients = [\"127.0.0.2\"]";
    let proxy = start(&home, config);
    let url = origin.url("/a");
    let mut statuses = Vec::new();
    for _ in 0..100 {
        statuses.push(get(&proxy, PUPIL, &url).await.status);
        assert_eq!(get(&proxy, STAFF, &url).await.status, 200);
    }
    assert_eq!(statuses[..3], [200; 3]);
    assert!(statuses.contains(&429), "{statuses:?}");
    let mut refused = get(&proxy, PUPIL, &url).await;
    while refused.status != 429 {
        refused = get(&proxy, PUPIL, &url).await;
    }
    assert_eq!(refused.field("Retry-After"), Some("1"));
    assert!(text(&refused).contains("429 (too-many-requests)"));
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn bandwidth_slows_hits_in_memory_and_tunnels_down() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "
        allow_connect_port = [\"1-65535\"]
        [[limit]]
        name = \"slow\"
        bandwidth = \"200000\"
        burst = \"50000\"
        [[access]]
        action = \"limit\"
        limits = [\"slow\"]
        clients = [\"127.0.0.2\"]";
    let proxy = start(&home, config);
    let url = origin.url("/a");
    for _ in 0..3 {
        assert_eq!(get(&proxy, STAFF, &url).await.body.len(), SIZE);
    }
    // 300,000 bytes less the burst take 1.25 s; a grant may be one piece early.
    let start = Instant::now();
    let mut kept = client(&proxy, PUPIL).await;
    for _ in 0..3 {
        let hit = in_time(kept.get(&url, &[])).await.unwrap();
        assert_eq!((hit.end, hit.body.len()), (BodyEnd::Complete, SIZE));
        assert!(hit.field("Cache-Status").unwrap().contains("hit"));
    }
    assert!(
        start.elapsed() > Duration::from_millis(1150),
        "{:?}",
        start.elapsed()
    );
    let start = Instant::now();
    let address = origin.address().to_string();
    kept.request("CONNECT", &address, &[]).await.unwrap();
    assert_eq!(kept.read_response("CONNECT").await.unwrap().status, 200);
    for _ in 0..3 {
        let response = in_time(kept.get("/a", &[])).await.unwrap();
        assert_eq!(
            (response.end, response.body.len()),
            (BodyEnd::Complete, SIZE)
        );
    }
    assert!(
        start.elapsed() > Duration::from_millis(1150),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(origin.request_count(), 4);
    // A tunnel that is open would be waited for, up to `limits.drain_time`.
    drop(kept);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_what_is_slowed_down_no_longer_than_for_other_transfers() {
    let (home, origin) = (Home::new(), origin().await);
    // A response would take 98 s.
    let config = "
        allow_connect_port = [\"1-65535\"]
        [limits]
        drain_time = \"1s\"
        [[limit]]
        name = \"slow\"
        bandwidth = \"1KiB\"
        [[access]]
        action = \"limit\"
        limits = [\"slow\"]
        clients = [\"127.0.0.2\"]";
    let proxy = start(&home, config);
    assert_eq!(get(&proxy, STAFF, &origin.url("/a")).await.status, 200);
    let mut hit = client(&proxy, PUPIL).await;
    hit.request("GET", &origin.url("/a"), &[]).await.unwrap();
    let mut tunnel = client(&proxy, PUPIL).await;
    let address = origin.address().to_string();
    tunnel.request("CONNECT", &address, &[]).await.unwrap();
    let answer = in_time(tunnel.read_response("CONNECT")).await.unwrap();
    assert_eq!(answer.status, 200);
    tunnel.request("GET", "/a", &[]).await.unwrap();
    let start = Instant::now();
    let ended = tokio::task::spawn_blocking(move || proxy.end());
    let cut = in_time(hit.read_response("GET")).await.unwrap();
    assert_ne!(cut.end, BodyEnd::Complete);
    let cut = in_time(tunnel.read_response("GET")).await;
    assert!(cut.is_err() || cut.is_ok_and(|it| it.end != BodyEnd::Complete));
    in_time(ended).await.unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_configuration_are_checked() {
    let home = Home::new();
    let config = "
[[limit]]
name = \"day\"
requests = 5
[[access]]
action = \"limit\"
limits = [\"dai\"]
[[access]]
action = \"limit\"
destinations = [\"a.example\"]
[[access]]
action = \"deny\"
limits = [\"day\"]
destinations = [\"b.example\"]
";
    home.file("h.toml", config);
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert_ne!(checked.status, Some(0));
    for part in [
        "h.toml:5: access: there is no limit called `dai`",
        "did you mean `day`?",
        "h.toml:8: access: `limits` must name a limit",
        "h.toml:11: access: `limits` goes with the actions",
    ] {
        assert!(checked.stderr.contains(part), "{part}: {checked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_limit_nobody_are_warned_of_and_metrics_show_the_others() {
    let (home, origin) = (Home::new(), origin().await);
    let config = format!(
        "{QUOTA}
        [[limit]]
        name = \"spare\"
        requests = 5
        [[limit]]
        name = \"login\"
        per = \"user\"
        requests = 5
        [[access]]
        action = \"limit\"
        limits = [\"login\"]
        clients = [\"127.0.0.9\"]"
    );
    home.file("h.toml", &config);
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    for part in [
        "no access rule names the limits `spare`: they limit nothing",
        "no access rule asks for users: the limits `login` are for each client instead",
    ] {
        assert!(checked.stderr.contains(part), "{part}: {checked:?}");
    }
    let proxy = start(&home, &config);
    for path in ["/a", "/b", "/c", "/d"] {
        get(&proxy, PUPIL, &origin.url(path)).await;
    }
    for (name, value) in [
        ("hashcache_quota_refusals_total{limit=\"day\"}", "1"),
        ("hashcache_quota_subjects", "1"),
        ("hashcache_failures_total{error=\"quota-used\"}", "1"),
    ] {
        // A request is counted when its last byte was sent, which its client may see before.
        let mut tries = 0;
        while proxy.figure(name).await != value && tries < 1_000 {
            tries += 1;
        }
        assert_eq!(proxy.figure(name).await, value, "{name}");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_client_gets_the_place_of_the_connection_that_rests_longest() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, "workers = 2\n[limits]\nclients = 8\n");
    let url = origin.url("/a");
    let mut resting = Vec::new();
    for number in 0..8 {
        let mut client = client(&proxy, [127, 0, 0, 10 + number]).await;
        // From the second on, memory answers.
        assert_eq!(in_time(client.get(&url, &[])).await.unwrap().status, 200);
        resting.push(client);
    }
    let mut newer = client(&proxy, [127, 0, 0, 30]).await;
    assert_eq!(in_time(newer.get(&url, &[])).await.unwrap().status, 200);
    let [first, others @ ..] = resting.as_mut_slice() else {
        panic!("eight clients rest");
    };
    // The client waits for a response that it has not requested, until the connection closes.
    in_time(first.read_response("GET")).await.unwrap_err();
    for other in others {
        assert_eq!(in_time(other.get(&url, &[])).await.unwrap().status, 200);
    }
    drop((resting, newer));
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_is_older_and_keeps_its_place() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "allow_connect_port = [\"1-65535\"]\nworkers = 1\n[limits]\nclients = 2\n";
    let proxy = start(&home, config);
    let mut tunnel = client(&proxy, [127, 0, 0, 10]).await;
    let authority = origin.address().to_string();
    in_time(tunnel.request("CONNECT", &authority, &[]))
        .await
        .unwrap();
    assert_eq!(
        in_time(tunnel.read_response("CONNECT"))
            .await
            .unwrap()
            .status,
        200
    );
    let mut resting = client(&proxy, [127, 0, 0, 11]).await;
    let url = origin.url("/a");
    assert_eq!(in_time(resting.get(&url, &[])).await.unwrap().status, 200);
    let mut newer = client(&proxy, [127, 0, 0, 12]).await;
    assert_eq!(in_time(newer.get(&url, &[])).await.unwrap().status, 200);
    in_time(resting.read_response("GET")).await.unwrap_err();
    in_time(tunnel.request("GET", "/b", &[("Host", &authority)]))
        .await
        .unwrap();
    assert_eq!(
        in_time(tunnel.read_response("GET")).await.unwrap().status,
        200
    );
    drop((tunnel, newer));
    proxy.end();
}
