//! The age of a response (RFC 9111 4.2.3 and 5.1).
//!
//! `storable` computes the age of a response when it arrives, `reuse` its current age.
//!
//! Invariant: an age never shrinks while a response is stored, and is never negative.
//! Cost: a few additions; the field is parsed once per stored response.

use http::header::{AGE, HeaderMap};

use crate::date::{Seconds, UnixTime, delta_seconds};
use crate::fields::members;

/// Reads the Age field. If there are several members or lines, the first counts. An invalid value
/// is ignored, as RFC 9111 5.1 recommends: the age is then computed from Date and our own clock.
pub fn age_field(fields: &HeaderMap) -> Seconds {
    let first = members(fields, &AGE).next();
    first.and_then(delta_seconds).unwrap_or(Seconds::ZERO)
}

/// Input for [`Arrival::initial_age`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Value of the Age field.
    pub age_value: Seconds,
    /// Value of the Date field, or the time of arrival if Date is missing or malformed.
    pub date: UnixTime,
    /// Time at which the request was sent.
    pub request_time: UnixTime,
    /// Time at which the response arrived.
    pub response_time: UnixTime,
}

impl Arrival {
    /// `corrected_initial_age`: the larger of two estimates, by Date and by Age. The duration of
    /// the exchange is added to Age. The larger estimate is taken because an age that is too high
    /// is safe, but an age that is too low would serve stale content.
    pub fn initial_age(&self) -> Seconds {
        let apparent = self.response_time.since(self.date);
        let delay = self.response_time.since(self.request_time);
        apparent.max(self.age_value.plus(delay))
    }
}

/// `current_age`: the age on arrival plus the time since then in the store.
pub fn current_age(initial: Seconds, response_time: UnixTime, now: UnixTime) -> Seconds {
    initial.plus(now.since(response_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(lines: &[&str]) -> u32 {
        let mut fields = HeaderMap::new();
        for line in lines {
            fields.append(AGE, line.parse().unwrap());
        }
        age_field(&fields).get()
    }

    #[test]
    fn the_first_age_counts_and_an_unreadable_one_is_ignored() {
        assert_eq!(age(&[]), 0);
        assert_eq!(age(&["7200"]), 7200);
        assert_eq!(age(&["7200, 0"]), 7200);
        assert_eq!(age(&["7200", "0"]), 7200);
        assert_eq!(age(&["0", "7200"]), 0);
        for text in ["abc", "-7200", "7200.0", "7200;a=b", "a7200", "7200a", ""] {
            assert_eq!(age(&[text]), 0, "{text:?}");
        }
    }

    #[test]
    fn a_huge_age_is_two_to_the_31() {
        for text in [
            "2147483647",
            "2147483648",
            "2147483649",
            "99999999999999999999",
        ] {
            assert!(age(&[text]) >= 2_147_483_647, "{text}");
        }
    }

    #[test]
    fn the_initial_age_is_the_larger_estimate() {
        let arrival = Arrival {
            age_value: Seconds::new(10),
            date: UnixTime(1000),
            request_time: UnixTime(1003),
            response_time: UnixTime(1005),
        };
        assert_eq!(arrival.initial_age().get(), 12);
        let slow = Arrival {
            date: UnixTime(900),
            ..arrival
        };
        assert_eq!(slow.initial_age().get(), 105);
        let fast = Arrival {
            date: UnixTime(2000),
            ..arrival
        };
        assert_eq!(fast.initial_age().get(), 12);
    }

    #[test]
    fn a_clock_that_steps_back_makes_nothing_younger() {
        let age = current_age(Seconds::new(7), UnixTime(1000), UnixTime(10));
        assert_eq!(age, Seconds::new(7));
    }
}
