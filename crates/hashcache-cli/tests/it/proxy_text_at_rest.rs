//! Text on the disk of boxes with a link: two real proxies, and what their clients get.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client, Gate, Origin, RawRequest, Response, Script};

use crate::proxy_link::{CacheBox, Pair, child_of};

/// Text of which zstd leaves a quarter or so; each place of it is another.
fn text(seed: u32, bytes: usize) -> Vec<u8> {
    let words = (0u32..).flat_map(|n| {
        let number = n.wrapping_add(seed << 20).wrapping_mul(2_654_435_761) >> 12;
        format!("<td>{number}</td>\n").into_bytes()
    });
    words.take(bytes).collect()
}

const BYTES: usize = 400_000;
/// One page.
const SHORT: usize = 60_000;

fn bytes_of(path: &str) -> usize {
    if path.ends_with("/short") {
        SHORT
    } else {
        BYTES
    }
}

/// Serves `text(1, bytes_of(path))` at every path, with the fields that the path names, and ranges
/// of it.
fn script(request: &RawRequest) -> Script {
    let path = request.target().to_owned();
    let has = |word: &str| path.split('/').any(|it| it == word);
    let kind = if has("binary") {
        "application/octet-stream"
    } else {
        "text/html; charset=utf-8"
    };
    let cache_control = match (has("no-transform"), has("stale")) {
        (true, _) => "max-age=600, no-transform",
        (_, true) => "max-age=0",
        _ => "max-age=600",
    };
    let mut fields = vec![
        ("Content-Type", kind),
        ("Cache-Control", cache_control),
        ("Repr-Digest", "x-other=:AA==:"),
    ];
    if !has("untagged") {
        fields.push(("ETag", "\"v1\""));
    }
    let content = text(1, bytes_of(&path));
    if request
        .field("If-None-Match")
        .is_some_and(|tag| tag.contains("\"v1\""))
    {
        return Script::new().head(304, &fields).close();
    }
    if has("chunked") {
        fields.push(("Transfer-Encoding", "chunked"));
        let (first, second) = content.split_at(content.len() / 3);
        let head = Script::new().head(200, &fields);
        return head.chunk(first).chunk(second).bytes("0\r\n\r\n");
    }
    Script::response(200, &fields, content)
}

async fn pair() -> Pair {
    Pair::start(&["--memory=256MiB"], &["--memory=256MiB"]).await
}

async fn get(at: &CacheBox, url: &str, fields: &[(&str, &str)]) -> Response {
    let answer = at.client().await.get(url, fields).await.unwrap();
    assert_eq!(answer.end, BodyEnd::Complete, "{fields:?}");
    answer
}

async fn head(at: &CacheBox, url: &str, fields: &[(&str, &str)]) -> Response {
    let mut client = at.client().await;
    client.request("HEAD", url, fields).await.unwrap();
    client.read_response("HEAD").await.unwrap()
}

fn unpacked(coded: &[u8], bytes: usize) -> Vec<u8> {
    let mut content = Vec::with_capacity(bytes + 1);
    zstd_safe::decompress(&mut content, coded).unwrap();
    content
}

/// The stored form of `content`: each 64 KiB as a separate frame.
fn stored_form(content: &[u8]) -> Vec<u8> {
    let mut context = zstd_safe::CCtx::create();
    context
        .set_parameter(zstd_safe::CParameter::ChecksumFlag(true))
        .unwrap();
    let pages = content.chunks(64 << 10).map(|page| {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(page.len()));
        context.compress2(&mut frame, page).unwrap();
        frame
    });
    pages.collect::<Vec<_>>().concat()
}

const ZSTD: (&str, &str) = ("Accept-Encoding", "gzip, deflate, br, zstd");
const GZIP: (&str, &str) = ("Accept-Encoding", "gzip");
/// A field that keeps a request from the short way of plain hits.
const USUAL: (&str, &str) = ("X-Other", "y");

