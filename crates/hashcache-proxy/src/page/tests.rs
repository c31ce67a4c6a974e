//! Pages, escaped and small.

use std::time::Duration;

use super::*;

fn context(reader: PageReader) -> PageContext<'static> {
    PageContext {
        name: "hashcache",
        deployment: "hashcache-1",
        host: Some("a.test:8080"),
        request_id: RequestId(255),
        reader,
    }
}

pub(super) fn text(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}

fn accept(fields: &[&'static str]) -> HeaderMap {
    let accept = |field: &&'static str| (header::ACCEPT, HeaderValue::from_static(field));
    fields.iter().map(accept).collect()
}

fn url() -> Origin {
    "http://box.lan:3128".parse().unwrap()
}

fn door(url: &Origin, reader: PageReader) -> Landing<'_> {
    Landing {
        name: "hashcache",
        url,
        mirrors: &[],
        requests: Requests {
            hits: 1_234_567,
            all: 2_000_000,
        },
        engine: EngineFigures {
            store: StoreState::Ready,
            objects: 1_000,
            objects_exact: true,
            ..EngineFigures::default()
        },
        intercepts: false,
        reader,
    }
}

#[test]
fn every_failure_has_a_page_of_its_status_with_all_a_person_needs() {
    for failed in Failure::each() {
        for reader in [PageReader::Browser, PageReader::Program] {
            let response = failure(&failed, &context(reader));
            assert_eq!(response.status(), failed.status());
            let text = text(&response);
            for part in [
                failure_text::explain(&failed, Some("a.test:8080")).title,
                failed.slug(),
                failed.status().as_str(),
                "00000000000000ff",
                "a.test:8080",
                "hashcache",
            ] {
                assert!(text.contains(part), "{failed:?}: {part}");
            }
            assert!(response.headers().contains_key("proxy-status"));
        }
    }
}

#[test]
fn pages_are_small_and_need_nothing_but_themselves() {
    let url = url();
    let door = landing(&door(&url, PageReader::Browser));
    let pages = Failure::each()
        .into_iter()
        .map(|f| failure(&f, &context(PageReader::Browser)));
    for page in pages.chain([door]) {
        let text = text(&page);
        assert!(text.len() < 4096, "{} bytes", text.len());
        for part in ["<script", "src=", "<link", "url(", "@import"] {
            assert!(!text.contains(part), "{part}");
        }
    }
}

