//! The layouts of WebCoSM on a file system whose disk is modelled.

use rustix::process::geteuid;

#[test]
fn every_layout_returns_what_was_put_on_a_modelled_disk() {
    // Without root there is one row, which says so.
    let least = if geteuid().is_root() { 10 } else { 0 };
    let small = ["--capacity", "8", "--requests", "1000"];
    super::passed(super::campaign("layouts").args(small), least);
}
