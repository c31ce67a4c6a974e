//! Reads how much memory the control groups of this process, and the machine, have left.
//!
//! Called by `pressure`. Reads the kernel's figures in `/proc` and `/sys`. Where these are missing
//! (another system, no such mount), memory is never short.
//!
//! Cost: two small reads a group and one for the machine, a third for a group that is more than
//! half full; some 20 µs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that could still be taken; negative if too much is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom {
    /// Bytes until hot objects must give memory back.
    pub(super) to_stay: i64,
    /// Bytes until hot objects must stop growing.
    pub(super) to_grow: i64,
}

/// Share of a group's limit, or of the memory that the machine has left, in 1/100. Above this share
/// hot objects give memory back.
const STAY_SHARE: u64 = 80;
/// Hot objects grow up to this share, in 1/100. The gap leaves time to look: memory that fills the
/// gap is seen before the limit is reached.
const GROW_SHARE: u64 = 70;
/// None of these files is much longer than this; text beyond this length is not needed here.
const READ_MAX: usize = 4 << 10;

/// One control group with open files: each read returns current text.
struct ControlGroup {
    limit: File,
    usage: File,
    stat: File,
    /// Names in `stat` of memory that the kernel can reclaim by itself.
    files: [&'static str; 2],
}

/// See the module's head.
pub(super) struct SystemMemory {
    groups: Vec<ControlGroup>,
    machine: Option<File>,
}

impl SystemMemory {
    /// The control groups of this process, and the machine.
    pub(super) fn of_this_process() -> Self {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let directories = directories(&groups, &mounts);
        Self {
            groups: directories
                .iter()
                .filter_map(|at| ControlGroup::at(at))
                .collect(),
            machine: File::open("/proc/meminfo").ok(),
        }
    }

    /// The smallest headroom of all groups and the machine, if `taken` bytes could be given back;
    /// `None` if nothing is known.
    pub(super) fn room(&self, taken: u64) -> Option<Headroom> {
        let groups = self.groups.iter().filter_map(|group| group.room(taken));
        let machine = self.machine.as_ref().and_then(|file| {
            let text = read(file)?;
            let available = value(&text, "MemAvailable:")?.saturating_mul(1024);
            let all = available.saturating_add(taken);
            Some(Headroom::new(all, taken))
        });
        groups.chain(machine).reduce(|one, other| Headroom {
            to_stay: one.to_stay.min(other.to_stay),
            to_grow: one.to_grow.min(other.to_grow),
        })
    }
}

impl Headroom {
    /// Headroom below a `limit` in bytes when `used` bytes are taken.
    fn new(limit: u64, used: u64) -> Self {
        let left = |share: u64| {
            let mark = u128::from(limit) * u128::from(share) / 100;
            let mark = i64::try_from(mark).unwrap_or(i64::MAX);
            mark.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX))
        };
        Self {
            to_stay: left(STAY_SHARE),
            to_grow: left(GROW_SHARE),
        }
    }
}

impl ControlGroup {
    /// The group in `directory`, by the file names of version 2 or version 1.
    fn at(directory: &Path) -> Option<Self> {
        let open = |name: &str| File::open(directory.join(name)).ok();
        let group = |limit, usage, files| {
            Some(Self {
                limit: open(limit)?,
                usage: open(usage)?,
                stat: open("memory.stat")?,
                files,
            })
        };
        group(
            "memory.max",
            "memory.current",
            ["inactive_file", "active_file"],
        )
        .or_else(|| {
            group(
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            )
        })
    }

    fn room(&self, taken: u64) -> Option<Headroom> {
        let number = |file| read(file)?.trim().parse::<u64>().ok();
        // Without a limit the file contains `max`, or a number beyond all memory of the machine.
        let limit = number(&self.limit).filter(|limit| *limit < 1 << 62)?;
        let mut used = number(&self.usage)?;
        if used > limit / 2 {
            // The kernel frees its page cache by itself before any process lacks memory.
            let stat = read(&self.stat).unwrap_or_default();
            let files = self.files.iter().filter_map(|name| value(&stat, name));
            used = used.saturating_sub(files.sum());
        }
        let room = Headroom::new(limit, used);
        // Even if other processes take little, hot objects take no more than the share to grow to.
        let own = Headroom::new(limit, taken).to_grow;
        Some(Headroom {
            to_stay: room.to_stay.min(own),
            to_grow: room.to_grow,
        })
    }
}

/// The text of a kernel file, from its start; `None` if it cannot be read.
pub(super) fn read(file: &File) -> Option<String> {
    let mut bytes = [0; READ_MAX];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64).ok()? {
            0 => break,
            more => filled += more,
        }
    }
    Some(String::from_utf8_lossy(&bytes[..filled]).into_owned())
}

