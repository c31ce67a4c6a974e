//! Golden images: stores that the code of each format version made, kept so that later builds read
//! them or refuse them by number.
//!
//! An image is the state after a kill: what a clean stop saved, and lists, removes and records that
//! came after it. `docs/FORMAT.md` says how one is made and how it is written down.

use std::fmt::Write as _;
use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, MarkedObject, OpenError, PolicyKind, Put, Updated, check, inspect};

use super::support::{Form, MIB, Recorder, copy, forged, memory, open, quiet};

/// The kept images: the form of the store, the file, what it says. The first of them are of format
/// version 2, which this build still reads. The index of those whose entries had another form
/// ([`OLD_ENTRIES`]) is made anew.
const IMAGES: [(Form, &str, &str); 16] = [
    (
        plain(PolicyKind::Log),
        "v2/log",
        include_str!("../golden/v2/log.txt"),
    ),
    (
        Form {
            grouped: true,
            ..plain(PolicyKind::Log)
        },
        "v2/log-grouped",
        include_str!("../golden/v2/log-grouped.txt"),
    ),
    (
        plain(PolicyKind::Log),
        "v2/log-lap-of-2-bits",
        include_str!("../golden/v2/log-lap-of-2-bits.txt"),
    ),
    (
        Form {
            grouped: true,
            ..plain(PolicyKind::Log)
        },
        "v2/log-lap-of-2-bits-grouped",
        include_str!("../golden/v2/log-lap-of-2-bits-grouped.txt"),
    ),
    (
        Form {
            readmission: true,
            ..plain(PolicyKind::Log)
        },
        "v2/log-lap-of-2-bits-readmission",
        include_str!("../golden/v2/log-lap-of-2-bits-readmission.txt"),
    ),
    (
        plain(PolicyKind::Log),
        "v2/log-windows",
        include_str!("../golden/v2/log-windows.txt"),
    ),
    (
        Form {
            grouped: true,
            ..plain(PolicyKind::Log)
        },
        "v2/log-windows-grouped",
        include_str!("../golden/v2/log-windows-grouped.txt"),
    ),
    (
        Form {
            grouped: true,
            ..plain(PolicyKind::Log)
        },
        "v2/log-short-runs-grouped",
        include_str!("../golden/v2/log-short-runs-grouped.txt"),
    ),
    (
        Form {
            readmission: true,
            ..plain(PolicyKind::Log)
        },
        "v2/log-windows-readmission",
        include_str!("../golden/v2/log-windows-readmission.txt"),
    ),
    (
        plain(PolicyKind::LogLru),
        "v2/log-lru",
        include_str!("../golden/v2/log-lru.txt"),
    ),
    (
        plain(PolicyKind::SetMem),
        "v2/set-mem",
        include_str!("../golden/v2/set-mem.txt"),
    ),
    (
        plain(PolicyKind::Log),
        "v3/log",
        include_str!("../golden/v3/log.txt"),
    ),
    (
        Form {
            grouped: true,
            ..plain(PolicyKind::Log)
        },
        "v3/log-grouped",
        include_str!("../golden/v3/log-grouped.txt"),
    ),
    (
        Form {
            readmission: true,
            ..plain(PolicyKind::Log)
        },
        "v3/log-readmission",
        include_str!("../golden/v3/log-readmission.txt"),
    ),
    (
        plain(PolicyKind::LogLru),
        "v3/log-lru",
        include_str!("../golden/v3/log-lru.txt"),
    ),
    (
        plain(PolicyKind::SetMem),
        "v3/set-mem",
        include_str!("../golden/v3/set-mem.txt"),
    ),
];

/// Images of builds whose entries of `log` had positions of 32 bits, and grouped 8 bits of run.
const OLD_ENTRIES: [&str; 6] = [
    "v2/log",
    "v2/log-grouped",
    "v2/log-lap-of-2-bits",
    "v2/log-lap-of-2-bits-grouped",
    "v2/log-lap-of-2-bits-readmission",
    "v2/log-windows-grouped",
];

const fn plain(policy: PolicyKind) -> Form {
    Form {
        policy,
        grouped: false,
        readmission: false,
    }
}

/// Names that were put and are not there: removed with a checkpoint behind, and without one.
const REMOVED: [&str; 2] = ["removed, then saved", "removed last"];

