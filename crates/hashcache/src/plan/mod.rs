//! Compares all policies for a disk and a memory budget: memory and speed for each, before any
//! store is created.
//!
//! [`design`] computes index sizes, [`seeks`] request costs and a disk's request rate, [`geometry`]
//! the best sizes for blocks and sets. This module combines them into a table and picks a row.
//! Called by `hashcache plan` and by embedders; calls nothing that touches a device.
//! `docs/PAPER.md` has the derivations, and the paper's numbers for comparison.
//!
//! Invariant: pure functions, so equal inputs always give the same table.
//! Place in the paper: sections 3.8 and 4, Figure 8.

pub mod design;
pub mod geometry;
pub mod seeks;

pub use design::{Candidate, Design, Layout, Rows};
pub use geometry::{ReadCost, SizeShare, Tolerance, block_bytes, set_bytes};
pub use seeks::{Accounting, DiskRates, Prediction, Seeks, Workload, predict};

/// Content, pending writes and buffers need this much memory, however large the index is
/// (`docs/operate/disk-and-memory.md`).
pub const MEMORY_LEFT_MIN: u64 = 16 << 20;
/// 1/8 of the memory stays outside the index, because hot objects save whole seeks, and a batch
/// takes a sixteenth.
pub const MEMORY_LEFT_PART: u64 = 8;

/// Hardware and workload to plan for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Size of the disk, bytes.
    pub disk_bytes: u64,
    /// Memory for everything, bytes.
    pub memory_bytes: u64,
    /// Disk speed.
    pub disk: DiskRates,
    /// Expected requests.
    pub workload: Workload,
    /// Size of a slot of the Disk Table, bytes.
    pub block_bytes: u32,
}

/// A design's memory and speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The design.
    pub design: Design,
    /// Slots and index for a store on this disk; `None`: the disk is too small or too large.
    pub layout: Option<Layout>,
    /// True if such a store can be created and the index leaves enough memory
    /// ([`memory_for_index`]).
    pub fits: bool,
    /// Largest store with an index that fits into all the memory, bytes: Figure 8 in the paper with
    /// the engine's layout. `None`: any size fits, or no size does.
    pub largest_disk_bytes: Option<u64>,
    /// Predicted speed.
    pub prediction: Prediction,
}

/// All designs in the engine, from least memory to most.
pub fn designs() -> Vec<Design> {
    let plain = |candidate| Design::from_candidate(candidate);
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

/// A row for each design in [`designs`].
pub fn plan(wanted: &Wanted) -> Vec<Row> {
    designs()
        .into_iter()
        .map(|design| row(design, wanted))
        .collect()
}

impl Row {
    /// Index memory, bytes; 0 if no store can be created.
    pub fn index_bytes(&self) -> u64 {
        self.layout.map_or(0, |layout| layout.index_bytes)
    }

    /// See [`Layout::reach`]; 0 if no store can be created.
    pub fn reach(&self) -> f64 {
        self.layout.map_or(0.0, |layout| layout.reach)
    }

    /// Returns true if `other` finds more objects with no more memory, and is not much slower.
    fn gives_way_to(&self, other: &Self) -> bool {
        let speed = |row: &Self| row.prediction.requests_per_s;
        other.index_bytes() <= self.index_bytes()
            && other.reach() > self.reach()
            && speed(other) >= speed(self) * SPEED_FOR_REACH
    }
}

fn row(design: Design, wanted: &Wanted) -> Row {
    let (object_bytes, block_bytes) = (wanted.workload.object_bytes, wanted.block_bytes);
    let layout = design.layout(wanted.disk_bytes, object_bytes, block_bytes);
    let most = memory_for_index(wanted.memory_bytes);
    Row {
        design,
        layout,
        fits: layout.is_some_and(|layout| layout.index_bytes <= most)
            && wanted.memory_bytes >= MEMORY_LEFT_MIN,
        largest_disk_bytes: design.largest_built_disk(
            wanted.memory_bytes,
            object_bytes,
            block_bytes,
        ),
        prediction: predict(&design, &wanted.workload, Accounting::Engine, &wanted.disk),
    }
}

/// Largest index with `memory_bytes` of memory.
pub fn memory_for_index(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(MEMORY_LEFT_MIN.max(memory_bytes / MEMORY_LEFT_PART))
}

/// Picks the row to recommend: the fastest row that fits, and the smaller index if two are equally
/// fast; `None` if no row fits. A row is left out if another row finds more objects with no more
/// memory and is not much slower. Without this rule `basic` would win over `set`: predictions
/// assume equal hit ratios, but `basic` loses hits to collisions.
pub fn pick<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<&'a Row> {
    let fitting: Vec<&Row> = rows.into_iter().filter(|row| row.fits).collect();
    let stays = |row: &&&Row| !fitting.iter().any(|other| row.gives_way_to(other));
    let order = |a: &&Row, b: &&Row| {
        let speed = |row: &Row| row.prediction.requests_per_s;
        speed(a)
            .total_cmp(&speed(b))
            .then(b.index_bytes().cmp(&a.index_bytes()))
    };
    fitting.iter().filter(stays).copied().max_by(order)
}

