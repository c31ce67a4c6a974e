//! Content in frames on the link between a child and a parent: two real proxies with a relay.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client, Origin, Response, Script};

use crate::proxy_link::Pair;

/// Text that zstd makes several times smaller; the same for each seed.
fn text(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.extend_from_slice(format!("<p class=\"c{}\">", state >> 22).as_bytes());
    }
    text.truncate(bytes);
    text
}

/// Bytes that nothing makes smaller.
fn noise(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(bytes)
        .collect()
}

/// Bytes that the child has received on its link.
fn received(pair: &Pair) -> u64 {
    let (_, status, _) = pair.child.status(&pair.home);
    status["parents"][0]["bytes_in"].as_u64().unwrap_or(0)
}

/// A request over the child, its response, and the bytes that came on the link for it.
async fn get(pair: &Pair, url: &str, fields: &[(&str, &str)]) -> (Response, u64) {
    let before = received(pair);
    let mut client = pair.child.client().await;
    let answer = client.get(url, fields).await.unwrap();
    (answer, received(pair) - before)
}

/// An origin that serves `text(1, 400_000)` at every path, with the fields that the path names.
async fn origin() -> Origin {
    let origin = Origin::start(|request| {
        let content = match request.target() {
            "/noise" => noise(400_000),
            _ => text(1, 400_000),
        };
        // At both ends it is stored in pages (`proxy_text_at_rest`), except what is no text.
        let kind = match request.target() {
            "/noise" => "application/octet-stream",
            _ => "text/html",
        };
        let mut fields = vec![("ETag", "\"v1\""), ("Content-Type", kind)];
        let lifetime = match request.target() {
            "/private" => ("Cache-Control", "private, max-age=600"),
            "/no-store" => ("Cache-Control", "no-store"),
            "/by-cookie" => {
                fields.push(("Vary", "Accept, cookie"));
                ("Cache-Control", "max-age=600")
            }
            _ => ("Cache-Control", "max-age=600"),
        };
        fields.push(lifetime);
        match (request.target(), request.field("Range")) {
            ("/marked", _) => fields.push(("Hashcache-Link", "v=1")),
            ("/chunked", _) => {
                fields.push(("Transfer-Encoding", "chunked"));
                fields.push(("Trailer", "X-Later"));
                let (first, second) = content.split_at(150_001);
                return Script::new()
                    .head(200, &fields)
                    .chunk(first)
                    .chunk(second)
                    .bytes("0\r\nX-Later: yes\r\n\r\n");
            }
            ("/ranged", Some("bytes=100000-299999")) => {
                fields.push(("Content-Range", "bytes 100000-299999/400000"));
                return Script::response(206, &fields, &content[100_000..300_000]);
            }
            _ => {}
        }
        Script::response(200, &fields, &content)
    });
    origin.await.unwrap()
}

