//! Tests of page groups: requests of browsers, programs and crawlers, by their fields.

use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE, REFERER};

use super::*;

const CLIENT: &str = "192.0.2.1";

struct Browser {
    page_groups: PageGroups,
    start: Instant,
}

impl Browser {
    fn new() -> Self {
        Self {
            page_groups: PageGroups::new(Some(GroupBy::Page), None),
            start: Instant::now(),
        }
    }

    fn group(&self, client: &str, url: &str, referer: &str, kind: &str, at_ms: u64) -> u64 {
        let accept = if kind.starts_with("text/html") {
            ("accept", "text/html,*/*;q=0.8")
        } else {
            ("accept", "*/*")
        };
        self.get(client, (url, referer), accept, kind, at_ms)
    }

    /// As above, with any request field.
    fn get(
        &self,
        client: &str,
        urls: (&str, &str),
        field: (&'static str, &'static str),
        kind: &str,
        at_ms: u64,
    ) -> u64 {
        self.get_slowly(client, urls, field, kind, (at_ms, at_ms))
    }

    /// As above, with a response that arrives later than the request.
    fn get_slowly(
        &self,
        client: &str,
        (url, referer): (&str, &str),
        field: (&'static str, &'static str),
        kind: &str,
        (asked_ms, answered_ms): (u64, u64),
    ) -> u64 {
        let mut fields = HeaderMap::new();
        fields.insert(field.0, HeaderValue::from_static(field.1));
        if !referer.is_empty() {
            fields.insert(REFERER, HeaderValue::from_str(referer).unwrap());
        }
        let mut response = HeaderMap::new();
        response.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
        let request = PageRequest {
            client: client.parse().unwrap(),
            target: &Target::parse_url(url).unwrap(),
            fields: &fields,
        };
        let at = |ms| self.start + Duration::from_millis(ms);
        let noted = self
            .page_groups
            .note_request(&Method::GET, &request, at(asked_ms));
        self.page_groups
            .group(&request, noted, &response, at(answered_ms))
    }
}

#[test]
fn a_page_and_what_names_it_are_one_group_and_other_pages_others() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p?x", "", "text/html; charset=utf-8", 0);
    let image = browser.group(
        CLIENT,
        "http://a/i.png",
        "http://a/p?x#top",
        "image/png",
        9_000,
    );
    let style = browser.group(CLIENT, "http://b/s.css", "http://a/p?x", "text/css", 9_000);
    assert!(page != 0 && image == page && style == page);
    assert_ne!(
        browser.group(CLIENT, "http://a/j", "http://a/q", "image/png", 0),
        page
    );
    // Following a link loads another page, not a part of this one.
    assert_ne!(
        browser.group(CLIENT, "http://a/q", "http://a/p?x", "text/html", 30_000),
        page
    );
}

#[test]
fn what_is_asked_for_without_a_page_is_one_whatever_its_type() {
    let browser = Browser::new();
    let data = browser.group(CLIENT, "http://a/d", "", "application/octet-stream", 0);
    let image = browser.group(CLIENT, "http://a/i", "http://a/d", "image/png", 0);
    assert!(data != 0 && image == data);
    // It does not become the page of objects at other origins.
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    browser.group(CLIENT, "http://a/e", "", "application/octet-stream", 0);
    let cross = browser.group(CLIENT, "http://cdn/i", "http://a/", "image/png", 100);
    assert_eq!(cross, page);
}

#[test]
fn a_request_whose_referer_names_no_page_has_no_group() {
    let browser = Browser::new();
    for referer in ["nonsense", "about:blank", "wais://h/x"] {
        assert_eq!(
            browser.group(CLIENT, "http://a/i", referer, "image/png", 0),
            0
        );
    }
}

#[test]
fn another_origin_joins_the_latest_page_for_two_seconds() {
    let browser = Browser::new();
    let cross = |at| browser.group(CLIENT, "http://cdn/i", "http://a/", "image/png", at);
    assert_eq!(cross(0), 0);
    browser.group(CLIENT, "http://a/one", "", "text/html", 0);
    let two = browser.group(CLIENT, "http://a/two", "", "text/html", 100);
    assert_eq!(cross(2_000), two);
    // Each of its objects keeps the page open.
    assert_eq!(cross(3_900), two);
    assert_eq!(cross(5_900), 0);
}

#[test]
fn the_front_page_of_an_origin_is_a_page() {
    let browser = Browser::new();
    let front = browser.group(CLIENT, "http://a/", "", "text/html", 0);
    browser.group(CLIENT, "http://a/other", "", "text/html", 100);
    let image = browser.group(CLIENT, "http://a/i", "http://a/", "image/png", 9_000);
    assert_eq!(image, front);
}

