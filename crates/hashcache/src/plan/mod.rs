//! What a disk and a memory budget allow: every policy's memory and speed, before anything is made.
//!
//! [`design`] says what an index takes, [`seeks`] what a request costs and how many a disk answers,
//! [`geometry`] how large blocks and sets should be; here they become a table with a pick. Called
//! by `hashcache plan` and by whoever embeds the engine; calls nothing that touches a device. The
//! derivations, and the paper's numbers they are held against, are in `docs/PAPER.md`.
//!
//! Invariant: pure functions, so the same questions always get the same table.
//! Place in the paper: sections 3.8 and 4, Figure 8.

pub mod design;
pub mod geometry;
pub mod seeks;

pub use design::{Candidate, Design, Rows};
pub use geometry::{ReadCost, SizeShare, Tolerance, block_bytes, set_bytes};
pub use seeks::{Accounting, DiskRates, Prediction, Seeks, Workload, predict};

/// Content, pending writes and buffers need this much memory whatever the index takes
/// (`docs/OPERATING.md`, sizing).
pub const MEMORY_LEFT_MIN: u64 = 16 << 20;
/// Of the memory, one part in so many stays free of the index: hot objects save whole seeks, and a
/// batch is a sixteenth of the memory.
pub const MEMORY_LEFT_PART: u64 = 8;

/// What is there, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Size of the disk, bytes.
    pub disk_bytes: u64,
    /// Memory for everything, bytes.
    pub memory_bytes: u64,
    /// How fast the disk is.
    pub disk: DiskRates,
    /// What is asked of it.
    pub workload: Workload,
}

/// What one design would take and give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The design.
    pub design: Design,
    /// Memory of its index, bytes.
    pub index_bytes: u64,
    /// Whether the index leaves enough memory for the rest ([`memory_for_index`]).
    pub fits: bool,
    /// The largest disk whose index fits into all of the memory, bytes, as in the paper's Figure 8;
    /// `None`: any.
    pub largest_disk_bytes: Option<u64>,
    /// Its speed.
    pub prediction: Prediction,
}

/// Every design the engine knows, from least memory to most.
pub fn designs() -> Vec<Design> {
    let plain = |candidate| Design::of(candidate);
    vec![
        plain(Candidate::Basic),
        plain(Candidate::Set),
        plain(Candidate::SetMemLru),
        plain(Candidate::SetMem),
        plain(Candidate::LogLru),
        plain(Candidate::LogLru).grouped(),
        Design::published(Candidate::Log),
        plain(Candidate::Log),
        plain(Candidate::Log).grouped(),
    ]
}

/// A row for every one of [`designs`].
pub fn plan(wanted: &Wanted) -> Vec<Row> {
    designs()
        .into_iter()
        .map(|design| row(design, wanted))
        .collect()
}

fn row(design: Design, wanted: &Wanted) -> Row {
    let object_bytes = wanted.workload.object_bytes;
    // What this build would make of the disk; too small a one is none, and takes what it takes in
    // the paper.
    let built = design.built_index_bytes(wanted.disk_bytes, object_bytes);
    let index_bytes = built.unwrap_or_else(|| design.index_bytes(wanted.disk_bytes, object_bytes));
    let scaled = |index_bytes| {
        let times = wanted.memory_bytes as f64 / index_bytes as f64;
        design::whole(wanted.disk_bytes as f64 * times)
    };
    Row {
        design,
        index_bytes,
        fits: index_bytes <= memory_for_index(wanted.memory_bytes)
            && wanted.memory_bytes >= MEMORY_LEFT_MIN,
        largest_disk_bytes: match built {
            Some(index_bytes) if index_bytes > 0 => Some(scaled(index_bytes)),
            _ => design.largest_disk(wanted.memory_bytes, object_bytes),
        },
        prediction: predict(&design, &wanted.workload, Accounting::Engine, &wanted.disk),
    }
}

/// The most an index may take of `memory_bytes`.
pub fn memory_for_index(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(MEMORY_LEFT_MIN.max(memory_bytes / MEMORY_LEFT_PART))
}

/// The fastest of those `rows` that fit; of equally fast ones the one that finds more of what the
/// disk holds, then the one with the smaller index. `None` when none fits.
pub fn pick<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<&'a Row> {
    let order = |a: &&Row, b: &&Row| {
        let speed = |row: &Row| row.prediction.requests_per_s;
        speed(a)
            .total_cmp(&speed(b))
            .then(a.design.reach().total_cmp(&b.design.reach()))
            .then(b.index_bytes.cmp(&a.index_bytes))
    };
    rows.into_iter().filter(|row| row.fits).max_by(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Geometry, IndexPolicy};

    const TB: u64 = 1_000_000_000_000;

    fn wanted(disk_bytes: u64, memory_bytes: u64) -> Wanted {
        Wanted {
            disk_bytes,
            memory_bytes,
            disk: DiskRates::with_seeks(70.0),
            workload: Workload::default(),
        }
    }

    fn picked(disk_bytes: u64, memory_bytes: u64) -> String {
        let rows = plan(&wanted(disk_bytes, memory_bytes));
        pick(&rows).map_or("none".into(), |row| row.design.to_string())
    }

    #[test]
    fn more_memory_picks_ever_faster_policies() {
        let picks: Vec<String> = [20, 85, 128, 700, 1000, 2000]
            .map(|memory| picked(TB, memory * 1_000_000))
            .into();
        let expected = ["set", "set-mem-lru", "set-mem", "log-lru grouped"];
        assert_eq!(picks[..4], expected);
        assert_eq!(picks[4..], ["log-lru grouped", "log grouped"]);
    }

    #[test]
    fn of_two_equally_fast_policies_the_one_with_fewer_collisions_is_picked() {
        let rows = plan(&wanted(TB, 20_000_000));
        let rate = |n: usize| rows[n].prediction.requests_per_s;
        assert_eq!(rate(0), rate(1));
        assert_eq!(
            pick(&rows).map(|row| row.design.candidate),
            Some(Candidate::Set)
        );
    }

    #[test]
    fn nothing_fits_into_less_than_what_content_needs() {
        assert_eq!(picked(TB, MEMORY_LEFT_MIN - 1), "none");
        assert_eq!(picked(TB, MEMORY_LEFT_MIN), "set");
    }

    #[test]
    fn what_is_picked_leaves_an_eighth_of_the_memory() {
        for memory in (20..4000).step_by(37) {
            let wanted = wanted(TB, memory << 20);
            let rows = plan(&wanted);
            let row = pick(&rows).unwrap();
            let left = wanted.memory_bytes - row.index_bytes;
            assert!(left >= wanted.memory_bytes / 8 && left >= MEMORY_LEFT_MIN);
        }
    }

    #[test]
    fn what_is_planned_is_what_a_store_of_that_size_takes() {
        for disk_bytes in [2 << 30, 100 << 30, TB] {
            for row in plan(&wanted(disk_bytes, 4 << 30)) {
                let config = row.design.config(8 << 10).unwrap();
                let geometry = Geometry::plan(&config, disk_bytes).unwrap();
                let index = geometry.index(IndexPolicy::of(&config)).bytes();
                assert_eq!(row.index_bytes, index, "{}", row.design);
            }
        }
        // OPERATING.md rounds them up, MB.
        let rows = plan(&wanted(TB, 4 << 30));
        let index: Vec<u64> = rows.iter().map(|row| row.index_bytes / 1_000_000).collect();
        assert_eq!(index, [0, 0, 61, 83, 500, 563, 738, 754, 880]);
    }
}
