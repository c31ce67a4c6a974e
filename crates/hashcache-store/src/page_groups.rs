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
//! Referer of an origin only, another's the latest page this client had from there, while open;
//!                                      else the latest with a style sheet or script from there
//! no Referer, an icon or, by what a     the latest page this client had from its own origin, while
//! browser says, another part            open; else no group
//! no Referer otherwise                 the group of its own URL: others may name it as a page
//! ```
//!
//! A page is open until two seconds have passed without a request for a part of it. As long as it
//! is open, those of its parts that can name others (frames, style sheets, scripts, HTML) stand for
//! the page where Referer names them. A client that does not send Sec-Fetch-Dest asks for frames as
//! for pages: such a request is one for a frame if Referer names an open page, or a part of it, and
//! that page was asked for at most ten seconds ago. The ten seconds count from the request that
//! opened the page, so a crawler cannot put one page after the other into the same group.
//!
//! A request for a page, a frame, a style sheet or a script is decided once, when it arrives: its
//! response may come when the page is closed. The response opens the page again.
//!
//! With grouping by origin, all responses of one server are a group, for all clients: the locality
//! buffers of Foxy (section 2.2.3). This needs no Referer, but also reads objects that were only
//! fetched from the same server at the same time.
//!
//! Called by `request` of the proxy when something is requested, and by its `fetch` when a response
//! is stored.
//!
//! Invariants: a wrong group costs only memory and reads. The client's address is part of the
//! group and of what finds it, so a client that forges Referer spoils its own groups; a client that
//! fills the tables loses its own open pages first. The tables are bounded. In front of a site
//! every Referer counts as one of its pages. Where the engine does not group, nothing is kept.
//! Cost: a few hashes, made before the lock is taken, for pages and for requests with a Referer. A
//! hit in memory parses Referer only if it may be for a frame, a style sheet or a script, which
//! takes 9,000 instructions; other hits take 150, and 40 where the engine does not group. The
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

/// How long after the last object of a page further objects still belong to it.
const PAGE_OPEN: Duration = Duration::from_secs(2);
/// How long a request for HTML that names a page may be for one of its frames, counted from the
/// request that opened the page. A page asks for its frames while it loads; few people follow a
/// link sooner.
const FRAMES_ASKED: Duration = Duration::from_secs(10);
/// Maximum number of entries in each table: what a `HashMap` puts into 4096 places.
const PAGES_MAX: usize = 3584;
/// Maximum number of parts that stand for one page. Few pages have as many scripts.
const PARTS_MAX: u16 = 256;

/// Which responses form a group that is written and read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// The page of one client, by `Referer`.
    #[default]
    Page,
    /// The origin, for all clients (Foxy, section 2.2.3).
    Origin,
}

/// The pages that clients are looking at.
pub struct PageGroups {
    /// `None`: the engine does not group.
    by: Option<GroupBy>,
    /// Each process has its own keys, so no client can predict the group of a page.
    hash: RandomState,
    open: Mutex<OpenPages>,
    /// The accelerated site, whose pages carry other names in Referer.
    site: Option<Origin>,
}

/// The parts of a request that select its group.
pub struct PageRequest<'a> {
    /// The address of the client.
    pub client: IpAddr,
    /// The URL.
    pub target: &'a Target,
    /// The fields.
    pub fields: &'a HeaderMap,
}

/// The group of a request, as it was decided when the request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedGroup {
    group: u64,
    role: Role,
}

/// What a resource is to its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Page,
    Frame,
    /// Another part that can name others.
    Part,
}

/// The tables of open pages.
#[derive(Default)]
struct OpenPages {
    /// By group.
    pages: HashMap<u64, OpenPage>,
    /// By client and URL: the page of a part that can name others.
    parts: HashMap<u64, Visit>,
    /// By client and origin: the latest page.
    latest: HashMap<u64, LatestPage>,
}

/// A page until [`PAGE_OPEN`] has passed without a request for a part of it.
#[derive(Clone, Copy)]
struct OpenPage {
    client: Network,
    opened: Instant,
    /// Whether the page itself was requested, not only parts that name it.
    is_requested: bool,
    used: Instant,
    /// Parts that stand for it, [`PARTS_MAX`] at most.
    parts: u16,
}

/// A page, from its opening to its end. What was noted for an earlier visit does not hold for a
/// later one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Visit {
    group: u64,
    opened: Instant,
}

