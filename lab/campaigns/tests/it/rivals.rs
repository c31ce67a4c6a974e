//! All measurements beside other caches, with tiny loads, and the page that they make.

#[test]
fn every_rival_that_is_installed_is_measured() {
    let needed = [
        "/dev/loop-control",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/blkio",
    ];
    // Where it cannot run there is one row, which says why. Hits need `wrk` too.
    let least = if super::can_mount(&needed) { 4 } else { 0 };
    super::passed(&mut super::campaign("rivals"), least);
}
