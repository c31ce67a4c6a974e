//! Numbers drawn from distributions.
//!
//! Used by the workloads here and by those of `hashcache-sim`. Invariant: each function takes a
//! fixed count of draws from `random`, so equal seeds give equal numbers.

use std::f64::consts::TAU;

/// A number with mean 0 and deviation 1 (Box and Muller: one normal number from two uniform ones).
pub fn normal(random: &mut fastrand::Rng) -> f64 {
    let (u, v) = (1.0 - random.f64(), random.f64());
    (-2.0 * u.ln()).sqrt() * (TAU * v).cos()
}

/// A number of the exponential distribution.
pub fn exponential(random: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.f64()).ln()
}

/// Polygraph's `logn`: mean and deviation are those of the result.
pub(crate) fn log_normal(random: &mut fastrand::Rng, mean: f64, deviation: f64) -> f64 {
    let squares = (deviation * deviation + mean * mean).ln();
    let sigma = (squares - 2.0 * mean.ln()).sqrt();
    let mu = 2.0 * mean.ln() - squares / 2.0;
    (mu + sigma * normal(random)).exp()
}

/// A number below `count` by Zipf's law, with an exponent below 1. The distribution function of
/// rank k is nearly (k / count)^(1 - exponent).
pub fn zipf(random: &mut fastrand::Rng, count: u64, exponent: f64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let place = count as f64 * random.f64().powf(1.0 / (1.0 - exponent));
    whole(place).min(count.saturating_sub(1))
}

/// The number without its fraction; 0 below 0, and the largest one above it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to an integer cuts the fraction and keeps to the range"
)]
pub fn whole(number: f64) -> u64 {
    number as u64
}
