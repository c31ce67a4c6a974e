//! The requests of the clients: which objects, how large, how often again.
//!
//! Invariant: equal seeds give equal requests, whatever the proxies do, so that all ways of asking
//! peers are measured with the same ones.

use fastrand::Rng;

/// Whether clients of different proxies ask for the same objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Each client has objects of its own: no proxy can help another one.
    None,
    /// New objects are drawn from a catalogue of all clients, by Zipf's law.
    Catalogue,
}

/// What all clients do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    /// How many of 100 requests are for an object that the client had before.
    pub again_percent: u8,
    pub overlap: Overlap,
    /// Requests of each client.
    pub requests: usize,
}

impl Workload {
    /// The paths that a client of a proxy requests, in order.
    pub fn paths(&self, proxy: usize, client: usize) -> Vec<String> {
        let number = (proxy * CLIENTS_MAX + client) as u64;
        let mut random = Rng::with_seed(self.seed.wrapping_mul(SPREAD).wrapping_add(number));
        let mut had: Vec<String> = vec![];
        let mut paths = vec![];
        for request in 0..self.requests {
            let again = random.u8(0..100) < self.again_percent;
            let path = match had.len() {
                count if again && count > 0 => {
                    // Temporal locality: one of the latest.
                    had[count - 1 - random.usize(0..count.min(LATEST))].clone()
                }
                _ => {
                    let path = match self.overlap {
                        Overlap::None => {
                            let size = pareto(random.f64());
                            format!("/{proxy}/{client}/{request}?size={size}")
                        }
                        Overlap::Catalogue => self.catalogue_path(random.f64()),
                    };
                    had.push(path.clone());
                    path
                }
            };
            paths.push(path);
        }
        paths
    }

    fn catalogue_path(&self, uniform: f64) -> String {
        // The inverse of the distribution of Zipf's law with the exponent 3/4.
        let rank = (CATALOGUE * uniform.powi(4)).floor();
        let seed = self.seed.wrapping_mul(SPREAD).wrapping_add(rank.to_bits());
        let size = pareto(Rng::with_seed(seed).f64());
        format!("/catalogue/{rank:.0}?size={size}")
    }
}

/// A size in bytes, by the distribution of the paper, cut off at [`SIZE_MAX`].
fn pareto(uniform: f64) -> u64 {
    let size = SIZE_MIN / (1.0 - uniform).powf(1.0 / PARETO_ALPHA);
    // The conversion saturates, and the cut is far below.
    #[expect(clippy::cast_possible_truncation, reason = "cut off before")]
    let size = size.min(SIZE_MAX) as u64;
    size
}

/// Of one proxy; more would share their numbers with those of the next one.
pub const CLIENTS_MAX: usize = 1_000;
const LATEST: usize = 40;
const CATALOGUE: f64 = 20_000.0;
/// α and k of the paper, k in KB.
const PARETO_ALPHA: f64 = 1.1;
const SIZE_MIN: f64 = 3_000.0;
/// The largest of some thousand sizes takes a different share of the time in each run otherwise.
const SIZE_MAX: f64 = 4e6;
/// Makes seeds of neighbours differ in many bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn workload(overlap: Overlap, again_percent: u8) -> Workload {
        Workload {
            seed: 1,
            again_percent,
            overlap,
            requests: 200,
        }
    }

    fn of_proxy(workload: Workload, proxy: usize) -> Vec<String> {
        (0..30)
            .flat_map(|client| workload.paths(proxy, client))
            .collect()
    }

    #[test]
    fn the_share_of_requests_for_an_object_again_is_as_told() {
        for (percent, least, most) in [(25, 23, 27), (45, 43, 47)] {
            let paths = of_proxy(workload(Overlap::None, percent), 0);
            let distinct: HashSet<&String> = paths.iter().collect();
            let again = (paths.len() - distinct.len()) * 100 / paths.len();
            assert!((least..=most).contains(&again), "{again} of {percent}");
        }
    }

    #[test]
    fn only_a_catalogue_makes_proxies_ask_for_the_same_objects() {
        let shared = |overlap| {
            let sets: Vec<HashSet<String>> = [0, 1]
                .map(|proxy| of_proxy(workload(overlap, 25), proxy).into_iter().collect())
                .into();
            sets[0].intersection(&sets[1]).count()
        };
        assert_eq!(shared(Overlap::None), 0);
        assert!(shared(Overlap::Catalogue) > 500);
    }

    #[test]
    fn equal_seeds_give_equal_requests() {
        let again = workload(Overlap::Catalogue, 45);
        assert_eq!(again.paths(2, 3), again.paths(2, 3));
        assert_ne!(again.paths(2, 3), again.paths(2, 4));
    }

    #[test]
    fn sizes_follow_the_law_and_have_an_end() {
        assert_eq!(pareto(0.0), 3_000);
        // Half of a Pareto distribution is below k · 2^(1/α).
        assert_eq!(pareto(0.5), 5_633);
        assert_eq!(pareto(1.0), 4_000_000);
    }
}
