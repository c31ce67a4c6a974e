//! Debian's Squid and our proxy, each as the other's parent, sibling and child.

use serde_json::Value;

#[test]
fn squid_and_the_proxy_serve_each_other() {
    let output = super::campaign("squid")
        .args(["--short", "--json"])
        .output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let rows = report["rows"].as_array().expect("rows");
    let passed = rows.iter().filter(|row| row["verdict"] == "passed").count();
    // A campaign that ends early is no success.
    assert!(passed >= 35, "only {passed} rows passed:\n{said}");
}

#[test]
fn without_squid_the_campaign_fails_and_says_what_to_install() {
    let output = super::campaign("squid")
        .args(["--squid", "/nowhere/squid"])
        .output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("apt-get install squid"), "{said}");
}