#[derive(Debug, PartialEq, Eq)]
struct Object {
    name: String,
    metadata: Vec<u8>,
    mark: u128,
    revision: u32,
    content: Vec<u8>,
}

impl Object {
    fn new(name: &str, length: usize) -> Self {
        Self {
            name: name.into(),
            metadata: format!("metadata of {name}").into(),
            mark: u128::from(length as u64) << 64 | 7,
            revision: 0,
            content: content(name, length),
        }
    }

    fn store(&self, cache: &Cache) {
        let put = Put {
            mark: self.mark,
            group: u64::from(self.name.starts_with("grouped")),
            useless_after: 4_000_000_000,
            ..Put::metadata(self.metadata.clone())
        };
        cache.put(self.name.as_bytes(), put, &self.content).unwrap();
    }

    fn found(cache: &Cache, name: &str) -> Option<Self> {
        let hit = cache.get(name.as_bytes()).wait()?;
        Some(Self {
            name: name.into(),
            metadata: hit.metadata().to_vec(),
            mark: hit.mark(),
            revision: hit.revision(),
            content: hit.reader(0..u64::MAX).read_to_vec().unwrap(),
        })
    }
}

/// Mostly zeros, so that an image stays small; each length and name has its own.
fn content(name: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let marks = (0..length).step_by(20_000).chain(length.checked_sub(1));
    for (n, at) in marks.enumerate() {
        bytes[at] = name.as_bytes()[n % name.len()];
    }
    bytes
}

/// The objects that a clean stop saved.
fn first() -> Vec<Object> {
    vec![
        Object::new("empty", 0),
        Object::new("small", 13),
        Object::new("a page and more", 70_000),
        Object::new("several spans", 700_000),
        Object::new("grouped 1", 3_000),
        Object::new("grouped 2", 5_000),
    ]
}

/// The objects that were put after that.
fn second() -> Vec<Object> {
    let updated = Object {
        metadata: b"metadata after an update".to_vec(),
        revision: 1,
        ..Object::new("updated", 100)
    };
    vec![
        Object::new("replaced", 2_000),
        // Seals the first segment of a log.
        Object::new("in the next segment", 600_000),
        Object::new(&"long name ".repeat(30), 20),
        updated,
    ]
}

/// The sizes that say what an image looks like: little of it may be other than zero.
fn config(device: Arc<dyn hashcache::device::Device>, form: Form) -> Config {
    Config {
        object_bytes: 64 << 10,
        block_bytes: Some(8 << 10),
        ..quiet(device, form)
    }
}

/// Makes the store of an image.
fn make(form: Form) -> Vec<u8> {
    let device = memory(24 * MIB);
    let cache = open(config(device.clone(), form));
    first().iter().for_each(|object| object.store(&cache));
    Object::new("replaced", 1_000).store(&cache);
    Object::new(REMOVED[0], 1_000).store(&cache);
    cache.remove(REMOVED[0].as_bytes()).wait().unwrap();
    Object::new(REMOVED[1], 1_000).store(&cache);
    cache.close();
    let cache = open(config(device.clone(), form));
    for object in second() {
        let before = Object {
            metadata: Vec::new(),
            ..Object::new(&object.name, object.content.len())
        };
        if object.revision == 0 {
            object.store(&cache);
            continue;
        }
        before.store(&cache);
        assert!(cache.flush().wait());
        let name = object.name.as_bytes();
        let version = cache.get(name).wait().unwrap().version();
        let updated = cache.update_metadata(name, version, object.metadata.into());
        assert!(matches!(updated.wait(), Updated::Done));
    }
    cache.remove(REMOVED[1].as_bytes()).wait().unwrap();
    assert!(cache.flush().wait());
    device.to_bytes()
}

const LINE: usize = 32;

