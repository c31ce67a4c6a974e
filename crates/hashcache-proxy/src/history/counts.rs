//! Counts: in total by the kind of answer, and for each site and client.
//!
//! Filled by `tally`, stored by `record`, shown by the dashboard and `hashcache report`.
//!
//! Invariant: a bounded table loses no count: counts without a line are added to the rest.

use std::collections::HashMap;
use std::hash::Hash;

use hashcache_base::sort::sort_by_key;

use crate::access_log::{LogEntry, Outcome, OutcomeClass};

/// Subject of a line with counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The site in the request.
    Site,
    /// The requesting client, by address.
    Client,
    /// The client's network.
    Network,
    /// The logged-in user.
    User,
}

impl By {
    /// All variants, in numerical order.
    pub const ALL: [Self; 4] = [Self::Site, Self::Client, Self::Network, Self::User];

    /// Returns true if the names identify persons or their devices.
    pub(super) fn is_personal(self) -> bool {
        matches!(self, Self::Client | Self::User)
    }
}

/// Source for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A hit in memory.
    Memory,
    /// A hit on disk.
    Disk,
    /// A stored error.
    Negative,
    /// A hit on a stale response.
    Stale,
    /// A stored response that the origin confirmed.
    Revalidated,
    /// The fetch of another request.
    Collapsed,
    /// Another cache.
    Peer,
    /// The origin.
    Origin,
    /// None: the request failed or was refused.
    Failed,
    /// The proxy itself.
    Own,
    /// A tunnel. Tunnel bytes are in no total, because none of them could have been a hit.
    Tunnel,
}

impl Kind {
    /// All kinds with their names, in numerical order.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Memory, "memory"),
        (Self::Disk, "disk"),
        (Self::Negative, "negative"),
        (Self::Stale, "stale"),
        (Self::Revalidated, "revalidated"),
        (Self::Collapsed, "collapsed"),
        (Self::Peer, "peer"),
        (Self::Origin, "origin"),
        (Self::Failed, "failed"),
        (Self::Own, "own"),
        (Self::Tunnel, "tunnel"),
    ];

    pub(super) fn from_entry(entry: &LogEntry<'_>) -> Self {
        match (entry.outcome, entry.class()) {
            (Outcome::Tunnel, _) => Self::Tunnel,
            (_, None) => Self::Own,
            (_, Some(OutcomeClass::Error)) => Self::Failed,
            (Outcome::MemoryHit, _) => Self::Memory,
            (Outcome::Hit, _) => Self::Disk,
            (Outcome::NegativeHit, _) => Self::Negative,
            (Outcome::StaleHit | Outcome::StaleIfError, _) => Self::Stale,
            (Outcome::Revalidated, _) => Self::Revalidated,
            (Outcome::Collapsed, _) => Self::Collapsed,
            _ if entry.next_hop.is_some_and(|hop| hop.peer.is_some()) => Self::Peer,
            _ => Self::Origin,
        }
    }

    /// Returns true for a hit, in the sense of `/stats`. A stored error is not a hit: it saves the
    /// origin a request, but the client does not get the resource.
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Memory | Self::Disk | Self::Stale)
    }

    /// Returns true if the bytes sent are a page of the proxy itself or an error page.
    pub fn is_own_page(self) -> bool {
        matches!(self, Self::Own | Self::Failed)
    }

    /// Returns true for a request for a resource.
    pub fn is_request(self) -> bool {
        !matches!(self, Self::Own | Self::Tunnel)
    }
}

/// Requests of one kind, and the bytes sent for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Log entries; a tunnel has one for each five minutes.
    pub requests: u64,
    /// Bytes sent to clients, counted at the end of a request.
    pub bytes: u64,
}

/// Counts for all requests in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes sent to clients, counted while they are sent; without tunnels.
    pub client_bytes: u64,
    /// Bytes received from origins and peers, for whatever reason; without tunnels.
    pub origin_bytes: u64,
    /// By kind, in the order of [`Kind::ALL`].
    pub kinds: [KindCounts; Kind::ALL.len()],
}

impl Totals {
    /// Returns a kind's counts.
    pub fn of(&self, kind: Kind) -> KindCounts {
        self.kinds[kind as usize]
    }

    /// Returns how many requests were for resources.
    pub fn requests(&self) -> u64 {
        self.requests_where(Kind::is_request)
    }

    /// Returns how many requests for resources were hits.
    pub fn hits(&self) -> u64 {
        self.requests_where(Kind::is_hit)
    }

    fn requests_where(&self, is_counted: fn(Kind) -> bool) -> u64 {
        let counted = Kind::ALL.iter().filter(|(kind, _)| is_counted(*kind));
        let counted = counted.map(|(kind, _)| self.of(*kind).requests);
        counted.fold(0, u64::saturating_add)
    }

    /// Returns the bytes sent to clients in pages of the proxy itself and in error pages.
    pub fn own_page_bytes(&self) -> u64 {
        let pages = Kind::ALL.iter().filter(|(kind, _)| kind.is_own_page());
        let pages = pages.map(|(kind, _)| self.of(*kind).bytes);
        pages.fold(0, u64::saturating_add)
    }