#[test]
fn pages_are_stored_by_nobody_and_run_nothing() {
    for reader in [PageReader::Browser, PageReader::Program] {
        let fields = failure(&Failure::Loop, &context(reader)).headers().clone();
        assert_eq!(fields[header::CACHE_CONTROL], "no-store");
        assert_eq!(
            fields[header::CONTENT_SECURITY_POLICY],
            "default-src 'none'; style-src 'unsafe-inline'"
        );
        assert_eq!(fields[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        let kind = fields[header::CONTENT_TYPE].to_str().unwrap();
        assert!(kind.ends_with("; charset=utf-8"));
        assert_eq!(kind.starts_with("text/html"), reader == PageReader::Browser);
    }
}

#[test]
fn what_the_client_wrote_is_shown_and_not_obeyed() {
    let host = "<script>alert('x')</script>&\"\u{202e}\r\n\u{1b}[31m.test";
    for failed in Failure::each() {
        let response = failure(
            &failed,
            &PageContext {
                host: Some(host),
                ..context(PageReader::Browser)
            },
        );
        let html = text(&response);
        assert!(!html.contains("<script"), "{failed:?}");
        assert!(html.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
        assert!(!html.contains(['\u{202e}', '\u{1b}', '\r']));
        let response = failure(
            &failed,
            &PageContext {
                host: Some(host),
                ..context(PageReader::Program)
            },
        );
        assert!(
            !text(&response).contains(['\u{202e}', '\u{1b}', '\r']),
            "{failed:?}"
        );
    }
}

#[test]
fn a_host_of_a_megabyte_is_shown_in_part() {
    let host = "é".repeat(500_000);
    let response = failure(
        &Failure::NameNotFound,
        &PageContext {
            host: Some(&host),
            ..context(PageReader::Browser)
        },
    );
    assert!(response.body().len() < 6000);
    assert!(text(&response).contains("é…"));
}

#[test]
fn browsers_get_html_and_programs_plain_text() {
    for (fields, reader) in [
        (
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"][..],
            PageReader::Browser,
        ),
        (&["image/png", "Text/HTML; q=0.5"][..], PageReader::Browser),
        (&["*/*"][..], PageReader::Program),
        (&["text/*"][..], PageReader::Program),
        (
            &["application/json, text/html;q=0"][..],
            PageReader::Program,
        ),
        (&["text/html; q=0.000"][..], PageReader::Program),
        (&["text/html; q=0.001"][..], PageReader::Browser),
        (&["text/htmlx", ""][..], PageReader::Program),
        (&[][..], PageReader::Program),
    ] {
        assert_eq!(
            PageReader::from_request(&accept(fields)),
            reader,
            "{fields:?}"
        );
    }
}

#[test]
fn a_limit_tells_when_to_come_back() {
    let response = failure(&Failure::UpstreamLimit, &context(PageReader::Program));
    assert_eq!(response.headers()[header::RETRY_AFTER], "5");
    let response = failure(&Failure::NotCached, &context(PageReader::Program));
    assert!(!response.headers().contains_key(header::RETRY_AFTER));
}

#[test]
fn plain_text_reads_like_a_message() {
    let failed = Failure::ConnectTimeout(Duration::from_secs(10));
    assert_eq!(
        text(&failure(&failed, &context(PageReader::Program))),
        "The site does not answer\n\n\
         The proxy could not connect to “a.test:8080” in 10 s.\n\
         The site or the connection to the Internet may be down or busy. Try again later.\n\n\
         Status: 504 (connect-timeout)\nHost: a.test:8080\nRequest: 00000000000000ff\n\
         Proxy: hashcache\n"
    );
}

#[test]
fn a_page_without_a_host_says_nothing_about_one() {
    let failed = Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason: "two lengths",
    };
    let response = failure(
        &failed,
        &PageContext {
            host: None,
            ..context(PageReader::Program)
        },
    );
    assert!(!text(&response).contains("Host:"));
}

#[test]
fn the_front_door_tells_how_to_use_the_proxy_by_the_name_it_was_found() {
    for reader in [PageReader::Browser, PageReader::Program] {
        let url = url();
        let response = landing(&door(&url, reader));
        assert_eq!(response.status(), StatusCode::OK);
        let text = text(&response);
        assert!(text.contains("export http_proxy=http://box.lan:3128/\n"));
        assert!(text.contains("1,234,567 of 2,000,000 requests (61 %)"));
    }
}

#[test]
fn the_front_page_leads_to_the_certificate_where_there_is_one() {
    let url = url();
    for reader in [PageReader::Browser, PageReader::Program] {
        let told = |intercepts| {
            let page = landing(&Landing {
                intercepts,
                ..door(&url, reader)
            });
            text(&page).to_owned()
        };
        assert!(told(true).contains("/ca"));
        assert!(!told(false).contains("/ca"));
    }
}

#[test]
fn no_host_field_can_write_into_the_lines_that_people_copy() {
    for evil in [
        "x;rm -rf ",
        "$(id)",
        "a.test`id`",
        "<b>",
        "",
        "a\nb",
        "a&b",
        "a'b",
    ] {
        assert!(
            format!("http://{evil}").parse::<Origin>().is_err(),
            "{evil}"
        );
    }
}

#[test]
fn the_front_page_tells_how_each_mirror_is_used() {
    let mirrors = [
        Mirror::new(
            "pypi",
            MirrorKind::Pypi,
            "http://index.test/simple/",
            vec![],
        )
        .unwrap(),
        Mirror::new("two", MirrorKind::Npm, "http://registry.test/", vec![]).unwrap(),
    ];
    let url = url();
    for reader in [PageReader::Browser, PageReader::Program] {
        let response = landing(&Landing {
            mirrors: &mirrors.each_ref(),
            ..door(&url, reader)
        });
        let text = text(&response);
        for part in [
            "For pip without a proxy, in pip.conf",
            "\nindex-url = http://box.lan:3128/mirror/pypi/simple/\ntrusted-host = box.lan:3128",
            "For npm without a proxy (two), in .npmrc",
            "registry=http://box.lan:3128/mirror/two/\nomit-lockfile-registry-resolved=true",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The registries themselves are nobody's business.
        assert!(!text.contains("registry.test"));
    }
}

#[test]
fn a_proxy_nobody_has_used_yet_boasts_of_nothing() {
    let url = url();
    let door = Landing {
        requests: Requests::default(),
        ..door(&url, PageReader::Program)
    };
    assert!(text(&landing(&door)).contains("\n1,000 objects are stored.\n"));
}

#[test]
fn an_estimate_is_not_told_as_a_count_nor_a_missing_store_as_an_empty_one() {
    let url = url();
    let told = |engine: EngineFigures| {
        let page = landing(&Landing {
            engine,
            ..door(&url, PageReader::Program)
        });
        text(&page).to_owned()
    };
    let engine = door(&url, PageReader::Program).engine;
    let estimate = EngineFigures {
        objects_exact: false,
        ..engine
    };
    assert!(told(estimate).contains("About 1,000 objects"));
    let absent = EngineFigures {
        store: StoreState::Absent,
        ..engine
    };
    assert!(!told(absent).contains("objects are stored"));
}
