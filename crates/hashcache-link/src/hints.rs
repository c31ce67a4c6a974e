//! Hints: the other objects that a page needs, learned from requests by a parent's clients.
//!
//! At a parent, `request/linked` in the proxy notes the objects and names them to a child that
//! requests the page. At the child, `linked_requests` in `hashcache-upstream` finds the names in a
//! response, and `fetch/hinted` in the proxy requests the objects that the child lacks.
//!
//! An object belongs to the page that Referer names; if Referer names an object on a page (a style
//! sheet that needs a font), the object belongs to that page.
//!
//! Invariants: only content that a shared cache may store is noted, and no page is noted as an
//! object on another page. An object is named only after two clients have requested it, because any
//! client can send any Referer, and a URL that only one client knows may be a secret. The named
//! objects together have at most `PAGE_FACTOR` times the page's bytes, or `PAGE_BYTES_MIN`, because
//! a slow line must not carry much that nobody has requested. Objects with a single client leave
//! the table before others, first those from the client with the most such objects. The table is
//! lost at a restart.
//! Cost: 1/256 of the budget on a box with children; one lock and two hashes per response with a
//! Referer, and one lock per response that may name objects.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_base::share::Network;
use hashcache_http::{RELATED_MAX, Related, Target};
use lru::LruCache;
use tokio::time::Instant;

use super::counters::LinkCounters;

/// Names of other objects in a response, and the link that delivered them.
#[derive(Clone, Debug)]
pub struct Hints {
    /// The names.
    pub related: Related,
    /// Counters for the use of the hints.
    pub counters: Arc<LinkCounters>,
}

/// The objects of the most recently requested pages.
#[derive(Debug)]
pub struct PageObjects {
    pages: Mutex<Pages>,
    /// Filter for objects that wait for a second client, by object hash.
    awaited: Box<[AtomicU64]>,
    hash: RandomState,
    _memory: Option<Reservation>,
}

#[derive(Debug)]
struct Pages {
    /// By page hash: pages with an object that may be named.
    shared: LruCache<u64, Page>,
    /// By page hash: pages with objects from a single client only.
    of_one: LruCache<u64, Page>,
    /// Bytes in `of_one`, by the client that has noted the page.
    of_clients: HashMap<u64, usize>,
    /// By object hash: the object's page.
    page_of: LruCache<u64, u64>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Page {
    /// The client that has noted the first object.
    client: u64,
    /// The last known length of the page itself.
    length: u64,
    objects: VecDeque<Noted>,
}

#[derive(Debug)]
struct Noted {
    target: Target,
    length: u64,
    at: Instant,
    clients: Clients,
}

/// The clients that have requested an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    One(u64),
    Several,
}

/// An object that a client has requested.
#[derive(Clone, Copy, Debug)]
pub struct PageObject<'a> {
    /// The object's URL.
    pub target: &'a Target,
    /// Content bytes.
    pub length: u64,
    /// The client that sent the request.
    pub client: Network,
}

impl PageObjects {
    /// Creates a table within the budget of `cache`; `None` without memory for the table.
    pub(crate) fn new(cache: &Cache) -> Option<Self> {
        let bytes = cache.stats().memory_limit_bytes / BUDGET_PART;
        let memory = cache.reserve(bytes)?;
        Some(Self {
            _memory: Some(memory),
            ..Self::within(usize::try_from(bytes).ok()?)
        })
    }

