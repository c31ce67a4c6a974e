//! Three boxes behind Debian's HAProxy, one of which is killed and started again.

#[test]
fn three_boxes_survive_the_loss_of_one_and_fetch_as_little_as_one_box() {
    super::passed(&mut super::campaign("members"), 19);
}

#[test]
fn without_haproxy_the_campaign_fails_and_says_what_to_install() {
    let without = ["--haproxy", "/nowhere/haproxy"];
    super::fails(
        super::campaign("members").args(without),
        "apt-get install haproxy",
    );
}
