//! Debian's Squid and our proxy, each as the other's parent, sibling and child.

#[test]
fn squid_and_the_proxy_serve_each_other() {
    super::passed(&mut super::campaign("squid"), 35);
}

#[test]
fn without_squid_the_campaign_fails_and_says_what_to_install() {
    let without = ["--squid", "/nowhere/squid"];
    super::fails(
        super::campaign("squid").args(without),
        "apt-get install squid",
    );
}
