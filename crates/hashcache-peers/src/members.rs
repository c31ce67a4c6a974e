//! The caches that a hash selects from: shared by `carp` and `rendezvous`.
//!
//! Invariant: names differ and no weight is 0.

/// A cache that can be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member<'a> {
    /// Name, the same in the configuration of every participating cache.
    pub name: &'a str,
    /// Share, relative to the shares of other members; at least 1.
    pub weight: u32,
}

/// Why a list of members is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembersError {
    /// Two members have the same name, so they would be selected for the same URLs.
    #[error("two members have the name {0}")]
    SameName(String),
    /// A weight of 0.
    #[error("the member {0} has the weight 0")]
    NoWeight(String),
}

/// Checks members by the names as hashed.
pub(crate) fn check(members: &[(String, u32)]) -> Result<(), MembersError> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(same) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(MembersError::SameName(same[0].to_owned()));
    }
    match members.iter().find(|(_, weight)| *weight == 0) {
        Some((name, _)) => Err(MembersError::NoWeight(name.clone())),
        None => Ok(()),
    }
}

/// The members' indices by falling score; for equal scores in list order.
pub(crate) fn by_score(scores: impl Iterator<Item = f64>) -> Vec<usize> {
    let mut scored: Vec<(usize, f64)> = scores.enumerate().collect();
    scored.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    scored.into_iter().map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(members: &[(&str, u32)]) -> Vec<(String, u32)> {
        let owned = |(name, weight): &(&str, u32)| ((*name).to_owned(), *weight);
        members.iter().map(owned).collect()
    }

    #[test]
    fn equal_names_and_weights_of_0_are_refused() {
        let refused = |it: &[(&str, u32)]| check(&members(it)).unwrap_err().to_string();
        assert_eq!(
            refused(&[("b", 1), ("a", 1), ("b", 2)]),
            "two members have the name b"
        );
        assert_eq!(refused(&[("a", 0)]), "the member a has the weight 0");
        assert_eq!(check(&members(&[("a", 1), ("b", 1)])), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn equal_scores_stay_in_order() {
        assert_eq!(by_score([1.0, 3.0, 1.0, 2.0].into_iter()), [1, 3, 0, 2]);
    }
}
