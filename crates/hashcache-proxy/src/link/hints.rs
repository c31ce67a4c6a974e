//! Hints: which other objects a page has, as the clients of a parent have asked for them.
//!
//! `request/linked` of a parent notes the objects and names them to a child that asks for the page.
//! At the child, `upstream/linked` finds the names in a response, and `fetch/hinted` asks for those
//! that it lacks.
//!
//! An object belongs to the page that its Referer names, or, where that is itself an object of a
//! page (a style sheet that needs a font), to that page.
//!
//! Invariants: only what a shared cache may store is noted, and no page is noted as an object of
//! another one. A wrong note costs at most [`RELATED_MAX`] objects a page, and the table is
//! bounded. It is lost at a restart.
//! Cost: 1/256 of the budget on a box with children; one lock and two hashes per response with a
//! Referer that is stored or goes to a child, and one per response that may name objects.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_http::{RELATED_MAX, Related, Target};
use lru::LruCache;
use tokio::time::Instant;

use super::counters::LinkCounters;

/// Names of other objects in a response, and the link from which they came.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    pub(crate) related: Related,
    pub(crate) counters: Arc<LinkCounters>,
}

/// The objects of the pages that were asked for last.
#[derive(Debug)]
pub(crate) struct PageObjects {
    pages: Mutex<Pages>,
    hash: RandomState,
    _memory: Option<Reservation>,
}

#[derive(Debug)]
struct Pages {
    /// By the hash of the page.
    objects: LruCache<u64, VecDeque<Noted>>,
    /// By the hash of an object: its page.
    page_of: LruCache<u64, u64>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Noted {
    target: Target,
    at: Instant,
}

impl PageObjects {
    /// A table within the budget of `cache`; `None` without memory for it.
    pub(crate) fn new(cache: &Cache) -> Option<Self> {
        let bytes = cache.stats().memory_limit_bytes / BUDGET_PART;
        let memory = cache.reserve(bytes)?;
        Some(Self {
            _memory: Some(memory),
            ..Self::within(usize::try_from(bytes).ok()?)
        })
    }

