//! On a device in memory that keeps a list of what was done to it, and a clock that ticks a
//! millisecond each time it is looked at.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::device::{FaultDevice, MemoryDevice};

/// Offset and length of an operation.
type Place = (u64, usize);

struct Watched {
    inner: MemoryDevice,
    reads: Mutex<Vec<Place>>,
    writes: Mutex<Vec<Place>>,
}

impl Watched {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            inner: MemoryDevice::from_bytes(bytes),
            reads: Mutex::default(),
            writes: Mutex::default(),
        }
    }

    fn reads(&self) -> Vec<Place> {
        self.reads.lock().unwrap().clone()
    }

    fn writes(&self) -> Vec<Place> {
        self.writes.lock().unwrap().clone()
    }
}

impl Device for Watched {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(4096) && buffer.len().is_multiple_of(4096));
        self.reads.lock().unwrap().push((offset, buffer.len()));
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.writes.lock().unwrap().push((offset, buffer.len()));
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

fn ticking() -> Clock {
    let ticks = AtomicU64::new(0);
    Clock::new(
        move || Duration::from_millis(ticks.fetch_add(1, Ordering::Relaxed)),
        || Duration::ZERO,
    )
}

const MIB: usize = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

fn holds((offset, len): Place, (at, bytes): Place) -> bool {
    offset <= at && at + bytes as u64 <= offset + len as u64
}

#[test]
fn on_a_blank_device_only_what_was_written_is_measured() {
    let device = Watched::new(vec![0; 96 * MIB]);
    let probe = probe_blank(&device, SECOND, &ticking()).unwrap();
    let writes = device.writes();
    let measured = device.reads().into_iter().filter(|read| read.1 < MIB);
    let mut count = 0;
    for read in measured {
        assert!(writes.iter().any(|write| holds(*write, read)), "{read:?}");
        count += 1;
    }
    assert!(count > 100, "{count}");
    assert_eq!(probe.extents, 32);
}

#[test]
fn extents_are_spread_over_the_whole_device() {
    let device = Watched::new(vec![0; 128 * MIB]);
    // So short that only the fewest are written.
    probe_blank(&device, Duration::from_millis(10), &ticking()).unwrap();
    let writes = device.writes();
    let extents = writes.iter().map(|write| write.0 / EXTENT);
    let behind_the_run = extents.filter(|extent| *extent >= RUN);
    let spread: Vec<u64> = behind_the_run.take(EXTENTS_MIN).collect();
    let mut sorted = spread.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [64, 72, 80, 88, 96, 104, 112, 120], "{spread:?}");
}

#[test]
fn what_is_not_blank_is_never_overwritten() {
    for marked in [0, 5 * MIB + 77, 100 * MIB - 1] {
        let mut bytes = vec![0; 100 * MIB];
        bytes[marked] = 1;
        let device = Watched::new(bytes);
        let error = probe_blank(&device, SECOND, &ticking()).unwrap_err();
        let extent = (marked / MIB) as u64 * EXTENT;
        assert!(matches!(error, ProbeError::NotBlank { offset } if offset == extent));
        assert_eq!(device.inner.to_bytes()[marked], 1);
        let overwritten = device.writes().into_iter().any(|write| write.0 == extent);
        assert!(!overwritten, "byte {marked}");
    }
}

#[test]
fn a_device_full_of_data_is_not_written_at_all() {
    let device = Watched::new(vec![9; 32 * MIB]);
    assert!(probe_blank(&device, SECOND, &ticking()).is_err());
    assert_eq!(device.writes(), []);
}

#[test]
fn a_store_is_only_read_and_only_where_it_is_written() {
    // Written: MiB 10 to 29, and the first half of MiB 30.
    let mut bytes = vec![0; 64 * MIB];
    bytes[10 * MIB..30 * MIB + MIB / 2].fill(3);
    let device = Watched::new(bytes.clone());
    let area = 4096..64 * EXTENT;
    let probe = probe_written(&device, area, SECOND, &ticking()).unwrap();
    assert_eq!(device.writes(), []);
    assert!(device.inner.to_bytes() == bytes);
    assert!((EXTENTS_MIN..=20).contains(&probe.extents));
    let reads = device.reads();
    let measured: Vec<Place> = reads
        .into_iter()
        .skip_while(|read| read.1 != READ_LEN)
        .collect();
    assert!(measured.len() > 100);
    let written = (10 * EXTENT, 20 * MIB);
    assert!(measured.iter().all(|read| holds(written, *read)));
    assert_eq!(probe.write_bytes_per_s, None);
}

#[test]
fn a_store_that_was_hardly_written_tells_nothing() {
    let mut bytes = vec![0; 64 * MIB];
    bytes[10 * MIB..12 * MIB].fill(3);
    for area in [0..64 * EXTENT, 7..7, 62 * EXTENT..1 << 40] {
        let device = Watched::new(bytes.clone());
        let error = probe_written(&device, area, SECOND, &ticking()).unwrap_err();
        assert!(matches!(error, ProbeError::NothingWritten { found } if found <= 2));
    }
}

#[test]
fn rates_are_operations_by_time_and_the_time_is_kept() {
    let device = Watched::new(vec![0; 64 * MIB]);
    let clock = ticking();
    let probe = probe_blank(&device, SECOND, &clock).unwrap();
    // One look at the clock for each read, a millisecond each.
    assert!((900.0..1100.0).contains(&probe.reads_per_s), "{probe:?}");
    assert!(
        (900.0..1100.0).contains(&probe.reads_per_s_deep),
        "{probe:?}"
    );
    let writes = probe.write_bytes_per_s.unwrap() / MIB as f64;
    assert!((900.0..1100.0).contains(&writes), "{probe:?}");
    // A few looks more for each kind, and those of threads that are just finishing.
    assert!(clock.monotone() < SECOND * 11 / 10);
    let sizes: Vec<u32> = probe
        .read_costs
        .iter()
        .map(|cost| cost.bytes >> 10)
        .collect();
    assert_eq!(sizes, [4, 16, 32, 64, 128, 256, 512]);
}

#[test]
fn a_device_of_a_few_megabytes_is_refused_with_the_size_it_needs() {
    let device = Watched::new(vec![0; 7 * MIB]);
    let error = probe_blank(&device, SECOND, &ticking()).unwrap_err();
    let ProbeError::TooSmall { needed_bytes, .. } = error else {
        panic!("{error}")
    };
    let device = Watched::new(vec![0; usize::try_from(needed_bytes).unwrap()]);
    assert!(probe_blank(&device, SECOND, &ticking()).is_ok());
}

#[test]
fn without_time_each_kind_is_still_measured_once() {
    let device = Watched::new(vec![0; 80 * MIB]);
    let probe = probe_blank(&device, Duration::ZERO, &ticking()).unwrap();
    assert!(probe.reads_per_s > 0.0 && probe.rates().seeks_per_s > 0.0);
    assert_eq!(probe.extents, EXTENTS_MIN);
}

#[test]
fn a_device_that_fails_is_told() {
    let device = FaultDevice::new(MemoryDevice::new(80 * MIB), None);
    device.fail();
    let error = probe_blank(&device, SECOND, &ticking()).unwrap_err();
    assert!(matches!(error, ProbeError::Device(_)));
}
