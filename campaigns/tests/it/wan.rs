//! A child and its parent over a link: bytes, damage, kills, privacy, Squid as the parent.

use serde_json::Value;

#[test]
fn a_link_saves_bytes_survives_kills_and_damage_and_keeps_what_is_private() {
    // Without `cpu`, which needs an optimised build and a cgroup, and without `pages`, which
    // measures seconds.
    let sections = "content,chunks,damage,kills,privacy,parents,shedding";
    let output = super::campaign("wan")
        .args(["--short", "--json", "--only", sections])
        .output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let rows = report["rows"].as_array().expect("rows");
    let passed = rows.iter().filter(|row| row["verdict"] == "passed").count();
    // A campaign that ends early is no success.
    assert!(passed >= 34, "only {passed} rows passed:\n{said}");
}

#[test]
fn without_squid_the_section_fails_and_says_what_to_install() {
    let output = super::campaign("wan")
        .args(["--only", "parents", "--squid", "/nowhere/squid"])
        .output();
    let output = output.expect("the campaigns can be run");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(told.contains("apt-get install squid"), "{told}");
}
