//! Three boxes behind Debian's HAProxy, one of which is killed and started again.

use serde_json::Value;

#[test]
fn three_boxes_survive_the_loss_of_one_and_fetch_as_little_as_one_box() {
    let output = super::campaign("members")
        .args(["--short", "--json"])
        .output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let rows = report["rows"].as_array().expect("rows");
    let passed = rows.iter().filter(|row| row["verdict"] == "passed").count();
    // A campaign that ends early is no success.
    assert!(passed >= 19, "only {passed} rows passed:\n{said}");
}

#[test]
fn without_haproxy_the_campaign_fails_and_says_what_to_install() {
    let output = super::campaign("members")
        .args(["--haproxy", "/nowhere/haproxy"])
        .output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("apt-get install haproxy"), "{said}");
}
