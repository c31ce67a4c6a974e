//! What the bench asks for: the workload of the paper's measurements, in outline.
//!
//! Polymix-4 as the paper used it: 60 % of the requests are for objects asked for before, another
//! 20 % for new ones that may be stored, the rest for what may not. What may be stored comes in
//! pages of related objects, which clients ask for one by one and in turn, so that objects of a
//! page do not follow on each other. What is asked for again is one of the newest pages, by Zipf's
//! law, and mostly the smallest of its neighbourhood, which is why fewer bytes than objects are
//! hits.
//!
//! Invariant: all follows from a seed and the number of the object; no object is kept to be
//! compared with.

use std::ops::Range;

/// How large objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Log-normal with a median of 3 KB and a sigma of 1.5, as web objects are.
    Web,
    /// All of so many bytes.
    Fixed(u32),
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// For an object that was stored once.
    Again(u64),
    /// For an object nobody asked for before.
    New(u64),
    /// For something that may not be stored.
    Uncacheable(u64),
}

/// Objects and requests for them.
pub struct Workload {
    random: fastrand::Rng,
    seed: u64,
    sizes: Sizes,
    /// Bytes that contents are cut out of.
    pool: Vec<u8>,
    /// Objects of a page, one behind the other.
    related: u64,
    /// Objects that were made to fill the store.
    filled: u64,
    /// The number of the next new page.
    next_page: u64,
    /// How often the pages of each rank are asked for, or any before them.
    popularity: Vec<f64>,
    /// The place of each rank in the ring of the newest pages: one that lasts as long as the page.
    places: Vec<u64>,
    clients: [Visit; CLIENTS],
    turn: usize,
}

/// A client at a page.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    page: u64,
    /// Objects it asked for.
    asked: u64,
    is_new: bool,
    /// False before the first.
    begun: bool,
}

impl Workload {
    /// Pages of `related` objects of which about the newest `window` objects are asked for again.
    pub fn new(seed: u64, sizes: Sizes, related: u64, window: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pool = vec![0; POOL_BYTES + CONTENT_BYTES_MAX];
        random.fill(&mut pool);
        let pages = (window / related).max(1);
        let mut places: Vec<u64> = (0..pages).collect();
        random.shuffle(&mut places);
        Self {
            random,
            seed,
            sizes,
            pool,
            related,
            filled: 0,
            next_page: 0,
            popularity: popularity(pages),
            places,
            clients: [Visit::default(); CLIENTS],
            turn: 0,
        }
    }

    /// The next object to fill the store with, of pages that come in turn.
    pub fn fill(&mut self) -> u64 {
        let clients = CLIENTS as u64;
        let (round, n) = (
            self.filled / fill_step(self.related),
            self.filled % fill_step(self.related),
        );
        self.filled += 1;
        self.next_page = (round + 1) * clients;
        (round * clients + n % clients) * self.related + n / clients
    }

    /// The next request.
    pub fn request(&mut self) -> Request {
        if self.random.f64() >= CACHEABLE {
            return Request::Uncacheable(self.random.u64(..));
        }
        let client = self.turn;
        self.turn = (self.turn + 1) % CLIENTS;
        let mut visit = self.clients[client];
        if !visit.begun || visit.asked == self.related {
            visit = self.visit();
        }
        let object = visit.page * self.related + visit.asked;
        visit.asked += 1;
        self.clients[client] = visit;
        if visit.is_new {
            Request::New(object)
        } else {
            Request::Again(object)
        }
    }

    fn visit(&mut self) -> Visit {
        let again = self.random.f64() < OFFERED_HITS / CACHEABLE;
        let known = if again { self.known_page() } else { None };
        let page = known.unwrap_or(self.next_page);
        self.next_page += u64::from(known.is_none());
        Visit {
            page,
            asked: 0,
            is_new: known.is_none(),
            begun: true,
        }
    }