#[test]
fn an_icon_and_a_part_without_referer_belong_to_the_open_page_of_their_origin() {
    let browser = Browser::new();
    let icon = |url, at_ms| {
        let chrome = ("accept", "text/html,*/*;q=0.8");
        browser.get(CLIENT, (url, ""), chrome, "image/x-icon", at_ms)
    };
    assert_eq!(icon("http://a/favicon.ico", 0), 0);
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    assert_eq!(icon("http://a/icons/favicon.ico?v=2", 500), page);
    assert_eq!(icon("http://b/favicon.ico", 500), 0);
    let part = |url, at_ms| {
        let field = ("sec-fetch-dest", "image");
        browser.get(CLIENT, (url, ""), field, "image/png", at_ms)
    };
    assert_eq!(part("http://a/i.png", 1_000), page);
    assert_eq!(part("http://b/i.png", 1_000), 0);
    // The page is closed.
    assert_eq!(icon("http://a/favicon.ico", 3_500), 0);
    assert_eq!(part("http://a/i.png", 3_500), 0);
    let other = browser.group("192.0.2.2", "http://a/favicon.ico", "", "image/x-icon", 600);
    assert_eq!(other, 0);
}

#[test]
fn clients_do_not_share_pages() {
    let browser = Browser::new();
    let one = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let other = browser.group("192.0.2.2", "http://a/p", "", "text/html", 0);
    assert_ne!(one, other);
    let cross = browser.group("192.0.2.2", "http://cdn/i", "http://a/", "image/png", 10);
    assert_eq!(cross, other);
}

#[test]
fn a_page_that_is_stored_is_noted_when_it_is_asked_for() {
    let browser = Browser::new();
    let mut fields = HeaderMap::new();
    fields.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.8"));
    let request = PageRequest {
        client: CLIENT.parse().unwrap(),
        target: &Target::parse_url("http://a/p").unwrap(),
        fields: &fields,
    };
    let page_groups = &browser.page_groups;
    page_groups.note_request(&Method::GET, &request, browser.start);
    let page = browser.group(CLIENT, "http://a/i", "http://a/p", "image/png", 5_000);
    let cross = browser.group(CLIENT, "http://cdn/i", "http://a/", "image/png", 1_000);
    assert!(page != 0 && cross == page);
}

#[test]
fn a_fragment_that_a_page_loads_is_a_part_of_it() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let mut fields = HeaderMap::new();
    fields.insert(REFERER, HeaderValue::from_static("http://a/p"));
    let mut response = HeaderMap::new();
    response.insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
    let request = PageRequest {
        client: CLIENT.parse().unwrap(),
        target: &Target::parse_url("http://a/fragment").unwrap(),
        fields: &fields,
    };
    assert_eq!(
        browser
            .page_groups
            .group(&request, None, &response, browser.start),
        page
    );
}

#[test]
fn what_a_browser_calls_a_part_is_no_page_whatever_its_type() {
    let mut fields = HeaderMap::new();
    fields.insert("sec-fetch-dest", HeaderValue::from_static("empty"));
    assert_eq!(wants_page(&fields), Some(false));
    fields.insert("sec-fetch-dest", HeaderValue::from_static("iframe"));
    assert_eq!(wants_page(&fields), Some(true));
}

#[test]
fn by_origin_a_server_is_a_group_whoever_asks_for_whatever() {
    let browser = Browser {
        page_groups: PageGroups::new(Some(GroupBy::Origin), None),
        start: Instant::now(),
    };
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let image = browser.group("192.0.2.2", "http://a/i", "http://b/", "image/png", 9_000);
    let other = browser.group(CLIENT, "http://a:8080/p", "", "text/html", 0);
    assert!(page != 0 && image == page && other != 0);
    assert_ne!(other, page);
}

#[test]
fn a_site_goes_by_one_name() {
    let page_groups = PageGroups::new(
        Some(GroupBy::Page),
        Some("http://127.0.0.1:8080".parse().unwrap()),
    );
    let fields = PageFields {
        destination: None,
        accept: None,
        referer: Some(b"https://www.example.org/p"),
    };
    let target = |path| Target::parse_url(&format!("http://127.0.0.1:8080{path}")).unwrap();
    let (page, image) = (target("/p"), target("/i"));
    let client = CLIENT.parse().unwrap();
    let referred = page_groups.referred((client, &image), &fields).unwrap();
    assert_eq!(referred.key, page_groups.key((client, &page)));
}

