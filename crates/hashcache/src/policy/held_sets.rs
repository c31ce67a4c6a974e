//! The sets that memory holds, ordered by use, for a policy that holds only some sets.
//!
//! Called by `set_mem_lru`. Each held set has a *row*. This module maps sets to rows, and reuses
//! the least recently used row when another set needs a row.
//!
//! Invariants: a set has at most one row; every row in use is once in the order of use and once in
//! its bucket's chain. All memory is allocated in `new`.
//! Cost, for each held set: the set number, two links for the order of use, a link for the chain
//! and half a bucket in the table, each packed to its bits ([`held_sets_bits`]): 73 bits a held set
//! for 1 TB with 40 % held.

use super::Packed;

/// The rows of one shard.
pub(crate) struct HeldSets {
    rows: usize,
    used: usize,
    buckets: u64,
    /// For each row, the number of its set within the shard.
    numbers: Packed,
    /// For each row, and for the order's end (0): the neighbours used just before and just after. A
    /// row's place in all these arrays is the row number plus 1, so that zeros are an empty order.
    earlier: Packed,
    later: Packed,
    /// For each row, the next row in the bucket's chain; 0: none.
    chain: Packed,
    /// For each bucket, the chain's first row; 0: none.
    heads: Packed,
}

/// Bits needed for a number below `count`.
fn bits_for(count: u64) -> u32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}

fn buckets(rows: usize) -> u64 {
    (rows as u64).div_ceil(2).max(1)
}

/// Bits of memory for `rows` rows in a shard of `sets` sets, without the tags and ranks.
pub(crate) fn held_sets_bits(sets: u64, rows: usize) -> u64 {
    let place = u64::from(bits_for(rows as u64 + 1));
    let number = u64::from(bits_for(sets));
    (number + 3 * place) * rows as u64 + buckets(rows) * place
}

impl HeldSets {
    /// `rows` rows, at least one, for a shard of `sets` sets; no set is held yet.
    pub(crate) fn new(sets: u64, rows: usize) -> Self {
        let place = bits_for(rows as u64 + 1);
        let buckets = buckets(rows);
        Self {
            rows,
            used: 0,
            buckets,
            numbers: Packed::new(rows, bits_for(sets)),
            earlier: Packed::new(rows + 1, place),
            later: Packed::new(rows + 1, place),
            chain: Packed::new(rows, place),
            heads: Packed::new(usize::try_from(buckets).unwrap_or(1), place),
        }
    }

    // Names are evenly distributed over sets, so set numbers are evenly distributed over buckets.
    fn bucket(&self, number: u64) -> usize {
        usize::try_from(number % self.buckets).unwrap_or(0)
    }

    /// Returns the row for set `number`.
    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        let mut place = self.heads.entry(self.bucket(number));
        while let Some(row) = row(place) {
            if self.numbers.entry(row) == number {
                return Some(row);
            }
            place = self.chain.entry(row);
        }
        None
    }

    /// Makes the set in `row` the most recently used.
    pub(crate) fn touch(&mut self, row: usize) {
        self.unlink(row + 1);
        self.link(row + 1);
    }

    /// Gives a row to the set `number`, which has none, and makes it the most recently used. The
    /// set that had the row before is not held any more.
    pub(crate) fn take(&mut self, number: u64) -> usize {
        debug_assert_eq!(self.find(number), None);
        let row = if self.used < self.rows {
            self.used += 1;
            self.used - 1
        } else {
            // The order is a ring: after the end is the least recently used set.
            let oldest = row(self.later.entry(0)).unwrap_or(0);
            self.unlink(oldest + 1);
            self.unchain(oldest);
            oldest
        };
        let bucket = self.bucket(number);
        self.numbers.store(row, number);
        self.chain.store(row, self.heads.entry(bucket));
        self.heads.store(bucket, row as u64 + 1);
        self.link(row + 1);
        row
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        let all = [
            &self.numbers,
            &self.earlier,
            &self.later,
            &self.chain,
            &self.heads,
        ];
        all.into_iter().map(Packed::bytes).sum()
    }

    /// Drops all sets.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        let all = [
            &mut self.numbers,
            &mut self.earlier,
            &mut self.later,
            &mut self.chain,
            &mut self.heads,
        ];
        all.into_iter().for_each(Packed::clear);
    }

    /// Inserts the row at `place` as the most recently used.
    fn link(&mut self, place: usize) {
        let latest = self.earlier.entry(0);
        self.earlier.store(place, latest);
        self.later.store(place, 0);
        self.later.store(index(latest), place as u64);
        self.earlier.store(0, place as u64);
    }

    fn unlink(&mut self, place: usize) {
        let (earlier, later) = (self.earlier.entry(place), self.later.entry(place));
        self.later.store(index(earlier), later);
        self.earlier.store(index(later), earlier);
    }

    fn unchain(&mut self, gone: usize) {
        let (bucket, next) = (
            self.bucket(self.numbers.entry(gone)),
            self.chain.entry(gone),
        );
        let mut place = self.heads.entry(bucket);
        if row(place) == Some(gone) {
            return self.heads.store(bucket, next);
        }
        while let Some(before) = row(place) {
            place = self.chain.entry(before);
            if row(place) == Some(gone) {
                return self.chain.store(before, next);
            }
        }
    }
}

fn index(place: u64) -> usize {
    usize::try_from(place).unwrap_or(0)
}

/// The row at a place; none for place 0, which ends the order and every chain.
fn row(place: u64) -> Option<usize> {
    index(place).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_used_longest_ago_gives_its_row_away() {
        let mut held = HeldSets::new(1000, 3);
        let rows: Vec<usize> = [10, 20, 30].map(|number| held.take(number)).into();
        held.touch(rows[0]);
        assert_eq!(held.take(40), rows[1]);
        assert_eq!(held.find(20), None);
        assert_eq!(
            [10, 30, 40].map(|number| held.find(number)),
            [Some(rows[0]), Some(rows[2]), Some(rows[1])]
        );
    }

    #[test]
    fn it_holds_what_a_plain_list_would_whatever_happens() {
        for (sets, rows) in [(1, 1), (2, 1), (50, 7), (64, 64), (1000, 31)] {
            let mut random = fastrand::Rng::with_seed(rows as u64);
            let mut held = HeldSets::new(sets, rows);
            // Latest used last.
            let mut plain: Vec<u64> = Vec::new();
            for step in 0..20_000 {
                let number = random.u64(..sets);
                let at = plain.iter().position(|it| *it == number);
                assert_eq!(held.find(number).is_some(), at.is_some(), "step {step}");
                match (held.find(number), at) {
                    (Some(row), Some(at)) => {
                        held.touch(row);
                        plain.remove(at);
                    }
                    _ => {
                        let row = held.take(number);
                        assert!(row < rows);
                        if plain.len() == rows {
                            plain.remove(0);
                        }
                    }
                }
                plain.push(number);
                if step % 5_000 == 4_999 {
                    held.clear();
                    plain.clear();
                }
            }
            let mut seen: Vec<usize> = plain.iter().filter_map(|it| held.find(*it)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), plain.len());
        }
    }

    #[test]
    fn a_held_set_of_a_terabyte_takes_about_76_bits() {
        // Half of it in sets of 64 KiB.
        let sets = 500_000_000_000 / (64 << 10) / 64;
        for (share, bits) in [(25, 69), (40, 73), (50, 73)] {
            let rows = usize::try_from(sets * share / 100).unwrap();
            let each = held_sets_bits(sets, rows) / rows as u64;
            assert_eq!(each, bits, "{share} %");
        }
    }
}