    /// Returns the bytes sent to clients for resources.
    pub fn served_bytes(&self) -> u64 {
        self.client_bytes.saturating_sub(self.own_page_bytes())
    }

    /// Returns the resource bytes that clients received and no origin sent.
    pub fn saved_bytes(&self) -> u64 {
        self.served_bytes().saturating_sub(self.origin_bytes)
    }

    /// Returns true if nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these counts plus `other`.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Returns the counts that were added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(mut self, other: &Self, each: fn(u64, u64) -> u64) -> Self {
        self.client_bytes = each(self.client_bytes, other.client_bytes);
        self.origin_bytes = each(self.origin_bytes, other.origin_bytes);
        for (kind, more) in self.kinds.iter_mut().zip(&other.kinds) {
            kind.requests = each(kind.requests, more.requests);
            kind.bytes = each(kind.bytes, more.bytes);
        }
        self
    }

    pub(super) fn add(&mut self, kind: Kind, bytes: u64) {
        let counts = &mut self.kinds[kind as usize];
        counts.requests = counts.requests.saturating_add(1);
        counts.bytes = counts.bytes.saturating_add(bytes);
    }
}

/// Counts for a site, client, network or user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests for resources.
    pub requests: u64,
    /// Requests for resources that were hits.
    pub hits: u64,
    /// Bytes sent to clients, tunnels included, errors not.
    pub client_bytes: u64,
    /// Bytes received for these requests, tunnels included.
    pub origin_bytes: u64,
    /// Requests and tunnels for which the origin or peer failed.
    pub failures: u64,
    /// Requests that the origin or a peer answered.
    pub answered: u64,
    /// Microseconds to the first byte of the answered requests, in total.
    pub wait_us: u64,
}

impl Counts {
    /// Field count.
    pub(super) const FIELDS: usize = 7;

    /// Returns the fields, in the order of the record.
    pub(super) fn fields(&self) -> [u64; Self::FIELDS] {
        [
            self.requests,
            self.hits,
            self.client_bytes,
            self.origin_bytes,
            self.failures,
            self.answered,
            self.wait_us,
        ]
    }

    pub(super) fn from_fields(fields: [u64; Self::FIELDS]) -> Self {
        let [
            requests,
            hits,
            client_bytes,
            origin_bytes,
            failures,
            answered,
            wait_us,
        ] = fields;
        Self {
            requests,
            hits,
            client_bytes,
            origin_bytes,
            failures,
            answered,
            wait_us,
        }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        let mut fields = self.fields();
        for (field, more) in fields.iter_mut().zip(other.fields()) {
            *field = field.saturating_add(more);
        }
        *self = Self::from_fields(fields);
    }

    /// Returns the bytes that clients received and no origin sent.
    pub fn saved_bytes(&self) -> u64 {
        self.client_bytes.saturating_sub(self.origin_bytes)
    }

    /// Returns these counts minus `others`, which they include.
    #[must_use]
    pub fn without(self, others: &Self) -> Self {
        let mut fields = self.fields();
        for (field, less) in fields.iter_mut().zip(others.fields()) {
            *field = field.saturating_sub(less);
        }
        Self::from_fields(fields)
    }

    /// Returns the sort key for tables: bytes, then requests.
    fn rank(&self) -> (u64, u64) {
        (self.client_bytes, self.requests)
    }

    /// Returns a line's weight in a full table. Requests count too: a site that only fails has no
    /// bytes, but must be visible.
    fn weight(&self) -> u64 {
        let requests = self.requests.saturating_mul(REQUEST_WEIGHT);
        self.client_bytes.saturating_add(requests)
    }
}

/// Bytes that weigh as much as a request.
const REQUEST_WEIGHT: u64 = 512;

/// Counts by name; a bounded number of names has a line.
///
/// If the table is full while counting, a new name replaces the smallest line with the probability
/// *w / (w + s)*, by the weights of the two: a randomized admission policy (Ben Basat and others,
/// "Randomized Admission Policy for Efficient Top-k and Frequency Estimation", 2017). A client that
/// makes up names can replace only the smallest lines, one by one; and a name with many requests
/// gets a line however many such names there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<K: Eq + Hash> {
    named: HashMap<K, Counts>,
    rest: Counts,
    most: usize,
}

impl<K: Copy + Eq + Hash> Table<K> {
    /// Creates a table of at most `most` lines.
    pub fn new(most: usize) -> Self {
        Self {
            named: HashMap::new(),
            rest: Counts::default(),
            most,
        }
    }

    /// Adds new counts for a name.
    pub(super) fn count(&mut self, name: K, counts: &Counts) {
        self.add_or(name, counts, |smallest| {
            let weight = counts.weight();
            let both = weight.saturating_add(smallest.weight());
            both > 0 && fastrand::u64(..both) < weight
        });
    }

    /// Adds a line from another table. In a full table the larger line stays.
    pub fn add(&mut self, name: K, counts: &Counts) {
        self.add_or(name, counts, |smallest| smallest.rank() < counts.rank());
    }

