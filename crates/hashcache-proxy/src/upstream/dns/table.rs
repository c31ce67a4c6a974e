//! What is known about names and for how long: a bounded table without I/O and without a clock.
//!
//! Owned by `dns`, under its lock. Every method takes the time as an argument.
//!
//! Invariant: never more than `capacity` names; a name has at most one lookup under way.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::{Addresses, Flight, LookedUp, Verdict};

/// What the table says when asked.
#[derive(Debug)]
pub(super) enum Finding {
    /// Answer with this.
    Known(Verdict),
    /// Wait for this lookup; `stale` may be served if it takes long.
    UnderWay {
        flight: Flight,
        stale: Option<Addresses>,
    },
    /// Look it up.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Table {
    names: HashMap<Box<str>, Entry>,
    capacity: usize,
    /// Counts questions; the entries' own copies order them by last use.
    asked: u64,
}

#[derive(Debug)]
struct Entry {
    /// The last verdict, and until when it is given without a lookup.
    verdict: Option<(Verdict, Instant)>,
    /// The last addresses, and until when they may stand in for silent resolvers.
    last_found: Option<(Addresses, Instant)>,
    flight: Option<Flight>,
    asked: u64,
}

impl Table {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            names: HashMap::new(),
            capacity,
            asked: 0,
        }
    }

    pub(super) fn find(&mut self, name: &str, now: Instant) -> Finding {
        self.asked += 1;
        let Some(entry) = self.names.get_mut(name) else {
            return Finding::Unknown;
        };
        entry.asked = self.asked;
        match (&entry.verdict, &entry.flight) {
            (Some((verdict, until)), _) if now < *until => Finding::Known(verdict.clone()),
            (_, Some(flight)) => Finding::UnderWay {
                flight: flight.clone(),
                stale: entry.stale(now),
            },
            _ => Finding::Unknown,
        }
    }

    /// Notes that a lookup begins; false when one is under way or has just landed.
    pub(super) fn take_off(&mut self, name: &str, flight: Flight, now: Instant) -> bool {
        self.make_room();
        let asked = self.asked;
        let entry = self.names.entry(name.into()).or_insert_with(|| Entry {
            verdict: None,
            last_found: None,
            flight: None,
            asked,
        });
        let fresh = entry
            .verdict
            .as_ref()
            .is_some_and(|(_, until)| now < *until);
        if entry.flight.is_some() || fresh {
            return false;
        }
        entry.flight = Some(flight);
        true
    }

    /// Notes how a lookup ended; gives the verdict to tell those who wait, which is an old answer
    /// where resolvers were silent and there is one.
    pub(super) fn land(&mut self, name: &str, looked_up: LookedUp, now: Instant) -> Verdict {
        let LookedUp { verdict, ttl } = looked_up;
        let Some(entry) = self.names.get_mut(name) else {
            return verdict;
        };
        entry.flight = None;
        let (verdict, keep) = match verdict {
            Verdict::Found(addresses) => {
                let keep = ttl.unwrap_or(TTL_MIN).clamp(TTL_MIN, TTL_MAX);
                entry.last_found = Some((addresses.clone(), now + keep + STALE_MAX));
                (Verdict::Found(addresses), keep)
            }
            Verdict::NoSuchName => {
                // The name is known to be gone: an old address would be a lie from here on.
                entry.last_found = None;
                let keep = ttl
                    .unwrap_or(NEGATIVE_DEFAULT)
                    .clamp(FAILURE_MAX, NEGATIVE_MAX);
                (Verdict::NoSuchName, keep)
            }
            silent @ (Verdict::Broken | Verdict::TimedOut) => {
                (entry.stale(now).map_or(silent, Verdict::Found), FAILURE_MAX)
            }
        };
        entry.verdict = Some((verdict.clone(), now + keep));
        verdict
    }

    /// Forgets a lookup that will not land.
    pub(super) fn clear_flight(&mut self, name: &str) {
        if let Some(entry) = self.names.get_mut(name) {
            // A lookup that landed has cleared its own flight, and a new one may be under way
            // already: only a flight whose sender is gone is given up.
            entry.flight.take_if(|flight| flight.has_changed().is_err());
        }
    }

    /// Drops the eighth of the names that was not asked for the longest, once the table is full.
    fn make_room(&mut self) {
        if self.names.len() < self.capacity {
            return;
        }
        let mut asked: Vec<u64> = self.names.values().map(|entry| entry.asked).collect();
        let (_, cut, _) = asked.select_nth_unstable(self.capacity / 8);
        let cut = *cut;
        self.names.retain(|_, entry| entry.asked > cut);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

impl Entry {
    fn stale(&self, now: Instant) -> Option<Addresses> {
        let (addresses, until) = self.last_found.as_ref()?;
        (now < *until).then(|| addresses.clone())
    }
}

/// A shorter lifetime would send one question per connection to names that balance by DNS.
const TTL_MIN: Duration = Duration::from_secs(10);
const TTL_MAX: Duration = Duration::from_hours(24);
/// How long beyond its lifetime an answer may stand in for silent resolvers.
const STALE_MAX: Duration = Duration::from_hours(3 * 24);
const NEGATIVE_MAX: Duration = Duration::from_mins(5);
/// For a denial without SOA, which by RFC 2308 must not be kept as if it had one.
const NEGATIVE_DEFAULT: Duration = Duration::from_secs(5);
/// How long resolvers are left alone about a name after they failed or were silent.
const FAILURE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    fn found(last: u8, ttl_s: u64) -> LookedUp {
        let address = std::net::IpAddr::from([192, 0, 2, last]);
        LookedUp {
            verdict: Verdict::Found([address].into()),
            ttl: Some(Duration::from_secs(ttl_s)),
        }
    }

    fn ended(verdict: Verdict, ttl_s: Option<u64>) -> LookedUp {
        LookedUp {
            verdict,
            ttl: ttl_s.map(Duration::from_secs),
        }
    }

    /// Lands a lookup at `now` and gives the table.
    fn landed(table: &mut Table, looked_up: LookedUp, now: Instant) -> Verdict {
        let (_sender, flight) = watch::channel(None);
        assert!(table.take_off("a.test", flight, now));
        table.land("a.test", looked_up, now)
    }

    fn known_for(table: &mut Table, now: Instant) -> Duration {
        let mut last = Duration::ZERO;
        for seconds in 0..=2 * 24 * 3600 {
            let after = Duration::from_secs(seconds);
            if !matches!(table.find("a.test", now + after), Finding::Known(_)) {
                return after;
            }
            last = after;
        }
        last
    }

    #[test]
    fn lifetimes_have_a_floor_and_a_ceiling() {
        let now = Instant::now();
        for (looked_up, seconds) in [
            (found(1, 0), 10),
            (found(1, 60), 60),
            (found(1, 7 * 24 * 3600), 24 * 3600),
            (ended(Verdict::NoSuchName, Some(60)), 60),
            (ended(Verdict::NoSuchName, Some(3600)), 300),
            (ended(Verdict::NoSuchName, None), 5),
            (ended(Verdict::Broken, None), 5),
            (ended(Verdict::TimedOut, None), 5),
        ] {
            let mut table = Table::new(8);
            let text = format!("{looked_up:?}");
            landed(&mut table, looked_up, now);
            assert_eq!(
                known_for(&mut table, now),
                Duration::from_secs(seconds),
                "{text}"
            );
        }
    }

    #[test]
    fn silence_is_answered_from_memory_for_three_days() {
        let mut table = Table::new(8);
        let start = Instant::now();
        landed(&mut table, found(1, 60), start);
        let old = Verdict::Found([std::net::IpAddr::from([192, 0, 2, 1])].into());

        let at = start + Duration::from_hours(70);
        assert!(matches!(table.find("a.test", at), Finding::Unknown));
        assert_eq!(landed(&mut table, ended(Verdict::TimedOut, None), at), old);
        // Asked again five seconds later, not three days.
        assert!(matches!(
            table.find("a.test", at + Duration::from_secs(4)),
            Finding::Known(_)
        ));
        let at = at + Duration::from_secs(5);
        assert_eq!(landed(&mut table, ended(Verdict::Broken, None), at), old);

        let at = start + Duration::from_hours(73);
        assert_eq!(
            landed(&mut table, ended(Verdict::Broken, None), at),
            Verdict::Broken
        );
    }

    #[test]
    fn a_denial_forgets_the_old_address() {
        let mut table = Table::new(8);
        let start = Instant::now();
        landed(&mut table, found(1, 60), start);
        let at = start + Duration::from_secs(61);
        landed(&mut table, ended(Verdict::NoSuchName, None), at);
        let at = at + Duration::from_secs(6);
        assert_eq!(
            landed(&mut table, ended(Verdict::TimedOut, None), at),
            Verdict::TimedOut
        );
    }

    #[test]
    fn a_second_lookup_of_a_name_does_not_take_off() {
        let mut table = Table::new(8);
        let now = Instant::now();
        let (sender, flight) = watch::channel(None);
        assert!(table.take_off("a.test", flight.clone(), now));
        assert!(!table.take_off("a.test", flight.clone(), now));
        assert!(matches!(
            table.find("a.test", now),
            Finding::UnderWay { stale: None, .. }
        ));
        // Its task is alive: clearing must not touch it.
        table.clear_flight("a.test");
        assert!(!table.take_off("a.test", flight, now));
        drop(sender);
        table.clear_flight("a.test");
        assert!(matches!(table.find("a.test", now), Finding::Unknown));
    }

    #[test]
    fn a_full_table_drops_what_was_not_asked_for() {
        let mut table = Table::new(64);
        let now = Instant::now();
        for number in 0..1000 {
            let (_sender, flight) = watch::channel(None);
            table.find("keep.test", now);
            let name = if number == 0 {
                "keep.test".to_owned()
            } else {
                format!("n{number}.test")
            };
            table.find(&name, now);
            assert!(table.take_off(&name, flight, now));
            table.land(&name, found(1, 60), now);
            assert!(table.len() <= 64);
        }
        assert!(matches!(table.find("keep.test", now), Finding::Known(_)));
        assert!(matches!(table.find("n1.test", now), Finding::Unknown));
    }
}