#[test]
fn what_a_style_sheet_or_a_script_names_belongs_to_the_page_as_long_as_the_page_is_open() {
    for (field, kind) in [
        (("accept", "*/*"), "text/css"),
        (("accept", "*/*"), "application/x-javascript; charset=utf-8"),
        (("accept", "text/css,*/*;q=0.1"), "application/octet-stream"),
        (("sec-fetch-dest", "script"), "text/plain"),
    ] {
        let browser = Browser::new();
        let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
        let (first, second) = ("http://cdn/1", "http://cdn/2");
        let groups = [
            browser.get(CLIENT, (first, "http://a/p"), field, kind, 100),
            browser.get(CLIENT, (second, first), field, kind, 200),
            // Each request for a part keeps the page open.
            browser.group(CLIENT, "http://a/i", "http://a/p", "image/png", 2_000),
            browser.group(CLIENT, "http://cdn/font", second, "font/woff", 3_900),
        ];
        assert_eq!(groups, [page; 4], "{field:?} {kind}");
        let late = browser.group(CLIENT, "http://cdn/late", second, "font/woff", 5_900);
        assert!(late != 0 && late != page);
        // A note about the earlier visit does not hold for a later visit.
        browser.group(CLIENT, "http://a/p", "", "text/html", 20_000);
        let font = browser.group(CLIENT, "http://cdn/font", second, "font/woff", 20_100);
        assert_eq!(font, late);
    }
}

#[test]
fn images_do_not_stand_for_their_page() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    browser.group(CLIENT, "http://a/i", "http://a/p", "image/png", 0);
    let other = browser.group(CLIENT, "http://a/j", "http://a/i", "image/png", 0);
    assert_ne!(other, page);
}

#[test]
fn a_frame_belongs_to_the_page_around_it_whenever_a_browser_calls_it_a_frame() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let (frame, inner) = ("http://ads/frame", "http://ads/inner");
    let dest = ("sec-fetch-dest", "iframe");
    let get = |urls, at| browser.get(CLIENT, urls, dest, "text/html", at);
    assert_eq!(get((frame, "http://a/p"), 30_000), page);
    assert_eq!(get((inner, frame), 31_000), page);
    let image = |at| browser.group(CLIENT, "http://ads/i", inner, "image/png", at);
    assert_eq!(image(32_000), page);
    // Objects of other origins name only the origin of the frame.
    let cross = browser.group(CLIENT, "http://cdn/i", "http://ads/", "image/png", 33_000);
    assert_eq!(cross, page);
    // So does a frame of another origin.
    let b = browser.group(CLIENT, "http://b/", "", "text/html", 40_000);
    assert_eq!(get((frame, "http://b/"), 40_100), b);
    assert_eq!(
        get((frame, "http://unknown/"), 40_200),
        get((frame, ""), 40_300)
    );
    // A document that names it is another page.
    let document = ("sec-fetch-dest", "document");
    let next = ("http://a/q", "http://b/");
    let next = browser.get(CLIENT, next, document, "text/html", 40_400);
    assert_ne!(next, b);
}

#[test]
fn without_sec_fetch_dest_html_that_names_a_page_is_a_frame_for_ten_seconds() {
    let browser = Browser::new();
    let get = |url, referer, at| browser.group(CLIENT, url, referer, "text/html", at);
    let image = |referer, at| browser.group(CLIENT, "http://a/i", referer, "image/png", at);
    let page = get("http://a/p", "", 0);
    assert_eq!(get("http://ads/1", "http://a/p", 1_900), page);
    assert_eq!(image("http://ads/1", 3_000), page);
    for at in [4_500, 6_000, 7_500, 9_000] {
        image("http://a/p", at);
    }
    assert_eq!(get("http://ads/2", "http://ads/1", 9_900), page);
    // The page is open, but it was opened too long ago.
    let next = get("http://a/q", "http://a/p", 10_000);
    assert_ne!(next, page);
    assert_eq!(image("http://a/q", 10_100), next);
    // No part of it was requested for two seconds.
    assert_ne!(get("http://a/r", "http://a/q", 12_100), next);
    // Only its parts were requested.
    let parts = image("http://a/s", 20_000);
    assert_ne!(get("http://a/t", "http://a/s", 20_100), parts);
}

#[test]
fn a_part_that_is_visited_later_is_a_page() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let frame = |referer, at| browser.group(CLIENT, "http://b/f", referer, "text/html", at);
    assert_eq!(frame("http://a/p", 100), page);
    let visited = frame("", 1_000);
    assert_ne!(visited, page);
    let image = browser.group(CLIENT, "http://b/i", "http://b/f", "image/png", 1_100);
    assert_eq!(image, visited);
}

