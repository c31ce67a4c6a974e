//! Ranges of objects of which only parts are stored, through the real proxy.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::time::Duration;

use hashcache_testkit::content::{self, Content};
use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::range_storm::{Storm, Tag, play};
use hashcache_testkit::{
    BodyEnd, Client, ContentOptions, ContentOrigin, Gate, Origin, RawRequest, Response, Script,
    Sizes,
};
use tokio::io::AsyncReadExt as _;

use crate::Home;
use crate::proxy_process::Proxy;

const PAGE: u64 = 64 << 10;

fn start(home: &Home) -> Proxy {
    Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts")
}

async fn storm(tag: Tag) {
    let home = Home::new();
    // The proxy keeps no part for which memory has no room, and a disk that stands still for a
    // second keeps all 61 MB of the pages in memory.
    let flags = ["--memory=256MiB"];
    let proxy = Proxy::start(&home.path().join("cache"), &flags).expect("the proxy starts");
    let verdict: Verdict = play(Storm {
        proxy: proxy.address(),
        clients: 10,
        ranges: 20,
        object_bytes: 64 << 20,
        range_bytes: 1 << 20,
        tag,
    })
    .await;
    assert!(verdict.is_well(), "{verdict}");
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_page_that_many_clients_ask_for_is_fetched_once() {
    storm(Tag::Strong).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_of_two_versions_when_the_object_changes_in_between() {
    storm(Tag::Changing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_with_a_weak_tag_are_never_put_together() {
    storm(Tag::Weak).await;
}

pub async fn ranged(proxy: &Proxy, url: &str, range: &str) -> Response {
    let mut client = Client::connect(proxy.address())
        .await
        .expect("the proxy answers");
    client
        .get(url, &[("Range", range)])
        .await
        .expect("the proxy answers")
}

/// Waits until the store has the object, which may be later than the response.
pub async fn until_stored(proxy: &Proxy, url: &str, range: &str) {
    let mut client = Client::connect(proxy.address())
        .await
        .expect("the proxy answers");
    let fields = [("Range", range), ("Cache-Control", "only-if-cached")];
    let stored = async {
        loop {
            let response = client.get(url, &fields).await.expect("the proxy answers");
            if response.status != 504 {
                return response.status;
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(60), stored).await;
    assert_eq!(status.expect("the range is stored within a minute"), 206);
}

pub fn assert_part(response: &Response, content: &Content, first: u64, last: u64) {
    assert_eq!((response.status, response.end), (206, BodyEnd::Complete));
    let told = format!("bytes {first}-{last}/{}", content.length());
    assert_eq!(response.field("content-range"), Some(&told[..]));
    assert_eq!(response.body.len() as u64, last - first + 1);
    assert_eq!(content::verify(content, first, &response.body), Ok(()));
    assert_eq!(response.complaints, [""; 0]);
}

async fn origin_of(bytes: u64) -> ContentOrigin {
    let options = ContentOptions {
        sizes: Sizes::Fixed(bytes),
        ..ContentOptions::default()
    };
    ContentOrigin::start(options).await.expect("a free port")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_rounded_out_to_pages_and_then_answered_from_the_store() {
    let (home, origin) = (Home::new(), origin_of(1_000_000).await);
    let proxy = start(&home);
    let (url, content) = (origin.url("/x"), origin.content("/x"));
    let first = ranged(&proxy, &url, "bytes=70000-150000").await;
    assert_part(&first, &content, 70_000, 150_000);
    assert_eq!(origin.counts().body_bytes, 2 * PAGE);
    until_stored(&proxy, &url, "bytes=70000-150000").await;
    // Pages that are stored cost no request to the origin, whichever range contains them.
    let second = ranged(&proxy, &url, "bytes=65536-196607").await;
    assert_part(&second, &content, 65_536, 196_607);
    assert_eq!(origin.counts().requests, 1);
    let status = second.field("cache-status").unwrap();
    assert!(status.starts_with("hashcache; hit"), "{status}");
    // The last bytes, of a page that is not whole.
    let last = ranged(&proxy, &url, "bytes=-10").await;
    assert_part(&last, &content, 999_990, 999_999);
    let status = last.field("cache-status").unwrap();
    assert!(status.starts_with("hashcache; fwd=partial"), "{status}");
    // The whole object: only the missing pages are fetched.
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let whole = client.get(&url, &[]).await.unwrap();
    assert_eq!((whole.status, whole.end), (200, BodyEnd::Complete));
    assert!(whole.body == content.bytes());
    assert_eq!(origin.counts().body_bytes, 1_000_000);
    let again = client.get(&url, &[]).await.unwrap();
    assert!(again.body == content.bytes());
    assert_eq!(origin.counts().body_bytes, 1_000_000);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_ranges_of_what_is_partly_stored_come_as_parts_of_one_answer() {
    let (home, origin) = (Home::new(), origin_of(1_000_000).await);
    let proxy = start(&home);
    let (url, content) = (origin.url("/x"), origin.content("/x"));
    let response = ranged(&proxy, &url, "bytes=10-19,500000-500009").await;
    assert_eq!((response.status, response.end), (206, BodyEnd::Complete));
    let kind = response.field("content-type").unwrap();
    let boundary = kind
        .strip_prefix("multipart/byteranges; boundary=")
        .unwrap();
    let mut expected = Vec::new();
    for (first, last) in [(10, 19), (500_000, 500_009)] {
        let head = format!(
            "--{boundary}\r\nContent-Type: application/octet-stream\r\n\
             Content-Range: bytes {first}-{last}/1000000\r\n\r\n"
        );
        expected.extend_from_slice(head.as_bytes());
        let mut part = [0; 10];
        content.fill(first, &mut part);
        expected.extend_from_slice(&part);
        expected.extend_from_slice(b"\r\n");
    }
    expected.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    assert_eq!(response.body, expected);
    assert_eq!(origin.counts().body_bytes, 2 * PAGE);
    proxy.kill_well();
}

/// An origin of one object that changes from the `changes`th request on.
async fn changing(changes: usize) -> Origin {
    let versions = [1, 2].map(|version| content::body_for(1, "/c", version, 10 * PAGE).bytes());
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = Origin::start(move |request: &RawRequest| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let version = usize::from(number >= changes);
        let (bytes, tag) = (&versions[version], ["\"1\"", "\"2\""][version]);
        let fields = [("ETag", tag), ("Cache-Control", "max-age=60")];
        let range = request.field("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let last = last.parse().map_or(bytes.len() - 1, |last: usize| last);
            Some((first.parse::<usize>().ok()?, last.min(bytes.len() - 1)))
        });
        let holds = request.field("if-range").is_none_or(|value| value == tag);
        match range.filter(|_| holds) {
            Some((first, last)) => {
                let told = format!("bytes {first}-{last}/{}", bytes.len());
                let fields = [&fields[..], &[("Content-Range", &told)]].concat();
                Script::response(206, &fields, &bytes[first..=last])
            }
            None => Script::response(200, &fields, bytes),
        }
    });
    origin.await.expect("a free port")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_a_version_that_is_over_is_answered_from_the_new_one() {
    let (home, origin) = (Home::new(), changing(1).await);
    let proxy = start(&home);
    let url = origin.url("/c");
    let [old, new] = [1, 2].map(|version| content::body_for(1, "/c", version, 10 * PAGE));
    let first = ranged(&proxy, &url, "bytes=0-99").await;
    assert_part(&first, &old, 0, 99);
    until_stored(&proxy, &url, "bytes=0-99").await;
    // The first page is stored, the second is not: both must be of one version.
    let both = ranged(&proxy, &url, "bytes=60000-70000").await;
    assert_part(&both, &new, 60_000, 70_000);
    assert_eq!(both.field("etag"), Some("\"2\""));
    let again = ranged(&proxy, &url, "bytes=0-99").await;
    assert_part(&again, &new, 0, 99);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_version_ends_in_its_midst_breaks_off() {
    let mut received = 0;
    for _ in 0..5 {
        received = received_of_a_version_that_ends().await;
        assert!(received <= 5 * PAGE, "{received}");
        // The proxy resets the connection, and a reset that arrives while the client has yet to
        // read takes away what was sent before it.
        if received == 5 * PAGE {
            return;
        }
    }
    panic!("{received} bytes arrived, not {}", 5 * PAGE);
}

/// How much a client gets of an object of which pages 0 and 4 are stored, and which changes after
/// pages 1 to 3 were fetched.
async fn received_of_a_version_that_ends() -> u64 {
    let (home, origin) = (Home::new(), changing(3).await);
    let proxy = start(&home);
    let url = origin.url("/c");
    let old = content::body_for(1, "/c", 1, 10 * PAGE);
    for range in ["bytes=0-99", "bytes=262144-262243"] {
        assert_eq!(ranged(&proxy, &url, range).await.status, 206);
        until_stored(&proxy, &url, range).await;
    }
    // The client still receives pages 1 to 3; the pages after 4 never arrive.
    let client = Client::connect(proxy.address()).await;
    let mut client = client.expect("the proxy accepts");
    let Ok(whole) = client.get(&url, &[]).await else {
        // The reset has taken away even the head.
        return 0;
    };
    assert_eq!((whole.status, whole.field("etag")), (200, Some("\"1\"")));
    assert_eq!(whole.end, BodyEnd::Truncated);
    assert_eq!(content::verify(&old, 0, &whole.body), Ok(()));
    // The first failed request has shown that the version has changed; the proxy does not ask
    // again.
    assert_eq!(origin.request_count(), 4);
    proxy.kill_well();
    whole.body.len() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_was_given_up_is_taken_up_where_it_ended() {
    let (home, origin) = (Home::new(), origin_of(30_000_000).await);
    // Enough memory for the whole object: a disk that is slow for a second is not the subject.
    let flags = ["--memory=256MiB"];
    let proxy = Proxy::start(&home.path().join("cache"), &flags).expect("the proxy starts");
    let (url, content) = (origin.url("/x"), origin.content("/x"));
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let request = format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n");
    client.send(request.as_bytes()).await.unwrap();
    let mut socket = client.into_socket();
    let mut some = vec![0; 10_000_000];
    socket.read_exact(&mut some).await.unwrap();
    drop(socket);
    // A range request that arrives before the proxy has seen the end of the first one begins a
    // version of its own, and the first part is lost: that race is not the subject.
    until_stored(&proxy, &url, "bytes=0-99").await;
    // `body_bytes` counts what the origin meant to send, so the test looks at the requested range.
    let before = origin.counts().body_bytes;
    let rest = ranged(&proxy, &url, "bytes=9000000-").await;
    assert_part(&rest, &content, 9_000_000, 29_999_999);
    let fetched = origin.counts().body_bytes - before;
    assert!(fetched <= 21_000_000 + 5 * PAGE, "{fetched}");
    let stored = ranged(&proxy, &url, "bytes=0-29999999").await;
    assert_part(&stored, &content, 0, 29_999_999);
    assert_eq!(origin.counts().body_bytes - before, fetched);
    proxy.kill_well();
}

/// An origin that answers the first request with a part and all later ones with the whole.
async fn forgetful(bytes: u64) -> Origin {
    let bytes = content::body_for(1, "/f", 1, bytes).bytes();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = Origin::start(move |_: &RawRequest| {
        let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=60")];
        if count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            return Script::response(200, &fields, &bytes);
        }
        let told = format!("bytes 0-65535/{}", bytes.len());
        let fields = [&fields[..], &[("Content-Range", &told)]].concat();
        Script::response(206, &fields, &bytes[..65_536])
    });
    origin.await.expect("a free port")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_ignores_ranges_keeps_its_version_and_is_soon_asked_for_all() {
    let (home, origin) = (Home::new(), forgetful(10 * PAGE).await);
    let proxy = start(&home);
    let url = origin.url("/f");
    let content = content::body_for(1, "/f", 1, 10 * PAGE);
    let first = ranged(&proxy, &url, "bytes=0-99").await;
    assert_part(&first, &content, 0, 99);
    until_stored(&proxy, &url, "bytes=0-99").await;
    // The range is cut out of a response with the whole object.
    let second = ranged(&proxy, &url, "bytes=100000-100099").await;
    assert_part(&second, &content, 100_000, 100_099);
    let before = ranged(&proxy, &url, "bytes=0-99").await;
    assert_part(&before, &content, 0, 99);
    assert_eq!(origin.request_count(), 2, "what was stored has gone");
    // Once that is known, the missing part is fetched with one request for the whole object.
    for first in [600_000, 400_000, 200_000] {
        let range = format!("bytes={first}-{}", first + 99);
        let part = ranged(&proxy, &url, &range).await;
        assert_part(&part, &content, first, first + 99);
        until_stored(&proxy, &url, &range).await;
    }
    assert_eq!(origin.request_count(), 3);
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let whole = client.get(&url, &[]).await.unwrap();
    assert!(whole.body == content.bytes());
    assert_eq!(origin.request_count(), 3);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_part_is_kept_of_an_object_for_which_the_origin_ignored_a_range() {
    // A client that leaves late would not stop the fetch: too little would be missing.
    let (home, content) = (Home::new(), content::body_for(1, "/g", 1, 64 * PAGE));
    let (bytes, gates) = (content.bytes(), [(); 20].map(|()| Gate::new()));
    let held = gates.clone();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = Origin::start(move |_: &RawRequest| {
        let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=60")];
        let length = bytes.len().to_string();
        match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            // In reply to a range, and without a length.
            0 => {
                let fields = [&fields[..], &[("Transfer-Encoding", "chunked")]].concat();
                let script = Script::new().head(200, &fields);
                script.chunk(&bytes).chunk("")
            }
            1 => {
                let fields = [&fields[..], &[("Content-Length", &*length)]].concat();
                let script = Script::new().head(200, &fields);
                let (half, rest) = bytes.split_at(bytes.len() / 2);
                let pieces = held.iter().zip(rest.chunks(1_000));
                pieces.fold(script.bytes(half), |script, (gate, piece)| {
                    script.wait(gate).bytes(piece)
                })
            }
            _ => Script::response(200, &fields, &bytes),
        }
    });
    let origin = origin.await.expect("a free port");
    let proxy = start(&home);
    let url = origin.url("/g");
    let first = ranged(&proxy, &url, "bytes=0-99").await;
    assert!(first.status == 200 && first.body == content.bytes());
    let mut client = Client::connect(proxy.address()).await.unwrap();
    until_stored(&proxy, &url, "bytes=0-99").await;
    client.request("PURGE", &url, &[]).await.unwrap();
    assert_eq!(client.read_response("PURGE").await.unwrap().status, 200);
    client.request("GET", &url, &[]).await.unwrap();
    let mut socket = client.into_socket();
    let mut half = [0; 4 << 16];
    socket.read_exact(&mut half).await.unwrap();
    drop(socket);
    // A fetch without a reader stops at the next bytes. A request before that is a reader, so it
    // gives up, and the next bytes may stop the fetch.
    let mut whole = None;
    for gate in &gates {
        tokio::time::sleep(Duration::from_millis(200)).await;
        gate.open();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut client = Client::connect(proxy.address()).await.unwrap();
        let asked = client.get(&url, &[]);
        if let Ok(answer) = tokio::time::timeout(Duration::from_secs(2), asked).await {
            whole = Some(answer.unwrap());
            break;
        }
    }
    let whole = whole.expect("the fetch stops");
    assert!(whole.body == content.bytes());
    let requests = origin.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[2].field("range"), None, "a part was kept");
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_newer_freshens_what_is_stored() {
    let (home, content) = (Home::new(), content::body_for(1, "/d", 1, 10 * PAGE));
    let bytes = content.bytes();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = Origin::start(move |_: &RawRequest| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let first = number * 65_536;
        let told = format!("bytes {first}-{}/{}", first + 65_535, bytes.len());
        let (day, number) = (6 + number, number.to_string());
        let date = format!("{}, 0{day} Nov 1994 08:49:37 GMT", ["Sun", "Mon"][day - 6]);
        let fields = [
            ("ETag", "\"1\""),
            ("Date", &*date),
            ("Cache-Control", "max-age=2147483648"),
            ("X-Number", &number),
            ("Content-Range", &told),
        ];
        Script::response(206, &fields, &bytes[first..first + 65_536])
    });
    let origin = origin.await.expect("a free port");
    let proxy = start(&home);
    let url = origin.url("/d");
    for (range, first) in [("bytes=0-99", 0), ("bytes=70000-70099", 70_000)] {
        let part = ranged(&proxy, &url, range).await;
        assert_part(&part, &content, first, first + 99);
        until_stored(&proxy, &url, range).await;
    }
    let again = ranged(&proxy, &url, "bytes=0-99").await;
    assert_part(&again, &content, 0, 99);
    assert_eq!(again.field("x-number"), Some("1"));
    assert_eq!(again.field("date"), Some("Mon, 07 Nov 1994 08:49:37 GMT"));
    assert_eq!(origin.request_count(), 2);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_what_fits_into_a_page_has_all_of_it_fetched_by_one_request() {
    let (home, origin) = (Home::new(), origin_of(10_000).await);
    let proxy = start(&home);
    let (url, content) = (origin.url("/x"), origin.content("/x"));
    let first = ranged(&proxy, &url, "bytes=100-199").await;
    assert_part(&first, &content, 100, 199);
    assert_eq!(origin.counts().requests, 1);
    until_stored(&proxy, &url, "bytes=100-199").await;
    let second = ranged(&proxy, &url, "bytes=-10").await;
    assert_part(&second, &content, 9_990, 9_999);
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let whole = client.get(&url, &[]).await.unwrap();
    assert!(whole.body == content.bytes());
    assert_eq!(origin.counts().requests, 1);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joined_the_fetch_of_a_part_gets_what_it_brings_and_no_byte_of_another_version() {
    let (home, rest) = (Home::new(), Gate::new());
    let versions = [1, 2].map(|version| content::body_for(1, "/c", version, 10 * PAGE).bytes());
    let count = std::sync::atomic::AtomicUsize::new(0);
    let held = rest.clone();
    let origin = Origin::start(move |_: &RawRequest| {
        let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=60")];
        if count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            let fields = [("ETag", "\"2\""), fields[1]];
            return Script::response(200, &fields, &versions[1]);
        }
        let told = format!("bytes 0-65535/{}", versions[0].len());
        let length = ("Content-Length", "65536");
        let fields = [&fields[..], &[("Content-Range", &told), length]].concat();
        let (begun, rest) = versions[0][..65_536].split_at(65_000);
        let script = Script::new().head(206, &fields).bytes(begun);
        script.wait(&held).bytes(rest)
    });
    let origin = origin.await.expect("a free port");
    let proxy = start(&home);
    let url = origin.url("/c");
    let old = content::body_for(1, "/c", 1, 10 * PAGE);
    let first = ranged(&proxy, &url, "bytes=0-99").await;
    assert_part(&first, &old, 0, 99);
    // The first page is not fetched completely yet. It belongs to the old version, which cannot be
    // completed any more.
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let request = format!("GET {url} HTTP/1.1\r\nHost: x\r\nRange: bytes=60000-70000\r\n\r\n");
    client.send(request.as_bytes()).await.unwrap();
    let (mut socket, mut got) = (client.into_socket(), Vec::new());
    while !got.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(socket.read_buf(&mut got).await.unwrap(), 0);
    }
    rest.open();
    // The connection ends with or without a reset; in both cases before all announced bytes.
    let _ = socket.read_to_end(&mut got).await;
    let end = got.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
    let (head, body) = (String::from_utf8_lossy(&got[..end]), &got[end + 4..]);
    assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
    assert!(head.contains("\"1\""), "{head}");
    assert!(body.len() as u64 <= PAGE - 60_000, "{}", body.len());
    assert_eq!(content::verify(&old, 60_000, body), Ok(()));
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_damaged_on_disk_is_fetched_again_within_the_answer() {
    let (home, origin) = (Home::new(), origin_of(1_000_000).await);
    let (url, content) = (origin.url("/x"), origin.content("/x"));
    let proxy = start(&home);
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let whole = client.get(&url, &[]).await.unwrap();
    assert!(whole.body == content.bytes());
    drop(client);
    proxy.end_well();

    let mut cache = std::fs::File::options()
        .read(true)
        .write(true)
        .open(home.path().join("cache"))
        .unwrap();
    // The log is new, so the record is near its beginning.
    let mut front = vec![0; 48 << 20];
    cache.read_exact(&mut front).unwrap();
    let mut middle = [0; 64];
    content.fill(500_000, &mut middle);
    let at = front.windows(64).position(|window| window == middle);
    let at = at.expect("it was stored");
    cache.seek(SeekFrom::Start(at as u64)).unwrap();
    cache.write_all(&[!front[at]]).unwrap();
    drop(cache);

    let proxy = start(&home);
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let mended = client.get(&url, &[]).await.unwrap();
    assert_eq!((mended.status, mended.end), (200, BodyEnd::Complete));
    assert!(mended.body == content.bytes());
    let brought = origin.counts().body_bytes - 1_000_000;
    assert!((1..=4 * PAGE).contains(&brought), "{brought}");
    proxy.kill_well();
}