/// The length, then each stretch of 32 bytes that is not all zeros: its place, and its bytes up to
/// the last that is not.
fn write_down(bytes: &[u8]) -> String {
    let mut text = format!("{:08x}\n", bytes.len());
    for (n, line) in bytes.chunks(LINE).enumerate() {
        let Some(last) = line.iter().rposition(|byte| *byte != 0) else {
            continue;
        };
        write!(text, "{:08x} ", n * LINE).unwrap();
        for byte in &line[..=last] {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn read_back(text: &str) -> Vec<u8> {
    let hex = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
    let mut lines = text.lines();
    let mut bytes = vec![0; hex(lines.next().unwrap())];
    for line in lines {
        let (at, line) = line.split_once(' ').unwrap();
        for n in 0..line.len() / 2 {
            bytes[hex(at) + n] = hex(&line[2 * n..2 * n + 2]) as u8;
        }
    }
    bytes
}

fn holds_what_it_must(cache: &Cache, what: &str) {
    for object in first().into_iter().chain(second()) {
        let found = Object::found(cache, &object.name);
        assert!(found.as_ref() == Some(&object), "{what}: {}", object.name);
    }
    for name in REMOVED.into_iter().chain(["never put"]) {
        assert_eq!(Object::found(cache, name), None, "{what}");
    }
}

/// The lists of an old store have marks, and no hours.
fn lists_what_it_must(cache: &Cache, what: &str) {
    let Ok(scan) = cache.scan() else {
        assert!(what.ends_with("set-mem"), "{what}");
        return;
    };
    let listed: Vec<_> = scan.flat_map(|step| step.objects).collect();
    for object in first().into_iter().chain(second()) {
        let is_it = |it: &&MarkedObject| it.mark == object.mark;
        let found = listed.iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("{what}: {}", object.name));
        assert_eq!(found.fresh_until, None, "{what}: {}", object.name);
    }
}

#[test]
fn a_golden_image_holds_exactly_what_was_put_into_it() {
    for (form, what, text) in IMAGES {
        assert!(!text.is_empty(), "{what}: see `write_the_golden_images`");
        let bytes = read_back(text);
        let killed = inspect(&config(copy(bytes.clone()), form)).unwrap();
        let version = if what.starts_with("v2/") { 2 } else { 3 };
        let found = (killed.format_version, killed.clean);
        assert_eq!(found, (version, false), "{what}");
        assert!(killed.checkpoint_serial > 0 && killed.segments_written == 2);
        assert!(killed.checkpoint_whole, "{what}");
        let report = check(&config(copy(bytes.clone()), form), |_, _| ()).unwrap();
        assert!(
            report.is_well() && report.cut_off == 0,
            "{what}: {report:?}"
        );

        let device = copy(bytes);
        let cache = open(config(device.clone(), form));
        holds_what_it_must(&cache, what);
        lists_what_it_must(&cache, what);
        // This build can use the store further, as if it had made it.
        let late = Object::new("put by a later build", 10_000);
        late.store(&cache);
        let lives = inspect(&config(copy(device.to_bytes()), form)).unwrap();
        assert_eq!(lives.format_version, 3, "{what}");
        cache.close();
        let cache = open(config(device, form));
        holds_what_it_must(&cache, what);
        assert_eq!(Object::found(&cache, &late.name), Some(late), "{what}");
    }
}

/// Batch headers say the same as a footer, so the footer is read alone only where they are gone.
#[test]
fn the_footer_of_a_golden_image_is_understood() {
    for (form, what, text) in IMAGES.into_iter().filter(|it| !it.1.ends_with("set-mem")) {
        let mut bytes = read_back(text);
        let later = |block: &[u8]| &block[8..12] == b"HCba" && block[12] > 0;
        let headers = bytes.chunks_mut(4096).filter(|block| later(block));
        let destroyed = headers.map(|block| block[..64].fill(0)).count();
        let parts = bytes
            .chunks_mut(4096)
            .filter(|block| &block[8..12] == b"HCcp");
        parts.for_each(|block| block[..64].fill(0));
        assert!(destroyed > 0, "{what}");
        let cache = open(config(copy(bytes), form));
        let first = first();
        let found = first
            .iter()
            .filter(|it| Object::found(&cache, &it.name).as_ref() == Some(it));
        assert_eq!(found.count(), first.len(), "{what}");
        assert!(Object::found(&cache, "replaced").is_some(), "{what}");
    }
}

/// Without the lists of records, only the saved rows say what a clean stop saved.
#[test]
fn the_saved_rows_of_a_golden_image_count_if_they_have_the_form_of_this_build() {
    for (form, what, text) in IMAGES.into_iter().filter(|it| !it.1.ends_with("set-mem")) {
        let mut bytes = read_back(text);
        let later = |block: &[u8]| &block[8..12] == b"HCba" && block[12] > 0;
        let headers = bytes.chunks_mut(4096).filter(|block| later(block));
        headers.for_each(|block| block[..64].fill(0));
        let is_footer = |at: &usize| &bytes[*at..*at + 4] == b"HCft";
        let footers: Vec<usize> = (0..bytes.len() - 4).filter(is_footer).collect();
        assert_eq!(footers.len(), 1, "{what}");
        footers.iter().for_each(|at| bytes[*at..*at + 4].fill(0));
        let cache = open(config(copy(bytes), form));
        let first = first();
        let found = first
            .iter()
            .filter(|it| Object::found(&cache, &it.name).as_ref() == Some(it));
        let is_old = OLD_ENTRIES.contains(&what);
        assert_eq!(found.count() == first.len(), !is_old, "{what}");
    }
}

/// In a record of format version 2, whoever chooses content can give it the checksum of other
/// content. That shows that the forgery is one: the same is noticed in records of this version.
#[test]
fn forged_content_answers_from_records_of_format_version_2_and_from_no_others() {
    for (form, what, text) in IMAGES {
        let object = Object::new("a page and more", 70_000);
        let mut bytes = read_back(text);
        let of_object = |at: &usize| bytes[*at..].starts_with(&object.metadata);
        let at = (0..bytes.len()).find(of_object).unwrap() + object.metadata.len();
        let page = at..at + 64 * 1024;
        if form.policy != PolicyKind::SetMem {
            assert!(bytes[page.clone()] == object.content[..64 * 1024]);
        }
        // In the first block, which a slot holds too.
        let forgery = forged(&bytes[page.clone()], 3_000);
        bytes[page].copy_from_slice(&forgery);
        let cache = open(config(copy(bytes), form));
        let found = Object::found(&cache, &object.name);
        let is_forged = |it: &Object| it.content[..4_000] == forgery[..4_000];
        assert_eq!(
            found.as_ref().is_some_and(is_forged),
            what.starts_with("v2/"),
            "{what}"
        );
        assert_eq!(found.is_some(), what.starts_with("v2/"), "{what}");
    }
}

#[test]
fn an_image_of_another_format_version_is_refused_and_left_as_it_is() {
    for (form, what, text) in IMAGES {
        for version in [1, 4] {
            let mut bytes = read_back(text);
            for superblock in 0..2 {
                bytes[superblock * 4096 + 8] = version;
            }
            let device = Recorder::new(MemoryDevice::from_bytes(bytes.clone()));
            let device = Arc::new(device);
            let error = Cache::open(config(device.clone(), form))
                .err()
                .expect("not this build's");
            let OpenError::Version {
                found,
                supported: 3,
                ..
            } = error
            else {
                panic!("{what}: {error}")
            };
            assert_eq!(found, u32::from(version));
            let line = format!("format version {version}, this build reads 2 to 3");
            assert_eq!(error.to_string(), line);
            assert!(matches!(
                check(&config(device.clone(), form), |_, _| ()),
                Err(OpenError::Version { .. })
            ));
            assert_eq!(device.writes(), 0, "{what}");
            assert!(device.inner.to_bytes() == bytes, "{what}");
        }
    }
}

#[test]
fn an_image_is_read_back_as_it_was_written_down() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut bytes = vec![0; 10_000];
    for _ in 0..300 {
        bytes[random.usize(..10_000)] = random.u8(..);
    }
    assert!(read_back(&write_down(&bytes)) == bytes);
}

/// Writes the images of this format version. One that is there is never written over: it is what
/// stores out there look like.
#[test]
#[ignore = "makes the images that are kept, once for each format version"]
fn write_the_golden_images() {
    for (form, what, _) in IMAGES.into_iter().filter(|it| it.1.starts_with("v3/")) {
        let bytes = make(form);
        let cache = open(config(copy(bytes.clone()), form));
        holds_what_it_must(&cache, what);
        let path = format!("{}/tests/golden/{what}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
            continue;
        }
        std::fs::write(path, write_down(&bytes)).unwrap();
    }
}
