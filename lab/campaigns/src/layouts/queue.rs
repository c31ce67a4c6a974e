//! Response times when requests arrive at given rates, from how long the disk was at work for each.
//!
//! WebCoSM, section 4.2, has a proxy that does one step after another, so that its disk holds up
//! every request. So requests wait for each other here, hits and misses alike, in the order in
//! which they come. What a layout writes later, for many requests at once, holds up the request
//! that was being served then.
//!
//! Invariant: equal services, rates and seeds give equal results.

use serde::{Deserialize, Serialize};

/// What one request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// How long the disk was at work, in nanoseconds.
    pub disk_ns: u64,
    /// Octets that came from the origin server; `None` for a hit.
    pub fetched_bytes: Option<u64>,
}

/// What clients notice when requests arrive at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests that arrive in a second.
    pub offered: f64,
    /// Requests that were answered in a second.
    pub throughput: f64,
    /// Mean time from the arrival of a request to its response.
    pub response_ms: f64,
    /// Octets from origin servers in a second.
    pub fetched_bytes_per_s: f64,
}

impl Load {
    /// Serves requests that arrive at random times, `offered` in a second. A response of an origin
    /// server takes `origin_s` seconds.
    pub fn new(services: &[Service], offered: f64, origin_s: f64, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut arrival, mut free, mut last) = (0.0_f64, 0.0_f64, 0.0_f64);
        let (mut waited, mut fetched) = (0.0, 0.0);
        for service in services {
            arrival -= (1.0 - random.f64()).ln() / offered;
            free = free.max(arrival) + service.disk_ns as f64 / 1e9;
            let origin = match service.fetched_bytes {
                Some(bytes) => {
                    fetched += bytes as f64;
                    origin_s
                }
                None => 0.0,
            };
            waited += free - arrival + origin;
            last = last.max(free);
        }
        let requests = services.len().max(1) as f64;
        let seconds = last.max(arrival).max(f64::MIN_POSITIVE);
        Self {
            offered,
            throughput: services.len() as f64 / seconds,
            response_ms: waited / requests * 1e3,
            fetched_bytes_per_s: fetched / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(disk_ms: u64, offered: f64) -> Load {
        let services = (0..10_000).map(|n| Service {
            disk_ns: disk_ms * 1_000_000,
            fetched_bytes: (n % 2 == 0).then_some(1000),
        });
        Load::new(&services.collect::<Vec<_>>(), offered, 1.0, 1)
    }

    #[test]
    fn a_disk_that_keeps_up_adds_little_to_the_origins_time() {
        let load = load(10, 20.0);
        assert!((load.throughput - 20.0).abs() < 1.0, "{load:?}");
        // Half of the requests take a second; a wait for a disk that is busy a fifth of the time.
        assert!((510.0..514.0).contains(&load.response_ms), "{load:?}");
        assert!(
            (load.fetched_bytes_per_s - 10_000.0).abs() < 500.0,
            "{load:?}"
        );
    }

    #[test]
    fn a_disk_that_does_not_keep_up_serves_what_it_can_and_clients_wait() {
        let load = load(10, 200.0);
        assert!((load.throughput - 100.0).abs() < 1.0, "{load:?}");
        assert!(load.response_ms > 10_000.0, "{load:?}");
    }

    #[test]
    fn no_requests_make_no_load() {
        let load = Load::new(&[], 10.0, 1.0, 1);
        assert_eq!((load.throughput, load.response_ms), (0.0, 0.0));
    }
}
