//! Sets of numbers as ranges: ports, minutes of the week, addresses as numbers.
//!
//! Invariant: ranges are sorted, and do not overlap or touch.

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// The numbers in these ranges; both ends belong to a range.
    pub fn new(ranges: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|(a, b)| a <= b).collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match apart.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last);
                }
                _ => apart.push((first, last)),
            }
        }
        Self(apart)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts the ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u128, u128)> {
        self.0.iter().copied()
    }

    pub fn union(&self, other: &Self) -> Self {
        Self::new(self.iter().chain(other.iter()))
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (ours.peek().copied(), theirs.peek().copied()) {
            both.push((a.0.max(b.0), a.1.min(b.1)));
            if a.1 < b.1 {
                ours.next()
            } else {
                theirs.next()
            };
        }
        Self::new(both)
    }

    /// The numbers up to `max` that are not in the set.
    pub fn complement(&self, max: u128) -> Self {
        let mut others = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0);
        for (first, last) in self.iter() {
            if let (Some(from), Some(until)) = (next, first.checked_sub(1)) {
                others.push((from, until.min(max)));
            }
            next = last.checked_add(1).filter(|it| *it <= max);
        }
        others.extend(next.map(|from| (from, max)));
        Self::new(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &[(u128, u128)]) -> Ranges {
        Ranges::new(text.iter().copied())
    }

    #[test]
    fn ranges_that_touch_become_one() {
        assert_eq!(
            ranges(&[(5, 6), (1, 2), (3, 3), (9, 8)]),
            ranges(&[(1, 3), (5, 6)])
        );
    }

    #[test]
    fn operations_agree_with_sets_of_small_numbers() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let mut random = || -> Ranges {
                let pairs = (0..3).map(|_| (rng.u128(0..=15), rng.u128(0..=15)));
                Ranges::new(pairs.collect::<Vec<_>>())
            };
            let (a, b) = (random(), random());
            let has = |set: &Ranges, n: u128| set.iter().any(|(x, y)| (x..=y).contains(&n));
            for n in 0..=15 {
                assert_eq!(has(&a.union(&b), n), has(&a, n) || has(&b, n));
                assert_eq!(has(&a.intersection(&b), n), has(&a, n) && has(&b, n));
                assert_eq!(has(&a.complement(15), n), !has(&a, n));
            }
            assert_eq!(a.complement(15).complement(15), a);
            assert_eq!(a.union(&b).intersection(&a), a);
        }
    }

    #[test]
    fn the_ends_of_all_numbers_are_kept() {
        let all = ranges(&[(0, u128::MAX)]);
        assert!(all.complement(u128::MAX).is_empty());
        assert_eq!(Ranges::default().complement(u128::MAX), all);
    }
}