#[test]
fn a_crawler_does_not_put_pages_into_one_group_for_ever() {
    // With the Accept of browsers, and with one that does not tell pages from parts.
    for accept in ["text/html,*/*;q=0.8", "*/*"] {
        let browser = Browser::new();
        let url = |n: u64| format!("http://a/{n}");
        let get = |n, referer: &str, at| {
            let field = ("accept", accept);
            browser.get(CLIENT, (&url(n), referer), field, "text/html", at)
        };
        let first = get(0, "", 0);
        let mut last_of_first = 0;
        for n in 1..200 {
            let at = n * 500;
            if get(n, &url(n - 1), at) == first {
                last_of_first = at;
            }
            // The front page is asked for again and again.
            get(0, "", at);
        }
        assert!((9_500..=10_000).contains(&last_of_first), "{last_of_first}");
    }
}

#[test]
fn a_frame_that_memory_has_stands_for_its_page() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let frame = Target::parse_url("http://ads/frame").unwrap();
    let fields = PageFields {
        destination: None,
        accept: Some(b"text/html,*/*;q=0.8"),
        referer: Some(b"http://a/p"),
    };
    let place = (CLIENT.parse().unwrap(), &frame);
    let page_groups = &browser.page_groups;
    let noted = page_groups.note_plain_request(place, &fields, browser.start);
    assert_eq!(noted.unwrap().group, page);
    let image = browser.group(CLIENT, "http://ads/i", "http://ads/frame", "image/png", 100);
    assert_eq!(image, page);
}

#[test]
fn a_part_of_one_clients_page_is_none_for_another_client() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    browser.group(CLIENT, "http://a/s", "http://a/p", "text/css", 0);
    browser.group(CLIENT, "http://b/f", "http://a/p", "text/html", 0);
    for part in ["http://a/s", "http://b/f"] {
        let own = browser.group(CLIENT, "http://a/i", part, "image/png", 100);
        let other = browser.group("192.0.2.2", "http://a/i", part, "image/png", 100);
        assert_eq!(own, page);
        assert!(other != 0 && other != page);
    }
}

#[test]
fn a_style_sheet_that_memory_has_stands_for_its_page() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let style = Target::parse_url("http://cdn/s.css").unwrap();
    for (destination, accept) in [
        (None, Some(&b"text/css,*/*;q=0.1"[..])),
        (Some(&b"style"[..]), None),
    ] {
        let fields = PageFields {
            destination,
            accept,
            referer: Some(b"http://a/p"),
        };
        let place = (CLIENT.parse().unwrap(), &style);
        let noted = browser
            .page_groups
            .note_plain_request(place, &fields, browser.start);
        assert_eq!(noted.unwrap().group, page);
        let font = browser.group(CLIENT, "http://cdn/f", "http://cdn/s.css", "font/woff", 100);
        assert_eq!(font, page);
    }
}

#[test]
fn what_names_only_the_origin_of_a_style_sheet_joins_the_latest_page_with_one_from_there() {
    let browser = Browser::new();
    let page = |url, at| browser.group(CLIENT, url, "", "text/html", at);
    let style = |url, referer, at| browser.group(CLIENT, url, referer, "text/css", at);
    let font = |at| browser.group(CLIENT, "http://fonts/f", "http://cdn/", "font/woff", at);
    assert_eq!(font(0), 0);
    let a = page("http://a/p", 0);
    assert_eq!(style("http://cdn/a.css", "http://a/", 100), a);
    assert_eq!(font(200), a);
    // A font of the same origin as the style sheet changes nothing.
    let own = browser.group(CLIENT, "http://cdn/f", "http://cdn/a.css", "font/woff", 300);
    assert_eq!(own, a);
    let b = page("http://b/p", 400);
    assert_eq!(style("http://cdn/b.css", "http://b/p", 500), b);
    assert_eq!(font(600), b);
    // An open page of the origin itself counts first.
    let cdn = page("http://cdn/", 700);
    assert_eq!(style("http://cdn/a.css", "http://a/", 800), a);
    assert_eq!(font(900), cdn);
    style("http://cdn/b.css", "http://b/p", 2_000);
    assert_eq!(font(2_800), cdn);
    // It is closed; the page of the style sheet is open.
    style("http://cdn/b.css", "http://b/p", 3_900);
    assert_eq!(style("http://cdn/b.css", "http://b/p", 5_000), b);
    assert_eq!(font(5_100), b);
    assert_eq!(font(7_200), 0);
}