/// The number behind `name`, where a line of `text` starts with `name`.
pub(super) fn value(text: &str, name: &str) -> Option<u64> {
    let words = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    };
    text.lines().find_map(words)
}

/// The directories of the memory groups that a process is in, the innermost first, from
/// `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
fn directories(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // `4:memory:/path`, or `0::/path` in version 2.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let second = controllers.is_empty();
        if !second && controllers.split(',').all(|name| name != "memory") {
            continue;
        }
        let mounted = mounts.lines().find_map(|line| mounted(line, second));
        let Some((root, point)) = mounted else {
            continue;
        };
        // Inside a container, the mount's root may be below the top of the hierarchy.
        let Ok(below) = Path::new(path).strip_prefix(root) else {
            continue;
        };
        let depth = below.ancestors().count();
        found.extend(below.ancestors().take(depth).map(|part| point.join(part)));
    }
    found
}

/// Root and mount point from a `mountinfo` line, if groups that count memory are mounted there.
fn mounted(line: &str, second: bool) -> Option<(&Path, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let right = if second {
        kind == "cgroup2"
    } else {
        kind == "cgroup" && options.split(',').any(|option| option == "memory")
    };
    let mut before = before.split(' ').skip(3);
    let (root, point) = (before.next()?, before.next()?);
    right.then(|| (Path::new(root), PathBuf::from(point)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_process_are_found_from_the_innermost_out() {
        let first = "9:name=systemd:/\n4:memory:/a/b\n0::/\n";
        let mounts = "30 20 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n\
                      31 20 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n";
        let found = directories(first, mounts);
        let expected = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory/",
            "/sys/fs/cgroup/unified/",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn a_container_sees_its_groups_below_the_root_of_its_mount() {
        let mounts = "31 20 0:27 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            directories("0::/docker/x/inner\n", mounts),
            ["/sys/fs/cgroup/inner", "/sys/fs/cgroup/"].map(PathBuf::from)
        );
        assert!(directories("0::/elsewhere\n", mounts).is_empty());
    }

    #[test]
    fn text_that_is_no_such_text_is_nothing() {
        for text in ["", "\n", ":::", "4:memory", "0::", "nonsense", "1 2 3 - "] {
            directories(text, text);
            directories("0::/\n4:memory:/x\n", text);
        }
        for text in ["", "MemAvailable:", "MemAvailable: x", "MemAvailable: -1"] {
            assert_eq!(value(text, "MemAvailable:"), None, "{text}");
        }
    }

    #[test]
    fn room_is_what_is_left_of_the_share() {
        let room = Headroom::new(1000, 750);
        assert_eq!((room.to_stay, room.to_grow), (50, -50));
        let room = Headroom::new(u64::MAX, u64::MAX);
        assert!(room.to_stay <= 0);
    }

    /// A directory with the files of a group.
    fn group(
        version: u8,
        limit: &str,
        usage: u64,
        stat: &str,
    ) -> (tempfile::TempDir, ControlGroup) {
        let directory = tempfile::tempdir().unwrap();
        let names = match version {
            1 => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
            _ => ["memory.max", "memory.current"],
        };
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text);
        write(names[0], limit).unwrap();
        write(names[1], &format!("{usage}\n")).unwrap();
        write("memory.stat", stat).unwrap();
        let group = ControlGroup::at(directory.path()).unwrap();
        (directory, group)
    }

    #[test]
    fn a_group_is_read_in_both_versions() {
        let (_kept, first) = group(1, "1000\n", 900, "total_inactive_file 200\nactive_file 9\n");
        let room = first.room(0).unwrap();
        assert_eq!((room.to_stay, room.to_grow), (100, 0));
        let (_kept, second) = group(2, "1000\n", 900, "active_file 50\ninactive_file 50\n");
        let room = second.room(0).unwrap();
        assert_eq!((room.to_stay, room.to_grow), (0, -100));
        for unlimited in ["max\n", "9223372036854771712\n"] {
            let (_kept, group) = group(2, unlimited, 900, "");
            assert_eq!(group.room(0), None);
        }
    }

    #[test]
    fn what_is_hot_keeps_below_its_share_of_a_group_whoever_else_is_there() {
        let (_kept, group) = group(2, "1000\n", 750, "");
        assert_eq!(group.room(740).unwrap().to_stay, -40);
        assert_eq!(group.room(600).unwrap().to_stay, 50);
    }

    #[test]
    fn this_machine_has_room_for_a_byte() {
        let room = SystemMemory::of_this_process().room(0).unwrap();
        assert!(room.to_stay > 0);
    }
}
