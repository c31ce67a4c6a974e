//! Page groups: the web page, and the client, for which a response was fetched; or, if the operator
//! chooses so, its origin.
//!
//! The engine writes the members of a group side by side and reads them together. A group is one
//! page of one client: many users behind one address look at different pages, and the objects of
//! one user's page must not be read together with those of another's.
//!
//! ```text
//! a page itself                        the group of its own URL
//! Referer with a path                  the group of that URL
//! Referer of an origin only, another's the latest page this client had from there, for 2 s
//! no Referer                           the group of its own URL: others may name it as a page
//! no Referer, a browser calls it a part no group
//! ```
//!
//! With grouping by origin, all responses of one server are a group, for all clients: the locality
//! buffers of Foxy (section 2.2.3). This needs no Referer, but also reads objects that were only
//! fetched from the same server at the same time.
//!
//! Called by `request` when a page is requested, and by `fetch` when a response is stored.
//!
//! Invariants: a wrong group costs only memory and reads. The client's address is part of the
//! group, so a client that forges Referer spoils its own groups; at worst it pushes other clients'
//! open pages out of the table. The table is bounded. In front of a site every Referer counts as
//! one of its pages.
//! Cost: a hash, and a lock for pages and for requests with a Referer.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::{Origin, Target};
use http::header::{ACCEPT, CONTENT_TYPE, REFERER};
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::settings::GroupBy;

/// How long after the last object of a page further objects still belong to it.
const PAGE_OPEN: Duration = Duration::from_secs(2);
/// Maximum number of pages in the table.
const PAGES_MAX: usize = 4096;

/// The pages that clients are looking at.
pub(crate) struct PageGroups {
    by: GroupBy,
    /// Each process has its own keys, so no client can predict the group of a page.
    hash: RandomState,
    /// By client and origin: the latest page, and the time of the last request for a part of it.
    latest: Mutex<HashMap<u64, (u64, Instant)>>,
    /// The accelerated site, whose pages carry other names in Referer.
    site: Option<Origin>,
}

/// The parts of a request that select its group.
pub(crate) struct PageRequest<'a> {
    pub(crate) client: IpAddr,
    pub(crate) target: &'a Target,
    pub(crate) fields: &'a HeaderMap,
}

impl PageGroups {
    pub(crate) fn new(by: GroupBy, site: Option<Origin>) -> Self {
        Self {
            by,
            hash: RandomState::new(),
            latest: Mutex::default(),
            site,
        }
    }

    /// Notes a request for a page, whether or not the page is stored.
    pub(crate) fn note_request(&self, request: &PageRequest<'_>, now: Instant) {
        self.note(
            request.client,
            request.target,
            wants_page(request.fields),
            now,
        );
    }

    /// The same for a request of which only Sec-Fetch-Dest and Accept are known.
    pub(crate) fn note_plain_request(
        &self,
        (client, target): (IpAddr, &Target),
        (destination, accept): (Option<&[u8]>, Option<&[u8]>),
        now: Instant,
    ) {
        self.note(client, target, is_for_page(destination, accept), now);
    }

    fn note(&self, client: IpAddr, target: &Target, is_for_page: Option<bool>, now: Instant) {
        if self.by == GroupBy::Page && is_for_page == Some(true) {
            self.page(client, target, now);
        }
    }

    /// The group of the response with the fields `response`; 0: no group.
    pub(crate) fn group(
        &self,
        request: &PageRequest<'_>,
        response: &HeaderMap,
        now: Instant,
    ) -> u64 {
        if self.by == GroupBy::Origin {
            let origin = (request.target.scheme, &request.target.authority);
            return self.hash.hash_one(origin).max(1);
        }
        match wants_page(request.fields) {
            Some(true) => return self.page(request.client, request.target, now),
            // A program that sends a Referer, and no Accept that asks for a page, asks for a part
            // of one.
            None if !request.fields.contains_key(REFERER) => {
                return match is_text(response) {
                    true => self.page(request.client, request.target, now),
                    false => self.of_page(request.client, request.target),
                };
            }
            Some(false) | None => {}
        }
        let Some(referer) = self.referer(request.fields) else {
            return 0;
        };
        let of_origin = self.of_origin(request.client, &referer);
        // Today's browsers send only the origin in a Referer to another origin.
        let origin_only = &*referer.path_and_query == "/" && !referer.same_origin(request.target);
        if !origin_only {
            let group = self.of_page(request.client, &referer);
            self.remember(of_origin, group, now);
            return group;
        }
        let mut latest = self.lock();
        match latest.get_mut(&of_origin) {
            Some((group, at)) if now.saturating_duration_since(*at) < PAGE_OPEN => {
                *at = now;
                *group
            }
            _ => 0,
        }
    }

    fn page(&self, client: IpAddr, target: &Target, now: Instant) -> u64 {
        let group = self.of_page(client, target);
        self.remember(self.of_origin(client, target), group, now);
        group
    }

