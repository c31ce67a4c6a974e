//! A child and its parent over a link: bytes, damage, kills, privacy, Squid as the parent.

#[test]
fn a_link_saves_bytes_survives_kills_and_damage_and_keeps_what_is_private() {
    // Without `cpu`, which needs an optimised build and a cgroup, and without `pages`, which
    // measures seconds.
    let sections = "content,chunks,damage,kills,privacy,parents,shedding";
    super::passed(super::campaign("wan").args(["--only", sections]), 34);
}

#[test]
fn without_squid_the_section_fails_and_says_what_to_install() {
    let without = ["--only", "parents", "--squid", "/nowhere/squid"];
    super::fails(
        super::campaign("wan").args(without),
        "apt-get install squid",
    );
}