/// A pair with memory for each encoder and decoder: without it, content arrives in ordinary HTTP.
async fn roomy() -> Pair {
    Pair::start(&["--memory=256MiB"], &["--memory=256MiB"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn text_takes_a_part_of_its_bytes_and_is_stored_as_it_is() {
    let pair = roomy().await;
    let origin = origin().await;
    let content = text(1, 400_000);
    let gzip = [("Accept-Encoding", "gzip, br")];
    let (answer, bytes) = get(&pair, &origin.url("/text"), &gzip).await;
    assert_eq!((answer.status, answer.body == content), (200, true));
    assert_eq!(answer.field("Content-Length"), Some("400000"));
    assert_eq!(answer.field("Hashcache-Link"), None);
    assert!(bytes < 100_000, "{bytes}");
    // From the store, on both sides.
    let (again, bytes) = get(&pair, &origin.url("/text"), &gzip).await;
    assert!(again.body == content && bytes == 0, "{bytes}");
    assert_eq!(again.field("Content-Length"), Some("400000"));
    let at_parent = pair.parent.get(&origin.url("/text")).await;
    assert_eq!((at_parent.status, at_parent.body == content), (200, true));
    let requests = origin.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].field("Accept-Encoding"), Some("identity"));
    assert_eq!(requests[0].field("Hashcache-Link"), None);
    // Content that cannot be compressed grows only by its checks.
    let (answer, bytes) = get(&pair, &origin.url("/noise"), &[]).await;
    assert!(answer.body == noise(400_000));
    assert!(bytes < 402_500, "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_unknown_length_comes_with_its_trailers() {
    let pair = roomy().await;
    let origin = origin().await;
    let (answer, bytes) = get(&pair, &origin.url("/chunked"), &[("TE", "trailers")]).await;
    assert!(answer.body == text(1, 400_000));
    assert_eq!(answer.end, BodyEnd::Complete);
    assert_eq!(answer.trailers, [("X-Later".into(), "yes".into())]);
    assert!(bytes < 100_000, "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_heads_and_conditions_are_those_of_the_plain_content() {
    let pair = roomy().await;
    let origin = origin().await;
    let url = origin.url("/ranged");
    let range = [("Range", "bytes=100000-299999")];
    let (part, bytes) = get(&pair, &url, &range).await;
    assert_eq!(part.status, 206);
    assert_eq!(
        part.field("Content-Range"),
        Some("bytes 100000-299999/400000")
    );
    assert!(part.body == text(1, 400_000)[100_000..300_000]);
    assert!(bytes < 60_000, "{bytes}");
    let url = origin.url("/head");
    let mut client = pair.child.client().await;
    client.request("HEAD", &url, &[]).await.unwrap();
    let head = client.read_response("HEAD").await.unwrap();
    assert_eq!(head.field("Content-Length"), Some("400000"));
    assert_eq!(head.field("Hashcache-Link"), None);
    let condition = [("If-None-Match", "\"v1\"")];
    let (whole, _) = get(&pair, &url, &[]).await;
    assert_eq!((whole.status, whole.body.len()), (200, 400_000));
    let (unchanged, _) = get(&pair, &url, &condition).await;
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_no_part_passes_as_it_came() {
    let pair = roomy().await;
    let origin = origin().await;
    for (path, field, coded) in [
        ("/1", ("Authorization", "Basic eDp5"), false),
        ("/2", ("Cookie", "a=b"), false),
        ("/3", ("Accept-Encoding", "gzip, identity;q=0"), false),
        ("/no-store", ("X-Other", "y"), true),
        ("/4", ("X-Other", "y"), true),
        // Now there is a stored response for the URL.
        ("/4", ("Cookie", "a=b"), true),
        ("/private", ("Cookie", "a=b"), false),
        ("/by-cookie", ("X-Other", "y"), true),
        // Something is stored for the URL, but not for this user.
        ("/by-cookie", ("Cookie", "a=b"), false),
    ] {
        let mut fields = vec![field, ("Cache-Control", "no-cache")];
        if field.0 != "Accept-Encoding" {
            fields.push(("Accept-Encoding", "gzip"));
        }
        let before = origin.request_count();
        let (answer, bytes) = get(&pair, &origin.url(path), &fields).await;
        assert!(answer.status == 200 && answer.body == text(1, 400_000));
        let requests = origin.requests();
        assert!(requests.len() > before);
        let asked = requests.last().unwrap().field("Accept-Encoding").unwrap();
        // Only the parent sees that a response varies by Cookie.
        let is_identity = coded || (path, field.0) == ("/by-cookie", "Cookie");
        assert_eq!(
            asked == "identity",
            is_identity,
            "{path} {field:?}: {asked}"
        );
        assert_eq!(bytes < 100_000, coded, "{path} {field:?}: {bytes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_field_of_anyone_else_means_nothing() {
    let pair = roomy().await;
    let origin = origin().await;
    let content = text(1, 400_000);
    // A client that is no child.
    let mut client = pair.parent.client().await;
    let field = [("Hashcache-Link", "v=1, max=1000000")];
    let answer = client.get(&origin.url("/client"), &field).await.unwrap();
    assert!(answer.body == content && answer.field("Hashcache-Link").is_none());
    assert_eq!(origin.requests()[0].field("Hashcache-Link"), None);
    // A client of the child that takes no part, and an origin that says its content is frames.
    for (path, field) in [
        ("/client2", ("Authorization", "Basic eDp5")),
        ("/marked", ("Authorization", "Basic eDp5")),
        ("/marked", ("X-Other", "y")),
    ] {
        let fields = [("Hashcache-Link", "v=1"), field];
        let (answer, _) = get(&pair, &origin.url(path), &fields).await;
        assert!(answer.status == 200 && answer.body == content, "{path}");
        assert_eq!(answer.field("Hashcache-Link"), None);
    }
    let requests = origin.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.field("Hashcache-Link").is_none())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_comes_slowly_is_passed_on_as_it_comes() {
    let pair = roomy().await;
    let gate = hashcache_testkit::Gate::new();
    let waits = gate.clone();
    let origin = Origin::start(move |_| {
        Script::new()
            .head(200, &[("Content-Length", "2000")])
            .bytes(text(1, 1000))
            .wait(&waits)
            .bytes(text(2, 1000))
    });
    let origin = origin.await.unwrap();
    let mut client = pair.child.client().await;
    client
        .request("GET", &origin.url("/slow"), &[])
        .await
        .unwrap();
    let mut come = Vec::new();
    let reading = client.read_response_to("GET", |part| {
        come.extend_from_slice(part);
        if come.len() == 1000 {
            gate.open();
        }
    });
    let answer = tokio::time::timeout(Duration::from_secs(20), reading).await;
    assert_eq!(answer.unwrap().unwrap().status, 200);
    assert_eq!(come, [text(1, 1000), text(2, 1000)].concat());
}

/// An origin whose content depends on how often it was asked for a path before: `noise` with
/// another number in its middle. Each response is stale at once.
async fn changing_origin(cache_control: &'static str) -> Origin {
    let asked = std::sync::Mutex::new(std::collections::HashMap::new());
    let origin = Origin::start(move |request| {
        let mut asked = asked.lock().unwrap();
        let version: &mut u32 = asked.entry(request.target().to_owned()).or_default();
        *version += 1;
        let tag = format!("\"v{version}\"");
        let fields = [
            ("ETag", tag.as_str()),
            ("Cache-Control", cache_control),
            ("Content-Type", "text/plain"),
        ];
        Script::response(200, &fields, version_of(*version))
    });
    origin.await.unwrap()
}

fn version_of(number: u32) -> Vec<u8> {
    let mut content = noise(400_000);
    content.splice(200_000..200_003, format!("<{number}>").into_bytes());
    content
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_is_sent_as_what_differs_from_the_stored_one() {
    let flags = ["--memory=256MiB", "--log-format=combined"];
    let pair = Pair::start(&flags, &flags).await;
    let origin = changing_origin("max-age=0").await;
    let url = origin.url("/release");
    let (first, bytes) = get(&pair, &url, &[]).await;
    assert!(first.body == version_of(1) && bytes > 400_000);
    for number in 2..5 {
        let (next, bytes) = get(&pair, &url, &[]).await;
        assert!(next.body == version_of(number));
        assert_eq!(next.field("Content-Length"), Some("400000"));
        assert!(bytes < 2500, "{number}: {bytes}");
    }
    let log = pair.child.log(4).await;
    let lines: Vec<_> = log.lines().collect();
    assert!(lines[0].contains(" link_coding=raw"), "{log}");
    assert!(lines[1].contains(" link_coding=offered"), "{log}");
    let log = pair.parent.log(4).await;
    assert_eq!(log.matches(" link_coding=offered").count(), 3, "{log}");
    for (cache_box, name, direction) in
        [(&pair.child, "hub", "in"), (&pair.parent, "sha256:", "out")]
    {
        let mut admin = Client::connect(cache_box.proxy.admin()).await.unwrap();
        let metrics = admin.get("/metrics", &[("Host", "localhost")]).await;
        let metrics = String::from_utf8(metrics.unwrap().body).unwrap();
        let has = |line: &str, end: &str| {
            let found = metrics
                .lines()
                .find(|it| it.starts_with(line) && it.contains(name) && it.contains(direction));
            let count = found.and_then(|line| line.rsplit(' ').next());
            assert_eq!(count, Some(end), "{line}: {metrics}");
        };
        has("hashcache_link_plain_bytes_total", "1600000");
        let number = |line: &str, label: &str| {
            let found = metrics.lines().find(|it| {
                let is_it = it.starts_with(line) && it.contains(name) && it.contains(direction);
                is_it && it.contains(label)
            });
            let number = found.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            number.unwrap_or_else(|| panic!("{line} {label}: {metrics}"))
        };
        let frames = |coding| number("hashcache_link_frame_bytes_total", coding);
        assert!((400_000.0..402_500.0).contains(&frames("raw")), "{metrics}");
        assert!((1.0..7_500.0).contains(&frames("offered")), "{metrics}");
        assert!(number("hashcache_link_coding_seconds_total", "") > 0.0);
        let (_, status, told) = cache_box.status(&pair.home);
        let links = [&status["parents"], &status["children"]];
        let sites = links.iter().map(|link| &link[0]["sites"][0]);
        let site = sites.clone().find(|site| site.is_object());
        let site = site.unwrap_or_else(|| panic!("{status}"));
        assert_eq!(site["host"], "127.0.0.1", "{status}");
        assert_eq!(site["content_bytes"], 1_600_000, "{status}");
        assert!(site["saved_bytes"].as_u64() > Some(1_190_000), "{status}");
        assert!(told.contains("    saved most: 127.0.0.1 "), "{told}");
        for line in [
            "kind=\"offered\",result=\"used\"} 3",
            "reason=\"frames\"} 0",
            "hashcache_link_shed_total",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
    }
    // A user's own cookie does not matter where a response is stored for all.
    let (next, bytes) = get(&pair, &url, &[("Cookie", "a=b")]).await;
    assert!(next.body == version_of(5) && bytes < 2500, "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn private_content_is_never_a_dictionary() {
    let pair = roomy().await;
    let credentials = ("Authorization", "Basic eDp5");
    for (cache_control, field) in [
        ("private, max-age=0", ("X-Other", "y")),
        ("no-store", ("X-Other", "y")),
        ("max-age=0", credentials),
        ("max-age=0, private", ("Cookie", "a=b")),
        ("max-age=0", ("Cookie", "a=b")),
    ] {
        let origin = changing_origin(cache_control).await;
        let url = origin.url("/page");
        for number in 1..3 {
            let (answer, bytes) = get(&pair, &url, &[field]).await;
            assert!(answer.body == version_of(number));
            // A cookie takes part once something is stored.
            let stored = number > 1 && (cache_control, field.0) == ("max-age=0", "Cookie");
            assert_eq!(bytes < 400_000, stored, "{cache_control} {field:?} {bytes}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dictionary_that_the_parent_has_lost_costs_only_bytes() {
    let pair = Pair::start(&["--allow-purge=127.0.0.1"], &[]).await;
    let origin = changing_origin("max-age=0").await;
    let url = origin.url("/lost");
    let (first, _) = get(&pair, &url, &[]).await;
    assert!(first.body == version_of(1));
    let mut client = pair.parent.client().await;
    client.request("PURGE", &url, &[]).await.unwrap();
    let purged = client.read_response("PURGE").await.unwrap();
    assert_eq!(purged.status, 200, "{purged:?}");
    let (second, bytes) = get(&pair, &url, &[]).await;
    assert!(second.body == version_of(2) && bytes > 400_000, "{bytes}");
    let (third, bytes) = get(&pair, &url, &[]).await;
    assert!(third.body == version_of(3) && bytes < 2500, "{bytes}");
}

/// An origin of releases: `/app.N.js` is `version_of(N)`.
async fn releases(cache_control: &'static str) -> Origin {
    let origin = Origin::start(move |request| {
        let number = request.target().split('.').nth(1);
        let number = number.and_then(|number| number.parse().ok());
        let fields = [
            ("Cache-Control", cache_control),
            ("Content-Type", "text/javascript"),
        ];
        Script::response(200, &fields, version_of(number.unwrap_or(0)))
    });
    origin.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_another_name_is_sent_as_what_differs_from_a_similar_one() {
    let pair = Pair::start(&[], &["--allow-purge=127.0.0.1"]).await;
    let origin = releases("max-age=600").await;
    for number in 1..4 {
        let url = origin.url(&format!("/app.{number}.js"));
        let (answer, bytes) = get(&pair, &url, &[]).await;
        assert!(answer.body == version_of(number));
        assert_eq!(bytes < 2500, number > 1, "{number}: {bytes}");
    }
    // Equal content at another origin is no dictionary.
    let other = releases("max-age=600").await;
    let (answer, bytes) = get(&pair, &other.url("/app.4.js"), &[]).await;
    assert!(answer.body == version_of(4) && bytes > 400_000, "{bytes}");
    // The child has lost what the parent names: one more round trip.
    for number in 1..4 {
        let mut client = pair.child.client().await;
        let url = origin.url(&format!("/app.{number}.js"));
        client.request("PURGE", &url, &[]).await.unwrap();
        assert_eq!(client.read_response("PURGE").await.unwrap().status, 200);
    }
    let (answer, bytes) = get(&pair, &origin.url("/app.5.js"), &[]).await;
    assert!(answer.body == version_of(5) && bytes > 400_000, "{bytes}");
    assert_eq!(origin.request_count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_shared_cache_may_store_is_never_named() {
    let pair = roomy().await;
    for (cache_control, field) in [
        ("private, max-age=600", ("X-Other", "y")),
        ("no-store", ("X-Other", "y")),
        ("max-age=600", ("Authorization", "Basic eDp5")),
        ("max-age=600", ("Cookie", "a=b")),
    ] {
        let origin = releases(cache_control).await;
        for number in 1..4 {
            let url = origin.url(&format!("/app.{number}.js"));
            let (answer, bytes) = get(&pair, &url, &[field]).await;
            assert!(answer.body == version_of(number));
            assert!(bytes > 400_000, "{cache_control} {field:?} {bytes}");
        }
        // Nor is any of it the dictionary of a response that all may have.
        let (_, bytes) = get(&pair, &origin.url("/app.4.js"), &[]).await;
        assert!(bytes > 400_000, "{cache_control} {field:?} {bytes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_keeps_what_its_children_still_hold() {
    let pair = roomy().await;
    let origin = changing_origin("max-age=0").await;
    let url = origin.url("/kept");
    let (first, _) = get(&pair, &url, &[]).await;
    assert!(first.body == version_of(1));
    // Others make the parent replace it twice.
    for number in 2..4 {
        assert!(pair.parent.get(&url).await.body == version_of(number));
    }
    let (fourth, bytes) = get(&pair, &url, &[]).await;
    assert!(fourth.body == version_of(4) && bytes < 2500, "{bytes}");
}