/// Checks what each kind of client gets from this box, which has the text stored. Only one page is
/// given in zstd.
async fn check(at: &CacheBox, url: &str) {
    let bytes = bytes_of(url);
    let (content, length) = (text(1, bytes), bytes.to_string());
    let accepts_zstd = [
        &[ZSTD][..],
        &[ZSTD, USUAL],
        &[("Accept-Encoding", "zstd;q=0.5, br"), USUAL],
    ];
    let mut accepts_plain = vec![
        &[][..],
        &[GZIP],
        &[GZIP, USUAL],
        &[("Accept-Encoding", "zstd;q=0")],
        &[ZSTD, ("Cache-Control", "no-transform")],
    ];
    let is_coded = bytes == SHORT;
    if is_coded {
        check_coded(at, url, &accepts_zstd).await;
    } else {
        accepts_plain.extend(accepts_zstd);
    }
    for fields in accepts_plain {
        for answer in [get(at, url, fields).await, head(at, url, fields).await] {
            assert_eq!(answer.status, 200);
            assert_eq!(answer.field("Content-Encoding"), None, "{fields:?}");
            assert_eq!(answer.field("ETag"), Some("\"v1\""));
            assert_eq!(answer.field("Content-Length"), Some(&*length));
            assert_eq!(answer.field("Vary"), Some("accept-encoding"));
            assert!(answer.body.is_empty() || answer.body == content);
        }
    }
    // Ranges are of the content, whatever the client accepts.
    for (from, to) in [
        (bytes / 4, bytes / 4 * 3),
        (65_535.min(bytes - 2), 65_537.min(bytes)),
        (bytes - 7, bytes),
        (0, 1),
    ] {
        let range = format!("bytes={from}-{}", to - 1);
        for tag in [None, Some("\"v1\"")] {
            let mut fields = vec![ZSTD, ("Range", &*range)];
            fields.extend(tag.map(|tag| ("If-Range", tag)));
            let part = get(at, url, &fields).await;
            assert_eq!((part.status, part.field("Content-Encoding")), (206, None));
            let told = format!("bytes {from}-{}/{bytes}", to - 1);
            assert_eq!(part.field("Content-Range"), Some(&*told));
            assert_eq!(part.field("ETag"), Some("\"v1\""));
            assert!(part.body == content[from..to], "{range}");
        }
        // Of the coded form the client has no range.
        for told in ["W/\"v1\"", "Sun, 01 Nov 2026 00:00:00 GMT"] {
            let fields = [ZSTD, ("Range", &*range), ("If-Range", told)];
            let whole = get(at, url, &fields).await;
            assert!(whole.status == 200 && whole.body == content, "{told}");
        }
    }
    let suffix = get(at, url, &[ZSTD, ("Range", "bytes=-7")]).await;
    assert!(suffix.status == 206 && suffix.body == content[bytes - 7..]);
    let last = bytes - 3;
    let parts = get(at, url, &[("Range", "bytes=10-19,50000-50010,-3")]).await;
    assert_eq!(parts.status, 206);
    let body = String::from_utf8(parts.body).unwrap();
    for (from, to) in [(10, 20), (50_000, 50_011), (last, bytes)] {
        let part = std::str::from_utf8(&content[from..to]).unwrap();
        let told = format!("bytes {from}-{}/{bytes}\r\n\r\n{part}\r\n", to - 1);
        assert!(body.contains(&told), "{told:?} is not in {body:?}");
    }
    let beyond = get(at, url, &[("Range", &*format!("bytes={bytes}-"))]).await;
    let told = format!("bytes */{bytes}");
    assert_eq!(beyond.field("Content-Range"), Some(&*told));
    let tag_of_zstd = if is_coded { "W/\"v1\"" } else { "\"v1\"" };
    for (tag, accepted, told) in [
        ("\"v1\"", GZIP, "\"v1\""),
        ("W/\"v1\"", ZSTD, tag_of_zstd),
        ("\"v1\"", ZSTD, tag_of_zstd),
    ] {
        let answer = get(at, url, &[("If-None-Match", tag), accepted]).await;
        assert_eq!((answer.status, answer.field("ETag")), (304, Some(told)));
        assert_eq!(answer.field("Vary"), Some("accept-encoding"));
        let is_digest_there = answer.field("Repr-Digest").is_some();
        assert_eq!(is_digest_there, told == "\"v1\"", "{answer:?}");
    }
}

