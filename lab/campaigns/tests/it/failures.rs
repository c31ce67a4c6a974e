//! A few cells of the failure matrix: what clients notice when a server behind the proxy breaks.

#[test]
fn clients_do_not_notice_that_a_server_breaks_while_another_way_is_left() {
    // A campaign without requests is no success.
    for row in super::passed(&mut super::campaign("failures"), 5) {
        let requests = row["figures"]["requests"].as_u64().unwrap_or_default();
        assert!(requests > 0, "{row}");
    }
}
