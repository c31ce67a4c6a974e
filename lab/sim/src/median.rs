//! The median of several runs.
//!
//! Used by `hashcache sim`, the bench and campaigns.

use std::cmp::Ordering;

/// The value in the middle by `order`; of an even number the lower of the two in the middle, so
/// that counts stay whole. `None` if there are no values.
pub fn median<T: Copy>(
    values: impl IntoIterator<Item = T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_unstable_by(order);
    let middle = values.len().checked_sub(1)? / 2;
    Some(values[middle])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_or_just_below() {
        assert_eq!(median([5, 1, 3], u64::cmp), Some(3));
        assert_eq!(median([4.0, 1.0, 2.0, 100.0], f64::total_cmp), Some(2.0));
        assert_eq!(median([], u64::cmp), None);
    }
}
