//! The median of one figure of several rounds.
//!
//! Used by the campaigns that repeat a measurement.

use hashcache_sim::median;

/// The median of a figure by itself; 0 if there are no rounds.
pub fn median<T>(rounds: &[T], figure: impl Fn(&T) -> u64) -> u64 {
    median::median(rounds.iter().map(figure), u64::cmp).unwrap_or_default()
}

/// The median of a figure that has a fraction; 0 if there are no rounds.
pub fn median_f64<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median::median(rounds.iter().map(figure), f64::total_cmp).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_each_figure_by_itself() {
        let rounds = [(3, 10), (1, 30), (2, 20)];
        assert_eq!(median(&rounds, |round| round.0), 2);
        assert_eq!(median(&rounds, |round| round.1), 20);
        assert_eq!(median(&rounds[..2], |round| round.0), 1);
        assert_eq!(median(&rounds[..0], |round| round.0), 0);
        assert_eq!(median_f64(&[0.3, 0.1, 0.2], |round| *round), 0.2);
    }
}
