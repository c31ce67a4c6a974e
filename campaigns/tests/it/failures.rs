//! A few cells of the failure matrix: what clients notice when a server behind the proxy breaks.

use serde_json::Value;

#[test]
fn clients_do_not_notice_that_a_server_breaks_while_another_way_is_left() {
    let output = super::campaign("failures")
        .args(["--short", "--json"])
        .output();
    let output = output.expect("the campaigns can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let rows = report["rows"].as_array().expect("rows");
    let passed = rows.iter().filter(|row| row["verdict"] == "passed");
    // A campaign that ends early is no success, and neither is one without requests.
    assert!(passed.clone().count() >= 5, "{said}");
    for row in passed {
        let requests = row["figures"]["requests"].as_u64().unwrap_or_default();
        assert!(requests > 0, "{row}");
    }
}
