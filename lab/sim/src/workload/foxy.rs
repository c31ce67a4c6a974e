//! The requests with which WebCoSM was measured (its Table 3, Web Polygraph 2.2.9): 100 clients, 4
//! servers, 40 % of the requests for objects that were requested before, popularity zipf(0.6),
//! sizes exp(5 KB), everything may be stored.
//!
//! The paper does not say which objects have which rank. Here the object that was requested first
//! has the first rank. Used by `hashcache sim generate` and, as `table3`, by
//! `hashcache-layouts`.

use hashcache_workload::draw::{exponential, whole, zipf};

use super::{Draw, Drawn};

/// Draws these requests, from a seed.
pub struct Foxy {
    random: fastrand::Rng,
    seed: u64,
    hit_ratio: f64,
    /// Objects so far.
    pub(super) objects: u64,
}

/// An object that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoxyObject {
    /// Its number, from 0 on in the order of first requests.
    pub number: u64,
    /// The number of its server.
    pub server: u32,
    /// Its length.
    pub bytes: u64,
}

impl Foxy {
    /// Requests that follow from `seed`; this share of them repeats an earlier one.
    pub fn new(seed: u64, hit_ratio: f64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            seed,
            hit_ratio,
            objects: 0,
        }
    }

    /// The object of the next request.
    pub fn object(&mut self) -> FoxyObject {
        let again = self.objects > 0 && self.random.f64() < self.hit_ratio;
        let number = if again {
            self.rank()
        } else {
            self.objects += 1;
            self.objects - 1
        };
        let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed;
        let mut of_object = fastrand::Rng::with_seed(seed);
        FoxyObject {
            number,
            bytes: whole(exponential(&mut of_object, MEAN_BYTES)).max(1),
            server: of_object.u32(..SERVERS),
        }
    }

    pub(super) fn rank(&mut self) -> u64 {
        zipf(&mut self.random, self.objects, EXPONENT)
    }
}

impl Draw for Foxy {
    fn draw(&mut self, _client: u64) -> Drawn {
        let object = self.object();
        Drawn {
            name: format!("http://s{}.foxy.example/{}", object.server, object.number),
            bytes: object.bytes,
            group: String::new(),
            may_be_stored: true,
        }
    }
}

/// The share of requests that repeat an earlier one, in the paper.
pub const HIT_RATIO: f64 = 0.4;
const EXPONENT: f64 = 0.6;
const MEAN_BYTES: f64 = 5.0 * 1024.0;
const SERVERS: u32 = 4;
