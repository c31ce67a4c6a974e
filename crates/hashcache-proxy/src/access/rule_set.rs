//! A set of rules as bits, so that a request is compared with all rules at once.

/// Most rules of a configuration.
pub const RULES_MAX: usize = 1024;

const WORDS: usize = RULES_MAX / 64;

/// A set of rules, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleSet([u64; WORDS]);

impl RuleSet {
    /// Every rule.
    pub(super) const ALL: Self = Self([u64::MAX; WORDS]);

    pub(super) fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    /// The rules that are in all of `sets`, in their order; there are `count` rules.
    pub(super) fn in_all<const N: usize>(
        sets: [&Self; N],
        count: usize,
    ) -> impl Iterator<Item = usize> {
        let words = count.div_ceil(64);
        (0..words).flat_map(move |word| {
            let mut bits = sets.iter().fold(u64::MAX, |bits, set| bits & set.0[word]);
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

impl Extend<usize> for RuleSet {
    fn extend<T: IntoIterator<Item = usize>>(&mut self, rules: T) {
        rules.into_iter().for_each(|rule| self.insert(rule));
    }
}

impl FromIterator<usize> for RuleSet {
    fn from_iter<T: IntoIterator<Item = usize>>(rules: T) -> Self {
        let mut set = Self::default();
        set.extend(rules);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_in_all_sets_come_in_their_order() {
        let a: RuleSet = [0, 3, 63, 64, 700, 1023].into_iter().collect();
        let b: RuleSet = (3..=1023).collect();
        let both: Vec<usize> = RuleSet::in_all([&a, &b], RULES_MAX).collect();
        assert_eq!(both, [3, 63, 64, 700, 1023]);
        let some: Vec<usize> = RuleSet::in_all([&a, &b], 64).collect();
        assert_eq!(some, [3, 63]);
    }
}