async fn check_coded(at: &CacheBox, url: &str, accepts: &[&[(&str, &str)]]) {
    let (content, mut coded) = (text(1, SHORT), Vec::new());
    for fields in accepts {
        let answer = get(at, url, fields).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("Content-Encoding"), Some("zstd"), "{fields:?}");
        assert_eq!(answer.field("ETag"), Some("W/\"v1\""));
        assert_eq!(answer.field("Vary"), Some("accept-encoding"));
        assert_eq!(answer.field("Repr-Digest"), None);
        assert_eq!(
            answer.field("Content-Length"),
            Some(&*answer.body.len().to_string())
        );
        assert!(answer.body.len() < SHORT / 2, "{}", answer.body.len());
        assert!(unpacked(&answer.body, SHORT) == content);
        assert!(coded.is_empty() || coded == answer.body);
        coded = answer.body;
    }
    let length = coded.len().to_string();
    let answer = head(at, url, &[ZSTD]).await;
    let told = ["Content-Length", "Content-Encoding", "ETag"].map(|name| answer.field(name));
    assert_eq!(told, [Some(&*length), Some("zstd"), Some("W/\"v1\"")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_gets_its_form_of_stored_text_also_after_a_restart() {
    let mut pair = pair().await;
    let origin = Origin::start(script).await.unwrap();
    let paths = ["/text", "/chunked", "/text/short", "/chunked/short"];
    for path in paths {
        // While it arrives, and even if the client accepts zstd, it is content.
        let first = get(&pair.child, &origin.url(path), &[ZSTD]).await;
        assert!(first.body == text(1, bytes_of(path)));
        assert_eq!(first.field("Content-Encoding"), None);
        assert_eq!(first.field("ETag"), Some("\"v1\""));
        assert_eq!(first.field("Vary"), Some("accept-encoding"));
    }
    for path in paths {
        check(&pair.child, &origin.url(path)).await;
        check(&pair.parent, &origin.url(path)).await;
    }
    let config = child_of(pair.relay.address(), pair.parent_pin());
    pair.child.proxy.stop();
    pair.child = CacheBox::start(&pair.home, "child", &config, &["--memory=256MiB"]);
    for path in paths {
        check(&pair.child, &origin.url(path)).await;
    }
    assert_eq!(origin.request_count(), paths.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_text_or_must_not_be_changed_is_given_as_it_came() {
    let pair = pair().await;
    let origin = Origin::start(script).await.unwrap();
    for (path, varies) in [
        ("/binary", None),
        ("/no-transform", Some("accept-encoding")),
    ] {
        let url = origin.url(path);
        for fields in [&[ZSTD][..], &[ZSTD], &[ZSTD, USUAL]] {
            let answer = get(&pair.child, &url, fields).await;
            assert!(answer.body == text(1, BYTES), "{path}");
            assert_eq!(answer.field("Content-Encoding"), None, "{path}");
            assert_eq!(answer.field("ETag"), Some("\"v1\""));
            assert_eq!(answer.field("Vary"), varies, "{path}");
        }
    }
    assert_eq!(origin.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_validation_that_changes_fields_keeps_the_pages() {
    let pair = pair().await;
    let origin = Origin::start(script).await.unwrap();
    for path in ["/stale", "/stale/short"] {
        let (url, content) = (origin.url(path), text(1, bytes_of(path)));
        let length = content.len().to_string();
        let first = get(&pair.child, &url, &[]).await;
        assert!(first.body == content, "{}", first.head.start_line);
        let before = origin.request_count();
        for round in 1..3 {
            let plain = get(&pair.child, &url, &[GZIP]).await;
            assert!(plain.body == content);
            let coded = get(&pair.child, &url, &[ZSTD]).await;
            let is_coded = coded.field("Content-Encoding").is_some();
            assert_eq!(is_coded, path == "/stale/short");
            assert!(if is_coded {
                unpacked(&coded.body, SHORT) == content
            } else {
                coded.body == content
            });
            let part = get(&pair.child, &url, &[("Range", "bytes=40000-40009")]).await;
            assert!(part.status == 206 && part.body == content[40_000..40_010]);
            let answer = head(&pair.child, &url, &[GZIP]).await;
            assert_eq!(answer.field("Content-Length"), Some(&*length));
            assert!(origin.request_count() >= before + 3 * round);
        }
    }
    let requests = origin.requests();
    let first = |it: &&RawRequest| it.field("If-None-Match").is_none() && it.method() == "GET";
    assert_eq!(requests.iter().filter(first).count(), 2);
    let conditional = requests
        .iter()
        .filter(|it| it.method() == "GET" && it.field("If-None-Match").is_some());
    assert!(conditional.clone().count() >= 12);
    for request in conditional {
        assert_eq!(
            request.field("If-None-Match"),
            Some("\"v1\""),
            "{request:?}"
        );
    }
}

/// Reads a response and opens the gate when this much has arrived.
async fn read_and_open(mut client: Client, gate: Gate, at: usize) -> Vec<u8> {
    let mut come = Vec::new();
    let reading = client.read_response_to("GET", |part| {
        come.extend_from_slice(part);
        if come.len() >= at {
            gate.open();
        }
    });
    let answer = tokio::time::timeout(Duration::from_secs(20), reading).await;
    assert_eq!(answer.unwrap().unwrap().end, BodyEnd::Complete);
    come
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_get_text_as_it_comes_and_whole() {
    let pair = pair().await;
    // The second part arrives when three clients have the first.
    let gates: Vec<Gate> = (0..3).map(|_| Gate::new()).collect();
    let waits = gates.clone();
    let first = 100_123;
    let origin = Origin::start(move |_| {
        let fields = [
            ("Content-Type", "text/plain"),
            ("Cache-Control", "max-age=600"),
            ("Content-Length", "400000"),
        ];
        let content = text(2, BYTES);
        let head = Script::new().head(200, &fields).bytes(&content[..first]);
        let waiting = waits.iter().fold(head, Script::wait);
        waiting.bytes(&content[first..])
    });
    let origin = origin.await.unwrap();
    let url = origin.url("/slow");
    let mut reading = Vec::new();
    for (gate, fields) in gates.iter().zip([&[ZSTD][..], &[GZIP], &[]]) {
        let mut client = pair.child.client().await;
        client.request("GET", &url, fields).await.unwrap();
        reading.push(tokio::spawn(read_and_open(client, gate.clone(), first)));
        // So that the next one follows.
        tokio::time::timeout(Duration::from_secs(20), gate.opened())
            .await
            .unwrap();
    }
    for reading in reading {
        assert!(reading.await.unwrap() == text(2, BYTES));
    }
    assert_eq!(origin.request_count(), 1);
    let stored = get(&pair.child, &url, &[ZSTD]).await;
    assert!(stored.body == text(2, BYTES));
}

/// Changes a bit of these bytes where they lie last in a file that is mostly empty.
fn flip_last(path: &Path, wanted: &[u8]) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut piece, empty) = (vec![0; STEP + wanted.len()], vec![0; STEP + wanted.len()]);
    let mut found = None;
    for offset in (0..file.metadata().unwrap().len()).step_by(STEP) {
        let read = file.read_at(&mut piece, offset).unwrap();
        // Without this, 1 GiB would take minutes.
        if piece[..read] == empty[..read] {
            continue;
        }
        let last = piece[..read]
            .windows(wanted.len())
            .rposition(|it| it == wanted);
        found = last.map(|at| offset + at as u64).or(found);
    }
    file.write_all_at(&[wanted[0] ^ 1], found.unwrap()).unwrap();
}

const STEP: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_costs_a_fetch_and_is_never_wrong_content() {
    let mut pair = pair().await;
    let bytes = 4_000_000;
    let origin = Origin::start(move |_| {
        let fields = [
            ("Content-Type", "text/html"),
            ("Cache-Control", "max-age=600"),
            ("ETag", "\"v1\""),
        ];
        Script::response(200, &fields, text(3, bytes))
    });
    let origin = origin.await.unwrap();
    let url = origin.url("/large");
    assert!(get(&pair.child, &url, &[]).await.body == text(3, bytes));
    let stored = stored_form(&text(3, bytes));
    assert!(stored.len() > 400_000);
    let image = pair.home.path().join("child.img");
    let config = child_of(pair.relay.address(), pair.parent_pin());
    // In a span that is read late, and in the one with the first byte that is asked for.
    for (at, range) in [
        (stored.len() - 1000, None),
        (stored.len() / 2, Some("bytes=2000000-2999999")),
    ] {
        pair.child.proxy.stop();
        flip_last(&image, &stored[at..at + 40]);
        pair.child = CacheBox::start(&pair.home, "child", &config, &["--memory=256MiB"]);
        pair.child
            .wait_for(&pair.home, |link| link["up"] == true)
            .await;
        let expected = match range {
            Some(_) => text(3, bytes)[2_000_000..3_000_000].to_vec(),
            None => text(3, bytes),
        };
        let mut answers = Vec::new();
        for _ in 0..2 {
            let fields: Vec<_> = range.map(|range| ("Range", range)).into_iter().collect();
            let answer = pair.child.client().await.get(&url, &fields).await.unwrap();
            let is_whole = answer.end == BodyEnd::Complete;
            assert!(expected.starts_with(&answer.body));
            assert_eq!(is_whole, answer.body.len() == expected.len());
            answers.push(is_whole);
        }
        assert!(answers[1], "the object was not fetched again: {answers:?}");
        // Whole again for the next round.
        let plain = get(&pair.child, &url, &[]).await;
        assert!(plain.body == text(3, bytes));
    }
    // The parent has it: the origin is not asked.
    assert_eq!(origin.request_count(), 1);
}

/// An origin whose text has another number in its middle each time.
async fn changing_origin() -> Origin {
    let asked = std::sync::Mutex::new(0);
    let origin = Origin::start(move |_| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        let tag = format!("\"v{asked}\"");
        let fields = [
            ("Content-Type", "application/json"),
            ("ETag", tag.as_str()),
            ("Cache-Control", "max-age=0"),
        ];
        Script::response(200, &fields, version_of(*asked))
    });
    origin.await.unwrap()
}

fn version_of(number: u32) -> Vec<u8> {
    let mut content = text(4, BYTES);
    content.splice(200_000..200_003, format!("<{number}>").into_bytes());
    content
}

#[tokio::test(flavor = "multi_thread")]
async fn text_in_pages_is_a_dictionary_at_both_ends() {
    let pair = pair().await;
    let origin = changing_origin().await;
    let url = origin.url("/page");
    let received = || {
        pair.child.status(&pair.home).1["parents"][0]["bytes_in"]
            .as_u64()
            .unwrap()
    };
    let mut before = received();
    for number in 1..4 {
        let answer = get(&pair.child, &url, &[]).await;
        assert!(answer.body == version_of(number));
        let bytes = received() - before;
        before += bytes;
        assert_eq!(bytes < 2500, number > 1, "{number}: {bytes}");
    }
    // The parent has replaced twice what the child holds, and kept it in pages.
    for number in 4..6 {
        assert!(pair.parent.get(&url).await.body == version_of(number));
    }
    let answer = get(&pair.child, &url, &[]).await;
    assert!(answer.body == version_of(6));
    let bytes = received() - before;
    assert!(bytes < 2500, "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_without_a_link_stores_text_as_it_came() {
    let home = crate::Home::new();
    let alone = CacheBox::start(&home, "alone", "", &[]);
    let origin = Origin::start(script).await.unwrap();
    for _ in 0..2 {
        let answer = get(&alone, &origin.url("/text"), &[ZSTD]).await;
        assert!(answer.body == text(1, BYTES) && answer.field("Vary").is_none());
    }
    assert_eq!(origin.request_count(), 1);
}

/// Processor time of a process so far, nanoseconds.
fn processor_time(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::fs::DirEntry| {
        let told = std::fs::read_to_string(task.path().join("schedstat")).unwrap();
        let first = told.split(' ').next().unwrap();
        first.parse::<u64>().unwrap()
    };
    tasks.map(|task| of(task.unwrap())).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: run it with --release and --nocapture"]
async fn processor_time_of_stored_text() {
    const REQUESTS: u32 = 2000;
    let pair = pair().await;
    let origin = Origin::start(|request| {
        let kind = match request.target() {
            "/binary" => "application/octet-stream",
            _ => "text/html",
        };
        let fields = [("Content-Type", kind), ("Cache-Control", "max-age=600")];
        Script::response(200, &fields, text(1, 60_000))
    });
    let origin = origin.await.unwrap();
    for path in ["/binary", "/text"] {
        get(&pair.child, &origin.url(path), &[]).await;
    }
    let mut told = [[0; 5]; 5];
    let cases = [
        ("as it came", "/binary", &[ZSTD][..]),
        ("as it came, usual way", "/binary", &[ZSTD, USUAL]),
        ("text to a client of zstd", "/text", &[ZSTD]),
        (
            "text to a client of zstd, usual way",
            "/text",
            &[ZSTD, USUAL],
        ),
        ("text to a client of gzip", "/text", &[GZIP]),
    ];
    for round in 0..5 {
        for ((_, path, fields), told) in cases.iter().zip(&mut told) {
            let (mut client, url) = (pair.child.client().await, origin.url(path));
            let before = processor_time(pair.child.proxy.pid());
            for _ in 0..REQUESTS {
                assert_eq!(client.get(&url, fields).await.unwrap().status, 200);
            }
            let used = processor_time(pair.child.proxy.pid()) - before;
            told[round] = used / u64::from(REQUESTS);
        }
    }
    for ((name, ..), mut told) in cases.into_iter().zip(told) {
        told.sort_unstable();
        println!("{name}: {} ns a hit, {} to {}", told[2], told[0], told[4]);
    }
    assert_eq!(origin.request_count(), 2);
}