/// "Not much slower" means at least this share of the speed. A lost hit costs a fetch from the
/// origin, which takes much longer than a seek.
const SPEED_FOR_REACH: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    const TB: u64 = 1_000_000_000_000;

    fn wanted(disk_bytes: u64, memory_bytes: u64) -> Wanted {
        Wanted {
            disk_bytes,
            memory_bytes,
            disk: DiskRates::with_seeks(70.0),
            workload: Workload::default(),
            block_bytes: 8 << 10,
        }
    }

    fn picked(disk_bytes: u64, memory_bytes: u64) -> String {
        let rows = plan(&wanted(disk_bytes, memory_bytes));
        pick(&rows).map_or("none".into(), |row| row.design.to_string())
    }

    #[test]
    fn more_memory_picks_ever_faster_policies() {
        let picks: Vec<String> = [20, 120, 160, 700, 800, 900]
            .map(|memory| picked(TB, memory * 1_000_000))
            .into();
        let expected = ["set", "set-mem-lru", "set-mem", "log-lru grouped"];
        assert_eq!(picks[..4], expected);
        assert_eq!(picks[4..], ["log-lru grouped", "log grouped"]);
    }

    #[test]
    fn of_two_policies_without_an_index_the_one_with_fewer_collisions_is_picked() {
        let rows = plan(&wanted(TB, 20_000_000));
        let rate = |n: usize| rows[n].prediction.requests_per_s;
        assert!(rate(0) > rate(1) && rows[0].reach() < rows[1].reach());
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
            let left = wanted.memory_bytes - row.index_bytes();
            assert!(left >= wanted.memory_bytes / 8 && left >= MEMORY_LEFT_MIN);
        }
    }

    #[test]
    fn a_terabyte_takes_the_memory_that_the_documents_name() {
        let rows = plan(&wanted(TB, 4 << 30));
        // docs/operate/disk-and-memory.md rounds them up, MB.
        let index = rows.iter().map(|row| row.index_bytes() / 1_000_000);
        let index: Vec<u64> = index.collect();
        assert_eq!(index, [0, 0, 86, 115, 500, 563, 597, 612, 738]);
        let found = rows.iter().filter_map(|row| row.layout);
        let found: Vec<u64> = found.map(|it| it.objects_found() / 1_000_000).collect();
        assert_eq!(found, [64, 81, 81, 81, 106, 106, 106, 116, 116]);
    }

    #[test]
    fn in_a_small_store_log_lru_takes_more_memory_than_log() {
        let rows = plan(&wanted(1 << 30, 64 << 20));
        let index = |name: &str| {
            let row = rows.iter().find(|row| row.design.to_string() == name);
            row.unwrap().index_bytes()
        };
        assert!(index("log-lru") > index("log"));
    }

    #[test]
    fn a_disk_too_small_for_a_store_fits_nothing() {
        let rows = plan(&wanted(1 << 20, 1 << 30));
        assert!(rows.iter().all(|row| row.layout.is_none() && !row.fits));
        assert!(pick(&rows).is_none());
    }
}
