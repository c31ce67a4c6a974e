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
mod tests;
