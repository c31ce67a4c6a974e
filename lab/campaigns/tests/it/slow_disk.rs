//! Servers on a disk that is modelled and takes its time.

use serde_json::Value;

#[test]
fn a_proxy_on_a_modelled_disk_reads_as_often_as_the_disk_can() {
    let needed = ["/dev/fuse", "/dev/loop-control", "/sys/fs/cgroup/memory"];
    if !super::can_mount(&[&needed[..], &["/sys/fs/cgroup/blkio"]].concat()) {
        return eprintln!("skipped: needs root, loop devices, FUSE and cgroups of version 1");
    }
    let only = "Polymix-4: hashcache, set-mem";
    let small = ["--memory", "96", "--working-set", "1", "--rounds", "1"];
    let output = super::campaign("slow-disk")
        .args(["--disk", "20", "--only", only, "--seconds", "3", "--json"])
        .args(small)
        .output()
        .expect("the campaigns can be run");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let figures = &report["rows"][0]["figures"];
    let count = |name: &str| figures[name].as_u64().expect("a count");
    assert_eq!(count("faults"), 0);
    // Operations a second. Without the model there would be thousands.
    let operations = count("reads_per_mille") + count("writes_per_mille");
    let each_second = count("requests_per_second") * operations / 1000;
    assert!((5..=60).contains(&each_second), "{each_second} {figures}");
}