    /// Creates a table that takes about `bytes`.
    fn within(bytes: usize) -> Self {
        let objects = (bytes / OBJECT_BYTES).max(1);
        let entries = NonZeroUsize::new(objects).unwrap_or(NonZeroUsize::MIN);
        Self {
            pages: Mutex::new(Pages {
                shared: LruCache::unbounded(),
                of_one: LruCache::unbounded(),
                of_clients: HashMap::new(),
                page_of: LruCache::new(entries),
                bytes: 0,
                // The other half is for `page_of`.
                bytes_max: bytes / 2,
            }),
            awaited: (0..AWAITED_WORDS).map(|_| AtomicU64::new(0)).collect(),
            hash: RandomState::new(),
            _memory: None,
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a client has requested `object` because of `referer`.
    pub fn note(&self, referer: &Target, object: &PageObject<'_>, now: Instant) {
        let target = object.target;
        if bytes_of(target) > URL_BYTES_MAX || target == referer {
            return;
        }
        let [referer, of_object] = [referer, target].map(|target| self.hash.hash_one(target));
        let noted = Noted {
            target: target.clone(),
            length: object.length,
            at: now,
            clients: Clients::One(self.hash.hash_one(object.client)),
        };
        let mut pages = self.pages();
        let page = pages.page_of.get(&referer).copied().unwrap_or(referer);
        if page == of_object {
            return;
        }
        pages.page_of.put(of_object, page);
        if pages.note(page, noted) != Clients::Several {
            let (word, bit) = awaited_at(of_object);
            self.awaited[word].fetch_or(bit, Relaxed);
        }
    }

    /// Returns true if `object` waits for a second client. Returns true only once for each noted
    /// request; the caller then notes the next request.
    pub(crate) fn take_awaited(&self, object: &Target) -> bool {
        let (word, bit) = awaited_at(self.hash.hash_one(object));
        let word = &self.awaited[word];
        word.load(Relaxed) & bit != 0 && word.fetch_and(!bit, Relaxed) & bit != 0
    }

    /// The objects on `page` that may be named, in the order in which they were first requested, up
    /// to a total size that depends on the page's content length (`length`, if known).
    pub fn of(&self, page: &Target, length: Option<u64>, now: Instant) -> Vec<Target> {
        let page = self.hash.hash_one(page);
        let mut pages = self.pages();
        if let (Some(length), Some(page)) = (length, pages.of_one.peek_mut(&page)) {
            page.length = length;
        }
        let Some(page) = pages.shared.get_mut(&page) else {
            return vec![];
        };
        page.length = length.unwrap_or(page.length);
        let mut left = page.length.saturating_mul(PAGE_FACTOR).max(PAGE_BYTES_MIN);
        let named = page.objects.iter().filter(|noted| {
            let is_recent = now.saturating_duration_since(noted.at) < NOTED_TIME;
            let fits = noted.clients == Clients::Several && noted.length <= left;
            let is_named = is_recent && fits;
            left -= if is_named { noted.length } else { 0 };
            is_named
        });
        named.map(|noted| noted.target.clone()).collect()
    }
}

impl Pages {
    /// Notes an object on `page`. Returns the clients that have requested the object so far.
    fn note(&mut self, page: u64, noted: Noted) -> Clients {
        let Clients::One(client) = noted.clients else {
            return noted.clients;
        };
        let mut entry = self.take(page).unwrap_or_else(|| Page {
            client,
            length: 0,
            objects: VecDeque::new(),
        });
        let clients = entry.note(noted, client);
        self.put(page, entry);
        while self.bytes > self.bytes_max && self.drop_one() {}
        clients
    }

    fn take(&mut self, page: u64) -> Option<Page> {
        let shared = self.shared.pop(&page);
        let is_shared = shared.is_some();
        let entry = shared.or_else(|| self.of_one.pop(&page))?;
        self.count(&entry, is_shared, false);
        Some(entry)
    }

    fn put(&mut self, page: u64, entry: Page) {
        let is_shared = entry.is_shared();
        self.count(&entry, is_shared, true);
        if is_shared {
            self.shared.put(page, entry)
        } else {
            self.of_one.put(page, entry)
        };
    }

    fn count(&mut self, entry: &Page, is_shared: bool, is_added: bool) {
        let bytes = entry.bytes();
        let of_client = if is_shared {
            &mut 0
        } else {
            self.of_clients.entry(entry.client).or_default()
        };
        if is_added {
            *of_client += bytes;
            self.bytes += bytes;
        } else {
            *of_client = of_client.saturating_sub(bytes);
            self.bytes -= bytes;
        }
        if !is_shared && *of_client == 0 {
            self.of_clients.remove(&entry.client);
        }
    }

    /// Drops a page. If pages with a single client take more than half the room, drops the oldest
    /// page from the client with the most bytes in such pages; otherwise the least recently used
    /// shared page. Returns false if there is no page.
    fn drop_one(&mut self) -> bool {
        let of_one: usize = self.of_clients.values().sum();
        let most = self.of_clients.iter().max_by_key(|(_, bytes)| **bytes);
        let most = most.map(|(client, _)| *client);
        let is_of_most = |entry: &Page| Some(entry.client) == most;
        // From the least recently used page.
        let mut pages = self.of_one.iter().rev();
        let oldest = pages.find(|(_, entry)| is_of_most(entry));
        let oldest = oldest.map(|(page, _)| *page);
        let least_used = self.shared.peek_lru().map(|(page, _)| *page);
        let dropped = if of_one > self.bytes_max / 2 {
            oldest.or(least_used)
        } else {
            least_used.or(oldest)
        };
        dropped.is_some_and(|page| self.take(page).is_some())
    }
}

impl Page {
    fn bytes(&self) -> usize {
        let objects = self.objects.iter().map(|noted| bytes_of(&noted.target));
        PAGE_BYTES + objects.sum::<usize>()
    }

    fn is_shared(&self) -> bool {
        let mut objects = self.objects.iter();
        objects.any(|noted| noted.clients == Clients::Several)
    }

    /// Notes an object that `client` has requested. Returns the clients that have requested it so
    /// far.
    fn note(&mut self, noted: Noted, client: u64) -> Clients {
        let mut objects = self.objects.iter_mut();
        if let Some(known) = objects.find(|known| known.target == noted.target) {
            (known.at, known.length) = (noted.at, noted.length);
            if known.clients != Clients::One(client) {
                known.clients = Clients::Several;
            }
            return known.clients;
        }
        if self.objects.len() == RELATED_MAX {
            self.drop_one();
        }
        self.objects.push_back(noted);
        Clients::One(client)
    }

    /// Drops the least recently requested object from the client with the most objects that no
    /// other client has requested, or from all objects if there is no such client.
    fn drop_one(&mut self) {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for noted in &self.objects {
            if let Clients::One(client) = noted.clients {
                *counts.entry(client).or_default() += 1;
            }
        }
        let most = counts
            .into_iter()
            .max_by_key(|(client, count)| (*count, *client));
        let of_most = most.map(|(client, _)| Clients::One(client));
        let objects = self.objects.iter().enumerate();
        let candidates = objects.filter(|(_, it)| of_most.is_none_or(|of| it.clients == of));
        if let Some((at, _)) = candidates.min_by_key(|(_, noted)| noted.at) {
            self.objects.remove(at);
        }
    }
}

/// An object's position in the `awaited` filter.
fn awaited_at(object: u64) -> (usize, u64) {
    let bits = AWAITED_WORDS as u64 * 64;
    let at = object % bits;
    (usize::try_from(at / 64).unwrap_or(0), 1 << (at % 64))
}

/// Memory for a noted object.
fn bytes_of(object: &Target) -> usize {
    // Host and path are separate allocations.
    let url = object.path_and_query.len() + object.authority.host.to_string().len();
    size_of::<Noted>() + 2 * ALLOCATION_BYTES + url
}

/// The objects named for a page have at most this many times the bytes of the page. A 50 kB HTML
/// document that needs 2 MB gets the first fifth.
const PAGE_FACTOR: u64 = 8;
/// Minimum for short pages: 20 objects with the size that most scripts and styles have. A line of
/// 256 kbit/s carries them in 12 s, behind the clients' own requests.
const PAGE_BYTES_MIN: u64 = 384 << 10;
/// 8 KiB.
const AWAITED_WORDS: usize = 1 << 10;
/// The table takes this part of the budget.
const BUDGET_PART: u64 = 256;
const ALLOCATION_BYTES: usize = 16;
/// An object in `page_of`, with the list links.
const OBJECT_BYTES: usize = 2 * 64;
/// A page without its objects.
const PAGE_BYTES: usize = 192;
/// Longer URLs are not noted.
const URL_BYTES_MAX: usize = 1 << 10;
/// How long an object belongs to a page after the last request for the object.
const NOTED_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Target {
        Target::parse_url(text).unwrap()
    }

    fn asks(table: &PageObjects, client: u8, [page, object]: [&str; 2], now: Instant) {
        long(table, client, ([page, object], 1000), now);
    }

    fn long(
        table: &PageObjects,
        client: u8,
        ([page, object], length): ([&str; 2], u64),
        now: Instant,
    ) {
        let object = PageObject {
            target: &url(object),
            length,
            client: Network::containing([192, 0, 2, client].into()),
        };
        table.note(&url(page), &object, now);
    }

    fn both_ask(table: &PageObjects, names: [&str; 2], now: Instant) {
        asks(table, 1, names, now);
        asks(table, 2, names, now);
    }

    fn named(table: &PageObjects, page: &str, now: Instant) -> Vec<String> {
        let objects = table.of(&url(page), None, now);
        objects.iter().map(Target::to_string).collect()
    }

    #[test]
    fn what_a_style_sheet_needs_belongs_to_the_page_too() {
        let (table, now) = (PageObjects::within(64 << 10), Instant::now());
        let (page, css, font) = ("http://a/p", "http://a/s.css", "http://a/f.woff");
        both_ask(&table, [page, css], now);
        both_ask(&table, [css, font], now);
        both_ask(&table, [page, css], now);
        assert_eq!(named(&table, page, now), [css, font]);
        assert!(named(&table, css, now).is_empty());
        // A style sheet that names the page is no page of the page.
        both_ask(&table, [css, page], now);
        assert_eq!(named(&table, page, now), [css, font]);
    }

    #[test]
    fn an_object_is_named_only_after_two_clients_have_asked_for_it() {
        let (table, now) = (PageObjects::within(64 << 10), Instant::now());
        let names = ["http://a/p", "http://a/secret"];
        for _ in 0..100 {
            asks(&table, 1, names, now);
        }
        assert!(named(&table, names[0], now).is_empty());
        assert!(table.take_awaited(&url(names[1])));
        assert!(!table.take_awaited(&url(names[1])), "once for each note");
        asks(&table, 2, names, now);
        assert_eq!(named(&table, names[0], now), [names[1]]);
        assert!(!table.take_awaited(&url(names[1])));
    }

    #[test]
    fn a_page_names_no_more_bytes_than_a_small_multiple_of_its_own() {
        let (table, now) = (PageObjects::within(64 << 10), Instant::now());
        let page = "http://a/p";
        let object = |n: usize| format!("http://a/{n}");
        for n in 0..40 {
            for client in [1, 2] {
                long(&table, client, ([page, &object(n)], 50_000), now);
            }
        }
        let named = |length| table.of(&url(page), length, now).len();
        assert_eq!(named(Some(900)), 7);
        assert_eq!(named(Some(100_000)), 16);
        assert_eq!(named(None), 16, "as long as it was last");
        for client in [1, 2] {
            long(&table, client, (["http://a/q", "http://a/0"], 1 << 20), now);
        }
        assert!(table.of(&url("http://a/q"), Some(900), now).is_empty());
    }

    #[test]
    fn new_objects_replace_those_that_were_asked_for_least_recently() {
        let (table, start) = (PageObjects::within(1 << 20), Instant::now());
        let page = "http://a/p";
        let object = |n: usize| format!("http://a/{n}");
        for n in 0..RELATED_MAX {
            both_ask(&table, [page, &object(n)], start);
        }
        let later = start + Duration::from_secs(1);
        both_ask(&table, [page, &object(0)], later);
        both_ask(&table, [page, "http://a/new"], later);
        let now = named(&table, page, later);
        assert_eq!(now.len(), RELATED_MAX);
        assert_eq!(now.last().unwrap(), "http://a/new");
        assert!(now.contains(&object(0)) && !now.contains(&object(1)));
        // Objects that no client requests any more are not named for ever.
        assert_eq!(named(&table, page, start + NOTED_TIME).len(), 2);
    }

    #[test]
    fn one_client_displaces_neither_the_pages_nor_the_objects_of_others() {
        let (table, now) = (PageObjects::within(64 << 10), Instant::now());
        let names = ["http://a/p", "http://a/s.css"];
        both_ask(&table, names, now);
        asks(&table, 3, ["http://a/p", "http://a/i.png"], now);
        asks(&table, 3, ["http://a/q", "http://a/q.png"], now);
        for n in 0..5_000 {
            asks(&table, 9, ["http://a/p", &format!("http://a/{n}")], now);
            let page = format!("http://a/page{n}");
            asks(&table, 9, [&page, &format!("http://a/{n}x")], now);
        }
        asks(&table, 4, ["http://a/p", "http://a/i.png"], now);
        asks(&table, 4, ["http://a/q", "http://a/q.png"], now);
        assert_eq!(
            named(&table, "http://a/p", now),
            [names[1], "http://a/i.png"]
        );
        assert_eq!(named(&table, "http://a/q", now), ["http://a/q.png"]);
    }

    #[test]
    fn the_table_is_bounded_whatever_is_noted() {
        let bytes = 64 << 10;
        let (table, now) = (PageObjects::within(bytes), Instant::now());
        for n in 0..5_000 {
            let path = "x".repeat(n % 1_500);
            let page = format!("http://a/{}", n / 40);
            let client = u8::try_from(n % 5).unwrap();
            asks(
                &table,
                client,
                [&page, &format!("http://a/{}{path}", n / 3)],
                now,
            );
            let pages = table.pages();
            assert!(pages.bytes <= pages.bytes_max);
            let all = pages.shared.iter().chain(pages.of_one.iter());
            let counted: usize = all.map(|(_, page)| page.bytes()).sum();
            assert_eq!(counted, pages.bytes);
            let of_one: usize = pages.of_one.iter().map(|(_, page)| page.bytes()).sum();
            assert_eq!(of_one, pages.of_clients.values().sum::<usize>());
        }
        assert!(!table.pages().of_one.is_empty());
        assert!(table.pages().page_of.len() <= bytes / OBJECT_BYTES);
    }
}
