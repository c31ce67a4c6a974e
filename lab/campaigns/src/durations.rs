//! Times of requests: their median, other quantiles, mean.
//!
//! Used by the campaigns that measure how long clients wait.

use std::time::Duration;

/// Times in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(Vec<Duration>);

impl Durations {
    /// Sorts these times.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time within which this many of 1000 requests were answered; 0 if there are none.
    pub fn quantile(&self, per_mille: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let at = (self.0.len() * per_mille / 1000).min(last);
        self.0.get(at).copied().unwrap_or_default()
    }

    /// The time within which half of the requests were answered.
    pub fn median(&self) -> Duration {
        self.quantile(500)
    }

    /// The mean; 0 if there are none.
    pub fn mean(&self) -> Duration {
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.iter().sum::<Duration>() / count.max(1)
    }
}

/// A time in milliseconds with two decimals, without the unit.
pub fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_times_are_below_the_median_and_nearly_all_below_the_last_quantiles() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        let times = Durations::new(times);
        assert_eq!(times.count(), 100);
        assert_eq!(times.median(), Duration::from_millis(51));
        assert_eq!(times.quantile(990), Duration::from_millis(100));
        assert_eq!(times.quantile(1000), Duration::from_millis(100));
        assert_eq!(times.mean(), Duration::from_micros(50_500));
        assert_eq!(Durations::default().median(), Duration::ZERO);
        assert_eq!(Durations::default().mean(), Duration::ZERO);
        assert_eq!(millis(Duration::from_micros(1_234)), "1.23");
    }
}
