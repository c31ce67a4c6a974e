//! The layouts of WebCoSM on a file system whose disk is modelled.

#[test]
fn every_layout_returns_what_was_put_on_a_modelled_disk() {
    // Where it cannot run there is one row, which says why.
    let least = if can_run() { 10 } else { 0 };
    let small = ["--capacity", "8", "--requests", "1000"];
    super::passed(super::campaign("layouts").args(small), least);
}

pub fn can_run() -> bool {
    super::can_mount(&["/dev/fuse", "/dev/loop-control", "/sys/fs/cgroup/memory"])
}
