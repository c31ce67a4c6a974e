//! Stores that are opened and stores that are refused; `check` and `inspect`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Config, OpenError, PolicyKind, Resize, Rows, check, inspect};

use super::support::{KIB, MIB, POLICIES, Value, copy, get, memory, open, quiet};

fn file(path: &Path) -> Config {
    Config {
        size_bytes: Some(16 * MIB as u64),
        memory_bytes: 16 * MIB as u64,
        open_patience: Duration::from_secs(3600),
        ..Config::new(path)
    }
}

fn refused(config: Config) -> OpenError {
    Cache::open(config).err().expect("cannot be opened")
}

#[test]
fn a_store_in_a_file_is_made_used_and_opened_again() {
    for policy in POLICIES {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new directory/cache.img");
        let config = Config {
            policy,
            ..file(&path)
        };
        let value = Value::new(1, 300_000);
        let cache = open(config.clone());
        value.store(&cache, b"name").unwrap();
        cache.close();
        let cache = open(Config {
            size_bytes: None,
            ..config
        });
        assert_eq!(get(&cache, b"name"), Some(value));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 * MIB as u64);
    }
}

#[test]
fn a_file_of_someone_elses_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("thesis.tex");
    // A file system may leave its first blocks alone: btrfs begins at 64 KiB.
    let mut late = vec![0; MIB];
    late[70_000] = 1;
    let mut end = vec![0; 3 * MIB];
    end[3 * MIB - 5_000] = 1;
    for content in [
        b"\\documentclass{article}".to_vec(),
        vec![1; 100_000],
        late,
        end,
    ] {
        std::fs::write(&path, &content).unwrap();
        assert!(matches!(refused(file(&path)), OpenError::Foreign { .. }));
        let existing = Config {
            size_bytes: None,
            ..file(&path)
        };
        assert!(matches!(refused(existing), OpenError::Foreign { .. }));
        assert!(std::fs::read(&path).unwrap() == content);
    }
}

#[test]
fn an_empty_or_blank_file_becomes_a_store() {
    let directory = tempfile::tempdir().unwrap();
    for length in [0, 5, 16 * MIB] {
        let path = directory.path().join(format!("{length}"));
        std::fs::write(&path, vec![0; length]).unwrap();
        if length == 5 {
            assert!(matches!(refused(file(&path)), OpenError::Foreign { .. }));
        } else {
            open(file(&path)).close();
        }
    }
}

#[test]
fn nothing_is_left_behind_when_a_store_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache.img");
    let small = Config {
        size_bytes: Some(100_000),
        ..file(&path)
    };
    let OpenError::TooSmall {
        needed_bytes,
        size_bytes: 100_000,
    } = refused(small)
    else {
        panic!("not too small")
    };
    assert!(!path.exists());
    let poor = Config {
        memory_bytes: 1 << 20,
        ..file(&path)
    };
    let OpenError::Memory {
        needed_bytes: memory,
        ..
    } = refused(poor.clone())
    else {
        panic!("enough memory")
    };
    assert!(!path.exists());
    // More than any disk has.
    let huge = Config {
        size_bytes: Some(1 << 47),
        object_bytes: u32::MAX,
        memory_bytes: 1 << 40,
        ..file(&path)
    };
    assert!(matches!(refused(huge.clone()), OpenError::Device { .. }));
    // More than positions can say.
    for size in [1 << 48, 1 << 55, 1 << 63, u64::MAX] {
        let beyond = Config {
            size_bytes: Some(size),
            ..huge.clone()
        };
        assert!(matches!(refused(beyond), OpenError::TooLarge { .. }));
    }
    assert!(!path.exists());
    let absent = Config {
        size_bytes: None,
        ..file(&path)
    };
    assert!(matches!(refused(absent), OpenError::Device { .. }));
    assert!(!path.exists());
    // An empty file that was there stays, empty.
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(refused(poor), OpenError::Memory { .. }));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    std::fs::remove_file(&path).unwrap();

    // And what the errors name as needed is enough.
    let enough = Config {
        size_bytes: Some(needed_bytes),
        ..file(&path)
    };
    open(enough).close();
    std::fs::remove_file(&path).unwrap();
    open(Config {
        memory_bytes: memory,
        ..file(&path)
    })
    .close();
}

