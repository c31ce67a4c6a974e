//! The DNS cache's table: bounded, without I/O and without a clock.
//!
//! Owned by `dns`, under the lock there. Every method takes the time as an argument.
//!
//! Invariants: never more than `capacity` names; a name has at most a single lookup in progress.

use std::collections::HashMap;
use std::time::Duration;

use hashcache_base::net::domain_of;
use tokio::time::Instant;

use super::outcome::{Addresses, LookupOutcome, LookupResult, PendingLookup};

/// Result of looking a name up in the table.
#[derive(Debug)]
pub(super) enum TableAnswer {
    /// Answer with this outcome.
    Known(LookupOutcome),
    /// Wait for this lookup; `stale` may be served if it takes long.
    UnderWay {
        pending: PendingLookup,
        stale: Option<Addresses>,
    },
    /// Start a lookup.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Table {
    names: HashMap<Box<str>, NameEntry>,
    capacity: usize,
    /// Number of `find` calls; the copies in the entries order the names by last use.
    asked: u64,
}

#[derive(Debug)]
struct NameEntry {
    /// The last outcome, and the time until which it is used without a lookup.
    outcome: Option<(LookupOutcome, Instant)>,
    /// The last addresses, and the time until which they may be used while resolvers do not answer.
    last_found: Option<(Addresses, Instant)>,
    pending: Option<PendingLookup>,
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

    pub(super) fn find(&mut self, name: &str, now: Instant) -> TableAnswer {
        self.asked += 1;
        let Some(entry) = self.names.get_mut(name) else {
            return TableAnswer::Unknown;
        };
        entry.asked = self.asked;
        match (&entry.outcome, &entry.pending) {
            (Some((outcome, until)), _) if now < *until => TableAnswer::Known(outcome.clone()),
            (_, Some(pending)) => TableAnswer::UnderWay {
                pending: pending.clone(),
                stale: entry.stale(now),
            },
            _ => TableAnswer::Unknown,
        }
    }

    /// Notes that a lookup starts; false if a lookup is in progress or has just finished.
    pub(super) fn begin(&mut self, name: &str, pending: PendingLookup, now: Instant) -> bool {
        self.make_room();
        let asked = self.asked;
        let entry = self.names.entry(name.into()).or_insert_with(|| NameEntry {
            outcome: None,
            last_found: None,
            pending: None,
            asked,
        });
        let fresh = entry
            .outcome
            .as_ref()
            .is_some_and(|(_, until)| now < *until);
        if entry.pending.is_some() || fresh {
            return false;
        }
        entry.pending = Some(pending);
        true
    }

    /// Notes the result of a lookup. Returns the outcome for the waiting callers: an old answer if
    /// the resolvers did not answer and there is an old answer.
    pub(super) fn finish(
        &mut self,
        name: &str,
        looked_up: LookupResult,
        now: Instant,
    ) -> LookupOutcome {
        let LookupResult { outcome, ttl } = looked_up;
        let Some(entry) = self.names.get_mut(name) else {
            return outcome;
        };
        entry.pending = None;
        let (outcome, keep) = match outcome {
            LookupOutcome::Found(addresses) => {
                let keep = ttl.unwrap_or(TTL_MIN).clamp(TTL_MIN, TTL_MAX);
                entry.last_found = Some((addresses.clone(), now + keep + STALE_MAX));
                (LookupOutcome::Found(addresses), keep)
            }
            LookupOutcome::NoSuchName => {
                // The name no longer exists, so an old address would be wrong.
                entry.last_found = None;
                let keep = ttl
                    .unwrap_or(NEGATIVE_DEFAULT)
                    .clamp(FAILURE_MAX, NEGATIVE_MAX);
                (LookupOutcome::NoSuchName, keep)
            }
            silent @ (LookupOutcome::Broken | LookupOutcome::TimedOut) => (
                entry.stale(now).map_or(silent, LookupOutcome::Found),
                FAILURE_MAX,
            ),
        };
        entry.outcome = Some((outcome.clone(), now + keep));
        outcome
    }