    /// One of the newest pages that are whole.
    fn known_page(&mut self) -> Option<u64> {
        // Those that clients are still at come behind.
        let end = self.next_page.saturating_sub(2 * CLIENTS as u64);
        let ring = self.places.len() as u64;
        let oldest = end.checked_sub(ring)?;
        let at = self.random.f64();
        let rank = self.popularity.partition_point(|below| *below < at);
        let place = self.places[rank.min(self.places.len() - 1)];
        // The one of the newest that is in this place.
        let drawn = oldest + (place + ring - oldest % ring) % ring;
        if self.random.f64() >= SMALL_SHARE {
            return Some(drawn);
        }
        let near = drawn.saturating_sub(NEAR).max(oldest)..=(drawn + NEAR).min(end - 1);
        near.min_by_key(|page| self.page_bytes(*page))
    }

    fn page_bytes(&self, page: u64) -> usize {
        let objects = page * self.related..(page + 1) * self.related;
        objects.map(|object| self.content_bytes(object)).sum()
    }

    /// What the objects of a page have in common, and none with those of others; 0: nothing.
    pub fn group(&self, object: u64) -> u64 {
        match self.related {
            1 => 0,
            related => object / related + 1,
        }
    }

    fn random_of(&self, object: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(object.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed)
    }

    /// Length of an object's content.
    pub fn content_bytes(&self, object: u64) -> usize {
        match self.sizes {
            Sizes::Fixed(bytes) => bytes as usize,
            Sizes::Web => web_bytes(&mut self.random_of(object)),
        }
    }

    /// An object's content: a stretch of random bytes of its own.
    pub fn content(&self, object: u64) -> &[u8] {
        let length = self.content_bytes(object);
        let from = self.random_of(!object).usize(..POOL_BYTES);
        &self.pool[from..from + length]
    }

    /// What is stored beside the content: as long as the head of a response, and it says whose.
    pub fn metadata(&self, object: u64) -> Vec<u8> {
        let mut metadata = object.to_le_bytes().to_vec();
        metadata.resize(self.metadata_bytes(), b' ');
        metadata
    }

    fn metadata_bytes(&self) -> usize {
        match self.sizes {
            Sizes::Web => WEB_METADATA_BYTES,
            Sizes::Fixed(_) => size_of::<u64>(),
        }
    }

    /// Mean size of the first objects as records, bytes.
    pub fn record_bytes(&self) -> u32 {
        let sample: Range<u64> = 0..10_000;
        let count = sample.end;
        let record = |n| self.content_bytes(n) + self.metadata_bytes() + RECORD_REST_BYTES;
        let whole: usize = sample
            .map(|n| record(n).next_multiple_of(UNIT_BYTES) + LISTED_BYTES)
            .sum();
        u32::try_from(whole as u64 / count).expect("objects are at most a few MiB")
    }
}

/// A size of the web's distribution.
#[expect(
    clippy::cast_possible_truncation,
    reason = "what is behind the point is to be cut off, and it is bounded"
)]
fn web_bytes(random: &mut fastrand::Rng) -> usize {
    // Box and Muller: one normal number out of two even ones.
    let (u, v) = (1.0 - random.f64(), random.f64());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let bytes = WEB_MEDIAN_BYTES * (WEB_SIGMA * normal).exp();
    (bytes as usize).clamp(1, CONTENT_BYTES_MAX)
}

/// The name of an object, or of what may not be stored.
pub fn name(request: Request) -> String {
    match request {
        Request::Again(object) | Request::New(object) => {
            format!("http://bench.example/w1/t1/_{object:016x}.html")
        }
        Request::Uncacheable(number) => format!("http://bench.example/cgi?{number:016x}"),
    }
}

/// How often one of `pages` pages or of those before it is asked for, by Zipf's law.
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

/// Objects that pages of `related` objects are filled in by: all clients, a page each.
pub fn fill_step(related: u64) -> u64 {
    related * CLIENTS as u64
}

