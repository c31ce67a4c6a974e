//! The workload `pages`: pages of equally many objects that no other page has.
//!
//! 60 % of the requests are for objects that were requested before, 20 % for new ones, 20 % for
//! responses that may not be stored. A page is requested as a whole. Repeated visits choose among
//! the newest pages by Zipf's law, and mostly take the smallest of nine neighbours, so that hits
//! are smaller than puts.

use super::content::{Contents, Object, Type};
use super::{Draw, Source, Visit};

pub struct Pages {
    /// Objects of a page.
    related: u64,
    /// The number of the next new page.
    next: u64,
    /// For each rank, the share of repeated visits that choose a page of this rank or a lower one.
    popularity: Vec<f64>,
    /// The place of each rank in the ring of the newest pages, drawn once: a page keeps its rank.
    places: Vec<u64>,
}

impl Pages {
    pub fn new(related: u64) -> Self {
        Self {
            related,
            next: 0,
            popularity: vec![1.0],
            places: vec![0],
        }
    }

    /// One of the newest pages whose first visit has ended.
    fn known_page(&self, draw: &mut Draw<'_>) -> Option<u64> {
        let end = draw.complete(Type::Web, self.next);
        let ring = self.places.len() as u64;
        let oldest = end.checked_sub(ring)?;
        let at = draw.random.f64();
        let rank = self.popularity.partition_point(|below| *below < at);
        let place = self.places[rank.min(self.places.len() - 1)];
        // The page among the newest ones that is in this place of the ring.
        let drawn = oldest + (place + ring - oldest % ring) % ring;
        if draw.random.f64() >= SMALL_SHARE {
            return Some(drawn);
        }
        let near = drawn.saturating_sub(NEAR).max(oldest)..=(drawn + NEAR).min(end - 1);
        near.min_by_key(|page| self.page_bytes(draw.contents, *page))
    }

    fn object(&self, page: u64, place: u64) -> Object {
        Object::new(Type::Web, page * self.related + place)
    }

    fn page_bytes(&self, contents: &Contents, page: u64) -> usize {
        let objects = (0..self.related).map(|place| self.object(page, place));
        objects.map(|object| contents.bytes(object)).sum()
    }
}

impl Source for Pages {
    fn visit(&mut self, draw: &mut Draw<'_>) -> Visit {
        let again = draw.may_repeat && draw.random.f64() < OFFERED_HITS / CACHEABLE;
        let known = if again { self.known_page(draw) } else { None };
        let page = known.unwrap_or(self.next);
        self.next += u64::from(known.is_none());
        let mut visit = Visit {
            group: if self.related == 1 { 0 } else { page + 1 },
            new: known.is_none().then(|| Object::new(Type::Web, page)),
            ..Visit::default()
        };
        for place in 0..self.related {
            while draw.random.f64() >= CACHEABLE {
                let object = Object::new(Type::Dynamic, draw.random.u64(..));
                visit.objects.push_back(object);
            }
            visit.objects.push_back(self.object(page, place));
        }
        visit
    }

    fn set_working_set(&mut self, objects: u64) {
        let pages = (objects / self.related).max(1);
        self.popularity = popularity(pages);
        self.places = (0..pages).collect();
        // With a seed of its own, so that the number of calls does not change any request.
        fastrand::Rng::with_seed(pages).shuffle(&mut self.places);
    }
}

/// For each rank of `pages` pages, the share of requests for it or a lower one.
fn popularity(pages: u64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut below: Vec<f64> = (1..=pages)
        .map(|rank| {
            sum += (rank as f64).powf(-ZIPF);
            sum
        })
        .collect();
    below.iter_mut().for_each(|it| *it /= sum);
    below
}

/// Exponent of Zipf's law: Breslau and others (1999) found 0.64 to 0.83.
const ZIPF: f64 = 0.8;
/// Share of requests for objects that were requested before.
const OFFERED_HITS: f64 = 0.6;
/// Share of requests for objects that may be stored, those included.
const CACHEABLE: f64 = 0.8;
/// Share of repeated visits that choose the smallest page among the neighbours.
const SMALL_SHARE: f64 = 0.9;
const NEAR: u64 = 4;