#[test]
fn of_several_devices_those_that_were_just_made_go_again_when_one_cannot_be() {
    let directory = tempfile::tempdir().unwrap();
    // The last cannot be made: what it lies in is no directory.
    let [first, there, missing] =
        ["first.img", "there.img", "there.img/place.img"].map(|it| directory.path().join(it));
    // An empty file was somebody's wish.
    std::fs::write(&there, b"").unwrap();
    let config = |paths: &[&PathBuf]| Config {
        paths: paths.iter().map(|it| (*it).clone()).collect(),
        memory_bytes: 48 * MIB as u64,
        ..file(&first)
    };
    let refusal = refused(config(&[&first, &there, &missing]));
    assert!(
        matches!(&refusal, OpenError::Device { path, .. } if *path == missing),
        "{refusal:?}"
    );
    assert!(!first.exists() && there.exists());
    // The others alone are a store; and when it cannot be opened it stays.
    open(config(&[&first, &there])).close();
    let refusal = refused(config(&[&first, &there, &missing]));
    assert!(matches!(refusal, OpenError::Device { .. }));
    assert!(first.exists() && there.exists());
    open(config(&[&first, &there])).close();
}

#[test]
fn a_store_in_use_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache.img");
    let cache = open(file(&path));
    assert!(matches!(refused(file(&path)), OpenError::Locked { .. }));
    assert!(matches!(
        check(&file(&path), |_, _| ()),
        Err(OpenError::Locked { .. })
    ));
    cache.close();
    open(file(&path)).close();
}

#[test]
fn other_settings_than_the_store_was_made_with_are_refused() {
    let device = memory(16 * MIB);
    open(quiet(device.clone(), PolicyKind::Log)).close();
    let before = device.to_bytes();
    let policy = refused(quiet(device.clone(), PolicyKind::Set));
    assert!(
        matches!(
            policy,
            OpenError::Geometry {
                field: "policy",
                ..
            }
        ),
        "{policy}"
    );
    assert_eq!(
        policy.to_string(),
        "the store was made with policy log-lru or log, not set"
    );
    let smaller = Config {
        size_bytes: Some(8 * MIB as u64),
        ..quiet(device.clone(), PolicyKind::Log)
    };
    let why = Resize::Smaller;
    assert!(matches!(refused(smaller), OpenError::Size { why: it, .. } if it == why));
    let poor = Config {
        memory_bytes: 1 << 20,
        ..quiet(device.clone(), PolicyKind::Log)
    };
    assert!(matches!(refused(poor), OpenError::Memory { .. }));
    assert!(device.to_bytes() == before, "nothing was changed");
}

#[test]
fn one_damaged_superblock_does_no_harm_two_are_told() {
    for policy in POLICIES {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        let value = Value::new(1, 1_000);
        value.store(&cache, b"name").unwrap();
        cache.close();
        let bytes = device.to_bytes();
        for damaged in [0..1, 1..2, 0..2] {
            let mut bytes = bytes.clone();
            for copy in damaged.clone() {
                bytes[copy * 4096 + 100] ^= 4;
            }
            let config = quiet(copy(bytes), policy);
            if damaged.len() == 2 {
                assert!(matches!(refused(config), OpenError::Damaged { .. }));
            } else {
                // The older copy does not know of the orderly end, which costs nothing either.
                assert_eq!(
                    get(&open(config), b"name"),
                    Some(value),
                    "{policy:?} {damaged:?}"
                );
            }
        }
    }
}

#[test]
fn another_format_version_is_refused_by_number() {
    let device = memory(16 * MIB);
    open(quiet(device.clone(), PolicyKind::Log)).close();
    for version in [0, 1, 4] {
        let mut bytes = device.to_bytes();
        for copy in 0..2 {
            bytes[copy * 4096 + 8] = version;
        }
        let found = u32::from(version);
        let error = refused(quiet(copy(bytes), PolicyKind::Log));
        assert!(matches!(error, OpenError::Version { found: f, supported: 3, .. } if f == found));
    }
}

