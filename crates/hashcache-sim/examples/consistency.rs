//! What each scheme that keeps caches current costs, and how stale its answers are.
//!
//! `cargo run --release -p hashcache-sim --example consistency [REQUESTS-A-DAY [SEED]]`

use hashcache_http::Seconds;
use hashcache_sim::consistency::{Counts, Scheme, Settings, crossing, simulate};

fn main() {
    let mut settings = Settings::default();
    let mut words = std::env::args().skip(1);
    if let Some(word) = words.next() {
        settings.requests_per_day = word.parse().expect("requests a day");
    }
    if let Some(word) = words.next() {
        settings.seed = word.parse().expect("a seed");
    }
    println!("scheme              days   stale    waits   bytes/request  messages    of origins");
    let told = [Scheme::Invalidation, Scheme::GroupPurge].map(|scheme| {
        let counts = simulate(&settings, scheme);
        print(scheme, "", &counts);
        counts
    });
    for scheme in WITH_LIFETIME {
        let runs = LIFETIMES.map(|days| {
            let counts = simulate(&settings, scheme(Seconds::new(days * 86_400)));
            print(scheme(Seconds::ZERO), &days.to_string(), &counts);
            (days as f64, counts)
        });
        match crossing(&runs, &told[0]) {
            Some(found) => println!(
                "  as many bytes as invalidation with {:.1} days; then {:.1} % are stale",
                found.days,
                found.stale_share * 100.0
            ),
            None => println!("  as many bytes as invalidation with none of them"),
        }
    }
}

fn print(scheme: Scheme, days: &str, counts: &Counts) {
    println!(
        "{scheme:<18} {days:>5} {:>6.1} % {:>6.1} % {:>15.0} {:>9.4} {:>13.4}",
        counts.stale_share() * 100.0,
        counts.per_request(counts.waits) * 100.0,
        counts.per_request(counts.link_bytes),
        counts.per_request(counts.messages),
        counts.per_request(counts.origin_requests),
    );
}

const WITH_LIFETIME: [fn(Seconds) -> Scheme; 5] = [
    Scheme::Fixed,
    Scheme::Validated,
    Scheme::WhileRevalidating,
    Scheme::Doubling,
    Scheme::Heuristic,
];
/// Days.
const LIFETIMES: [u64; 10] = [1, 2, 3, 5, 7, 10, 14, 21, 30, 60];