    /// A table that takes about `bytes`.
    fn within(bytes: usize) -> Self {
        let objects = (bytes / OBJECT_BYTES).max(1);
        let entries = NonZeroUsize::new(objects).unwrap_or(NonZeroUsize::MIN);
        Self {
            pages: Mutex::new(Pages {
                objects: LruCache::unbounded(),
                page_of: LruCache::new(entries),
                bytes: 0,
                // The rest is for the other map.
                bytes_max: bytes / 2,
            }),
            hash: RandomState::new(),
            _memory: None,
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a client has asked for `object` because of `referer`.
    pub(crate) fn note(&self, referer: &Target, object: &Target, now: Instant) {
        let url = bytes_of(object);
        if url > URL_BYTES_MAX || object == referer {
            return;
        }
        let [referer, of_object] = [referer, object].map(|target| self.hash.hash_one(target));
        let mut pages = self.pages();
        let page = pages.page_of.get(&referer).copied().unwrap_or(referer);
        if page == of_object {
            return;
        }
        pages.page_of.put(of_object, page);
        pages.note(page, object, now);
    }

    /// The objects of `page`, the latest ones that were noted, in the order in which they were
    /// first asked for.
    pub(crate) fn of(&self, page: &Target, now: Instant) -> Vec<Target> {
        let page = self.hash.hash_one(page);
        let mut pages = self.pages();
        let Some(objects) = pages.objects.get(&page) else {
            return vec![];
        };
        let recent = objects
            .iter()
            .filter(|noted| now.saturating_duration_since(noted.at) < NOTED_TIME);
        recent.map(|noted| noted.target.clone()).collect()
    }
}

impl Pages {
    fn note(&mut self, page: u64, object: &Target, now: Instant) {
        let mut added = bytes_of(object);
        let mut removed = 0;
        match self.objects.get_mut(&page) {
            Some(objects) => {
                if let Some(noted) = objects.iter_mut().find(|noted| noted.target == *object) {
                    noted.at = now;
                    return;
                }
                if objects.len() == RELATED_MAX {
                    // The one that was asked for least recently.
                    let oldest = (0..objects.len()).min_by_key(|at| objects[*at].at);
                    let oldest = oldest.and_then(|at| objects.remove(at));
                    removed = oldest.map_or(0, |noted| bytes_of(&noted.target));
                }
                objects.push_back(noted(object, now));
            }
            None => {
                added += PAGE_BYTES;
                self.objects.put(page, VecDeque::from([noted(object, now)]));
            }
        }
        self.bytes = self.bytes + added - removed;
        while self.bytes > self.bytes_max {
            let Some((_, objects)) = self.objects.pop_lru() else {
                break;
            };
            let freed: usize = objects.iter().map(|noted| bytes_of(&noted.target)).sum();
            self.bytes -= freed + PAGE_BYTES;
        }
    }
}

fn noted(object: &Target, at: Instant) -> Noted {
    Noted {
        target: object.clone(),
        at,
    }
}

/// Memory of a noted object.
fn bytes_of(object: &Target) -> usize {
    // Host and path are allocations of their own.
    let url = object.path_and_query.len() + object.authority.host.to_string().len();
    size_of::<Noted>() + 2 * ALLOCATION_BYTES + url
}

/// The table takes this part of the budget.
const BUDGET_PART: u64 = 256;
const ALLOCATION_BYTES: usize = 16;
/// An object in the table of pages by object, with the links of the list.
const OBJECT_BYTES: usize = 2 * 64;
/// A page without its objects.
const PAGE_BYTES: usize = 128;
/// Longer URLs are not noted.
const URL_BYTES_MAX: usize = 1 << 10;
/// How long an object counts as one of a page after it was asked for last.
const NOTED_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Target {
        Target::parse_url(text).unwrap()
    }

    fn named(table: &PageObjects, page: &str, now: Instant) -> Vec<String> {
        let objects = table.of(&url(page), now);
        objects.iter().map(Target::to_string).collect()
    }

    #[test]
    fn what_a_style_sheet_needs_belongs_to_the_page_too() {
        let (table, now) = (PageObjects::within(64 << 10), Instant::now());
        let (page, css, font) = ("http://a/p", "http://a/s.css", "http://a/f.woff");
        table.note(&url(page), &url(css), now);
        table.note(&url(css), &url(font), now);
        table.note(&url(page), &url(css), now);
        assert_eq!(named(&table, page, now), [css, font]);
        assert!(named(&table, css, now).is_empty());
        // A style sheet that names the page is no page of the page.
        table.note(&url(css), &url(page), now);
        assert_eq!(named(&table, page, now), [css, font]);
    }

    #[test]
    fn new_objects_replace_those_that_were_asked_for_least_recently() {
        let (table, start) = (PageObjects::within(1 << 20), Instant::now());
        let page = "http://a/p";
        let object = |n: usize| format!("http://a/{n}");
        for n in 0..RELATED_MAX {
            table.note(&url(page), &url(&object(n)), start);
        }
        let later = start + Duration::from_secs(1);
        table.note(&url(page), &url(&object(0)), later);
        table.note(&url(page), &url("http://a/new"), later);
        let now = named(&table, page, later);
        assert_eq!(now.len(), RELATED_MAX);
        assert_eq!(now.last().unwrap(), "http://a/new");
        assert!(now.contains(&object(0)) && !now.contains(&object(1)));
        // What nobody asks for any more is not named for ever.
        assert_eq!(named(&table, page, start + NOTED_TIME).len(), 2);
    }

    #[test]
    fn the_table_is_bounded_whatever_is_noted() {
        let bytes = 64 << 10;
        let (table, now) = (PageObjects::within(bytes), Instant::now());
        for n in 0..5_000 {
            let path = "x".repeat(n % 1_500);
            let page = url(&format!("http://a/{}", n / 40));
            table.note(&page, &url(&format!("http://a/{n}{path}")), now);
            let pages = table.pages();
            assert!(pages.bytes <= pages.bytes_max);
            let counted: usize = pages
                .objects
                .iter()
                .map(|(_, objects)| {
                    let objects = objects.iter().map(|noted| bytes_of(&noted.target));
                    PAGE_BYTES + objects.sum::<usize>()
                })
                .sum();
            assert_eq!(counted, pages.bytes);
        }
        assert!(!table.pages().objects.is_empty());
        assert!(table.pages().page_of.len() <= bytes / OBJECT_BYTES);
    }
}