#[test]
fn what_a_request_is_for_is_decided_once_however_late_its_response_is() {
    for (field, kind) in [
        (("accept", "text/html,*/*;q=0.8"), "text/html"),
        (("sec-fetch-dest", "iframe"), "text/html"),
        (("accept", "text/css,*/*;q=0.1"), "text/css"),
    ] {
        let browser = Browser::new();
        let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
        let part = "http://ads/part";
        let urls = (part, "http://a/p");
        let group = browser.get_slowly(CLIENT, urls, field, kind, (100, 5_000));
        assert_eq!(group, page, "{field:?}");
        // The page is open again, and the part stands for it.
        let image = browser.group(CLIENT, "http://ads/i", part, "image/png", 5_100);
        assert_eq!(image, page, "{field:?}");
    }
}

#[test]
fn only_requests_that_get_something_are_for_pages() {
    let browser = Browser::new();
    let mut fields = HeaderMap::new();
    fields.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.8"));
    let request = PageRequest {
        client: CLIENT.parse().unwrap(),
        target: &Target::parse_url("http://a/p").unwrap(),
        fields: &fields,
    };
    let note = |method| {
        let page_groups = &browser.page_groups;
        page_groups.note_request(&method, &request, browser.start)
    };
    assert_eq!(note(Method::POST), None);
    assert!(browser.page_groups.lock().pages.is_empty());
    assert!(note(Method::GET).is_some() && note(Method::HEAD).is_some());
}

#[test]
fn without_grouping_there_are_no_groups_and_nothing_is_kept() {
    let browser = Browser {
        page_groups: PageGroups::new(None, None),
        start: Instant::now(),
    };
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let style = browser.group(CLIENT, "http://a/s", "http://a/p", "text/css", 0);
    assert_eq!((page, style), (0, 0));
    assert_eq!(browser.page_groups.lock().longest(), 0);
}

#[test]
fn few_parts_stand_for_one_page() {
    let browser = Browser::new();
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
    let script = |n: u16| format!("http://a/{n}.js");
    let kind = "text/javascript";
    for n in 0..2 * PARTS_MAX {
        // A part that is requested again counts once.
        for _ in 0..2 {
            let group = browser.group(CLIENT, &script(n), "http://a/p", kind, 0);
            assert_eq!(group, page);
        }
    }
    let named = |n| browser.group(CLIENT, "http://a/i", &script(n), "image/png", 100);
    assert_eq!(named(PARTS_MAX - 1), page);
    assert_ne!(named(PARTS_MAX), page);
    assert_eq!(
        browser.page_groups.lock().parts.len(),
        usize::from(PARTS_MAX)
    );
}

#[test]
fn a_client_that_fills_the_tables_loses_its_own_pages() {
    let browser = Browser::new();
    let page = browser.group("192.0.2.2", "http://a/p", "", "text/html", 0);
    browser.group("192.0.2.2", "http://cdn/s", "http://a/p", "text/css", 0);
    for n in 0..3 * PAGES_MAX {
        let page = format!("http://h{n}/p");
        browser.group(CLIENT, &page, "", "text/html", 0);
        let frame = format!("http://f{n}/p");
        browser.group(CLIENT, &frame, &page, "text/html", 0);
    }
    let font = browser.group("192.0.2.2", "http://b/f", "http://cdn/s", "font/woff", 100);
    assert_eq!(font, page);
}

#[test]
fn what_is_remembered_is_bounded() {
    let browser = Browser::new();
    for n in 0..3 * PAGES_MAX as u64 {
        let (page, frame) = (format!("http://h{n}/p"), format!("http://f{n}/p"));
        browser.group(CLIENT, &page, "", "text/html", n / 100);
        browser.group(CLIENT, &frame, &page, "text/html", n / 100);
        assert!(browser.page_groups.lock().longest() <= PAGES_MAX);
    }
}

#[test]
fn full_tables_keep_what_is_open() {
    let browser = Browser::new();
    for n in 0..PAGES_MAX as u64 - 4 {
        browser.group(CLIENT, &format!("http://h{n}/p"), "", "text/html", 0);
    }
    let page = browser.group(CLIENT, "http://a/p", "", "text/html", 1_900);
    browser.group(CLIENT, "http://a/s", "http://a/p", "text/css", 1_900);
    // The tables become full when all but one page is closed.
    for url in ["http://b/1", "http://b/2", "http://b/3", "http://b/4"] {
        browser.group(CLIENT, url, "", "text/html", 2_000);
    }
    assert!(browser.page_groups.lock().pages.len() < 10);
    let font = browser.group(CLIENT, "http://a/font", "http://a/s", "font/woff", 2_000);
    assert_eq!(font, page);
}
