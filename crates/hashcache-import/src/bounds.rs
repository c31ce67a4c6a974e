//! Lower and upper bounds for the requests that an `acl` matches.
//!
//! Some conditions in Squid have no counterpart. So each `acl` has two request sets: requests that
//! certainly match, and requests that may match. `rules` uses the first set for a line that allows
//! and the second set for a line that denies, so that no request is served that Squid refuses.
//!
//! Invariant: `sure` is within `may`, and without a reason both are the same set.

use super::condition::Condition;

/// The requests for an `acl`, or for `!` with an `acl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that match, regardless of the unknown conditions.
    pub sure: Vec<Condition>,
    /// Requests that may match; no others do.
    pub may: Vec<Condition>,
    /// Reason why the two sets differ.
    pub why: Option<String>,
}

impl Bounds {
    /// Exactly these requests.
    pub fn exact(conditions: Vec<Condition>) -> Self {
        Self {
            sure: conditions.clone(),
            may: conditions,
            why: None,
        }
    }

    /// No request.
    pub fn never() -> Self {
        Self::exact(Vec::new())
    }

    /// Any requests, for this reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self {
            sure: Vec::new(),
            may: vec![Condition::default()],
            why: Some(why.into()),
        }
    }

    /// At least the requests in `sure`; if there is a reason, unknown other requests may match too.
    pub fn at_least(sure: Vec<Condition>, why: Option<String>) -> Self {
        match why {
            None => Self::exact(sure),
            Some(why) => Self {
                sure,
                ..Self::unknown(why)
            },
        }
    }

    /// True if the bounds depend on the user.
    pub fn need_user(&self) -> bool {
        self.sure.iter().chain(&self.may).any(Condition::needs_user)
    }

    /// Returns the requests.
    ///
    /// # Errors
    /// The requests are not known exactly.
    pub fn known(&self) -> Result<&[Condition], &str> {
        match &self.why {
            None => Ok(&self.sure),
            Some(why) => Err(why),
        }
    }
}

/// Returns true if the alternatives contain every request.
pub fn is_everything(alternatives: &[Condition]) -> bool {
    alternatives.contains(&Condition::default())
}
