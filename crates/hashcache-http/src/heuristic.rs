//! The guess at a lifetime that the origin did not state (RFC 9111 4.2.2).

use crate::date::Seconds;

/// The guess at a lifetime the origin did not state: a share of the time since the last change,
/// up to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// Hundredths of the time between Last-Modified and Date.
    pub percent: u32,
    /// No guess is longer.
    pub max: Seconds,
}

impl Default for Heuristic {
    /// 10 %, the example of RFC 9111 4.2.2, and at most a day.
    fn default() -> Heuristic {
        Heuristic {
            percent: 10,
            max: Seconds::DAY,
        }
    }
}
