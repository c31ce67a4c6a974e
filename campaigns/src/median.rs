//! The median of one figure of several rounds.
//!
//! Used by the campaigns that repeat a measurement.

/// The median of a figure by itself; of an even number, the higher one in the middle; 0 if there
/// are no rounds.
pub fn median<T>(rounds: &[T], figure: impl Fn(&T) -> u64) -> u64 {
    let mut figures: Vec<u64> = rounds.iter().map(figure).collect();
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_each_figure_by_itself() {
        let rounds = [(3, 10), (1, 30), (2, 20)];
        assert_eq!(median(&rounds, |round| round.0), 2);
        assert_eq!(median(&rounds, |round| round.1), 20);
        assert_eq!(median(&rounds[..2], |round| round.0), 3);
        assert_eq!(median(&rounds[..0], |round| round.0), 0);
    }
}
