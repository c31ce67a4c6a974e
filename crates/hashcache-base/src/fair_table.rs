//! A table of facts learned by requests, in which no client displaces the rows of other clients.
//!
//! Used for facts that the next request would need time to learn again: that an origin cannot be
//! reached, ignores `Range`, or has no HTTP/2. If a full table were cleared, a client could make
//! the proxy forget all rows.
//!
//! Invariants: at most `rows_max` rows. A row belongs to the client that has added it, and to no
//! other client until the row has expired; the age of a row counts from its last change. Clients
//! get equal shares of a full table (max-min fairness): a client with less than its share loses no
//! row, and all others are left with equally many. A child on a link has the share of one client,
//! because a child may number clients as it likes; its clients have equal shares of that.
//! Cost: a new row in a full table needs a pass over all rows. If none has expired, they are
//! sorted, and a sixteenth of `rows_max` is removed at once.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::share::Network;

/// The table; see the module's head. A row without a client was caused by the proxy itself.
#[derive(Clone, Debug)]
pub struct FairTable<K, V> {
    rows: HashMap<K, Row<V>>,
    rows_max: usize,
    next_number: u64,
}

#[derive(Clone, Debug)]
struct Row<V> {
    value: V,
    client: Owner,
    /// Increases with each insert or change, so the lowest number is the oldest row.
    number: u64,
}

/// The client that has added a row; `None`: the proxy itself.
pub type Owner = Option<Network>;

impl<K: Eq + Hash, V> FairTable<K, V> {
    /// An empty table for at most `rows_max` rows (at least 1).
    pub fn new(rows_max: usize) -> Self {
        Self {
            rows: HashMap::new(),
            rows_max: rows_max.max(1),
            next_number: 0,
        }
    }

    /// The value of `key`.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.rows.get(key).map(|row| &row.value)
    }

    /// The value of `key`, for a change. The row stays with its client.
    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let row = self.rows.get_mut(key)?;
        row.number = next(&mut self.next_number);
        Some(&mut row.value)
    }

    /// Sets the value of `key`; a new row belongs to `client`.
    pub fn insert(&mut self, key: K, value: V, client: Owner) {
        self.insert_unless_over(key, value, client, |_| false);
    }

    /// As [`insert`](Self::insert), for a table with rows that expire. An expired row counts as
    /// absent, and if there is no room, expired rows are removed first.
    pub fn insert_unless_over(
        &mut self,
        key: K,
        value: V,
        client: Owner,
        is_over: impl Fn(&V) -> bool,
    ) {
        let number = next(&mut self.next_number);
        if let Some(row) = self.rows.get_mut(&key) {
            if is_over(&row.value) {
                row.client = client;
            }
            (row.value, row.number) = (value, number);
            return;
        }
        if self.rows.len() >= self.rows_max {
            self.rows.retain(|_, row| !is_over(&row.value));
        }
        if self.rows.len() >= self.rows_max {
            self.make_room();
        }
        let row = Row {
            value,
            client,
            number,
        };
        self.rows.insert(key, row);
    }

    /// Removes the row of `key`.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.rows.remove(key).map(|row| row.value)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn make_room(&mut self) {
        let rows = self.rows.values().map(|row| RankedRow {
            rank: 0,
            client: row.client,
            number: row.number,
        });
        let mut rows: Vec<RankedRow> = rows.collect();
        rank_by_owner(&mut rows, |client| client);
        rank_by_owner(&mut rows, group);
        rows.sort_unstable_by_key(|row| (Reverse(row.rank), row.number));
        let count = (self.rows_max / PARTS).max(1);
        let goes: HashSet<u64> = rows[..count].iter().map(|row| row.number).collect();
        self.rows.retain(|_, row| !goes.contains(&row.number));
    }
}

/// A row and its place among the rows of the same owner.
struct RankedRow {
    /// Number of rows of the same owner that stay longer.
    rank: usize,
    client: Owner,
    number: u64,
}

/// Ranks the rows of each owner by their former rank, and rows of equal rank from the newest on.
fn rank_by_owner(rows: &mut [RankedRow], owner: impl Fn(Owner) -> Owner) {
    rows.sort_unstable_by_key(|row| (row.rank, Reverse(row.number)));
    let mut counts: HashMap<Owner, usize> = HashMap::new();
    for row in rows {
        let count = counts.entry(owner(row.client)).or_default();
        row.rank = *count;
        *count += 1;
    }
}

fn group(owner: Owner) -> Owner {
    owner.map(Network::without_client)
}

fn next(number: &mut u64) -> u64 {
    *number += 1;
    *number
}

/// Returns the client that makes room for others: the client with most `rows`, where each row has a
/// client and an age (the least is the oldest). The clients of a child are counted together first.
/// If several clients have equally many rows, returns the client with the oldest row. `None` only
/// without rows.
pub fn with_most<A: Copy + Ord>(rows: impl Iterator<Item = (Owner, A)> + Clone) -> Option<Owner> {
    let largest = most(rows.clone().map(|(client, age)| (group(client), age)))?;
    most(rows.filter(|(client, _)| group(*client) == largest))
}

fn most<A: Copy + Ord>(rows: impl Iterator<Item = (Owner, A)>) -> Option<Owner> {
    let mut owners: HashMap<Owner, (usize, A)> = HashMap::new();
    for (owner, age) in rows {
        let (count, oldest) = owners.entry(owner).or_insert((0, age));
        *count += 1;
        *oldest = age.min(*oldest);
    }
    let most = owners
        .into_iter()
        .max_by_key(|(_, (count, oldest))| (*count, Reverse(*oldest)));
    most.map(|(owner, _)| owner)
}

