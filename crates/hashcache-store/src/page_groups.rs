//! Page groups: a response's group is the web page and the client for which it was fetched, or the
//! origin, if the operator selects that.
//!
//! The engine writes the members of a group side by side and reads them together. A group is a page
//! for a client: many users behind a single address look at different pages, and objects for a
//! user's page must not be read together with objects on the page of another user.
//!
//! ```text
//! a page itself                        the group of its own URL
//! a frame                              the group of what Referer names
//! Referer with a path                  the group of that URL, or of the page that it is a part of
//! Referer of an origin only, another's the latest page this client had from there, while open;
//!                                      else the latest with a style sheet or script from there
//! no Referer, an icon or, by what a     the latest page this client had from its own origin, while
//! browser says, another part            open; else no group
//! no Referer otherwise                 the group of its own URL: others may name it as a page
//! ```
//!
//! A page is open until two seconds have passed without a request for a part of it. While the page
//! is open, the parts that can name other resources (frames, style sheets, scripts, HTML) stand for
//! the page if Referer names them. A client that does not send Sec-Fetch-Dest requests frames in
//! the same way as pages: such a request counts as a frame if Referer names an open page, or a part
//! of it, and that page was requested at most ten seconds ago. The ten seconds start with the
//! request that opened the page, so a crawler cannot put page after page into the same group.
//!
//! The group for a page, a frame, a style sheet or a script is decided only once, when the request
//! arrives, because the page may be closed when the response arrives. The response opens the page
//! again.
//!
//! With grouping by origin, all responses from a server are a group, for all clients: the locality
//! buffers of Foxy (section 2.2.3). This needs no Referer, but it also reads objects that were only
//! fetched from the same server at the same time.
//!
//! Called by `request` in the proxy when a request arrives, and by `fetch` in the proxy when a
//! response is stored.
//!
//! Invariants: a wrong group costs only memory and reads. The client's address is in the group and
//! in all table keys, so a client that forges Referer spoils only its own groups; a client that
//! fills the tables loses its own open pages first. The tables are bounded. In front of a site
//! every Referer counts as the site's page. If the engine does not group, nothing is kept.
//! Cost: a few hashes, made before the lock is taken, for pages and for requests with a Referer. A
//! hit in memory parses Referer only if the request may be for a frame, a style sheet or a script;
//! this takes 9,000 instructions. Other hits take 150, and 40 if the engine does not group. The
//! tables take at most 0.6 MB.

mod fields;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::share::Network;
use hashcache_base::sort::sort_by_key;
use hashcache_http::{Origin, Target};
use http::{HeaderMap, Method};
use tokio::time::Instant;

pub use self::fields::{PageFields, is_html, wants_page};
use self::fields::{Wanted, is_icon, is_style_or_script};

/// How long a page stays open after its last object was requested; later objects do not belong to
/// it.
const PAGE_OPEN: Duration = Duration::from_secs(2);
/// How long a request for HTML that names a page may be for a frame, counted from the request that
/// opened the page. A page requests frames while it loads; few people follow a link sooner.
const FRAMES_ASKED: Duration = Duration::from_secs(10);
/// Entry limit for each table: a `HashMap` with 4096 places holds this number.
const PAGES_MAX: usize = 3584;
/// Limit for the parts that stand for a page. Few pages have as many scripts.
const PARTS_MAX: u16 = 256;

/// Selects the responses that form a group, to be written and read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// A client's page, by `Referer`.
    #[default]
    Page,
    /// The origin, for all clients (Foxy, section 2.2.3).
    Origin,
}

/// The pages that clients are looking at.
pub struct PageGroups {
    /// `None`: the engine does not group.
    by: Option<GroupBy>,
    /// Each process has random keys, so no client can predict a page's group.
    hash: RandomState,
    open: Mutex<OpenPages>,
    /// The accelerated site, which has other names in Referer.
    site: Option<Origin>,
}

/// The request parts that select the group.
pub struct PageRequest<'a> {
    /// The client's address.
    pub client: IpAddr,
    /// The URL.
    pub target: &'a Target,
    /// The fields.
    pub fields: &'a HeaderMap,
}

/// A request's group, decided when the request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedGroup {
    group: u64,
    role: Role,
}

/// A resource's role in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Page,
    Frame,
    /// Another part that can name other resources.
    Part,
}

/// The tables of open pages.
#[derive(Default)]
struct OpenPages {
    /// By group.
    pages: HashMap<u64, OpenPage>,
    /// By client and URL: the page for a part that can name other resources.
    parts: HashMap<u64, Visit>,
    /// By client and origin: the latest page.
    latest: HashMap<u64, LatestPage>,
}

