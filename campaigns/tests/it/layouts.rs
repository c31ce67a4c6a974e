//! The layouts of WebCoSM on a file system whose disk is modelled.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

#[test]
fn every_layout_returns_what_was_put_on_a_modelled_disk() {
    // Where it cannot run there is one row, which says why.
    let least = if can_run() { 10 } else { 0 };
    let small = ["--capacity", "8", "--requests", "1000"];
    super::passed(super::campaign("layouts").args(small), least);
}

pub fn can_run() -> bool {
    let works = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        let command = command
            .arg(argument)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let needed = ["/dev/fuse", "/dev/loop-control", "/sys/fs/cgroup/memory"];
    geteuid().is_root()
        && needed.into_iter().all(|path| Path::new(path).exists())
        && works("losetup", "--find")
        && works("mkfs.ext4", "-V")
}
