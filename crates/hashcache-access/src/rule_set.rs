//! A set of rules and exceptions as bits, so that a request is compared with all of them at once.

/// Most rules in a configuration, with their exceptions.
pub const RULES_MAX: usize = 1024;

const WORDS: usize = RULES_MAX / 64;

/// A set of rules and exceptions, by number (see `entry`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleSet([u64; WORDS]);

impl RuleSet {
    /// Every rule.
    pub(super) const ALL: Self = Self([u64::MAX; WORDS]);

    /// The numbers of the rules for which `is_for` returns true.
    pub(super) fn from_entries<T>(rules: &[T], is_for: impl Fn(&T) -> bool) -> Self {
        let rules = rules.iter().enumerate();
        let taken = rules.filter(|(_, rule)| is_for(rule));
        taken.map(|(number, _)| number).collect()
    }

    pub(super) fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    pub(super) fn remove(&mut self, rule: usize) {
        self.0[rule / 64] &= !(1 << (rule % 64));
    }

    pub(super) fn contains(&self, rule: usize) -> bool {
        self.0[rule / 64] & (1 << (rule % 64)) != 0
    }

    /// Removes the rules that are not in `other`.
    pub(super) fn keep_only(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word &= other;
        }
    }

    /// Removes the rules that are in `other`.
    pub(super) fn remove_all(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word &= !other;
        }
    }

    /// The first rule.
    pub(super) fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// All rules in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(number, &word)| {
            let rests = std::iter::successors(Some(word), |rest| Some(rest & rest.checked_sub(1)?));
            let rests = rests.take_while(|rest| *rest != 0);
            rests.map(move |rest| number * 64 + rest.trailing_zeros() as usize)
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
    fn rules_come_in_their_order() {
        let a: RuleSet = [0, 3, 63, 64, 700, 1023].into_iter().collect();
        assert_eq!(a.iter().collect::<Vec<_>>(), [0, 3, 63, 64, 700, 1023]);
        let mut both = a.clone();
        both.keep_only(&(3..=1023).collect());
        assert_eq!(both.first(), Some(3));
        both.remove_all(&[3, 4, 64].into_iter().collect());
        assert_eq!(both.iter().collect::<Vec<_>>(), [63, 700, 1023]);
        assert!(both.contains(700) && !both.contains(64));
        both.remove(700);
        assert_eq!(both.iter().collect::<Vec<_>>(), [63, 1023]);
        assert_eq!(RuleSet::default().first(), None);
        assert_eq!(RuleSet::ALL.iter().count(), RULES_MAX);
    }
}