/// A page until [`PAGE_OPEN`] has passed without a request for a part of it.
#[derive(Clone, Copy)]
struct OpenPage {
    client: Network,
    opened: Instant,
    /// True if the page itself was requested, not only parts that name it.
    is_requested: bool,
    used: Instant,
    /// How many parts stand for the page, at most [`PARTS_MAX`].
    parts: u16,
}

/// A page from the first request until the page is closed. Entries from an earlier visit are
/// invalid in a later visit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Visit {
    group: u64,
    opened: Instant,
}

/// The latest page from an origin.
#[derive(Clone, Copy)]
struct LatestPage {
    visit: Visit,
    /// True if the page, or a frame of the page, is from this origin; false if only other parts
    /// are.
    is_of_origin: bool,
}

/// A client, a resource that the client requests, and the table keys for both.
struct Requested {
    client: IpAddr,
    /// By client and URL; for a page this is also the group.
    key: u64,
    /// By client and origin.
    of_origin: u64,
}

/// A parsed Referer, before the tables are searched for the page.
#[derive(Clone, Copy)]
struct Referred {
    key: u64,
    of_origin: u64,
    /// Current browsers send only the origin in a Referer to another origin.
    is_origin_only: bool,
}

/// The page that a Referer names.
#[derive(Clone, Copy)]
struct Named {
    group: u64,
    of_origin: u64,
    /// True if Referer has the URL of the page, not a part's URL or only the origin.
    is_page: bool,
}

impl PageGroups {
    /// `by`: the group kind; `None` disables grouping.
    pub fn new(by: Option<GroupBy>, site: Option<Origin>) -> Self {
        Self {
            by,
            hash: RandomState::new(),
            open: Mutex::default(),
            site,
        }
    }

    /// Notes a request for a page or for a part that can name other resources, even if the response
    /// is not stored. Only GET and HEAD count, because requests with other methods come from
    /// scripts.
    pub fn note_request(
        &self,
        method: &Method,
        request: &PageRequest<'_>,
        now: Instant,
    ) -> Option<NotedGroup> {
        if ![Method::GET, Method::HEAD].contains(method) {
            return None;
        }
        let fields = PageFields::from_fields(request.fields);
        self.note_plain_request((request.client, request.target), &fields, now)
    }

    /// As [`Self::note_request`], for a GET with only some fields known.
    pub fn note_plain_request(
        &self,
        place: (IpAddr, &Target),
        fields: &PageFields<'_>,
        now: Instant,
    ) -> Option<NotedGroup> {
        if self.by != Some(GroupBy::Page) {
            return None;
        }
        if is_icon(place.1) {
            return None;
        }
        if fields.wanted().is_page() == Some(true) {
            return Some(self.page_or_frame(place, fields, now));
        }
        if !fields.want_style_or_script() {
            return None;
        }
        let referred = self.referred(place, fields)?;
        let requested = self.requested(place);
        let mut open = self.lock();
        let named = open.named(&referred, now)?;
        let group = open.note_part(requested.client, named, now).group;
        let role = Role::Part;
        Some(open.note(&requested, NotedGroup { group, role }, now))
    }

    /// Returns the group for the response with the fields `response`; 0: no group. `noted` is the
    /// decision for the request, if there is any.
    pub fn group(
        &self,
        request: &PageRequest<'_>,
        noted: Option<NotedGroup>,
        response: &HeaderMap,
        now: Instant,
    ) -> u64 {
        let place = (request.client, request.target);
        match self.by {
            None => return 0,
            Some(GroupBy::Origin) => {
                let origin = (request.target.scheme, &request.target.authority);
                return self.hash.hash_one(origin).max(1);
            }
            Some(GroupBy::Page) => {}
        }
        if let Some(noted) = noted {
            let requested = self.requested(place);
            return self.lock().note(&requested, noted, now).group;
        }
        let fields = PageFields::from_fields(request.fields);
        let wanted = if is_icon(request.target) {
            Wanted::Part
        } else {
            fields.wanted()
        };
        if wanted.is_page() == Some(true) {
            return self.page_or_frame(place, &fields, now).group;
        }
        // A program that sends a Referer, but no Accept for a page, requests a part of that page.
        if wanted == Wanted::Unknown && fields.referer.is_none() {
            return if is_html(response) {
                self.page_or_frame(place, &fields, now).group
            } else {
                self.key(place)
            };
        }
        let referred = match fields.referer {
            Some(_) => self.referred(place, &fields),
            None => Some(self.own_origin(place)),
        };
        let Some(referred) = referred else {
            return 0;
        };
        let requested = self.requested(place);
        let names_others = is_style_or_script(response) || fields.want_style_or_script();
        let is_html = is_html(response);
        let mut open = self.lock();
        let Some(named) = open.named(&referred, now) else {
            return 0;
        };
        let group = open.note_part(requested.client, named, now).group;
        // A crawler that accepts anything requests pages in the same way as parts.
        let is_part = || wanted == Wanted::Part || open.asks_for_frames(group, now);
        if names_others || (is_html && is_part()) {
            let role = Role::Part;
            open.note(&requested, NotedGroup { group, role }, now);
        }
        group
    }