    /// Adds counts to a name. If a new name needs a place in a full table, `takes` decides if it
    /// replaces the smallest line.
    fn add_or(&mut self, name: K, counts: &Counts, takes: impl FnOnce(&Counts) -> bool) {
        if let Some(line) = self.named.get_mut(&name) {
            line.add(counts);
            return;
        }
        if self.named.len() >= self.most {
            let smallest = self.named.iter().min_by_key(|(_, it)| it.weight());
            let replaced = smallest.filter(|(_, it)| takes(it)).map(|(name, _)| *name);
            let Some(replaced) = replaced.and_then(|name| self.named.remove(&name)) else {
                self.rest.add(counts);
                return;
            };
            self.rest.add(&replaced);
        }
        self.named.insert(name, *counts);
    }

    /// Returns true if nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.rest == Counts::default()
    }

    /// Returns the sum over all names.
    pub fn sum(&self) -> Counts {
        let mut sum = self.rest;
        self.named.values().for_each(|counts| sum.add(counts));
        sum
    }

    /// Adds counts to the rest, which has no line.
    pub fn add_rest(&mut self, counts: &Counts) {
        self.rest.add(counts);
    }

    /// Takes all lines and the rest out of the table.
    pub(super) fn drain(&mut self) -> (impl Iterator<Item = (K, Counts)> + '_, Counts) {
        let rest = std::mem::take(&mut self.rest);
        (self.named.drain(), rest)
    }

    /// Returns the `most` largest lines, the largest first, and the sum over all others.
    pub fn top(&self, most: usize) -> (Vec<(K, Counts)>, Counts) {
        let mut lines: Vec<_> = self.named.iter().map(|(name, it)| (*name, *it)).collect();
        sort_by_key(&mut lines, |(_, counts)| std::cmp::Reverse(counts.rank()));
        let mut rest = self.rest;
        for (_, counts) in lines.drain(most.min(lines.len())..) {
            rest.add(&counts);
        }
        (lines, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_kinds_are_those_of_the_table() {
        for (at, (kind, _)) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }

    #[test]
    fn a_bounded_table_keeps_the_largest_and_loses_no_count() {
        let mut random = fastrand::Rng::with_seed(7);
        fastrand::seed(7);
        let mut table = Table::new(8);
        let mut all = Counts::default();
        // The first eight names are large; 500 small ones come in between.
        for round in 0..2_000_u32 {
            let is_large = random.u32(..4) == 0;
            let name = if is_large {
                round % 8
            } else {
                8 + random.u32(..500)
            };
            let counts = Counts {
                requests: 1,
                client_bytes: if is_large { 10_000 } else { 10 },
                ..Counts::default()
            };
            table.count(name, &counts);
            all.add(&counts);
        }
        let (top, rest) = table.top(8);
        let mut names: Vec<u32> = top.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert_eq!(names, [0, 1, 2, 3, 4, 5, 6, 7]);
        let mut sum = rest;
        top.iter().for_each(|(_, counts)| sum.add(counts));
        assert_eq!((sum, table.sum()), (all, all));
        let (top, rest) = table.top(3);
        assert_eq!(top.len(), 3);
        let mut sum = rest;
        top.iter().for_each(|(_, counts)| sum.add(counts));
        assert_eq!(sum, all);
    }

    #[test]
    fn names_that_a_client_makes_up_do_not_push_out_others() {
        let seed = fastrand::u64(..);
        fastrand::seed(seed);
        let one = |bytes| Counts {
            requests: 1,
            client_bytes: bytes,
            ..Counts::default()
        };
        let mut table = Table::new(64);
        // 40 sites that people use; then 20,000 names with one request each, whose responses are
        // larger. In between, people begin to use another site, with small responses.
        for _ in 0..100 {
            (0..40).for_each(|site| table.count(site, &one(2_000)));
        }
        for made_up in 1_000..21_000 {
            table.count(made_up, &one(5_000));
            if made_up % 4 == 0 {
                table.count(50, &one(1_000));
            }
        }
        let (top, _) = table.top(41);
        let mut names: Vec<u32> = top.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        let expected: Vec<u32> = (0..40).chain([50]).collect();
        assert_eq!(names, expected, "seed {seed}");
        let late = top.iter().find(|(name, _)| *name == 50);
        assert!(late.unwrap().1.requests > 4_000, "seed {seed}: {late:?}");
    }

    #[test]
    fn lines_of_other_tables_are_added_without_chance() {
        let mut table = Table::new(2);
        for (name, bytes) in [(1, 10), (2, 20), (3, 5), (4, 30), (1, 100)] {
            let counts = Counts {
                client_bytes: bytes,
                ..Counts::default()
            };
            table.add(name, &counts);
        }
        let names: Vec<_> = table.top(2).0.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [1, 4]);
        assert_eq!(table.sum().client_bytes, 165);
    }

    #[test]
    fn a_table_without_lines_counts_all_the_same() {
        let mut table = Table::new(0);
        let one = Counts::from_fields([1; 7]);
        table.count(1, &one);
        table.add(2, &one);
        assert_eq!(table.top(5), (vec![], Counts::from_fields([2; 7])));
    }
}