    /// Never 0, which means no group.
    fn of_page(&self, client: IpAddr, page: &Target) -> u64 {
        self.hash.hash_one((client, page)).max(1)
    }

    fn of_origin(&self, client: IpAddr, page: &Target) -> u64 {
        self.hash.hash_one((client, page.scheme, &page.authority))
    }

    fn remember(&self, of_origin: u64, group: u64, now: Instant) {
        let mut latest = self.lock();
        if latest.len() >= PAGES_MAX && !latest.contains_key(&of_origin) {
            latest.retain(|_, (_, at)| now.saturating_duration_since(*at) < PAGE_OPEN);
            if latest.len() >= PAGES_MAX {
                latest.clear();
            }
        }
        latest.insert(of_origin, (group, now));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (u64, Instant)>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page that the Referer names; in front of a site, under the site's configured name.
    fn referer(&self, fields: &HeaderMap) -> Option<Target> {
        let text = fields.get(REFERER)?.to_str().ok()?;
        let page = Target::parse_url(text.split('#').next()?).ok()?;
        match &self.site {
            Some(site) => Some(Target {
                scheme: site.scheme,
                authority: site.authority.clone(),
                ..page
            }),
            None => Some(page),
        }
    }
}

/// Whether a client asks for a page rather than for a part of one; `None`: unknown.
pub(crate) fn wants_page(fields: &HeaderMap) -> Option<bool> {
    let (destination, accept) = (fields.get("sec-fetch-dest"), fields.get(ACCEPT));
    is_for_page(
        destination.map(HeaderValue::as_bytes),
        accept.map(HeaderValue::as_bytes),
    )
}

fn is_for_page(destination: Option<&[u8]>, accept: Option<&[u8]>) -> Option<bool> {
    if let Some(destination) = destination {
        let pages: [&[u8]; 3] = [b"document", b"iframe", b"frame"];
        return Some(pages.contains(&destination));
    }
    // Browsers send this Accept for pages only. Programs that accept anything do not tell.
    accept?.starts_with(b"text/html").then_some(true)
}

fn is_text(response: &HeaderMap) -> bool {
    let Some(value) = response.get(CONTENT_TYPE) else {
        return false;
    };
    let essence = value.as_bytes().split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    [&b"text/html"[..], b"application/xhtml+xml"]
        .iter()
        .any(|page| essence.eq_ignore_ascii_case(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "192.0.2.1";

    struct Browser {
        page_groups: PageGroups,
        start: Instant,
    }

    impl Browser {
        fn new() -> Self {
            Self {
                page_groups: PageGroups::new(GroupBy::Page, None),
                start: Instant::now(),
            }
        }

        fn group(&self, client: &str, url: &str, referer: &str, kind: &str, at_ms: u64) -> u64 {
            let mut fields = HeaderMap::new();
            if !referer.is_empty() {
                fields.insert(REFERER, HeaderValue::from_str(referer).unwrap());
            }
            if kind.starts_with("text/html") {
                fields.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.8"));
            }
            let mut response = HeaderMap::new();
            response.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
            let request = PageRequest {
                client: client.parse().unwrap(),
                target: &Target::parse_url(url).unwrap(),
                fields: &fields,
            };
            let now = self.start + Duration::from_millis(at_ms);
            self.page_groups.group(&request, &response, now)
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
            browser.group(CLIENT, "http://a/q", "http://a/p?x", "text/html", 0),
            page
        );
    }

    #[test]
    fn what_is_asked_for_without_a_page_is_one_whatever_its_type() {
        let browser = Browser::new();
        let data = browser.group(CLIENT, "http://a/d", "", "application/octet-stream", 0);
        let image = browser.group(CLIENT, "http://a/i", "http://a/d", "image/png", 0);
        assert!(data != 0 && image == data);
        // It does not become the page that other origins' objects belong to.
        let page = browser.group(CLIENT, "http://a/p", "", "text/html", 0);
        browser.group(CLIENT, "http://a/e", "", "application/octet-stream", 0);
        let cross = browser.group(CLIENT, "http://cdn/i", "http://a/", "image/png", 100);
        assert_eq!(cross, page);
    }

    #[test]
    fn who_names_no_page_has_no_group() {
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
        browser.page_groups.note_request(&request, browser.start);
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
                .group(&request, &response, browser.start),
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
            page_groups: PageGroups::new(GroupBy::Origin, None),
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
            GroupBy::Page,
            Some("http://127.0.0.1:8080".parse().unwrap()),
        );
        let mut fields = HeaderMap::new();
        fields.insert(
            REFERER,
            HeaderValue::from_static("https://www.example.org/p"),
        );
        let page = page_groups.referer(&fields).unwrap();
        assert_eq!(page.to_string(), "http://127.0.0.1:8080/p");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let browser = Browser::new();
        for n in 0..3 * PAGES_MAX as u64 {
            let url = format!("http://h{n}/p");
            browser.group(CLIENT, &url, "", "text/html", n / 100);
        }
        assert!(browser.page_groups.lock().len() <= PAGES_MAX);
    }
}
