//! Raw block devices, by loop devices, which only root can make.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hashcache::{Cache, Config, OpenError, check};

use crate::support::{MIB, Value, get};

/// A loop device on a file of its own; both go with it.
pub struct Loop {
    pub device: PathBuf,
    _directory: tempfile::TempDir,
}

impl Loop {
    /// `None`, with a line that says so, where there can be none.
    pub fn new(bytes: usize, sector_bytes: usize) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        std::fs::File::create(&file)
            .unwrap()
            .set_len(bytes as u64)
            .unwrap();
        let made = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on", "--sector-size"])
            .arg(sector_bytes.to_string())
            .arg(&file)
            .output();
        match made {
            Ok(output) if output.status.success() => Some(Self {
                device: String::from_utf8(output.stdout).unwrap().trim().into(),
                _directory: directory,
            }),
            other => {
                eprintln!("skipped: no loop device can be had here: {other:?}");
                None
            }
        }
    }

    fn store(&self, memory: usize) -> Config {
        Config {
            memory_bytes: memory as u64,
            open_patience: Duration::from_secs(3600),
            ..Config::new(&self.device)
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

fn fill(cache: &Cache) -> Vec<Value> {
    let values: Vec<Value> = (0..40).map(|n| Value::new(n, 5000 * n as usize)).collect();
    for value in &values {
        value
            .store(cache, format!("{}", value.put).as_bytes())
            .unwrap();
    }
    assert!(cache.flush().wait());
    values
}

fn all_there(cache: &Cache, values: &[Value]) -> bool {
    values
        .iter()
        .all(|value| get(cache, format!("{}", value.put).as_bytes()) == Some(*value))
}

#[test]
fn a_block_device_keeps_a_store_as_large_as_it_is() {
    let Some(disk) = Loop::new(48 * MIB, 512) else {
        return;
    };
    let config = disk.store(16 * MIB);
    let cache = Cache::open(config.clone()).unwrap();
    assert_eq!(cache.stats().device_bytes, 48 * MIB as u64);
    let values = fill(&cache);
    // While one has it, nobody else does: no store, and no file system.
    let second = Cache::open(config.clone()).err().unwrap();
    assert!(matches!(second, OpenError::Locked { .. }), "{second}");
    cache.close();
    assert!(check(&config, |_, _| {}).unwrap().is_well());
    // Asked for more than there is, it is as large as it is, before and after.
    let more = Config {
        size_bytes: Some(1 << 30),
        ..config
    };
    let cache = Cache::open(more).unwrap();
    assert!(all_there(&cache, &values));
}

#[test]
fn a_block_device_that_holds_something_else_is_refused_and_not_changed() {
    let Some(disk) = Loop::new(16 * MIB, 512) else {
        return;
    };
    let made = Command::new("mkfs.ext4")
        .arg("-q")
        .arg(&disk.device)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no file system can be made here");
        return;
    }
    let before = front(&disk.device);
    let error = Cache::open(disk.store(16 * MIB)).err().unwrap();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert!(front(&disk.device) == before);
}

fn front(device: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(device).unwrap();
    bytes.truncate(2 * MIB);
    bytes
}

#[test]
fn a_block_device_and_a_file_keep_a_store_between_them() {
    let Some(disk) = Loop::new(32 * MIB, 512) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        paths: vec![disk.device.clone(), directory.path().join("file")],
        size_bytes: Some(64 * MIB as u64),
        ..disk.store(32 * MIB)
    };
    let cache = Cache::open(config.clone()).unwrap();
    assert_eq!(cache.stats().device_bytes, 96 * MIB as u64);
    let values = fill(&cache);
    cache.close();
    let cache = Cache::open(config).unwrap();
    assert!(all_there(&cache, &values));
    cache.close();
    // A file that is named twice is refused.
    let twice = Config {
        paths: vec![directory.path().join("file"); 2],
        ..disk.store(32 * MIB)
    };
    let error = Cache::open(twice).err().unwrap();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
}
