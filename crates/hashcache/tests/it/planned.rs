//! Compares the layout that `plan` predicts with the layout of a store.

use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::plan::{DiskRates, Row, Wanted, Workload, plan};
use hashcache::{Cache, Config, Stats};

const MIB: u64 = 1 << 20;

fn wanted(disk_bytes: u64, object_bytes: u32, block_bytes: u32) -> Wanted {
    Wanted {
        disk_bytes,
        memory_bytes: 1 << 30,
        disk: DiskRates::with_seeks(70.0),
        workload: Workload {
            object_bytes,
            ..Workload::default()
        },
        block_bytes,
    }
}

/// Statistics of a store made with the settings of `row`.
fn made(row: &Row, wanted: &Wanted) -> Stats {
    let design = row.design;
    let length = usize::try_from(wanted.disk_bytes).unwrap();
    let config = Config {
        memory_bytes: 256 * MIB,
        policy: design.candidate.name().parse().unwrap(),
        rows: design.rows,
        grouped: design.grouped,
        object_bytes: wanted.workload.object_bytes,
        block_bytes: Some(wanted.block_bytes),
        ..Config::on_device(Arc::new(MemoryDevice::new(length)))
    };
    Cache::open(config).unwrap().stats()
}

#[test]
fn a_store_has_the_slots_and_the_index_that_are_planned() {
    for (disk_bytes, object_bytes, block_bytes) in [
        (64 * MIB, 8 << 10, 8 << 10),
        (64 * MIB, 2 << 10, 2 << 10),
        (300 * MIB, 8 << 10, 16 << 10),
        (1024 * MIB, 8 << 10, 8 << 10),
        (1024 * MIB, 100_000, 128 << 10),
    ] {
        let wanted = wanted(disk_bytes, object_bytes, block_bytes);
        for row in plan(&wanted) {
            let (layout, stats) = (row.layout.unwrap(), made(&row, &wanted));
            let planned = (layout.index_bytes, layout.slots);
            let made = (stats.index_bytes, stats.index_slots);
            assert_eq!(planned, made, "{} of {disk_bytes}", row.design);
        }
    }
}
