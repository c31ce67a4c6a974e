//! What the bench asks for: the workload of the paper's measurements, in outline.
//!
//! Polymix-4 as the paper used it: 60 % of the requests are for objects asked for before, another
//! 20 % for new ones that may be stored, the rest for what may not. What is asked for again is one
//! of the newest objects: any of them, now and then one of a small hot part, and mostly the
//! smallest of its neighbourhood, which is why fewer bytes than objects are hits.
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
    /// The number of the next new object.
    next: u64,
    /// How many of the newest are asked for again.
    window: u64,
    /// Where the hot part of them begins, and how many requests ago it moved.
    hot_from: u64,
    asked: u64,
}

impl Workload {
    /// Objects of which the newest `window` are asked for again.
    pub fn new(seed: u64, sizes: Sizes, window: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pool = vec![0; POOL_BYTES + CONTENT_BYTES_MAX];
        random.fill(&mut pool);
        Self {
            random,
            seed,
            sizes,
            pool,
            next: 0,
            window: window.max(HOT_PART),
            hot_from: 0,
            asked: 0,
        }
    }

    /// A new object.
    pub fn new_object(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The next request.
    pub fn request(&mut self) -> Request {
        let kind = self.random.f64();
        if kind < OFFERED_HITS && self.next > 0 {
            Request::Again(self.known_object())
        } else if kind < CACHEABLE {
            Request::New(self.new_object())
        } else {
            Request::Uncacheable(self.random.u64(..))
        }
    }

    fn known_object(&mut self) -> u64 {
        let window = self.window.min(self.next);
        let oldest = self.next - window;
        if self.asked.is_multiple_of(self.window) {
            self.hot_from = self.random.u64(oldest..self.next);
        }
        self.asked += 1;
        let hot = self.hot_from..self.hot_from + (window / HOT_PART).max(1);
        let from = if self.random.f64() < HOT_SHARE {
            hot
        } else {
            oldest..self.next
        };
        let drawn = self.random.u64(from).clamp(oldest, self.next - 1);
        if self.random.f64() >= SMALL_SHARE {
            return drawn;
        }
        let near = drawn.saturating_sub(NEAR).max(oldest)..=(drawn + NEAR).min(self.next - 1);
        near.min_by_key(|n| self.content_bytes(*n)).unwrap_or(drawn)
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

/// Share of requests for what was asked for before.
const OFFERED_HITS: f64 = 0.6;
/// Share of requests for what may be stored, those among them.
const CACHEABLE: f64 = 0.8;
/// Share of the former that go to the hot part, and which part that is.
const HOT_SHARE: f64 = 0.1;
const HOT_PART: u64 = 100;
/// Share of the former that go to the smallest object so near.
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

    #[test]
    fn sixty_of_a_hundred_are_asked_for_again_and_twenty_are_new() {
        let mut workload = Workload::new(1, Sizes::Web, 1_000);
        for _ in 0..1_000 {
            workload.new_object();
        }
        let requests: Vec<Request> = (0..20_000).map(|_| workload.request()).collect();
        let share = |is: fn(&Request) -> bool| {
            requests.iter().filter(|request| is(request)).count() as f64 / 20_000.0
        };
        let again = share(|request| matches!(request, Request::Again(_)));
        let new = share(|request| matches!(request, Request::New(_)));
        assert!((0.59..0.61).contains(&again), "{again}");
        assert!((0.19..0.21).contains(&new), "{new}");
    }

    #[test]
    fn only_the_newest_are_asked_for_again() {
        let mut workload = Workload::new(1, Sizes::Web, 1_000);
        for _ in 0..5_000 {
            workload.new_object();
        }
        for _ in 0..20_000 {
            let newest = workload.next;
            if let Request::Again(object) = workload.request() {
                assert!((newest - 1_000..newest).contains(&object), "{object}");
            }
        }
    }

    #[test]
    fn web_objects_have_a_median_of_3_kib_and_a_mean_of_nine() {
        let workload = Workload::new(1, Sizes::Web, 1);
        let mut sizes: Vec<usize> = (0..20_000).map(|n| workload.content_bytes(n)).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((2_900..3_250).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!((8_500..9_800).contains(&mean), "{mean}");
    }

    #[test]
    fn an_object_is_always_the_same_and_no_other() {
        let one = Workload::new(7, Sizes::Fixed(100), 1);
        let same = Workload::new(7, Sizes::Fixed(100), 1);
        let other = Workload::new(8, Sizes::Fixed(100), 1);
        assert_eq!(one.content(5), same.content(5));
        assert_ne!(one.content(5), one.content(6));
        assert_ne!(one.content(5), other.content(5));
    }
}
