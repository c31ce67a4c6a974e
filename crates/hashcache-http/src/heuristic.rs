//! The heuristic lifetime for responses without an explicit lifetime (RFC 9111 4.2.2).

use crate::date::Seconds;

/// A heuristic lifetime for responses without an explicit lifetime: a percentage of the time since
/// the last change, with an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// Percentage of the time between Last-Modified and Date.
    pub percent: u32,
    /// Upper bound for the lifetime.
    pub max: Seconds,
}

impl Default for Heuristic {
    /// 10 %, the example in RFC 9111 4.2.2, and at most a day.
    fn default() -> Heuristic {
        Heuristic {
            percent: 10,
            max: Seconds::DAY,
        }
    }
}