/// The latest page of an origin.
#[derive(Clone, Copy)]
struct LatestPage {
    visit: Visit,
    /// Whether the page, or a frame of it, is of this origin; else only other parts of it are.
    is_of_origin: bool,
}

/// A client, a resource that it requests, and what the tables know both by.
struct Requested {
    client: IpAddr,
    /// By client and URL; that of a page is its group.
    key: u64,
    /// By client and origin.
    of_origin: u64,
}

/// What a Referer says, before the tables tell of which page it is.
#[derive(Clone, Copy)]
struct Referred {
    key: u64,
    of_origin: u64,
    /// Today's browsers send only the origin in a Referer to another origin.
    is_origin_only: bool,
}

/// The page that a Referer names.
#[derive(Clone, Copy)]
struct Named {
    group: u64,
    of_origin: u64,
    /// Whether Referer has the URL of the page, not that of a part or only the origin.
    is_page: bool,
}

impl PageGroups {
    /// Without `by` there are no groups.
    pub fn new(by: Option<GroupBy>, site: Option<Origin>) -> Self {
        Self {
            by,
            hash: RandomState::new(),
            open: Mutex::default(),
            site,
        }
    }

    /// Notes a request for a page or for a part that can name others, whether or not its response
    /// is stored. Requests with other methods than GET and HEAD are none: scripts send them.
    pub fn note_request(
        &self,
        method: &Method,
        request: &PageRequest<'_>,
        now: Instant,
    ) -> Option<NotedGroup> {
        if ![Method::GET, Method::HEAD].contains(method) {
            return None;
        }
        let fields = PageFields::of(request.fields);
        self.note_plain_request((request.client, request.target), &fields, now)
    }

    /// The same for a GET of which only some fields are known.
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

    /// The group of the response with the fields `response`; 0: no group. `noted` is the decision
    /// about its request, if there is one.
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
        let fields = PageFields::of(request.fields);
        let wanted = if is_icon(request.target) {
            Wanted::Part
        } else {
            fields.wanted()
        };
        if wanted.is_page() == Some(true) {
            return self.page_or_frame(place, &fields, now).group;
        }
        // A program that sends a Referer, and no Accept that asks for a page, asks for a part of
        // one.
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
        // A crawler that accepts anything asks for pages in the same way as for parts.
        let is_part = || wanted == Wanted::Part || open.asks_for_frames(group, now);
        if names_others || (is_html && is_part()) {
            let role = Role::Part;
            open.note(&requested, NotedGroup { group, role }, now);
        }
        group
    }

    /// The group of a page or, if the request is one for a frame, that of the page around it.
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

    /// What the Referer of a request says; in front of a site, under the site's configured name.
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

    /// What is assumed of a part without a Referer: that it is one of a page of its own origin.
    fn own_origin(&self, place: (IpAddr, &Target)) -> Referred {
        Referred {
            key: self.key(place),
            of_origin: self.of_origin(place),
            is_origin_only: true,
        }
    }

    /// Never 0, which means no group.
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
    /// `None`: Referer names only an origin, from which the client has no open page.
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

    /// Whether a request for HTML that names this page is one for a frame.
    fn asks_for_frames(&self, group: u64, now: Instant) -> bool {
        self.page(group, now).is_some_and(|page| {
            page.is_requested && now.saturating_duration_since(page.opened) < FRAMES_ASKED
        })
    }

    /// Notes a page, or what can name parts of one: Referer may name it from now on.
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

    /// A page that only has parts from an origin does not displace an open page of that origin.
    fn note_latest(&mut self, of_origin: u64, latest: LatestPage, now: Instant) {
        let old = self.latest.get(&of_origin).copied();
        let stays = |old: LatestPage| old.is_of_origin && self.is_open(old.visit, now);
        if latest.is_of_origin || !old.is_some_and(stays) {
            self.latest.insert(of_origin, latest);
        }
    }

    /// From now on the part stands for the page, unless too many do.
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

    /// Keeps a page open, or opens it.
    fn touch(&mut self, group: u64, client: IpAddr, now: Instant) -> Visit {
        self.make_room(now);
        let page = OpenPage {
            used: now,
            ..self.page(group, now).unwrap_or(OpenPage {
                client: Network::of(client),
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

    /// Each request adds at most two entries to a table. A full table is emptied by half at least,
    /// so that it is rarely searched.
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

    /// The networks of clients with the fewest entries, which have at most `entries` together.
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
