//! Control groups of version 1, where a group may hold both processes and groups.
//!
//! Used to count and limit the memory of a process and its operations on a disk. Invariant: each
//! group lies below the group of this process, so it changes no other process's share, and is
//! removed when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

/// A group of one controller.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// A group that counts memory, page cache included. Needs root.
    pub fn memory() -> anyhow::Result<Self> {
        Self::make("memory")
    }

    /// A group that limits operations on disks. Needs root.
    pub fn blkio() -> anyhow::Result<Self> {
        Self::make("blkio")
    }

    fn make(controller: &str) -> anyhow::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").context("no cgroups here")?;
        let own = own_group(&groups, controller).with_context(|| {
            format!("this system has no {controller} controller of cgroups version 1")
        })?;
        let name = format!("hashcache-{}-{}", std::process::id(), fastrand::u32(..));
        let directory = Path::new(CGROUPS).join(controller).join(own).join(name);
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {} (are we root?)", directory.display()))?;
        Ok(Self { directory })
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Limits its memory, page cache included; at the limit the kernel kills a process of the
    /// group.
    pub fn limit(&self, bytes: u64) -> anyhow::Result<()> {
        set(&self.directory, "memory.limit_in_bytes", &bytes.to_string())
    }

    /// Limits reads and writes of its processes on the disk with this `major:minor` to so many in a
    /// second; 0 removes the limits.
    pub fn limit_disk(&self, disk: &str, per_second: u32) -> anyhow::Result<()> {
        for operation in ["read", "write"] {
            let file = format!("blkio.throttle.{operation}_iops_device");
            set(&self.directory, &file, &format!("{disk} {per_second}"))?;
        }
        Ok(())
    }

    /// A row of `memory.stat` or `memory.oom_control`.
    pub fn count(&self, file: &str, row: &str) -> anyhow::Result<u64> {
        let path = self.directory.join(file);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.lines()
            .find_map(|line| line.strip_prefix(row)?.trim().parse().ok())
            .with_context(|| format!("no `{row}` in {}", path.display()))
    }

    /// The one number of a file.
    pub fn number(&self, file: &str) -> anyhow::Result<u64> {
        self.count(file, "")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel needs a moment after a process has ended. A group that remains after that
        // still has a process in it, which is a worse mistake than an empty directory.
        for _ in 0..LEAVE_LOOKS {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            thread::sleep(LEAVE_TIME);
        }
    }
}

/// Limits the writes on a disk that the kernel does in the root group: those of a file system's
/// journal, and of the page cache, which belong to no group in version 1. 0 removes the limit.
pub fn limit_kernel_writes(disk: &str, per_second: u32) -> anyhow::Result<()> {
    let root = Path::new(CGROUPS).join("blkio");
    let file = "blkio.throttle.write_iops_device";
    set(&root, file, &format!("{disk} {per_second}"))
}

/// Words to put before those of a command: a shell joins the group and becomes the command, so no
/// page of it is charged to another group.
pub fn enter(directory: &Path) -> [String; 4] {
    let enter = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
    let directory = directory.display().to_string();
    [
        "sh".to_owned(),
        "-c".to_owned(),
        enter.to_owned(),
        directory,
    ]
}

/// Takes this process into the group. What it has used so far stays charged to the group it leaves.
pub fn join(directory: &Path) -> anyhow::Result<()> {
    set(directory, "cgroup.procs", "0")
}

fn set(directory: &Path, file: &str, value: &str) -> anyhow::Result<()> {
    let file = directory.join(file);
    fs::write(&file, value).with_context(|| format!("cannot write {}", file.display()))
}

/// The group of a process for this controller, by its `/proc/PID/cgroup`.
fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        let has_it = controllers.split(',').any(|name| name == controller);
        has_it.then(|| path.trim_start_matches('/'))
    })
}

const CGROUPS: &str = "/sys/fs/cgroup";
const LEAVE_LOOKS: u32 = 100;
const LEAVE_TIME: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controller_has_a_group_of_its_own() {
        let groups = "7:blkio:/\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/\n";
        assert_eq!(own_group(groups, "memory"), Some("a/b"));
        assert_eq!(own_group(groups, "blkio"), Some(""));
        assert_eq!(own_group(groups, "cpuacct"), Some("c"));
        assert_eq!(own_group(groups, "pids"), None);
    }
}
