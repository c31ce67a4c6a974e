//! The Wisconsin Proxy Benchmark 1.0 (Almeida, Cao).
//!
//! Each client sends one request after another, and no two clients request the same file. In the
//! first half of the run every request is for a new file. In the second half a request repeats,
//! with the inherent hit ratio as its chance, the one of t requests ago; t is drawn with a chance
//! in proportion to 1/t among all requests of the client so far.
//!
//! Not modelled: the server's delay, which a trace does not have.
//! Cost: 8 bytes of memory for each request.

use hashcache_workload::draw::whole;

use super::{Draw, Drawn, Settings};

/// How large files are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum WisconsinSizes {
    /// 99 % up to 40 KB, evenly; 1 % of 1 MB
    #[default]
    Uniform,
    /// Pareto with the exponent 1.1 and at least 3 KB, cut at 64 MiB
    Pareto,
}

/// See the module's head.
pub struct Wisconsin {
    random: fastrand::Rng,
    seed: u64,
    hit_ratio: f64,
    sizes: WisconsinSizes,
    /// Requests of a client that are all new.
    first_half: u64,
    clients: Vec<Client>,
    /// Sums of 1/t for t from 1 on.
    sums: Vec<f64>,
}

#[derive(Clone, Default)]
struct Client {
    /// The file of each request so far.
    requested: Vec<u32>,
    /// The next new file.
    next: u32,
}

impl Wisconsin {
    pub fn new(settings: &Settings) -> Self {
        let clients = settings.clients.max(1);
        let count = usize::try_from(clients).unwrap_or(usize::MAX);
        Self {
            random: fastrand::Rng::with_seed(settings.seed),
            seed: settings.seed,
            hit_ratio: settings.hit_ratio,
            sizes: settings.sizes,
            first_half: settings.requests / clients / 2,
            clients: vec![Client::default(); count],
            sums: vec![],
        }
    }

    /// How many requests ago the repeated one was, of `count`.
    pub(super) fn age(&mut self, count: usize) -> usize {
        while self.sums.len() < count {
            let last = self.sums.last().copied().unwrap_or(0.0);
            self.sums.push(last + 1.0 / (self.sums.len() + 1) as f64);
        }
        let wanted = self.random.f64() * self.sums[count - 1];
        let below = self.sums[..count].partition_point(|sum| *sum <= wanted);
        below.min(count - 1) + 1
    }

    pub(super) fn bytes(&self, client: u64, file: u32) -> u64 {
        // The factor keeps the files of one seed from being those of another in another order.
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let seed = seed ^ client.rotate_left(40) ^ u64::from(file);
        let mut random = fastrand::Rng::with_seed(seed);
        match self.sizes {
            WisconsinSizes::Uniform if random.f64() < LARGE_SHARE => LARGE_BYTES,
            WisconsinSizes::Uniform => random.u64(1..=SMALL_BYTES_MAX),
            WisconsinSizes::Pareto => {
                let bytes = PARETO_BYTES_MIN / (1.0 - random.f64()).powf(1.0 / PARETO_EXPONENT);
                whole(bytes).min(PARETO_BYTES_MAX)
            }
        }
    }
}

impl Draw for Wisconsin {
    fn draw(&mut self, client: u64) -> Drawn {
        let place = usize::try_from(client).expect("below the number of clients");
        let count = self.clients[place].requested.len();
        let again = count as u64 >= self.first_half.max(1) && self.random.f64() < self.hit_ratio;
        let age = if again { self.age(count) } else { 0 };
        let its = &mut self.clients[place];
        let file = match age {
            0 => {
                its.next += 1;
                its.next
            }
            age => its.requested[count - age],
        };
        its.requested.push(file);
        Drawn {
            name: format!("http://wisconsin.example/{client}/dummy{file}.html"),
            bytes: self.bytes(client, file),
            group: String::new(),
            may_be_stored: true,
        }
    }
}

const LARGE_SHARE: f64 = 0.01;
const LARGE_BYTES: u64 = 1 << 20;
const SMALL_BYTES_MAX: u64 = 40 << 10;
const PARETO_EXPONENT: f64 = 1.1;
const PARETO_BYTES_MIN: f64 = 3.0 * 1024.0;
/// Without a bound the mean of a finite run is that of its largest file.
const PARETO_BYTES_MAX: u64 = 64 << 20;
