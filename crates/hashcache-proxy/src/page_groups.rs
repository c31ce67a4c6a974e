//! Page groups: the web page, and the client, for which a response was fetched; or, if the operator
//! chooses so, its origin.
//!
//! The engine writes the members of a group side by side and reads them together. A group is one
//! page of one client: many users behind one address look at different pages, and the objects of
//! one user's page must not be read together with those of another's.
//!
//! ```text
//! a page itself                        the group of its own URL
//! a frame                              the group of what Referer names
//! Referer with a path                  the group of that URL, or of the page that it is a part of
//! Referer of an origin only, another's the latest page this client had from there, while open
//! no Referer                           the group of its own URL: others may name it as a page
//! no Referer, a browser calls it a part no group
//! ```
//!
//! A page is open until two seconds have passed without a request for a part of it. As long as it
//! is open, those of its parts that can name others (frames, style sheets, scripts, HTML) stand for
//! the page where Referer names them. A client that does not send Sec-Fetch-Dest asks for frames as
//! for pages: such a request is one for a frame if Referer names an open page, or a part of it, and
//! that page was asked for at most ten seconds ago. The ten seconds count from the request that
//! opened the page, so a crawler cannot put one page after the other into the same group.
//!
//! With grouping by origin, all responses of one server are a group, for all clients: the locality
//! buffers of Foxy (section 2.2.3). This needs no Referer, but also reads objects that were only
//! fetched from the same server at the same time.
//!
//! Called by `request` when a page is requested, and by `fetch` when a response is stored.
//!
//! Invariants: a wrong group costs only memory and reads. The client's address is part of the
//! group and of what finds it, so a client that forges Referer spoils its own groups; at worst it
//! pushes other clients' open pages out of the tables. The tables are bounded. In front of a site
//! every Referer counts as one of its pages.
//! Cost: a few hashes, and a lock for pages and for requests with a Referer. A hit in memory parses
//! Referer only if it may be for a frame. The tables take at most 0.5 MB.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::{Origin, Target};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, REFERER};
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::settings::GroupBy;

/// How long after the last object of a page further objects still belong to it.
const PAGE_OPEN: Duration = Duration::from_secs(2);
/// How long a request for HTML that names a page may be for one of its frames, counted from the
/// request that opened the page. A page asks for its frames while it loads; few people follow a
/// link sooner.
const FRAMES_ASKED: Duration = Duration::from_secs(10);
/// Maximum number of entries in each table: what a `HashMap` puts into 4096 places.
const PAGES_MAX: usize = 3584;

/// The pages that clients are looking at.
pub(crate) struct PageGroups {
    by: GroupBy,
    /// Each process has its own keys, so no client can predict the group of a page.
    hash: RandomState,
    open: Mutex<OpenPages>,
    /// The accelerated site, whose pages carry other names in Referer.
    site: Option<Origin>,
}

/// The parts of a request that select its group.
pub(crate) struct PageRequest<'a> {
    pub(crate) client: IpAddr,
    pub(crate) target: &'a Target,
    pub(crate) fields: &'a HeaderMap,
}

/// The fields of a request that say whether it is for a page, and for a part of which one.
#[derive(Clone, Copy)]
pub(crate) struct PageFields<'a> {
    /// Sec-Fetch-Dest.
    pub(crate) destination: Option<&'a [u8]>,
    pub(crate) accept: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
}

/// What a request is for, as far as its fields tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Page,
    Frame,
    /// One of the two: the client does not send Sec-Fetch-Dest.
    PageOrFrame,
    /// Anything else that a page loads.
    Part,
    Unknown,
}

/// The tables of open pages.
#[derive(Default)]
struct OpenPages {
    /// By group.
    pages: HashMap<u64, OpenPage>,
    /// By client and URL: the page of a part that can name others.
    parts: HashMap<u64, Visit>,
    /// By client and origin: the latest page.
    latest: HashMap<u64, Visit>,
}