#[test]
fn no_damage_to_the_front_makes_opening_panic_or_lie() {
    let device = memory(8 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    for put in 0..50 {
        Value::new(put, 5_000)
            .store(&cache, format!("{put}").as_bytes())
            .unwrap();
        if put % 10 == 0 {
            cache.remove(format!("{put}").as_bytes()).wait().unwrap();
        }
    }
    cache.close();
    let bytes = device.to_bytes();
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let mut bytes = bytes.clone();
        for _ in 0..random.usize(1..200) {
            bytes[used[random.usize(..used.len())]] = random.u8(..);
        }
        let Ok(cache) = Cache::open(quiet(copy(bytes), PolicyKind::Log)) else {
            continue;
        };
        for put in 0..50 {
            let found = get(&cache, format!("{put}").as_bytes());
            assert!(found.is_none_or(|value| value == Value::new(put, 5_000)));
        }
    }
}

#[test]
fn check_counts_what_is_there_and_what_is_damaged() {
    for policy in [PolicyKind::Log, PolicyKind::Set, PolicyKind::SetMem] {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        for put in 0..100 {
            Value::new(put, 10_000)
                .store(&cache, format!("{put}").as_bytes())
                .unwrap();
        }
        cache.close();
        let mut steps = 0;
        let report = check(&quiet(device.clone(), policy), |_, _| steps += 1).unwrap();
        assert_eq!((report.damaged, report.cut_off), (0, 0), "{policy:?}");
        // In the table a record counts with its slot and with its tail, unless it was put out.
        assert!((95..=200).contains(&report.records), "{report:?}");
        assert!(report.bytes >= 90 * 10_000);
        assert!(steps > 0);

        // A flipped byte in the content of every tenth record.
        let mut bytes = device.to_bytes();
        for put in (0..100).step_by(10) {
            let content = Value::new(put, 10_000).content(format!("{put}").as_bytes());
            let part = &content[3_000..3_016];
            let at = bytes.windows(16).position(|window| window == part);
            if let Some(at) = at {
                bytes[at] ^= 1;
            }
        }
        let damaged = check(&quiet(copy(bytes.clone()), policy), |_, _| ()).unwrap();
        assert!((9..=10).contains(&damaged.damaged), "{damaged:?}");
        let cache = open(quiet(copy(bytes), policy));
        for put in 0..100 {
            let found = get(&cache, format!("{put}").as_bytes());
            assert!(found.is_none() || found == Some(Value::new(put, 10_000)));
        }
        assert!(cache.stats().damaged >= 9);
    }
}