/// A full table makes room for 1/`PARTS` of its rows.
const PARTS: usize = 16;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const MAX: usize = 64;

    fn address(n: u8) -> Option<Network> {
        Some(Network::containing(IpAddr::from([192, 0, 2, n])))
    }

    #[test]
    fn a_client_that_fills_the_table_loses_its_own_oldest_rows() {
        let mut table = FairTable::<u32, u32>::new(MAX);
        for n in 0..10_u8 {
            table.insert(n.into(), n.into(), address(n % 5));
        }
        for n in 1_000..2_000 {
            table.insert(n, n, address(99));
            assert!(table.len() <= MAX);
            assert_eq!(table.get(&n), Some(&n));
        }
        assert!((0..10).all(|n| table.get(&n) == Some(&n)));
        assert_eq!(table.get(&1_000), None);
        // Without a client it is no different.
        for n in 5_000..6_000 {
            table.insert(n, n, None);
            assert!(table.len() <= MAX);
        }
        assert!((0..10).all(|n| table.get(&n) == Some(&n)));
    }

    #[test]
    fn where_every_client_has_one_row_the_oldest_goes() {
        let mut table = FairTable::new(3);
        for n in 1..=4 {
            table.insert(n, (), address(n));
        }
        assert!(table.get(&1).is_none() && table.len() == 3);
    }

    #[test]
    fn a_child_has_no_more_for_numbering_many_clients_and_they_have_shares_of_it() {
        let mut table = FairTable::new(MAX);
        let of_child = |number| Some(Network::ChildClient(7, number));
        for n in 0..4 {
            table.insert(n, n, address(1));
            table.insert(10 + n, n, of_child(0));
        }
        for n in 1_000..2_000 {
            table.insert(n, n, of_child(1));
        }
        assert!((0..4).all(|n| table.get(&n).is_some() && table.get(&(10 + n)).is_some()));
        for n in 2_000..3_000 {
            table.insert(n, n, of_child(n));
        }
        assert!((0..4).all(|n| table.get(&n).is_some()));
    }

    #[test]
    fn many_clients_together_do_not_displace_a_client_with_few_rows() {
        for renews in [false, true] {
            let mut table = FairTable::new(MAX * 8);
            for n in 0..5 {
                table.insert(n, n, address(200));
            }
            for n in 1_000..20_000 {
                let [.., last] = u32::to_be_bytes(n % 17);
                table.insert(n, n, address(last));
                if renews && n >= 1_100 {
                    table.get_mut(&(n - 50));
                }
            }
            assert!((0..5).all(|n| table.get(&n) == Some(&n)), "{renews}");
            assert!(table.len() > MAX * 7);
        }
    }

    #[test]
    fn a_table_of_any_size_takes_a_new_row_and_stays_in_its_bound() {
        for max in 1..40 {
            let mut table = FairTable::new(max);
            for n in 0..200_u8 {
                table.insert(n, n, address(n % 3));
                assert_eq!(table.get(&n), Some(&n));
                assert!(table.len() <= max, "{max}");
            }
            assert!(table.len() > max - max.div_ceil(PARTS), "{max}");
        }
    }

    #[test]
    fn a_row_is_as_old_as_its_last_change() {
        let mut table = FairTable::new(3);
        for n in 1..=3 {
            table.insert(n, n, address(n));
        }
        table.insert(1, 10, address(1));
        *table.get_mut(&2).unwrap() = 20;
        table.insert(4, 4, address(4));
        assert_eq!(
            [1, 2, 3, 4].map(|n| table.get(&n).copied()),
            [Some(10), Some(20), None, Some(4)]
        );
    }

    #[test]
    fn many_clients_with_one_row_each_cost_no_pass_for_every_row() {
        let max: u32 = 1_600;
        let mut table = FairTable::new(1_600);
        for n in 0..=max {
            let [.., a, b] = n.to_be_bytes();
            table.insert(
                n,
                (),
                Some(Network::containing(IpAddr::from([198, 51, a, b]))),
            );
        }
        assert_eq!(table.len(), 1_600 - 100 + 1);
        assert!((100..=max).all(|n| table.get(&n).is_some()));
    }

    #[test]
    fn a_row_that_is_over_belongs_to_the_client_that_sets_it_again() {
        let mut table = FairTable::new(MAX);
        table.insert_unless_over(0, true, address(1), |is_over| *is_over);
        table.insert_unless_over(0, false, address(2), |is_over| *is_over);
        for n in 1_000..2_000 {
            table.insert(n, false, address(2));
        }
        assert_eq!(table.get(&0), None);
    }

    #[test]
    fn a_row_stays_with_the_client_that_has_added_it() {
        let mut table = FairTable::new(MAX);
        table.insert(0, 1, address(1));
        table.insert(0, 2, address(2));
        for n in 1_000..2_000 {
            table.insert(n, n, address(2));
        }
        assert_eq!(table.get(&0), Some(&2));
        assert_eq!(table.remove(&0), Some(2));
        assert_eq!(table.get(&0), None);
    }

    #[test]
    fn rows_that_are_over_go_before_those_of_any_client() {
        let mut table = FairTable::new(MAX);
        for n in 0..MAX {
            table.insert_unless_over(n, n < 10, address(1), |is_over| *is_over);
        }
        assert_eq!(table.len(), MAX);
        // A known key needs no room.
        table.insert_unless_over(MAX - 1, false, address(2), |is_over| *is_over);
        assert_eq!(table.len(), MAX);
        table.insert_unless_over(MAX, false, address(2), |is_over| *is_over);
        assert_eq!(table.len(), MAX - 10 + 1);
        assert!((10..=MAX).all(|n| table.get(&n).is_some()));
    }
}