/// A page until [`PAGE_OPEN`] has passed without a request for a part of it.
#[derive(Clone, Copy)]
struct OpenPage {
    opened: Instant,
    /// Whether the page itself was requested, not only parts that name it.
    is_requested: bool,
    used: Instant,
}

/// A page, from its opening to its end. What was noted for an earlier visit does not hold for a
/// later one.
#[derive(Clone, Copy)]
struct Visit {
    group: u64,
    opened: Instant,
}

/// The page that a Referer names, and the key of its origin.
#[derive(Clone, Copy)]
struct Named {
    group: u64,
    of_origin: u64,
}

impl PageGroups {
    pub(crate) fn new(by: GroupBy, site: Option<Origin>) -> Self {
        Self {
            by,
            hash: RandomState::new(),
            open: Mutex::default(),
            site,
        }
    }

    /// Notes a request for a page or a frame, whether or not it is stored.
    pub(crate) fn note_request(&self, request: &PageRequest<'_>, now: Instant) {
        let fields = PageFields::of(request.fields);
        self.note_plain_request((request.client, request.target), &fields, now);
    }

    /// The same for a request of which only some fields are known.
    pub(crate) fn note_plain_request(
        &self,
        place: (IpAddr, &Target),
        fields: &PageFields<'_>,
        now: Instant,
    ) {
        if self.by == GroupBy::Page && fields.wanted().is_page() == Some(true) {
            self.page_or_frame(place, fields, now);
        }
    }

    /// The group of the response with the fields `response`; 0: no group.
    pub(crate) fn group(
        &self,
        request: &PageRequest<'_>,
        response: &HeaderMap,
        now: Instant,
    ) -> u64 {
        let (client, target) = (request.client, request.target);
        if self.by == GroupBy::Origin {
            let origin = (target.scheme, &target.authority);
            return self.hash.hash_one(origin).max(1);
        }
        let fields = PageFields::of(request.fields);
        let wanted = fields.wanted();
        if wanted.is_page() == Some(true) {
            return self.page_or_frame((client, target), &fields, now);
        }
        // A program that sends a Referer, and no Accept that asks for a page, asks for a part of
        // one.
        if wanted == Wanted::Unknown && fields.referer.is_none() {
            return match is_html(response) {
                true => self.page_or_frame((client, target), &fields, now),
                false => self.of_page(client, target),
            };
        }
        let Some(referer) = self.referer(fields.referer) else {
            return 0;
        };
        let mut open = self.lock();
        let Some(named) = self.named(&open, (client, target), &referer, now) else {
            return 0;
        };
        let visit = open.note_part(named, now);
        // A crawler that accepts anything asks for pages in the same way as for parts.
        let is_part = wanted == Wanted::Part || open.asks_for_frames(visit.group, now);
        if fields.want_style_or_script()
            || is_style_or_script(response)
            || (is_html(response) && is_part)
        {
            open.parts.insert(self.of_page(client, target), visit);
        }
        visit.group
    }

    /// The group of a page or, if the request is one for a frame, that of the page around it.
    fn page_or_frame(
        &self,
        (client, target): (IpAddr, &Target),
        fields: &PageFields<'_>,
        now: Instant,
    ) -> u64 {
        let (key, of_origin) = (self.of_page(client, target), self.of_origin(client, target));
        let wanted = fields.wanted();
        let referer = match wanted {
            Wanted::Frame | Wanted::PageOrFrame => self.referer(fields.referer),
            Wanted::Page | Wanted::Part | Wanted::Unknown => None,
        };
        let mut open = self.lock();
        let around = referer
            .and_then(|referer| self.named(&open, (client, target), &referer, now))
            .filter(|named| wanted == Wanted::Frame || open.asks_for_frames(named.group, now));
        let visit = match around {
            Some(named) => {
                let visit = open.note_part(named, now);
                open.parts.insert(key, visit);
                visit
            }
            None => {
                open.parts.remove(&key);
                open.note_page(key, now)
            }
        };
        open.latest.insert(of_origin, visit);
        visit.group
    }