    /// The group for a page or, if the request is for a frame, for the page around it.
    fn page_or_frame(
        &self,
        place: (IpAddr, &Target),
        fields: &PageFields<'_>,
        now: Instant,
    ) -> NotedGroup {
        let wanted = fields.wanted();
        let referred = match wanted {
            Wanted::Frame | Wanted::PageOrFrame => self.referred(place, fields),
            Wanted::Page | Wanted::Part | Wanted::Unknown => None,
        };
        let requested = self.requested(place);
        let mut open = self.lock();
        let around = referred
            .and_then(|referred| open.named(&referred, now))
            .filter(|named| wanted == Wanted::Frame || open.asks_for_frames(named.group, now));
        let noted = match around {
            Some(named) => NotedGroup {
                group: open.note_part(requested.client, named, now).group,
                role: Role::Frame,
            },
            None => NotedGroup {
                group: requested.key,
                role: Role::Page,
            },
        };
        open.note(&requested, noted, now)
    }

    fn requested(&self, place: (IpAddr, &Target)) -> Requested {
        Requested {
            client: place.0,
            key: self.key(place),
            of_origin: self.of_origin(place),
        }
    }

    /// Parses the Referer of a request; in front of a site, under the configured name of the site.
    fn referred(
        &self,
        (client, target): (IpAddr, &Target),
        fields: &PageFields<'_>,
    ) -> Option<Referred> {
        let page = fields.referer()?;
        let page = match &self.site {
            Some(site) => Target {
                scheme: site.scheme,
                authority: site.authority.clone(),
                ..page
            },
            None => page,
        };
        Some(Referred {
            key: self.key((client, &page)),
            of_origin: self.of_origin((client, &page)),
            is_origin_only: &*page.path_and_query == "/" && !page.same_origin(target),
        })
    }

    /// The assumption for a part without a Referer: it belongs to a page from the same origin.
    fn own_origin(&self, place: (IpAddr, &Target)) -> Referred {
        Referred {
            key: self.key(place),
            of_origin: self.of_origin(place),
            is_origin_only: true,
        }
    }

    /// Never 0, because 0 means no group.
    fn key(&self, place: (IpAddr, &Target)) -> u64 {
        self.hash.hash_one(place).max(1)
    }

    fn of_origin(&self, (client, page): (IpAddr, &Target)) -> u64 {
        self.hash.hash_one((client, page.scheme, &page.authority))
    }

    fn lock(&self) -> MutexGuard<'_, OpenPages> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenPages {
    /// `None`: Referer names only an origin, and the client has no open page from that origin.
    fn named(&self, referred: &Referred, now: Instant) -> Option<Named> {
        let find = |visit: Visit| self.is_open(visit, now).then_some(visit.group);
        let Referred { key, of_origin, .. } = *referred;
        let group = if referred.is_origin_only {
            find(self.latest.get(&of_origin)?.visit)?
        } else {
            let part = self.parts.get(&key).copied();
            part.and_then(find).unwrap_or(key)
        };
        Some(Named {
            group,
            of_origin,
            is_page: !referred.is_origin_only && group == key,
        })
    }

    fn is_open(&self, visit: Visit, now: Instant) -> bool {
        let page = self.page(visit.group, now);
        page.is_some_and(|page| page.opened == visit.opened)
    }

    fn page(&self, group: u64, now: Instant) -> Option<OpenPage> {
        let page = self.pages.get(&group).copied();
        page.filter(|page| page.is_open(now))
    }

    /// Returns true if a request for HTML that names this page is for a frame.
    fn asks_for_frames(&self, group: u64, now: Instant) -> bool {
        self.page(group, now).is_some_and(|page| {
            page.is_requested && now.saturating_duration_since(page.opened) < FRAMES_ASKED
        })
    }

