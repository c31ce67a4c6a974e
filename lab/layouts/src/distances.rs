//! How far apart in the one file of a stream layout reads are that follow each other: WebCoSM,
//! Figure 15.

/// Counts of reads by the distance from the last slot of the read before to the first slot of this
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    last: Option<u64>,
    /// Reads that had one before them.
    reads: u64,
    /// By [`Distances::BOUNDS`].
    within: [u64; Distances::BOUNDS.len()],
}

impl Distances {
    /// Distances up to which reads are counted, in slots. The next slot has the distance 1.
    pub const BOUNDS: [u64; 14] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000, 100_000, 1_000_000,
    ];

    /// Counts a read of these slots. The distance 1 is that of the slot behind the last one; all
    /// others count in both directions.
    pub fn read(&mut self, (first, last): (u64, u64)) {
        let before = self.last.replace(last);
        let Some(before) = before else {
            return;
        };
        self.reads += 1;
        let distance = first.abs_diff(before);
        for (count, bound) in self.within.iter_mut().zip(Self::BOUNDS) {
            let is_within = match bound {
                1 => first == before + 1,
                bound => distance <= bound,
            };
            *count += u64::from(is_within);
        }
    }

    /// Reads that had one before them.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Each bound with the number of reads up to it.
    pub fn within(&self) -> impl Iterator<Item = (u64, u64)> {
        Self::BOUNDS.into_iter().zip(self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_up_to_each_bound_and_only_the_next_slot_is_at_1() {
        let mut distances = Distances::default();
        // After the first: the next slot, three back, far away.
        for slots in [(10, 12), (13, 13), (10, 10), (5_000_000, 5_000_001)] {
            distances.read(slots);
        }
        let within: Vec<u64> = distances.within().map(|(_, count)| count).collect();
        assert_eq!(distances.reads(), 3);
        assert_eq!(within[..4], [1, 1, 2, 2]);
        assert_eq!(within[within.len() - 1], 2);
    }
}
