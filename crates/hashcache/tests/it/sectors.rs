//! Devices with sectors of 4 KiB: a test double that refuses every access that is not aligned to
//! them, so that this is tested everywhere, and loop devices where there can be some.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hashcache::device::{Device, FileDevice};
use hashcache::{Ban, Cache, Config, Health, OpenError, PolicyKind, check};

use crate::block_device::Loop;
use crate::support::{EVERY, MIB, Overlay, Value, forms, get, open, quiet};

const SECTOR: usize = 4096;

/// Refuses what a disk with sectors of 4 KiB would refuse of direct I/O.
struct Sectors {
    inner: Overlay,
}

fn aligned(offset: u64, buffer: &[u8]) -> io::Result<()> {
    let at = buffer.as_ptr().addr();
    let all = [at, buffer.len(), usize::try_from(offset).unwrap()];
    if all.iter().all(|it| it.is_multiple_of(SECTOR)) {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} bytes at {offset} are not aligned", buffer.len()),
        ))
    }
}

impl Device for Sectors {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn alignment(&self) -> usize {
        SECTOR
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        aligned(offset, buffer)?;
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        aligned(offset, buffer)?;
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// Of every length around sectors, slots and first reads.
fn values() -> impl Iterator<Item = (String, Value)> {
    (0..60).map(|n| (format!("name-{n}"), Value::new(n, (n * n * 17) as usize)))
}

fn is_removed(name: &str) -> bool {
    name == "name-7" || name.starts_with("name-1")
}

/// Stores, removes, closes, reopens and checks: no access may be refused, and of what was stored
/// most is found (names of the Disk Table may put each other out).
fn is_kept_over_openings(config: &Config) {
    let policy = config.policy;
    let cache = open(config.clone());
    for (name, value) in values() {
        value.store(&cache, name.as_bytes()).unwrap();
    }
    assert!(cache.flush().wait());
    cache.remove(b"name-7").wait().unwrap();
    let bans = [Ban::prefix(b"name-1")];
    cache.remove_matching(&bans).wait().unwrap();
    cache.close();
    for opening in 0..2 {
        let cache = open(config.clone());
        let (mut found, mut kept) = (0, 0);
        for (name, value) in values() {
            let read = get(&cache, name.as_bytes());
            assert!(read.is_none() || !is_removed(&name), "{policy:?}: {name}");
            assert!(read.is_none_or(|it| it == value));
            found += usize::from(read.is_some());
            kept += usize::from(!is_removed(&name));
        }
        let stats = cache.stats();
        assert_eq!((stats.read_errors, stats.devices_out), (0, 0), "{policy:?}");
        assert_eq!(stats.health, Health::InService);
        assert!(
            found * 10 >= kept * 9,
            "{policy:?} {opening}: {found} of {kept}"
        );
        cache.close();
    }
    let report = check(config, |_, _| {}).unwrap();
    assert!(report.is_well(), "{policy:?}: {report:?}");
}

/// The smallest slots there are, and hardly any memory for hot objects, so that the disk is asked.
fn small_slots(config: Config) -> Config {
    Config {
        block_bytes: Some(2 << 10),
        hot_bytes_max: 0,
        ..config
    }
}

#[test]
fn every_access_to_a_device_of_4_kib_sectors_is_aligned_to_them() {
    for form in forms() {
        let inner = Overlay::new(48 * MIB as u64, Arc::default());
        let device = Arc::new(Sectors { inner });
        is_kept_over_openings(&small_slots(quiet(device, form)));
    }
}

/// As after a copy from a disk of smaller sectors.
#[test]
fn a_store_with_slots_smaller_than_a_sector_is_refused_by_that_name() {
    let inner = Overlay::new(48 * MIB as u64, Arc::default());
    let device = Arc::new(inner);
    let config = |device: Arc<dyn Device>| small_slots(quiet(device, PolicyKind::Set));
    open(config(device.clone())).close();
    let moved = Arc::new(Sectors {
        inner: device.copy(),
    });
    let error = Cache::open(config(moved)).err().unwrap();
    let told = matches!(
        error,
        OpenError::Sectors {
            block_bytes: 2048,
            sector_bytes: SECTOR,
            ..
        }
    );
    assert!(told, "{error}");
}

fn on_path(path: &Path, policy: PolicyKind, size_bytes: Option<u64>) -> Config {
    small_slots(Config {
        policy,
        size_bytes,
        memory_bytes: 16 * MIB as u64,
        segment_bytes: Some(MIB as u32),
        open_patience: Duration::from_secs(3600),
        ..Config::new(path)
    })
}

#[test]
fn a_store_lives_on_a_block_device_of_4_kib_sectors() {
    for policy in EVERY {
        let Some(disk) = Loop::new(48 * MIB, SECTOR) else {
            return;
        };
        is_kept_over_openings(&on_path(&disk.device, policy, None));
    }
}

/// A file system, mounted for as long as this lives.
struct Mounted {
    directory: tempfile::TempDir,
}

impl Mounted {
    fn new(disk: &Loop) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let done = |command: &mut Command| command.status().is_ok_and(|it| it.success());
        let made = done(Command::new("mkfs.ext4").arg("-q").arg(&disk.device))
            && done(
                Command::new("mount")
                    .arg(&disk.device)
                    .arg(directory.path()),
            );
        if !made {
            eprintln!("skipped: no file system can be made and mounted here");
            return None;
        }
        Some(Self { directory })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

#[test]
fn a_store_lives_in_a_file_on_a_disk_of_4_kib_sectors() {
    let Some(disk) = Loop::new(256 * MIB, SECTOR) else {
        return;
    };
    let Some(mounted) = Mounted::new(&disk) else {
        return;
    };
    for policy in EVERY {
        // Made by the store, and preallocated by somebody else.
        for size in [Some(48 * MIB as u64), None] {
            let path = mounted.directory.path().join("cache.img");
            if size.is_none() {
                let made = Command::new("fallocate")
                    .args(["-l", "48M"])
                    .arg(&path)
                    .status();
                assert!(made.unwrap().success());
            }
            assert_eq!(FileDevice::open(&path, size).unwrap().alignment(), SECTOR);
            is_kept_over_openings(&on_path(&path, policy, size));
            std::fs::remove_file(&path).unwrap();
        }
    }
}