    /// `None`: Referer names only an origin, from which the client has no open page.
    fn named(
        &self,
        open: &OpenPages,
        (client, target): (IpAddr, &Target),
        referer: &Target,
        now: Instant,
    ) -> Option<Named> {
        let of_origin = self.of_origin(client, referer);
        // Today's browsers send only the origin in a Referer to another origin.
        let origin_only = &*referer.path_and_query == "/" && !referer.same_origin(target);
        let key = self.of_page(client, referer);
        let group = match origin_only {
            true => open.find(&open.latest, of_origin, now)?,
            false => open.find(&open.parts, key, now).unwrap_or(key),
        };
        Some(Named { group, of_origin })
    }

    /// Never 0, which means no group.
    fn of_page(&self, client: IpAddr, page: &Target) -> u64 {
        self.hash.hash_one((client, page)).max(1)
    }

    fn of_origin(&self, client: IpAddr, page: &Target) -> u64 {
        self.hash.hash_one((client, page.scheme, &page.authority))
    }

    fn lock(&self) -> MutexGuard<'_, OpenPages> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page that the Referer names; in front of a site, under the site's configured name.
    fn referer(&self, field: Option<&[u8]>) -> Option<Target> {
        let text = field.filter(|value| value.is_ascii())?;
        let text = std::str::from_utf8(text).ok()?;
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

impl OpenPages {
    /// The open page that `table` has for a key.
    fn find(&self, table: &HashMap<u64, Visit>, key: u64, now: Instant) -> Option<u64> {
        let visit = table.get(&key)?;
        let page = self.page(visit.group, now)?;
        (page.opened == visit.opened).then_some(visit.group)
    }

    fn page(&self, group: u64, now: Instant) -> Option<OpenPage> {
        let page = self.pages.get(&group).copied();
        page.filter(|page| page.is_open(now))
    }

    /// Whether a request for HTML that names this page is one for a frame.
    fn asks_for_frames(&self, group: u64, now: Instant) -> bool {
        self.page(group, now).is_some_and(|page| {
            page.is_requested && now.saturating_duration_since(page.opened) < FRAMES_ASKED
        })
    }

    /// Notes a request for the page itself.
    fn note_page(&mut self, group: u64, now: Instant) -> Visit {
        let visit = self.touch(group, now);
        if let Some(page) = self.pages.get_mut(&group) {
            page.is_requested = true;
        }
        visit
    }

    /// Notes a request for a part of a page.
    fn note_part(&mut self, named: Named, now: Instant) -> Visit {
        let visit = self.touch(named.group, now);
        self.latest.insert(named.of_origin, visit);
        visit
    }

    /// Keeps a page open, or opens it.
    fn touch(&mut self, group: u64, now: Instant) -> Visit {
        self.make_room(now);
        let page = OpenPage {
            used: now,
            ..self.page(group, now).unwrap_or(OpenPage {
                opened: now,
                is_requested: false,
                used: now,
            })
        };
        self.pages.insert(group, page);
        Visit {
            group,
            opened: page.opened,
        }
    }

    /// Each request adds at most two entries to a table. A full table is emptied by half at least,
    /// so that it is rarely searched.
    fn make_room(&mut self, now: Instant) {
        let longest = |it: &Self| it.pages.len().max(it.parts.len()).max(it.latest.len());
        if longest(self) + 2 <= PAGES_MAX {
            return;
        }
        self.pages.retain(|_, page| page.is_open(now));
        self.parts
            .retain(|_, part| self.pages.contains_key(&part.group));
        self.latest
            .retain(|_, latest| self.pages.contains_key(&latest.group));
        if longest(self) > PAGES_MAX / 2 {
            *self = Self::default();
        }
    }
}

impl OpenPage {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) < PAGE_OPEN
    }
}