/// Clients that ask in turn.
const CLIENTS: usize = 8;
/// How much more popular pages are asked for: what Breslau and others (1999) found is 0.64 to 0.83.
const ZIPF: f64 = 0.8;
/// Share of requests for what was asked for before.
const OFFERED_HITS: f64 = 0.6;
/// Share of requests for what may be stored, those among them.
const CACHEABLE: f64 = 0.8;
/// Share of the former that go to the smallest page so near.
const SMALL_SHARE: f64 = 0.9;
const NEAR: u64 = 4;
const WEB_MEDIAN_BYTES: f64 = 3072.0;
const WEB_SIGMA: f64 = 1.5;
const WEB_METADATA_BYTES: usize = 400;
const CONTENT_BYTES_MAX: usize = 1 << 20;
const POOL_BYTES: usize = 1 << 20;
/// Header and name of a record, about.
const RECORD_REST_BYTES: usize = 200;
/// Its lines in the lists of its batch and its segment.
const LISTED_BYTES: usize = 2 * 56;
const UNIT_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(related: u64, window: u64, objects: u64) -> Workload {
        let mut workload = Workload::new(1, Sizes::Web, related, window);
        let mut all: Vec<u64> = (0..objects).map(|_| workload.fill()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..objects));
        workload
    }

    #[test]
    fn sixty_of_a_hundred_are_asked_for_again_and_twenty_are_new() {
        let mut workload = filled(13, 1_000, fill_step(13) * 20);
        let requests: Vec<Request> = (0..40_000).map(|_| workload.request()).collect();
        let share = |is: fn(&Request) -> bool| {
            requests.iter().filter(|request| is(request)).count() as f64 / 40_000.0
        };
        let again = share(|request| matches!(request, Request::Again(_)));
        let new = share(|request| matches!(request, Request::New(_)));
        assert!((0.58..0.62).contains(&again), "{again}");
        assert!((0.18..0.22).contains(&new), "{new}");
    }

    #[test]
    fn only_the_newest_pages_are_asked_for_again_and_only_when_they_are_whole() {
        for related in [1, 13] {
            let mut workload = filled(related, 1_300, fill_step(related) * 400);
            let mut come: std::collections::HashSet<u64> = (0..workload.filled).collect();
            for _ in 0..20_000 {
                let newest = workload.next_page * related;
                match workload.request() {
                    Request::Again(object) => {
                        assert!(come.contains(&object), "{object}");
                        // As many pages as clients may have begun meanwhile.
                        let oldest = newest - 1_300 - 64 * related;
                        assert!(object >= oldest, "{object} of {newest}");
                    }
                    Request::New(object) => assert!(come.insert(object), "{object}"),
                    Request::Uncacheable(_) => {}
                }
            }
        }
    }

    #[test]
    fn objects_of_a_page_come_in_turn_with_those_of_others() {
        let mut workload = filled(13, 1_300, fill_step(13) * 20);
        let mut pages = Vec::new();
        while pages.len() < 1_000 {
            if let Request::Again(object) | Request::New(object) = workload.request() {
                assert_eq!(workload.group(object), object / 13 + 1);
                pages.push(object / 13);
            }
        }
        let next_to_own = pages.windows(2).filter(|two| two[0] == two[1]).count();
        assert!(next_to_own < 100, "{next_to_own}");
        let page_again = pages.windows(9).filter(|nine| nine[0] == nine[8]).count();
        assert!(page_again > 850, "{page_again}");
    }

    #[test]
    fn web_objects_have_a_median_of_3_kib_and_a_mean_of_nine() {
        let workload = Workload::new(1, Sizes::Web, 1, 1);
        let mut sizes: Vec<usize> = (0..20_000).map(|n| workload.content_bytes(n)).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((2_900..3_250).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!((8_500..9_800).contains(&mean), "{mean}");
    }

    #[test]
    fn an_object_is_always_the_same_and_no_other() {
        let one = Workload::new(7, Sizes::Fixed(100), 1, 1);
        let same = Workload::new(7, Sizes::Fixed(100), 1, 1);
        let other = Workload::new(8, Sizes::Fixed(100), 1, 1);
        assert_eq!(one.content(5), same.content(5));
        assert_ne!(one.content(5), one.content(6));
        assert_ne!(one.content(5), other.content(5));
    }
}
