//! What an `acl` matches, from below and from above.
//!
//! Not every condition of Squid has a counterpart. So each `acl` has two sets of requests: those
//! that certainly match, and those that may. `rules` writes a line that allows for the first set
//! and a line that denies for the second, so that no request is served that Squid refuses.
//!
//! Invariant: `sure` is within `may`, and without a reason they are one set.

use super::condition::Condition;

/// The requests of an `acl`, or of `!` with an `acl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that match, whatever is not known about them.
    pub sure: Vec<Condition>,
    /// Requests that may match; no others do.
    pub may: Vec<Condition>,
    /// Why the two differ.
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

    /// At least the requests of `sure`, and nobody knows which more, if there is a reason.
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

    /// The requests, if they are known exactly.
    ///
    /// # Errors
    /// They are not.
    pub fn known(&self) -> Result<&[Condition], &str> {
        match &self.why {
            None => Ok(&self.sure),
            Some(why) => Err(why),
        }
    }
}

/// Whether the alternatives have every request.
pub fn is_everything(alternatives: &[Condition]) -> bool {
    alternatives.contains(&Condition::default())
}