impl<'a> PageFields<'a> {
    fn of(fields: &'a HeaderMap) -> Self {
        let field = |name: HeaderName| fields.get(name).map(HeaderValue::as_bytes);
        Self {
            destination: field(SEC_FETCH_DEST),
            accept: field(ACCEPT),
            referer: field(REFERER),
        }
    }

    fn wanted(&self) -> Wanted {
        match self.destination {
            Some(b"document") => Wanted::Page,
            Some(b"iframe" | b"frame") => Wanted::Frame,
            Some(_) => Wanted::Part,
            // Browsers send this Accept for pages and frames only. Programs that accept anything do
            // not tell.
            None if self.accepts_first(b"text/html") => Wanted::PageOrFrame,
            None => Wanted::Unknown,
        }
    }

    fn want_style_or_script(&self) -> bool {
        match self.destination {
            Some(destination) => [&b"style"[..], b"script"].contains(&destination),
            None => self.accepts_first(b"text/css"),
        }
    }

    fn accepts_first(&self, kind: &[u8]) -> bool {
        self.accept.is_some_and(|accept| accept.starts_with(kind))
    }
}

impl Wanted {
    /// Whether the request is for a page or a frame rather than for another part; `None`: unknown.
    fn is_page(self) -> Option<bool> {
        match self {
            Self::Page | Self::Frame | Self::PageOrFrame => Some(true),
            Self::Part => Some(false),
            Self::Unknown => None,
        }
    }
}

/// Whether a client asks for a page or a frame rather than for another part; `None`: unknown.
pub(crate) fn wants_page(fields: &HeaderMap) -> Option<bool> {
    PageFields::of(fields).wanted().is_page()
}

fn is_html(response: &HeaderMap) -> bool {
    let kind = media_type(response);
    let pages = [&b"text/html"[..], b"application/xhtml+xml"];
    pages.iter().any(|page| kind.eq_ignore_ascii_case(page))
}

fn is_style_or_script(response: &HeaderMap) -> bool {
    let kind = media_type(response);
    // Besides text/javascript, older names are in use: application/x-javascript and others.
    let end = &kind[kind.len().saturating_sub(SCRIPT.len())..];
    kind.eq_ignore_ascii_case(b"text/css") || end.eq_ignore_ascii_case(SCRIPT)
}

/// Content-Type without parameters; empty if there is none.
fn media_type(response: &HeaderMap) -> &[u8] {
    let value = response
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value.split(|byte| *byte == b';').next();
    essence.unwrap_or_default().trim_ascii()
}

const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SCRIPT: &[u8] = b"javascript";

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
            let accept = match kind.starts_with("text/html") {
                true => ("accept", "text/html,*/*;q=0.8"),
                false => ("accept", "*/*"),
            };
            self.get(client, (url, referer), accept, kind, at_ms)
        }

        /// The same with any request field.
        fn get(
            &self,
            client: &str,
            (url, referer): (&str, &str),
            field: (&'static str, &'static str),
            kind: &str,
            at_ms: u64,
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
        let referer = Some(&b"https://www.example.org/p"[..]);
        let page = page_groups.referer(referer).unwrap();
        assert_eq!(page.to_string(), "http://127.0.0.1:8080/p");
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
            // What was noted for the earlier visit does not hold for a later one.
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
        page_groups.note_plain_request(place, &fields, browser.start);
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
    fn what_is_remembered_is_bounded() {
        let browser = Browser::new();
        for n in 0..3 * PAGES_MAX as u64 {
            let (page, frame) = (format!("http://h{n}/p"), format!("http://f{n}/p"));
            browser.group(CLIENT, &page, "", "text/html", n / 100);
            browser.group(CLIENT, &frame, &page, "text/html", n / 100);
            let open = browser.page_groups.lock();
            let longest = open
                .pages
                .len()
                .max(open.parts.len())
                .max(open.latest.len());
            assert!(longest <= PAGES_MAX);
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
}
