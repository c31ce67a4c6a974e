//! Measures the disk below a path: probes a temporary file, or an existing store.
//!
//! Called by `hashcache plan --probe`; calls `probe`.
//!
//! Invariant: existing files are not written. The temporary file is unlinked before the probe
//! starts, so no file remains, however the process exits.

mod probe;

use std::io;
use std::path::Path;
use std::time::Duration;

use probe::nameless_file;
pub use probe::{Probe, ProbeError, probe_blank, probe_written};

use crate::clock::Clock;
use crate::error::OpenError;
use crate::store::device::{self, DevicePath};

/// Reason why a disk could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The file at the path is not a store, or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No file could be created in the directory.
    #[error("cannot create a temporary file for the measurement")]
    File(#[source] io::Error),
    /// The measurement failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

/// Measures the disk under `path` for about `budget`. For a directory, a temporary file of at most
/// `file_bytes` (and at most half the free space) is created in it; a store that is not in use is
/// only read.
///
/// # Errors
/// See [`MeasureError`].
pub fn measure(
    path: &Path,
    file_bytes: u64,
    budget: Duration,
    clock: &Clock,
) -> Result<Probe, MeasureError> {
    if path.is_dir() {
        let device = nameless_file(path, file_bytes).map_err(MeasureError::File)?;
        return Ok(probe_blank(&device, budget, clock)?);
    }
    let opened = device::existing(&DevicePath::of_path(path.into()))?;
    let geometry = &opened.geometry;
    let end = geometry.log_offset + geometry.segments * u64::from(geometry.segment_bytes);
    Ok(probe_written(
        &*opened.device,
        geometry.table_offset..end,
        budget,
        clock,
    )?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::config::Config;
    use crate::{Cache, Put};

    /// By a clock that ticks a millisecond each time it is looked at.
    fn measured(path: &Path) -> Result<Probe, MeasureError> {
        let ticks = AtomicU64::new(0);
        let clock = Clock::new(
            move || Duration::from_millis(ticks.fetch_add(1, Ordering::Relaxed)),
            || Duration::ZERO,
        );
        measure(path, 32 << 20, Duration::from_secs(2), &clock)
    }

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let probe = measured(directory.path()).unwrap();
        assert!(probe.reads_per_s > 0.0 && probe.write_bytes_per_s.is_some());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_store_is_measured_and_its_bytes_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.img");
        let mut config = Config::new(&path);
        config.size_bytes = Some(64 << 20);
        config.memory_bytes = 96 << 20;
        let cache = Cache::open(config).unwrap();
        let content: Vec<u8> = (0..256 << 10).map(|n| (n % 251) as u8).collect();
        for n in 0..100u32 {
            let name = n.to_le_bytes();
            cache.put(&name, Put::metadata(&b""[..]), &content).unwrap();
        }
        cache.close();
        let before = std::fs::read(&path).unwrap();
        let probe = measured(&path).unwrap();
        assert!(probe.reads_per_s > 0.0 && probe.write_bytes_per_s.is_none());
        assert!(std::fs::read(&path).unwrap() == before);
    }

    #[test]
    fn a_file_that_is_no_store_is_refused_and_a_missing_one_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("letter");
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        let error = measured(&path).unwrap_err();
        assert!(matches!(
            error,
            MeasureError::Open(OpenError::Foreign { .. })
        ));
        let missing = directory.path().join("none");
        assert!(matches!(measured(&missing), Err(MeasureError::Open(_))));
        assert!(!missing.exists());
    }
}
