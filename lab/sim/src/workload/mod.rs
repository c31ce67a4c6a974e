//! Requests of benchmarks, from a seed: a trace that no log is needed for.
//!
//! - `wisconsin`: the Wisconsin Proxy Benchmark 1.0.
//! - `foxy`: the requests with which WebCoSM was measured (its Table 3).
//! - the workloads of `hashcache_workload`.
//!
//! Called by `hashcache sim generate`. Invariant: equal settings give equal requests.

mod bench;
mod foxy;
mod wisconsin;

use std::ops::ControlFlow;

use hashcache_workload::Shape;

use crate::source::{Source, SourceError};
use crate::trace::Request;
use bench::Bench;
pub use foxy::{Foxy, FoxyObject, HIT_RATIO as FOXY_HIT_RATIO};
use wisconsin::Wisconsin;
pub use wisconsin::WisconsinSizes;

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Wisconsin Proxy Benchmark: half of the requests are new, then some are repeated by recency
    Wisconsin,
    /// WebCoSM, Table 3: 40 % hits by Zipf's law with exponent 0.6, sizes of 5 KB on average
    Foxy,
    /// Polymix-4: 1 to 13 images per page, 20 % single objects, a hot set
    Polymix,
    /// Polymix-4, but half of the images are shared by 16 pages of a site
    Shared,
    /// The objects of Polymix-4 without pages
    Singles,
    /// Pages of 13 objects of their own, by Zipf's law
    Pages,
}

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The benchmark.
    pub name: Name,
    /// Everything random follows from it.
    pub seed: u64,
    /// Requests of all clients together.
    pub requests: u64,
    /// Clients that take turns.
    pub clients: u64,
    /// Objects that are requested again; of `wisconsin` and `foxy`, all are.
    pub working_set: u64,
    /// Share of the second half of `wisconsin`, or of `foxy`, that repeats an earlier request.
    pub hit_ratio: f64,
    /// Sizes of `wisconsin`.
    pub sizes: WisconsinSizes,
}

impl Settings {
    /// The benchmark as its authors have it.
    pub fn new(name: Name, seed: u64, requests: u64) -> Self {
        Self {
            name,
            seed,
            requests,
            clients: match name {
                Name::Foxy => 100,
                Name::Wisconsin => 30,
                _ => 8,
            },
            working_set: (requests / 8).clamp(1, WORKING_SET_MAX),
            hit_ratio: match name {
                Name::Foxy => FOXY_HIT_RATIO,
                _ => 0.45,
            },
            sizes: WisconsinSizes::Uniform,
        }
    }
}

/// A request before it is written down.
struct Drawn {
    name: String,
    bytes: u64,
    /// Empty: none.
    group: String,
    may_be_stored: bool,
}

/// Draws requests, one after another, for clients that take turns.
trait Draw {
    /// The next request of `client`.
    fn draw(&mut self, client: u64) -> Drawn;
}

/// Requests of a benchmark; the same each time they are read.
pub struct Generated(pub Settings);

impl Source for Generated {
    fn read(
        &mut self,
        each: &mut dyn FnMut(&Request<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        let settings = &self.0;
        let mut workload: Box<dyn Draw> = match settings.name {
            Name::Wisconsin => Box::new(Wisconsin::new(settings)),
            Name::Foxy => Box::new(Foxy::new(settings.seed, settings.hit_ratio)),
            Name::Polymix => Box::new(Bench::new(Shape::Polymix, settings)),
            Name::Shared => Box::new(Bench::new(Shape::Shared, settings)),
            Name::Singles => Box::new(Bench::new(Shape::Singles, settings)),
            Name::Pages => Box::new(Bench::new(Shape::Pages, settings)),
        };
        for n in 0..settings.requests {
            let turn = n % settings.clients.max(1);
            let drawn = workload.draw(turn);
            let client = turn.to_string();
            let request = Request {
                time_us: n * INTERVAL_US,
                client: client.as_bytes(),
                name: drawn.name.as_bytes(),
                bytes: Some(drawn.bytes),
                group: drawn.group.as_bytes(),
                may_be_stored: drawn.may_be_stored,
            };
            if each(&request).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Working sets are bounded: `pages` keeps 16 bytes for each page of one.
pub const WORKING_SET_MAX: u64 = 100_000_000;
/// 100 requests a second; benchmarks send as fast as they are answered, or at a rate that is
/// varied.
const INTERVAL_US: u64 = 10_000;

#[cfg(test)]
mod tests;