    /// Notes a page, or a part that can name other resources, so that later Referers may name it.
    fn note(&mut self, requested: &Requested, noted: NotedGroup, now: Instant) -> NotedGroup {
        let NotedGroup { group, role } = noted;
        let visit = self.touch(group, requested.client, now);
        if role == Role::Page {
            self.parts.remove(&requested.key);
            if let Some(page) = self.pages.get_mut(&group) {
                page.is_requested = true;
            }
        } else {
            self.stand_for(requested.key, visit);
        }
        let latest = LatestPage {
            visit,
            is_of_origin: role != Role::Part,
        };
        self.note_latest(requested.of_origin, latest, now);
        noted
    }

    /// Notes a request for a part of a page.
    fn note_part(&mut self, client: IpAddr, named: Named, now: Instant) -> Visit {
        let visit = self.touch(named.group, client, now);
        let is_requested = self
            .page(named.group, now)
            .is_some_and(|it| it.is_requested);
        let latest = LatestPage {
            visit,
            is_of_origin: named.is_page && is_requested,
        };
        self.note_latest(named.of_origin, latest, now);
        visit
    }

    /// A page that only has parts from an origin does not displace an open page from that origin.
    fn note_latest(&mut self, of_origin: u64, latest: LatestPage, now: Instant) {
        let old = self.latest.get(&of_origin).copied();
        let stays = |old: LatestPage| old.is_of_origin && self.is_open(old.visit, now);
        if latest.is_of_origin || !old.is_some_and(stays) {
            self.latest.insert(of_origin, latest);
        }
    }

    /// Makes the part stand for the page, unless the page has too many such parts.
    fn stand_for(&mut self, part: u64, visit: Visit) {
        if self.parts.get(&part) == Some(&visit) {
            return;
        }
        let page = self.pages.get_mut(&visit.group);
        if let Some(page) = page.filter(|page| page.parts < PARTS_MAX) {
            page.parts += 1;
            self.parts.insert(part, visit);
        }
    }

    /// Keeps a page open, or opens the page.
    fn touch(&mut self, group: u64, client: IpAddr, now: Instant) -> Visit {
        self.make_room(now);
        let page = OpenPage {
            used: now,
            ..self.page(group, now).unwrap_or(OpenPage {
                client: Network::containing(client),
                opened: now,
                is_requested: false,
                used: now,
                parts: 0,
            })
        };
        self.pages.insert(group, page);
        Visit {
            group,
            opened: page.opened,
        }
    }

    /// Frees entries in a full table. Each request adds at most two entries to a table. A full
    /// table is emptied by half at least, so that such searches are rare.
    fn make_room(&mut self, now: Instant) {
        if self.longest() + 2 <= PAGES_MAX {
            return;
        }
        self.keep(|page| page.is_open(now));
        if self.longest() > PAGES_MAX / 2 {
            let kept = self.smallest_clients(PAGES_MAX / 2);
            self.keep(|page| kept.contains(&page.client));
        }
    }

    fn longest(&self) -> usize {
        let (pages, parts) = (self.pages.len(), self.parts.len());
        pages.max(parts).max(self.latest.len())
    }

    fn keep(&mut self, is_kept: impl Fn(&OpenPage) -> bool) {
        self.pages.retain(|_, page| is_kept(page));
        let pages = &self.pages;
        self.parts.retain(|_, part| pages.contains_key(&part.group));
        self.latest
            .retain(|_, latest| pages.contains_key(&latest.visit.group));
    }

    /// Selects the client networks with the fewest entries, up to `entries` entries in total.
    fn smallest_clients(&self, mut entries: usize) -> HashSet<Network> {
        let latest = self.latest.values().map(|latest| &latest.visit);
        let visits = self.parts.values().chain(latest).map(|visit| &visit.group);
        let mut counts: HashMap<Network, usize> = HashMap::new();
        for page in self.pages.keys().chain(visits) {
            if let Some(page) = self.pages.get(page) {
                *counts.entry(page.client).or_default() += 1;
            }
        }
        let mut counts: Vec<(Network, usize)> = counts.into_iter().collect();
        sort_by_key(&mut counts, |(_, count)| *count);
        let mut clients = HashSet::new();
        for (client, count) in counts {
            let Some(left) = entries.checked_sub(count) else {
                break;
            };
            entries = left;
            clients.insert(client);
        }
        clients
    }
}

impl OpenPage {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) < PAGE_OPEN
    }
}

#[cfg(test)]
mod tests;
