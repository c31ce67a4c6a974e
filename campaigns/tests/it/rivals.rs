//! All measurements beside other caches, with tiny loads, and the page that they make.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

#[test]
fn what_is_installed_is_measured_and_the_page_names_every_rival() {
    // Where it cannot run there is one row, which says why. Hits need `wrk` too.
    let least = if can_run() { 4 } else { 0 };
    super::passed(&mut super::campaign("rivals"), least);
}

fn can_run() -> bool {
    let works = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        let command = command
            .arg(argument)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let needed = [
        "/dev/loop-control",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/blkio",
    ];
    geteuid().is_root()
        && needed.into_iter().all(|path| Path::new(path).exists())
        && works("losetup", "--find")
        && works("mkfs.ext4", "-V")
}
