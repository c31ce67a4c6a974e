//! The requests with which WebCoSM was measured (its Table 3, Web Polygraph 2.2.9): 100 clients, 4
//! servers, 40 % of the requests for objects that were requested before, popularity zipf(0.6),
//! sizes exp(5 KB), everything may be stored.
//!
//! The paper does not say which objects have which rank. Here the object that was requested first
//! has the first rank.

use super::{Draw, Drawn, Settings};

/// See the module's head.
pub struct Foxy {
    random: fastrand::Rng,
    seed: u64,
    hit_ratio: f64,
    /// Objects so far.
    pub(super) objects: u64,
}

impl Foxy {
    pub fn new(settings: &Settings) -> Self {
        Self {
            random: fastrand::Rng::with_seed(settings.seed),
            seed: settings.seed,
            hit_ratio: settings.hit_ratio,
            objects: 0,
        }
    }

    /// The distribution function of rank k of n is (k / n)^(1 - 0.6), nearly.
    pub(super) fn rank(&mut self) -> u64 {
        let part = self.random.f64().powf(1.0 / (1.0 - EXPONENT));
        floor(part * self.objects as f64).min(self.objects - 1)
    }
}

impl Draw for Foxy {
    fn draw(&mut self, _client: u64) -> Drawn {
        let again = self.objects > 0 && self.random.f64() < self.hit_ratio;
        let object = if again {
            self.rank()
        } else {
            self.objects += 1;
            self.objects - 1
        };
        let mut of_object = fastrand::Rng::with_seed(object ^ self.seed.rotate_left(32));
        let bytes = -MEAN_BYTES * (1.0 - of_object.f64()).ln();
        Drawn {
            name: format!("http://s{}.foxy.example/{object}", object % SERVERS),
            bytes: floor(bytes).max(1),
            group: String::new(),
            may_be_stored: true,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the fraction is to be dropped"
)]
fn floor(value: f64) -> u64 {
    value as u64
}

const EXPONENT: f64 = 0.6;
const MEAN_BYTES: f64 = 5.0 * 1024.0;
const SERVERS: u64 = 4;