    /// Forgets a lookup that was given up.
    pub(super) fn clear_pending(&mut self, name: &str) {
        if let Some(entry) = self.names.get_mut(name) {
            // A lookup that has finished has cleared the entry, and a new lookup may be in progress
            // already: clear the entry only if the sender was dropped.
            entry
                .pending
                .take_if(|pending| pending.has_changed().is_err());
        }
    }

    /// If the table is full, drops an eighth of the names, the least recently used ones. Any client
    /// can look up any number of names, so names without addresses are dropped first while they
    /// take a quarter of the table, and after them the names of a domain that takes a quarter of
    /// it.
    fn make_room(&mut self) {
        if self.names.len() < self.capacity {
            return;
        }
        let mut domains: HashMap<&str, usize> = HashMap::new();
        for name in self.names.keys() {
            *domains.entry(domain_of(name)).or_default() += 1;
        }
        let largest = domains.into_iter().max_by_key(|(_, count)| *count);
        let largest = largest.filter(|(_, count)| *count > self.capacity / 4);
        let largest = largest.map(|(domain, _)| domain.to_owned());
        let is_empty = |entry: &NameEntry| entry.last_found.is_none();
        let empty = self.names.values().filter(|entry| is_empty(entry)).count();
        let goes_first = |name: &str, entry: &NameEntry| match &largest {
            _ if empty > self.capacity / 4 => is_empty(entry),
            Some(domain) => domain_of(name) == domain,
            None => true,
        };
        let first = self
            .names
            .iter()
            .filter(|(name, entry)| goes_first(name, entry));
        let mut asked: Vec<u64> = first.map(|(_, entry)| entry.asked).collect();
        let cut = (self.capacity / 8).min(asked.len().saturating_sub(1));
        let (_, cut, _) = asked.select_nth_unstable(cut);
        let cut = *cut;
        self.names
            .retain(|name, entry| entry.asked > cut || !goes_first(name, entry));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

impl NameEntry {
    fn stale(&self, now: Instant) -> Option<Addresses> {
        let (addresses, until) = self.last_found.as_ref()?;
        (now < *until).then(|| addresses.clone())
    }
}

/// A shorter time would cause a query per connection for names that balance by DNS.
const TTL_MIN: Duration = Duration::from_secs(10);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// Time after the expiry for which an answer may be used while resolvers do not answer.
const STALE_MAX: Duration = Duration::from_secs(3 * 24 * 3600);
const NEGATIVE_MAX: Duration = Duration::from_secs(5 * 60);
/// For a denial without SOA. RFC 2308 forbids caching such a denial as if it had a SOA.
const NEGATIVE_DEFAULT: Duration = Duration::from_secs(5);
/// Time for which a name is not queried again after the resolvers failed or did not answer.
const FAILURE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    fn found(last: u8, ttl_s: u64) -> LookupResult {
        let address = std::net::IpAddr::from([192, 0, 2, last]);
        LookupResult {
            outcome: LookupOutcome::Found([address].into()),
            ttl: Some(Duration::from_secs(ttl_s)),
        }
    }

    fn ended(outcome: LookupOutcome, ttl_s: Option<u64>) -> LookupResult {
        LookupResult {
            outcome,
            ttl: ttl_s.map(Duration::from_secs),
        }
    }

    /// Begins and finishes a lookup at `now`.
    fn landed(table: &mut Table, looked_up: LookupResult, now: Instant) -> LookupOutcome {
        let (_sender, pending) = watch::channel(None);
        assert!(table.begin("a.test", pending, now));
        table.finish("a.test", looked_up, now)
    }

    fn known_for(table: &mut Table, now: Instant) -> Duration {
        let mut last = Duration::ZERO;
        for seconds in 0..=2 * 24 * 3600 {
            let after = Duration::from_secs(seconds);
            if !matches!(table.find("a.test", now + after), TableAnswer::Known(_)) {
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
            (ended(LookupOutcome::NoSuchName, Some(60)), 60),
            (ended(LookupOutcome::NoSuchName, Some(3600)), 300),
            (ended(LookupOutcome::NoSuchName, None), 5),
            (ended(LookupOutcome::Broken, None), 5),
            (ended(LookupOutcome::TimedOut, None), 5),
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
        let old = LookupOutcome::Found([std::net::IpAddr::from([192, 0, 2, 1])].into());

        let at = start + Duration::from_secs(70 * 3600);
        assert!(matches!(table.find("a.test", at), TableAnswer::Unknown));
        assert_eq!(
            landed(&mut table, ended(LookupOutcome::TimedOut, None), at),
            old
        );
        // The old answer is tried again after five seconds, not after three days.
        assert!(matches!(
            table.find("a.test", at + Duration::from_secs(4)),
            TableAnswer::Known(_)
        ));
        let at = at + Duration::from_secs(5);
        assert_eq!(
            landed(&mut table, ended(LookupOutcome::Broken, None), at),
            old
        );

        let at = start + Duration::from_secs(73 * 3600);
        assert_eq!(
            landed(&mut table, ended(LookupOutcome::Broken, None), at),
            LookupOutcome::Broken
        );
    }

    #[test]
    fn a_denial_forgets_the_old_address() {
        let mut table = Table::new(8);
        let start = Instant::now();
        landed(&mut table, found(1, 60), start);
        let at = start + Duration::from_secs(61);
        landed(&mut table, ended(LookupOutcome::NoSuchName, None), at);
        let at = at + Duration::from_secs(6);
        assert_eq!(
            landed(&mut table, ended(LookupOutcome::TimedOut, None), at),
            LookupOutcome::TimedOut
        );
    }

    #[test]
    fn a_second_lookup_of_a_name_does_not_take_off() {
        let mut table = Table::new(8);
        let now = Instant::now();
        let (sender, pending) = watch::channel(None);
        assert!(table.begin("a.test", pending.clone(), now));
        assert!(!table.begin("a.test", pending.clone(), now));
        assert!(matches!(
            table.find("a.test", now),
            TableAnswer::UnderWay { stale: None, .. }
        ));
        // The task of the lookup is alive, so clearing must not remove the entry.
        table.clear_pending("a.test");
        assert!(!table.begin("a.test", pending, now));
        drop(sender);
        table.clear_pending("a.test");
        assert!(matches!(table.find("a.test", now), TableAnswer::Unknown));
    }

    #[test]
    fn names_of_one_domain_and_names_that_do_not_exist_displace_no_others() {
        let names = ["www.a.test", "b.test", "c.example"];
        let missing = || ended(LookupOutcome::NoSuchName, Some(60));
        for flood in [
            &|n: u32| (format!("n{n}.of.evil.test"), found(2, 60)),
            &|n| (format!("n{n}.test"), missing()),
        ] as [&dyn Fn(u32) -> (String, LookupResult); 2]
        {
            let mut table = Table::new(64);
            let now = Instant::now();
            let mut look_up = |name: &str, looked_up| {
                let (_sender, pending) = watch::channel(None);
                table.find(name, now);
                assert!(table.begin(name, pending, now), "{name}");
                table.finish(name, looked_up, now);
                assert!(table.len() <= 64);
            };
            names.iter().for_each(|name| look_up(name, found(1, 60)));
            for n in 0..1000 {
                let (name, looked_up) = flood(n);
                look_up(&name, looked_up);
            }
            for name in names {
                assert!(
                    matches!(table.find(name, now), TableAnswer::Known(_)),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn a_full_table_drops_what_was_not_asked_for() {
        let mut table = Table::new(64);
        let now = Instant::now();
        for number in 0..1000 {
            let (_sender, pending) = watch::channel(None);
            table.find("keep.test", now);
            let name = if number == 0 {
                "keep.test".to_owned()
            } else {
                format!("n{number}.test")
            };
            table.find(&name, now);
            assert!(table.begin(&name, pending, now));
            table.finish(&name, found(1, 60), now);
            assert!(table.len() <= 64);
        }
        assert!(matches!(
            table.find("keep.test", now),
            TableAnswer::Known(_)
        ));
        assert!(matches!(table.find("n1.test", now), TableAnswer::Unknown));
    }
}