#[test]
fn what_a_kill_cut_off_is_no_damage() {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    for put in 0..60 {
        Value::new(put, 10_000)
            .store(&cache, format!("{put}").as_bytes())
            .unwrap();
        if put == 29 {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
    let mut bytes = device.to_bytes();
    drop(cache);
    // The last batch arrived but for its second half.
    let content = Value::new(45, 10_000).content(b"45");
    let at = bytes
        .windows(16)
        .position(|window| window == &content[..16])
        .unwrap();
    let end = Value::new(59, 10_000).content(b"59");
    let to = bytes
        .windows(16)
        .position(|window| window == &end[9_000..9_016])
        .unwrap();
    bytes[at..to].fill(0);
    let report = check(&quiet(copy(bytes), PolicyKind::Log), |_, _| ()).unwrap();
    assert_eq!(
        (report.damaged, report.records, report.cut_off),
        (0, 45, 15)
    );
}

#[test]
fn check_and_inspect_change_nothing() {
    for policy in POLICIES {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        Value::new(1, 100 * KIB).store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        let killed = copy(device.to_bytes());
        cache.close();
        for (device, clean) in [(device, true), (killed, false)] {
            let before = device.to_bytes();
            check(&quiet(device.clone(), policy), |_, _| ()).unwrap();
            let inspection = inspect(&quiet(device.clone(), policy)).unwrap();
            assert_eq!(inspection.clean, clean);
            assert_eq!(inspection.checkpoint_whole, clean);
            assert_eq!(inspection.policy, policy.name());
            assert_eq!(inspection.device_bytes, 16 * MIB as u64);
            assert_eq!(inspection.segments_written, 1);
            assert!(device.to_bytes() == before);
        }
    }
}

#[test]
fn inspect_tells_the_form_of_the_index_and_who_made_up_the_store() {
    let (a, b) = (memory(16 * MIB), memory(16 * MIB));
    let config = |rows, grouped| Config {
        rows,
        grouped,
        ..quiet(a.clone(), PolicyKind::Log)
    };
    for grouped in [true, false] {
        let log_lru = Config {
            policy: PolicyKind::LogLru,
            ..config(Rows::Two, grouped)
        };
        open(log_lru).close();
        let found = inspect(&config(Rows::Two, false)).unwrap();
        assert_eq!((found.policy, found.grouped), ("log-lru", grouped));
    }
    for (rows, count) in [(Rows::One, 1), (Rows::Two, 2)] {
        for grouped in [false, true] {
            open(config(rows, grouped)).close();
            let found = inspect(&config(Rows::Two, false)).unwrap();
            assert_eq!((found.rows, found.grouped), (Some(count), grouped));
        }
    }
    open(Config {
        devices: vec![a.clone(), b.clone()],
        memory_bytes: 32 * MIB as u64,
        ..config(Rows::Two, false)
    })
    .close();
    let found = inspect(&config(Rows::Two, false)).unwrap();
    assert!(found.policy_since > 0);
    let members: Vec<_> = found.memberships.iter().map(|it| it.1.len()).collect();
    assert_eq!(members, [1, 2]);
    // Drawn at random, not the next number: parts used apart must not give out the same.
    assert_ne!(found.members[1].device, 1);
}

#[test]
fn a_device_of_ones_own_too_small_is_refused() {
    for bytes in [0, 8192, MIB] {
        let config = quiet(Arc::new(MemoryDevice::new(bytes)), PolicyKind::Log);
        let error = refused(config);
        assert!(
            matches!(error, OpenError::TooSmall { .. }),
            "{bytes}: {error:?}"
        );
    }
}

/// A number of superblock A, at its place in `docs/FORMAT.md`.
fn number(bytes: &[u8], at: usize) -> usize {
    let number = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    usize::try_from(number).unwrap()
}

#[test]
fn check_tells_damage_in_front_of_the_records_by_its_place() {
    let device = memory(64 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    for put in 0..20 {
        let name = format!("{put}");
        Value::new(put, 10_000)
            .store(&cache, name.as_bytes())
            .unwrap();
        cache.remove(name.as_bytes()).wait().unwrap();
    }
    cache.close();
    let bytes = device.to_bytes();
    let checked = |at: &[usize]| {
        let mut bytes = bytes.clone();
        at.iter().for_each(|at| bytes[*at] ^= 1);
        check(&quiet(copy(bytes), PolicyKind::Log), |_, _| ()).unwrap()
    };
    assert!(checked(&[]).is_well());
    // Reserved bytes are under the MAC too.
    for (at, damaged) in [(1_000, [true, false]), (4096 + 80, [false, true])] {
        let report = checked(&[at]);
        assert_eq!(report.superblocks_damaged, damaged);
        assert!(!report.is_well());
    }
    let (journal, length) = (number(&bytes, 104), number(&bytes, 112));
    let written = (journal..journal + length).filter(|at| bytes[*at] != 0);
    let block = written.min().unwrap();
    let report = checked(&[block + 40]);
    assert_eq!(report.journal_blocks_damaged, 1);
    assert!(!report.is_well());
    let serial = number(&bytes, 176).max(number(&bytes, 4096 + 176));
    assert!(serial > 0, "no checkpoint");
    let area = number(&bytes, 120) + serial % 2 * number(&bytes, 128);
    let report = checked(&[area + 100]);
    assert_eq!(report.checkpoint_parts_damaged, 1);
    assert!(!report.is_well());
}

#[test]
fn a_store_that_was_cut_is_told_by_its_lengths() {
    for policy in POLICIES {
        let device = memory(16 * MIB);
        open(quiet(device.clone(), policy)).close();
        let mut bytes = device.to_bytes();
        bytes.truncate(15 * MIB);
        let config = || quiet(copy(bytes.clone()), policy);
        let cut = |error: &OpenError| {
            matches!(error, OpenError::Short { length, device_bytes, .. }
                if (*length, *device_bytes) == (15 * MIB as u64, 16 * MIB as u64))
        };
        assert!(cut(&refused(config())), "{policy:?}");
        assert!(cut(&check(&config(), |_, _| ()).unwrap_err()), "{policy:?}");
    }
}

/// The refusals of `Cache::preflight`, and true if `Cache::open` then fails.
fn asked_before(config: &Config) -> (Vec<String>, bool) {
    let refusals = Cache::preflight(config);
    let refusals = refusals.iter().map(ToString::to_string).collect();
    (refusals, Cache::open(config.clone()).is_err())
}

#[test]
fn what_would_be_refused_is_known_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache.img");
    let letter = directory.path().join("letter");
    std::fs::write(&letter, "Dear Sir or Madam").unwrap();
    for config in [
        Config {
            memory_bytes: 1 << 20,
            ..file(&path)
        },
        Config {
            size_bytes: Some(100_000),
            ..file(&path)
        },
        Config {
            size_bytes: None,
            ..file(&path)
        },
        Config {
            size_bytes: Some(1 << 47),
            memory_bytes: 1 << 42,
            ..file(&path)
        },
        file(&letter),
        file(&letter.join("below")),
        file(directory.path()),
        file(Path::new("/dev/null")),
        Config {
            paths: vec![],
            ..file(&path)
        },
    ] {
        let (refusals, fails) = asked_before(&config);
        assert!(fails && refusals.len() == 1, "{refusals:?}");
        assert!(!path.exists());
    }
    assert_eq!(asked_before(&file(&path)), (vec![], false));
    // Every device that will not do is named.
    let both = Config {
        paths: vec![letter, directory.path().into(), path.clone()],
        ..file(&path)
    };
    assert_eq!(asked_before(&both).0.len(), 2);
    // Of a store that is there, what it was made with counts.
    let other = Config {
        policy: PolicyKind::Set,
        ..file(&path)
    };
    let (refusals, fails) = asked_before(&other);
    assert!(fails && refusals.len() == 1, "{refusals:?}");
}

#[test]
fn asking_whether_a_store_can_be_opened_disturbs_nobody_who_has_it_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache.img");
    let cache = open(file(&path));
    cache
        .put(b"name", hashcache::Put::metadata(&b"m"[..]), b"content")
        .unwrap();
    assert!(Cache::preflight(&file(&path)).is_empty());
    cache.close();
    let before = std::fs::read(&path).unwrap();
    assert!(Cache::preflight(&file(&path)).is_empty());
    assert!(std::fs::read(&path).unwrap() == before);
}

/// Two stores with one key for names must not verify each other's records.
#[test]
fn a_given_key_of_names_leaves_the_records_of_an_earlier_store_unreadable() {
    let device = memory(32 * MIB);
    let config = || Config {
        name_secret: Some([7; 16]),
        ..quiet(device.clone(), PolicyKind::Set)
    };
    let cache = open(config());
    Value::new(1, 3_000).store(&cache, b"name").unwrap();
    assert!(cache.flush().wait());
    drop(cache);
    // The parts that show that there is a store: both ends.
    for (offset, bytes) in [(0, 2 * MIB), (30 * MIB as u64, 2 * MIB)] {
        device.write_at(offset, &vec![0; bytes]).unwrap();
    }
    let cache = open(config());
    assert_eq!(get(&cache, b"name"), None);
}
